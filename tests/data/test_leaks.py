import random
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.graphs import graphs as some_graphs
from tests.graphs import hypergraph
from tokengt import Graph, GraphBatch, from_smiles
from tokengt.data.datasets import esol
from tokengt.data.leaks import graph_hashes, leaks, unseen_elements
from tokengt.data.splits import Split, random_split
from tokengt.interop.molecules import MoleculePolicy, canonical_smiles
from tokengt.testing import permute_graph


def _split(train: list[int], valid: list[int], test: list[int]) -> Split:
    return Split(*(torch.tensor(part, dtype=torch.int64) for part in (train, valid, test)))


def _molecules(smiles: list[str]) -> GraphBatch:
    return GraphBatch.collate([from_smiles(text) for text in smiles]).narrowed()


def _hash(graph: Graph, rounds: int = 3) -> int:
    return int(graph_hashes(GraphBatch.collate([graph]), rounds)[0])


def _renumbered(graph: Graph, seed: int) -> Graph:
    """The same graph with its nodes, edges and hyperedges in another order."""
    generator = torch.Generator().manual_seed(seed)
    counts = (graph.num_nodes, graph.num_edges, graph.num_hyperedges)
    return permute_graph(graph, *(torch.randperm(count, generator=generator) for count in counts))


@given(some_graphs(), st.integers(0, 1000))
def test_a_renumbered_graph_has_the_same_hash(graph: Graph, seed: int) -> None:
    assert _hash(_renumbered(graph, seed)) == _hash(graph)


def test_a_renumbered_hypergraph_has_the_same_hash_and_another_feature_another() -> None:
    graph = hypergraph()
    assert graph.hyperedge_features is not None
    assert _hash(_renumbered(graph, 3)) == _hash(graph)
    changed = Graph.from_hyperedges(
        [[0, 1], [1, 2, 3], [4], [0, 2, 3, 4, 5]],
        node_features=graph.node_features,
        hyperedge_features=graph.hyperedge_features + 1,
    )
    moved = Graph.from_hyperedges(
        [[0, 1], [1, 2, 4], [4], [0, 2, 3, 4, 5]],
        node_features=graph.node_features,
        hyperedge_features=graph.hyperedge_features,
    )
    assert len({_hash(graph), _hash(changed), _hash(moved)}) == 3


def test_what_differs_has_another_hash() -> None:
    """Direction, a repeated edge, an isolated node, one edge feature, one node feature, order of a triple."""

    def path(index: list[list[int]], nodes: int = 3, edge: float = 1.0, node: float = 0.0) -> Graph:
        features = torch.zeros(nodes, 1)
        features[0] = node
        return Graph(features, torch.tensor(index), torch.full((len(index[0]), 1), edge))

    alike = path([[0, 1], [1, 2]])
    different = [
        path([[0, 0], [1, 2]]),
        path([[1, 2], [0, 0]]),
        path([[0, 1, 1], [1, 2, 2]]),
        path([[0, 1], [1, 2]], nodes=4),
        path([[0, 1], [1, 2]], edge=2.0),
        path([[0, 1], [1, 2]], node=1.0),
        path([[0], [1], [2]]),
        path([[0], [0], [2]]),
    ]
    assert len({_hash(graph) for graph in (alike, *different)}) == 9
    assert _hash(path([[0, 1], [1, 2]], node=-0.0)) == _hash(alike)


def test_more_rounds_see_further() -> None:
    """A path of 24 nodes, two of them marked: three rounds cannot see that they are ten or eleven apart."""

    def marked(places: list[int]) -> Graph:
        features = torch.zeros(24, 1)
        features[places] = 1
        ends = torch.arange(23)
        both = torch.stack([torch.cat([ends, ends + 1]), torch.cat([ends + 1, ends])])
        return Graph(features, both)

    near, far = marked([5, 15]), marked([5, 16])
    assert _hash(near, 3) == _hash(far, 3)
    assert _hash(near, 16) != _hash(far, 16)
    packed = GraphBatch.collate([near, far]).narrowed()
    assert not leaks(packed, _split([0], [], [1]))


