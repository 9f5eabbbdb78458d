"""The packed type: the same graphs in fewer bytes, with their facts, after they are selected or moved."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.graphs import graphs, hypergraph, odd_graphs, random_graph
from tokengt import Graph, GraphBatch
from tokengt import facts as facts
from tokengt.interop.molecules import pack_molecules
from tokengt.interop.smiles import batch_of_molecules, from_smiles
from tokengt.numbering import narrowed
from tokengt.ragged import Segments
from tokengt.structure.tuples import merge_directions, with_merged_edges

FIELDS = (
    "node_features",
    "edge_index",
    "edge_features",
    "hyperedge_nodes",
    "hyperedge_features",
    "graph_features",
)


def assert_same(found: GraphBatch, expected: GraphBatch) -> None:
    for name in ("nodes", "edges", "hyperedges", "members"):
        assert getattr(found, name).host.tolist() == getattr(expected, name).host.tolist(), name
    for name in FIELDS:
        ours, theirs = getattr(found, name), getattr(expected, name)
        assert (ours is None) == (theirs is None), name
        if ours is not None:
            assert ours.shape == theirs.shape
            assert torch.equal(ours.to(theirs.dtype), theirs), name
    assert found.edge_index.dtype == torch.int64
    assert found.hyperedge_nodes.dtype == torch.int64


def places(count: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, count - 1), min_size=1, max_size=12)


@given(places(len(odd_graphs())))
def test_gather_is_select(chosen: list[int]) -> None:
    batch = GraphBatch.collate(odd_graphs())
    assert_same(batch.narrowed().select(chosen), batch.select(chosen))


@given(st.lists(graphs(), min_size=1, max_size=6), st.data())
def test_gather_is_select_for_any_graphs(members: list[Graph], data: st.DataObject) -> None:
    batch = GraphBatch.collate(members)
    chosen = data.draw(places(len(members)))
    assert_same(batch.narrowed().select(torch.tensor(chosen)), batch.select(chosen))


@given(places(4))
def test_gather_is_select_for_hypergraphs(chosen: list[int]) -> None:
    members = [hypergraph(seed) for seed in range(3)]
    bare = Graph(hypergraph(9).node_features, hyperedge_features=torch.zeros(0, 3))
    batch = GraphBatch.collate([*members, bare])
    assert_same(batch.narrowed().select(chosen), batch.select(chosen))


def test_tuples_of_order_three() -> None:
    members = [Graph.from_hyperedges([[0, 1, 2], [1, 3]], node_features=torch.randn(4, 2), order=3) for _ in range(2)]
    batch = GraphBatch.collate(members)
    packed = batch.narrowed()
    assert packed.order == 3
    assert_same(packed.select([1, 0, 1]), batch.select([1, 0, 1]))


def test_what_is_known_of_graphs_and_nodes_comes_along() -> None:
    batch = GraphBatch.collate([Graph(torch.ones(n, 1).long(), graph_features=torch.tensor([[n / 2]])) for n in (1, 3)])
    packed = batch.narrowed().with_fact("f", torch.arange(4.0)[:, None])
    selected = packed.select([1, 0])
    assert selected.graph_features is not None
    assert selected.graph_features.tolist() == [[1.5], [0.5]]
    rows = selected.fact("f")
    assert rows is not None
    assert rows.flatten().tolist() == [1.0, 2.0, 3.0, 0.0]


def test_an_empty_choice_is_an_empty_batch() -> None:
    packed = GraphBatch.collate(odd_graphs()).narrowed()
    selected = packed.select(torch.empty(0, dtype=torch.int64))
    assert len(selected) == 0
    assert selected.num_nodes == selected.num_edges == 0


@pytest.mark.parametrize(
    "batch",
    [
        GraphBatch.collate(odd_graphs()),
        GraphBatch.collate([hypergraph(1), hypergraph(2)]),
        GraphBatch.collate([Graph(num_nodes=3), Graph(num_nodes=1)]),
        GraphBatch.collate([Graph(torch.ones(2, 3), graph_features=torch.ones(1, 2)) for _ in range(3)]),
    ],
)
def test_arrays_and_back(batch: GraphBatch) -> None:
    packed = batch.narrowed()
    arrays = packed.arrays()
    again = GraphBatch.from_arrays(arrays)
    assert again.arrays().keys() == arrays.keys()
    for name, tensor in arrays.items():
        assert again.arrays()[name].dtype == tensor.dtype
        assert torch.equal(again.arrays()[name], tensor)
    everything = list(range(len(batch)))
    assert_same(again.select(everything), batch)
    assert again.nbytes == sum(tensor.nbytes for tensor in arrays.values())
    assert_same(packed.to("cpu").select(everything), batch)


@pytest.mark.parametrize(
    ("nodes", "dtype"),
    [
        (255, torch.uint8),
        (256, torch.uint8),
        (257, torch.int16),
        (32768, torch.int16),
        (32769, torch.int32),
    ],
)
def test_node_numbers_in_the_narrowest_integers(nodes: int, dtype: torch.dtype) -> None:
    """The largest number is one below the count; neighbours in the batch do not widen it."""
    ends = torch.tensor([[0, nodes - 1, nodes - 1], [nodes - 1, 0, nodes - 1]])
    batch = GraphBatch.collate([Graph(num_nodes=nodes, edge_index=ends) for _ in range(3)])
    packed = batch.narrowed()
    assert packed.edge_numbers.local.dtype == dtype
    assert_same(packed.select([2, 0, 1]), batch.select([2, 0, 1]))
    sets = Graph(num_nodes=nodes, hyperedge_nodes=torch.tensor([0, nodes - 1]), hyperedge_offsets=torch.tensor([0, 2]))
    both = GraphBatch.collate([sets, sets])
    assert both.narrowed().member_numbers.local.dtype == dtype
    assert_same(both.narrowed().select([1, 0]), both)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([0, 255], torch.uint8),
        ([0, 256], torch.int16),
        ([-1, 255], torch.int16),
        ([-32768, 32767], torch.int16),
        ([0, 32768], torch.int32),
        ([-32769, 0], torch.int32),
        ([0, 2**31], torch.int64),
        ([], torch.uint8),
    ],
)
def test_narrowed_keeps_every_value(values: list[int], dtype: torch.dtype) -> None:
    tensor: Tensor = torch.tensor(values, dtype=torch.int64)
    assert narrowed(tensor).dtype == dtype
    assert narrowed(tensor).long().tolist() == values


def test_categories_beyond_a_byte_reach_the_model_unchanged() -> None:
    batch = GraphBatch.collate([Graph(torch.tensor([[0], [300]])), Graph(torch.tensor([[70000]]))])
    selected = batch.narrowed().select([1, 0])
    assert selected.node_features is not None
    assert selected.node_features.flatten().tolist() == [70000, 0, 300]
    assert selected.category_range("node_features") == ([0], [70000])


def test_molecules_are_the_graphs_of_their_smiles() -> None:
    texts = ["CCO", "c1ccccc1", "C", "[Na+].[Cl-]", "not one", "C#N"]
    packed = batch_of_molecules(pack_molecules(texts))
    expected = GraphBatch.collate([from_smiles(text) for text in texts if text != "not one"])
    assert_same(packed.select(torch.arange(5)), expected)


def test_one_graph_packs_like_many() -> None:
    graph = random_graph(7, 12, 3)
    packed = GraphBatch.collate([graph]).narrowed()
    assert len(packed) == 1
    assert_same(packed.select([0, 0]), GraphBatch.collate([graph, graph]))


def symmetric(graph: Graph, features_are: str) -> Graph:
    """Every edge and its reverse, shuffled, with the same features: floats, one of two categories, or none."""
    assert graph.edge_features is not None
    order = torch.randperm(2 * graph.num_edges, generator=torch.Generator().manual_seed(graph.num_edges))
    index = torch.cat([graph.edge_index, graph.edge_index.flip(0)], 1)[:, order]
    floats = graph.edge_features.repeat(2, 1)[order]
    features = {"floats": floats, "categories": (floats[:, :1] > 0).long(), "none": None}[features_are]
    return Graph(graph.node_features, index, features, num_nodes=graph.num_nodes)


@given(
    st.lists(graphs(max_nodes=4), min_size=1, max_size=6),
    st.sampled_from(["floats", "categories", "none"]),
    st.integers(1, 8),
    st.data(),
)
def test_merged_edges_are_those_of_each_graph(
    drawn: list[Graph], features_are: str, at_once: int, data: st.DataObject
) -> None:
    """Computed once for all graphs, in pieces of any size, they are what a loop over the graphs computes."""
    members = [symmetric(graph, features_are) for graph in drawn]
    packed = GraphBatch.collate(members).narrowed()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokengt.structure.tuples._EDGES_AT_ONCE", at_once)
        with_merged = with_merged_edges(packed)
    assert with_merged_edges(with_merged) is with_merged
    chosen = data.draw(places(len(members)))
    merged = with_merged.to("cpu").select(chosen).merged
    assert merged is not None
    first, of_edge, edges, tokens = [], [], 0, 0
    for place in chosen:
        of_graph = pair_off(members[place])
        count = max(of_graph, default=-1) + 1
        first += [edges + of_graph.index(token) for token in range(count)]
        of_edge += [tokens + token for token in of_graph]
        edges, tokens = edges + len(of_graph), tokens + count
    assert (merged.first.tolist(), merged.of_edge.tolist()) == (first, of_edge)
    assert merged.segments.total == tokens
    again = merge_directions(packed.select(chosen))
    assert (again.first.tolist(), again.of_edge.tolist()) == (first, of_edge)


def pair_off(graph: Graph) -> list[int]:
    """The token of every edge: an edge meets the first open one that runs the other way with the same features."""
    tokens: list[int] = []
    waiting: dict[tuple[object, ...], list[int]] = {}
    for edge, (u, v) in enumerate(graph.edge_index.T.tolist()):
        features = () if graph.edge_features is None else tuple(graph.edge_features[edge].tolist())
        partners = waiting.get((v, u, features), []) if u != v else []
        if partners:
            tokens.append(partners.pop(0))
        else:
            tokens.append(max(tokens, default=-1) + 1)
            waiting.setdefault((u, v, features), []).append(tokens[-1])
    return tokens


def test_merged_edges_belong_to_the_edges_they_were_found_in() -> None:
    pair = torch.tensor([[0, 1], [1, 0]])
    graph = Graph(edge_index=pair, edge_features=torch.tensor([[1], [1]]), num_nodes=2)
    packed = with_merged_edges(GraphBatch.collate([graph]).narrowed())
    batch = packed.select([0])
    assert batch.merged is not None
    assert batch.to("cpu").merged is not None
    other = torch.tensor([[1], [2]])
    assert replace(packed, edge_features=other).merged is None
    with pytest.raises(ValueError, match="has no equal on its reverse"):
        merge_directions(replace(batch, edge_features=other))


def test_directions_that_differ_are_named_by_their_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = torch.tensor([[0, 1], [1, 0]])
    good, bad = (Graph(edge_index=pair, edge_features=torch.tensor(f), num_nodes=2) for f in ([[1], [1]], [[1], [2]]))
    monkeypatch.setattr("tokengt.structure.tuples._EDGES_AT_ONCE", 2)
    with pytest.raises(ValueError, match="graph 2: edge_features row 0"):
        with_merged_edges(GraphBatch.collate([good, good, bad]).narrowed())


def test_a_fact_holds_of_the_edges_it_was_worked_out_from() -> None:
    """A fact survives other features, but not other edges, so that no model reads a stale one."""
    graph = Graph(edge_index=torch.tensor([[0, 1], [1, 2]]), num_nodes=3)
    batch = GraphBatch.collate([graph, graph]).with_fact("f", torch.arange(6.0))
    assert replace(batch, node_features=torch.ones(6, 1)).fact("f") is batch.fact("f")
    turned = replace(batch, edge_numbers=batch.edge_numbers.renumbered(batch.edge_index.flip(0)))
    assert turned.edge_index.tolist() == [[1, 2, 4, 5], [0, 1, 3, 4]]
    assert turned.fact("f") is None
    assert turned.select([1]).fact("f") is None
    assert turned.to("cpu").fact("f") is None
    assert batch.fact("g") is None
    for per, rows in (("graph", 2), ("node", 6), ("edge", 4), ("pair", 18)):
        with pytest.raises(ValueError, match=f"fact 'g' has 5 rows; expected {rows}: one row per {per}"):
            batch.with_fact("g", torch.zeros(5), per)  # type: ignore[arg-type]


def test_facts_come_along_with_their_graphs() -> None:
    """Rows of graphs, nodes, listed edges and pairs, through selections, moves and narrower numbers."""
    batch = GraphBatch.collate([random_graph(3, 2, 1), random_graph(1, 0, 2), random_graph(2, 5, 3)])
    counts = {"graph": [1, 1, 1], "node": [3, 1, 2], "edge": [2, 0, 5], "pair": [9, 1, 4]}
    for per, lengths in counts.items():
        rows = torch.arange(sum(lengths), dtype=torch.float32)[:, None]
        carried = batch.with_fact("f", rows, per).narrowed().to("cpu")  # type: ignore[arg-type]
        parts = rows.split(lengths)
        for chosen in ([2, 0], [1], [0, 0, 2]):
            found = carried.select(chosen).fact("f")
            assert found is not None
            assert torch.equal(found, torch.cat([parts[place] for place in chosen]))


def test_bounds_of_a_data_set_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds are read once, because on a GPU every reading makes the host wait."""
    reads = 0

    def counted(features: Tensor) -> object:
        nonlocal reads
        reads += 1
        return column_bounds(features)

    column_bounds = facts._column_bounds
    monkeypatch.setattr(facts, "_column_bounds", counted)
    graphs = GraphBatch.collate([Graph(torch.tensor([[n], [9]])) for n in range(4)]).narrowed()
    for batch in (graphs.select([0]), graphs.to("cpu").select([1, 2]).select([0]), graphs):
        assert batch.category_range("node_features") == ([0], [9])
    assert reads == 1


