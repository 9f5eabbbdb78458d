"""Stronger inputs: walks, eigenpairs, rings and degrees on tokens; off by default, and worked out by hand here."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.effects import Effects
from tests.graphs import graphs, hypergraph, odd_graphs, random_graph, small_model, tokens_config
from tests.structure.graph_families import graph_of, path
from tests.training.stores import graph_store
from tokengt import (
    FeatureSpec,
    Graph,
    GraphBatch,
    IdentifierConfig,
    NoIds,
    StructureConfig,
    TokenGT,
    TokenGTConfig,
    TokensConfig,
)
from tokengt.config import from_dict, to_dict
from tokengt.data.store import Store
from tokengt.models.tokengt.identifiers import DrawSource
from tokengt.models.tokengt.structure import MOST_DEGREE, EigenpairSet, both_ways, ring_numbers, spread
from tokengt.presets import walks
from tokengt.structure.facts import fact_of, with_facts
from tokengt.structure.laplacian import laplacian_eigenvectors
from tokengt.testing import permute_graph

effects = Effects(StructureConfig)
ALL = StructureConfig(walks=5, eigenpairs=3, rings=6, degree=True)
EVERY = [
    StructureConfig(walks=4),
    StructureConfig(eigenpairs=4),
    StructureConfig(rings=8),
    StructureConfig(degree=True),
    ALL,
]


def test_every_setting_here_has_a_test_of_its_effect() -> None:
    assert effects.missing == []


def structured(structure: StructureConfig, *, layout: Any = "directed", ids: IdentifierConfig | None = None) -> TokenGT:
    return small_model(tokens=tokens_config(layout=layout), ids=ids, structure=structure, dtype=torch.float64)


def alike(graph: Graph) -> Graph:
    """With the features that the small model reads, the same everywhere: any edges can be two directions of one."""
    columns = torch.zeros(graph.num_nodes, 2, dtype=torch.int64)
    return Graph(columns, graph.edge_index, torch.ones(graph.num_edges, 3))


def shuffled(graph: Graph, seed: int) -> Graph:
    """The same graph with its nodes in another order, and its edges listed in another one."""
    generator = torch.Generator().manual_seed(seed)
    nodes, edges = (torch.randperm(count, generator=generator) for count in (graph.num_nodes, graph.num_edges))
    return permute_graph(graph, nodes, edges)


def test_a_config_without_them_is_the_file_that_it_was() -> None:
    """Saved models and runs of older versions read as before, and are written as before."""
    config = TokenGTConfig()
    assert "structure" not in to_dict(config)
    assert from_dict(TokenGTConfig, to_dict(config)) == config
    wanted = replace(config, structure=StructureConfig(walks=3, degree=True))
    assert to_dict(wanted)["structure"] == {"walks": 3, "eigenpairs": 0, "degree": True, "sign_flip": True}
    assert from_dict(TokenGTConfig, to_dict(wanted)) == wanted
    assert TokenGT(config).tokenizer.structure is None


def test_what_makes_no_sense_is_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"structure.walks is -1; expected 0 to 1,024"):
        StructureConfig(walks=-1)
    with pytest.raises(ValueError, match=r"structure.eigenpairs is 2000; expected 0 to 1,024"):
        StructureConfig(eigenpairs=2000)
    with pytest.raises(ValueError, match=r"structure.rings is 2; expected 0, or at least 3: no ring has fewer nodes"):
        StructureConfig(rings=2)
    for tokens in (TokensConfig(order=3), TokensConfig(order=1), TokensConfig(hyperedges=True)):
        for structure in EVERY:
            with pytest.raises(ValueError, match="for graphs whose edges join two nodes; leave them off"):
                TokenGT(TokenGTConfig(tokens=tokens, structure=structure))
    assert TokenGT(TokenGTConfig(tokens=TokensConfig(order=3))).tokenizer.structure is None


def terms(model: TokenGT, batch: GraphBatch) -> tuple[Tensor, Tensor]:
    """What structure adds to node and edge tokens: the difference to the tokens of the same model without it."""
    bare = TokenGT(replace(model.config, structure=StructureConfig())).to(next(model.parameters())).eval()
    bare.load_state_dict({name: value for name, value in model.state_dict().items() if "structure" not in name})
    signed = model.config.structure.eigenvectors(batch, DrawSource())
    with torch.no_grad():
        found, plain = model.tokenizer(batch, None, eigenvectors=signed), bare.tokenizer(batch, None)
    difference = found.values - plain.values
    return difference[found.node_rows], difference[found.token_rows]


@effects.of(StructureConfig, "walks")
@pytest.mark.parametrize("layout", ["directed", "undirected"])
def test_walks_of_a_path_by_hand(layout: Any) -> None:
    """Path 0 - 1 - 2, two steps: P = [[0, 1, 0], [1/2, 0, 1/2], [0, 1, 0]], P^2_uv = 0 between neighbours."""
    model = structured(StructureConfig(walks=2), layout=layout)
    batch = GraphBatch.collate([alike(path(3))])
    nodes, edges = terms(model, batch)
    encoder = model.tokenizer.structure
    assert encoder is not None
    assert encoder.node_walks is not None
    assert encoder.edge_walks is not None
    diagonal = torch.tensor([[0.0, 0.5], [0, 1], [0, 0.5]]).double()
    torch.testing.assert_close(nodes, encoder.node_walks(torch.log(1 + 100 * diagonal)).detach())
    # An end goes to the middle for sure, and the middle to an end every second time.
    out, back = [1.0, 0.0, 0.5, 0.0], [0.5, 0.0, 1.0, 0.0]
    ways = {(0, 1): out, (1, 0): back, (2, 1): out, (1, 2): back}
    listed = [tuple(pair) for pair in batch.edge_index.T.tolist()]
    read = [ways[pair] for pair in listed] if layout == "directed" else [out, out]
    torch.testing.assert_close(edges, encoder.edge_walks(torch.log(1 + 100 * torch.tensor(read).double())).detach())


def test_walks_of_a_triangle_by_hand() -> None:
    """P = (J - I) / 2: back with 0, 1/2, 1/4, 3/8; to a given neighbour with 1/2, 1/4, 3/8, 5/16."""
    triangle = Graph(edge_index=torch.tensor([[0, 1, 2, 1, 2, 0], [1, 2, 0, 0, 1, 2]]), num_nodes=3)
    batch = with_facts(GraphBatch.collate([triangle]), StructureConfig(walks=4, degree=True).facts())
    assert batch.fact("walks-4") is not None
    assert batch.fact("walks-4").tolist() == [[0, 0.5, 0.25, 0.375]] * 3  # type: ignore[union-attr]
    assert batch.fact("edge-walks-4").tolist() == [[0.5, 0.25, 0.375, 0.3125] * 2] * 6  # type: ignore[union-attr]
    assert batch.fact("degrees").tolist() == [2, 2, 2]  # type: ignore[union-attr]


@effects.of(StructureConfig, "rings")
@pytest.mark.parametrize("layout", ["directed", "undirected"])
def test_rings_of_a_triangle_with_a_tail_by_hand(layout: Any) -> None:
    """Triangle 0 - 1 - 2 with node 3 at node 2: one ring of three through three nodes and three edges."""
    model = structured(StructureConfig(rings=5), layout=layout)
    batch = GraphBatch.collate([alike(graph_of([(0, 1), (1, 2), (0, 2), (2, 3)], 4))])
    nodes, edges = terms(model, batch)
    encoder = model.tokenizer.structure
    assert encoder is not None
    assert encoder.node_rings is not None
    assert encoder.edge_rings is not None
    on, off = torch.zeros(2, 8).double()
    on[0] = math.log(2)
    torch.testing.assert_close(nodes, encoder.node_rings(torch.stack([on, on, on, off])).detach())
    torch.testing.assert_close(edges, encoder.edge_rings(torch.stack([on, on, on, off])).detach())


def test_counts_of_rings_are_logarithms_and_the_nodes_of_long_ones_a_number() -> None:
    read = ring_numbers(torch.tensor([[1, 0, 0, 3, 0, 0, 2, 25]]), torch.ones(()))
    torch.testing.assert_close(read, torch.tensor([[math.log(2), 0, 0, math.log(4), 0, 0, math.log(3), 2.5]]))


def test_probabilities_are_spread() -> None:
    """Zero stays zero, the order stays, and a hundredth more counts where there is little."""
    found = spread(torch.tensor([0.0, 0.01, 0.3, 0.33, 1.0]))
    torch.testing.assert_close(found, torch.log(torch.tensor([1.0, 2, 31, 34, 101])))


@given(graphs())
def test_one_token_for_both_directions_loses_only_the_direction(graph: Graph) -> None:
    """The larger probability is for every number of steps that of the same end, so the pair can be told back."""
    batch = GraphBatch.collate([graph])
    steps = fact_of(batch, StructureConfig(walks=5).facts()[1])
    there, back = steps.chunk(2, 1)
    larger, smaller = both_ways(steps, "undirected").chunk(2, 1)
    turned = torch.cat([back, there], 1)
    assert torch.equal(both_ways(turned, "undirected"), both_ways(steps, "undirected"))
    assert torch.equal(both_ways(steps, "directed"), steps)
    degree = fact_of(batch, StructureConfig(degree=True).facts()[0])
    forward = degree[batch.edge_index[0]] <= degree[batch.edge_index[1]]
    torch.testing.assert_close(torch.where(forward[:, None], there, back), larger, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(torch.where(forward[:, None], back, there), smaller, rtol=1e-6, atol=1e-7)


@effects.of(StructureConfig, "degree")
def test_degrees_have_their_rows_and_large_ones_share_the_last() -> None:
    star = alike(Graph(edge_index=torch.stack([torch.zeros(80), torch.arange(1, 81)]).long(), num_nodes=81))
    # Node 0 of this one has a loop and a repeated edge, which count once each; node 2 has no neighbour.
    odd = alike(Graph(edge_index=torch.tensor([[0, 0, 1, 0], [0, 1, 0, 1]]), num_nodes=3))
    model = structured(StructureConfig(degree=True))
    nodes, edges = terms(model, GraphBatch.collate([star, odd]))
    encoder = model.tokenizer.structure
    assert encoder is not None
    assert encoder.degrees is not None
    expected = encoder.degrees.weight.detach()[[MOST_DEGREE, *[1] * 80, 2, 1, 0]]
    torch.testing.assert_close(nodes, expected)
    torch.testing.assert_close(edges, torch.zeros_like(edges))


@effects.of(StructureConfig, "eigenpairs")
def test_a_set_of_eigenpairs_by_hand() -> None:
    """rho of a sum over pairs, without those that a small graph does not have; on an edge, both of its nodes."""
    batch = GraphBatch.collate([alike(path(3)), alike(path(6)), alike(Graph(num_nodes=1))])
    for layout in ("directed", "undirected"):
        model = structured(StructureConfig(eigenpairs=4), layout=layout)
        nodes, edges = terms(model, batch)
        encoder = model.tokenizer.structure
        assert encoder is not None
        assert encoder.pairs is not None
        assert encoder.ends is not None
        spectrum, expected = laplacian_eigenvectors(batch, 4), []
        for node, graph in enumerate(batch.nodes.ids.tolist()):
            size, total = int(batch.nodes.lengths[graph]), torch.zeros(32).double()
            for place in range(min(4, size)):
                pair = [size**0.5 * spectrum.vectors[node, place], spectrum.values[graph, place] - 1]
                total = total + encoder.pairs.phi(torch.stack(pair))
            expected.append(encoder.pairs.norm(encoder.pairs.rho(total)))
        by_hand = torch.stack(expected).detach()
        torch.testing.assert_close(nodes, by_hand, rtol=1e-5, atol=1e-5)
        index = model.tokenizer(batch, None, eigenvectors=spectrum.vectors).tuples
        one, other = (encoder.ends.weight[:24], encoder.ends.weight[-24:])
        ends = by_hand[index[:, 0]] @ one.T + by_hand[index[:, 1]] @ other.T
        torch.testing.assert_close(edges, ends.detach(), rtol=1e-5, atol=1e-5)


def test_the_set_begins_with_nothing_to_say() -> None:
    """A model starts as the one without eigenpairs, and its gain has a gradient from the first step on."""
    model = TokenGT(TokenGTConfig(dim=16, structure=StructureConfig(eigenpairs=3)))
    batch = GraphBatch.collate([path(4)])
    nodes, _ = terms(model.eval(), batch)
    assert torch.equal(nodes, torch.zeros_like(nodes))
    model(batch).sum().backward()
    (pairs,) = (module for module in model.modules() if isinstance(module, EigenpairSet))
    assert pairs.norm.weight.grad is not None
    assert float(pairs.norm.weight.grad.abs().min()) > 0
    # What is normalised is no rounding: its spread is far above the norm's epsilon.
    encoded = pairs.rho(pairs.phi(torch.randn(50, 3, 2)).sum(1)).detach()
    assert float(encoded.var(1, unbiased=False).median()) > 1e-3


@effects.of(StructureConfig, "sign_flip")
def test_signs_are_drawn_in_training_and_canonical_at_evaluation() -> None:
    model = structured(StructureConfig(eigenpairs=4), ids=NoIds())
    graph = random_graph(7, 9, 3, undirected=True)
    assert model.has_draws
    assert torch.equal(model(graph), model(graph))
    drawn = {float(model(graph, draw=draw).detach()[0, 0]) for draw in range(6)}
    assert len(drawn) > 1
    model.train()
    assert len({float(model(graph).detach()[0, 0]) for _ in range(8)}) > 1
    structure = model.config.structure
    batch = GraphBatch.collate([graph])
    found = structure.eigenvectors(batch, DrawSource(training=True))
    canonical = structure.eigenvectors(batch, DrawSource())
    assert found is not None
    assert canonical is not None
    ratio = (found * canonical).sum(0)
    torch.testing.assert_close(ratio.abs(), torch.ones_like(ratio))
    assert not structured(StructureConfig(walks=2), ids=NoIds()).has_draws
    fixed = structured(StructureConfig(eigenpairs=4, sign_flip=False), ids=NoIds()).train()
    assert torch.equal(fixed(graph), fixed(graph))


def test_signs_are_fixed_where_all_nodes_are_in_one_graph() -> None:
    """Its nodes could not be recognised under changing signs; so it is with Laplacian identifiers."""
    wanted = replace(TokenGTConfig(), structure=StructureConfig(eigenpairs=4))
    one, two = [alike(path(4))], [alike(path(4)), alike(path(5))]
    assert not wanted.fit(graph_store(one, "node"), 1).structure.sign_flip
    assert wanted.fit(graph_store(two, "node"), 1).structure == wanted.structure
    assert wanted.fit(graph_store(one, "graph"), 1).structure == wanted.structure
    assert TokenGTConfig().fit(graph_store(one, "node"), 1).structure == StructureConfig()
    with pytest.raises(ValueError, match=r"structure.sign_flip is false, and there are no signs"):
        StructureConfig(walks=3, sign_flip=False)


@given(st.lists(graphs(), min_size=1, max_size=4), st.sampled_from(["directed", "undirected"]), st.integers(0, 99))
def test_predictions_do_not_depend_on_the_order_of_nodes_and_edges(
    members: list[Graph], layout: Any, seed: int
) -> None:
    """Any graphs: isolated nodes, self-loops, repeated and one-way edges; with walks and degrees, no identifiers."""
    model = structured(StructureConfig(walks=4, degree=True), layout=layout, ids=NoIds())
    members = [Graph(g.node_features, g.edge_index, torch.ones(g.num_edges, 3)) for g in members]
    found = model(GraphBatch.collate([shuffled(graph, seed) for graph in members]))
    torch.testing.assert_close(found, model(GraphBatch.collate(members)), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("structure", EVERY, ids=str)
@pytest.mark.parametrize("layout", ["directed", "undirected"])
def test_odd_graphs_alone_and_together(structure: StructureConfig, layout: Any) -> None:
    """One node, no edges, loops, repeats: finite, and the same in any company."""
    model = structured(structure, layout=layout)
    odd = [Graph(g.node_features, g.edge_index, torch.ones(g.num_edges, 3)) for g in odd_graphs()]
    together = model(GraphBatch.collate(odd))
    assert bool(torch.isfinite(together).all())
    torch.testing.assert_close(together, torch.cat([model(graph) for graph in odd]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("layout", ["directed", "undirected"])
def test_kept_facts_give_what_is_computed_on_the_spot(layout: Any, tmp_path: Path) -> None:
    """From memory, from a store's folder, selected in another order."""
    model = structured(ALL, layout=layout)
    batch = GraphBatch.collate([random_graph(n, 2 * n, n, undirected=True) for n in (5, 1, 9, 30)])
    expected = model(batch.select([3, 0, 1]))
    carried = with_facts(batch.narrowed(), model.config.facts()).select([3, 0, 1])
    torch.testing.assert_close(model(carried), expected, rtol=1e-6, atol=1e-6)
    store = Store.from_memory(batch, torch.zeros(4, 1), target_names=("y",))
    kept = replace(store, folder=tmp_path)
    for _ in range(2):
        graphs = kept.with_facts(model.config.facts(), progress=False).graphs
        torch.testing.assert_close(model(graphs.select([3, 0, 1])), expected, rtol=1e-6, atol=1e-6)
    names = {"edge-walks-5", "walks-5", "edge-rings-6", "rings-6", "degrees"}
    names |= {"eigenvalues-lowest-3", "laplacian-lowest-3", "laplacian-lowest-5"}
    assert {file.stem for file in tmp_path.rglob("*.safetensors")} == names