def test_leaks_are_counted_with_places() -> None:
    """Worked by hand: ethanol thrice in train, once in test; benzene in valid and test; pyridine in valid and train."""
    smiles = ["CCO", "C(C)O", "OCC", "c1ccncc1", "C1=CC=CC=C1", "n1ccccc1", "CC", "c1ccccc1", "C(O)C"]
    report = leaks(_molecules(smiles), _split([0, 1, 2, 3], [4, 5], [6, 7, 8]), smiles)
    assert report.counts == {("train", "valid"): 1, ("train", "test"): 1, ("valid", "test"): 1}
    assert report.examples == {
        ("train", "valid"): ((3, 5),),
        ("train", "test"): ((0, 8),),
        ("valid", "test"): ((4, 7),),
    }
    assert report.train_repeats == 2
    assert report.sentences() == [
        "1 of 2 valid molecules also stand in train (graph 5 = graph 3)",
        "1 of 3 test molecules also stand in train (graph 8 = graph 0)",
        "1 of 3 test molecules also stand in valid (graph 7 = graph 4)",
        "2 of 4 train molecules repeat an earlier one",
    ]
    assert report.sentences(torch.arange(9) + 2)[0].endswith("(line 7 = line 5)")


def test_a_clean_split_says_nothing() -> None:
    smiles = ["C", "CC", "CCC"]
    report = leaks(_molecules(smiles), _split([0], [1], [2]), smiles)
    assert not report
    assert report.sentences() == []


def test_places_outside_the_split_do_not_count() -> None:
    smiles = ["CC", "CC", "C"]
    assert not leaks(_molecules(smiles), _split([0], [], [2]), smiles)


def test_stereo_counts_unless_the_policy_drops_it() -> None:
    """L-alanine, D-alanine, and L-alanine spelt from its nitrogen, which turns @ into @@."""
    smiles = ["C[C@H](N)C(=O)O", "C[C@@H](N)C(=O)O", "N[C@@H](C)C(=O)O"]
    graphs, split = _molecules(smiles), _split([0], [1], [2])
    assert leaks(graphs, split, smiles).counts == {("train", "valid"): 0, ("train", "test"): 1, ("valid", "test"): 0}
    dropped = leaks(graphs, split, smiles, policy=MoleculePolicy(stereo="drop"))
    assert set(dropped.counts.values()) == {1}


def test_every_other_spelling_of_a_molecule_is_found() -> None:
    """The hash must find every pair, because canonical SMILES are compared for the candidates that it proposes only."""
    chem = pytest.importorskip("rdkit.Chem")
    random.seed(0)
    smiles = sorted({text for text in canonical_smiles(esol()[0][::4]) if text is not None})
    smiles += ["F/C=C/F", "F/C=C\\F", "C[C@H](N)C(=O)O", "[Na+].[Cl-]", "[NH4+]", "C1CC[C@@H]2CCCC[C@H]2C1"]
    again = [chem.MolToSmiles(chem.MolFromSmiles(text), doRandom=True) for text in smiles]
    count = len(smiles)
    report = leaks(
        _molecules(smiles + again), _split(list(range(count)), [], list(range(count, 2 * count))), smiles + again
    )
    assert report.counts["train", "test"] == count
    assert report.train_repeats == 0


def test_graph_features_tell_graphs_apart_but_not_molecules() -> None:
    base = from_smiles("CCO")
    graphs = [
        Graph(base.node_features, base.edge_index, base.edge_features, graph_features=torch.tensor([[value]]))
        for value in (1.0, 2.0)
    ]
    packed = GraphBatch.collate(graphs).narrowed()
    assert not leaks(packed, _split([0], [], [1]))
    assert leaks(packed, _split([0], [], [1]), ["CCO", "CCO"])


def test_unseen_elements() -> None:
    smiles = ["CCO", "CCN", "C[Si](C)(C)Br", "BrBr", "*C", "Clc1ccccc1", "Cl"]
    graphs = _molecules(smiles)
    assert unseen_elements(graphs, _split([0, 1], [2, 3, 4], [5])) == {"Si": 1, "Cl": 1, "Br": 2, "*": 1}
    assert unseen_elements(graphs, _split([0, 2, 4, 6], [1], [])) == {"N": 1}
    assert unseen_elements(graphs, _split([0], [], [])) == {}


def test_ten_thousand_molecules_take_no_loop() -> None:
    smiles = esol()[0]
    whole = _molecules(smiles)
    count = 10_000
    many = whole.select(torch.arange(count) % len(smiles)).narrowed()
    start = time.perf_counter()
    report = leaks(many, random_split(count, 0))
    assert time.perf_counter() - start < 4  # 0.3 s alone on one core
    # Every molecule occurs about nine times, so nearly all molecules of test also stand in train.
    assert report.counts["train", "test"] == len(random_split(count, 0).test)


def test_the_table_of_elements_is_that_of_rdkit() -> None:
    from rdkit.Chem import GetPeriodicTable

    from tokengt.data.leaks import _symbol

    assert [_symbol(row) for row in range(118)] == [GetPeriodicTable().GetElementSymbol(n) for n in range(1, 119)]
    assert _symbol(118) == "*"