def test_selecting_moves_narrow_numbers_and_makes_wide_ones_once() -> None:
    batch = GraphBatch.collate([random_graph(5, 8, 1), random_graph(3, 4, 2)])
    cut = batch.narrowed().select([1, 0])
    assert cut.edge_numbers.local.dtype == torch.uint8
    assert cut.edge_index.dtype == torch.int64
    assert cut.edge_index is cut.edge_index
    assert torch.equal(cut.edge_numbers.packed[:, :4], cut.edge_numbers.local[:, :4].long())


def test_batches_can_be_copied_and_sent_to_other_processes() -> None:
    batch = with_merged_edges(GraphBatch.collate([random_graph(5, 8, 1, undirected=True)]).narrowed())
    batch = batch.with_fact("f", torch.arange(5.0))
    for copied in (copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))):
        assert_same(copied, batch)
        assert copied.merged is not None
        assert copied.fact("f") is not None


def test_all_graphs_in_their_order_are_the_batch_itself() -> None:
    """Training on the nodes of one graph selects it at every step: its features are not copied each time."""
    batch = GraphBatch.collate([Graph(torch.randn(2, 3)), Graph(torch.randn(4, 3))])
    assert batch.select([0, 1]) is batch
    assert batch.select(torch.tensor([True, True])) is batch
    assert torch.equal(batch.select([1, 0]).node_features, torch.cat([batch[1].node_features, batch[0].node_features]))


def test_numbers_of_rows_that_are_not_there_are_clamped() -> None:
    """Local numbers stay as they are; counted over the batch, none is beyond the last row."""
    batch = GraphBatch.collate([random_graph(9, 12, 1), random_graph(3, 4, 2)])
    entries, rows = Segments.from_lengths(torch.tensor([4, 3])), Segments.from_lengths(torch.tensor([3, 2]))
    places = torch.tensor([12, 13, 14, 15, 0, 1, 2])  # The edges of the second graph, and three of the first.
    plain = batch.edge_numbers.take(places, entries, rows)
    clamped = batch.edge_numbers.take(places, entries, rows, clamped=True)
    assert torch.equal(clamped.local, plain.local)
    assert torch.equal(clamped.packed, plain.packed.clamp(max=4))
    assert torch.equal(clamped.packed[:, :4], plain.packed[:, :4])
    none = batch.edge_numbers.take(places[:0], Segments.uniform(2, 0), rows, clamped=True)
    assert none.packed.shape == (2, 0)