def test_every_weight_learns() -> None:
    """No part is left without a gradient when there are edges; gains of zero are gone after the first step."""
    model = structured(ALL, layout="directed").train()
    model(GraphBatch.collate([random_graph(8, 12, 1)])).square().sum().backward()
    assert model.tokenizer.structure is not None
    for name, parameter in model.tokenizer.structure.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().max()) > 0, name


def test_what_is_said_of_a_model() -> None:
    described = replace(TokenGTConfig(), structure=ALL).describe()
    assert described.details["structure"] == "5 walk steps, 3 eigenpairs, rings of up to 6 nodes, degrees"
    assert "laplacian 16, 5 walk steps, 3 eigenpairs, rings of up to 6 nodes, degrees" in described.summary
    assert "structure" not in TokenGTConfig().describe().details


def test_a_hypergraph_is_refused_by_its_own_sentence() -> None:
    model = small_model(tokens=tokens_config(), structure=ALL)
    with pytest.raises(ValueError, match="4 hyperedges; this model was built without"):
        model(hypergraph())


def test_the_presets_have_the_sizes_they_are_named_for() -> None:
    """ZINC's models are compared below 500,000 parameters, with its 28 kinds of atoms and 4 of bonds."""
    small, large = walks(), walks(large=True)
    atoms, bonds = FeatureSpec(categories=(28,)), FeatureSpec(categories=(4,))
    fitted = replace(small, tokens=replace(small.tokens, node_features=atoms, edge_features=bonds))
    counts = [sum(p.numel() for p in TokenGT(each).parameters()) for each in (fitted, large)]
    assert 350_000 < counts[0] < 500_000
    assert 4_000_000 < counts[1] < 6_000_000
    for each in (small, large):
        # Whole steps can be recorded on a GPU.
        assert TokenGT(each).sequence_rule() is not None
        assert each.tokens.layout == "undirected"
