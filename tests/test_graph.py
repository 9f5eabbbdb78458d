import copy
import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.graphs import graphs, hypergraph, odd_graphs, random_graph
from tokengt import Graph, GraphBatch


def assert_same(found: Graph, expected: Graph) -> None:
    assert found.num_nodes == expected.num_nodes
    for name in (
        "node_features",
        "edge_index",
        "edge_features",
        "hyperedge_nodes",
        "hyperedge_offsets",
        "hyperedge_features",
    ):
        mine, theirs = getattr(found, name), getattr(expected, name)
        assert (mine is None) == (theirs is None), name
        if mine is not None:
            assert torch.equal(mine, theirs), name


def test_collate_shifts_indices() -> None:
    g = Graph(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
    h = Graph(edge_index=torch.tensor([[2], [0]]), num_nodes=3)
    batch = GraphBatch.collate([g, h])
    assert batch.edge_index.tolist() == [[0, 1, 4], [1, 0, 2]]
    assert (batch.num_graphs, batch.num_nodes, batch.num_edges) == (2, 5, 3)
    assert batch.nodes.ids.tolist() == [0, 0, 1, 1, 1]


@given(st.lists(graphs(), min_size=1, max_size=5))
def test_unbatch_undoes_collate(members: list[Graph]) -> None:
    for graph, expected in zip(GraphBatch.collate(members).unbatch(), members, strict=True):
        assert_same(graph, expected)


@given(st.lists(graphs(), min_size=1, max_size=5), st.data())
def test_select_is_collate_of_the_chosen(members: list[Graph], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(-len(members), len(members) - 1), min_size=1, max_size=6))
    selected = GraphBatch.collate(members).select(chosen)
    expected = GraphBatch.collate([members[i] for i in chosen])
    assert torch.equal(selected.edge_index, expected.edge_index)
    for mine, theirs in zip(selected, expected, strict=True):
        assert_same(mine, theirs)


def test_hypergraphs_collate_select_and_unbatch() -> None:
    members = [hypergraph(0), hypergraph(1)]
    batch = GraphBatch.collate(members)
    assert batch.hyperedge_nodes.tolist() == [0, 1, 1, 2, 3, 4, 0, 2, 3, 4, 5, 6, 7, 7, 8, 9, 10, 6, 8, 9, 10, 11]
    for mine, theirs in zip(batch.select([1, 0]), reversed(members), strict=True):
        assert_same(mine, theirs)


def test_small_hyperedges_become_all_orderings() -> None:
    features = torch.tensor([[20.0], [30.0], [10.0], [40.0], [25.0]])
    graph = Graph.from_hyperedges(
        [[0, 1], [2, 0, 1], [3], [0, 1, 2, 3], [2, 3]], hyperedge_features=features, num_nodes=4, order=3
    )
    assert graph.order == 3
    tuples = [tuple(column) for column in graph.edge_index.T.tolist()]
    assert {t for t in tuples if set(t) == {0, 1}} == {
        (0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)
    }  # fmt: skip
    assert sum(set(t) == {0, 1, 2} for t in tuples) == 6
    assert (3, 3, 3) in tuples
    assert len(tuples) == 19
    assert graph.hyperedge_nodes.tolist() == [0, 1, 2, 3]
    # Every tuple has the features of the hyperedge that it came from, and the large one keeps its own.
    assert graph.edge_features is not None
    of_set = {(0, 1): 20.0, (0, 1, 2): 30.0, (3,): 10.0, (2, 3): 25.0}
    assert graph.edge_features.flatten().tolist() == [of_set[tuple(sorted(set(t)))] for t in tuples]
    assert graph.hyperedge_features is not None
    assert graph.hyperedge_features.tolist() == [[40.0]]


def test_extras_travel() -> None:
    graph = Graph(num_nodes=2, extras={"name": "water"})
    batch = GraphBatch.collate([graph, Graph(num_nodes=1)])
    assert batch[0].extras["name"] == "water"
    assert batch.select([1, 0])[1].extras["name"] == "water"


def test_a_graph_moved_to_a_device_keeps_all_it_has() -> None:
    graph = Graph(
        torch.ones(3, 2),
        torch.tensor([[0, 1], [1, 2]]),
        torch.rand(2, 1),
        hyperedge_nodes=torch.tensor([0, 2]),
        hyperedge_offsets=torch.tensor([0, 2]),
        hyperedge_features=torch.rand(1, 4),
        graph_features=torch.rand(1, 5),
        extras={"name": "water", "pos": torch.rand(3, 3)},
    )
    there = graph.to(torch.device("cpu"))
    assert_same(there, graph)
    assert torch.equal(there.graph_features, graph.graph_features)
    assert there.extras == graph.extras
    assert there.extras["name"] == "water"


def test_graph_is_frozen() -> None:
    with pytest.raises(AttributeError):
        random_graph(3, 2).num_nodes = 5  # type: ignore[misc]


def test_a_graph_without_edges_may_lack_edge_features() -> None:
    bare = Graph(torch.zeros(2, 2, dtype=torch.int64))
    batch = GraphBatch.collate([bare, random_graph(3, 4), bare])
    assert batch.edge_features is not None
    assert batch.edge_features.shape == (4, 3)


def test_hundred_thousand_nodes_move_as_one() -> None:
    big = Graph(edge_index=torch.randint(0, 100_000, (2, 300_000)), num_nodes=100_000)
    batch = GraphBatch.collate([big, big])
    assert torch.equal(batch.select([1])[0].edge_index, big.edge_index)


def test_select_takes_a_mask_and_refuses_what_is_no_index() -> None:
    batch = GraphBatch.collate([Graph(num_nodes=n) for n in (1, 2, 3)])
    assert [g.num_nodes for g in batch.select(torch.tensor([True, False, True]))] == [1, 3]
    for wrong in (torch.tensor([1.9]), torch.tensor([True]), torch.tensor(1), torch.tensor([[0]])):
        with pytest.raises(ValueError, match=r"select needs a list of integers or 3 booleans"):
            batch.select(wrong)


def test_ranges_of_categories_belong_to_their_features() -> None:
    batch = GraphBatch.collate([Graph(torch.tensor([[0]])), Graph(torch.tensor([[5]]))])
    cut = batch.select([0])
    assert cut.category_range("node_features") == ([0], [5])
    assert replace(cut, node_features=torch.tensor([[9]])).category_range("node_features") == ([9], [9])
    assert batch.category_range("node_features") == ([0], [5])


BAD_GRAPHS: dict[str, tuple[Callable[[], object], str]] = {
    "index": (
        lambda: Graph(torch.zeros(3, 1), torch.tensor([[0, 1], [1, 3]])),
        r"edge_index column 1 names node 3; expected 0 to 2",
    ),
    "negative": (lambda: Graph(torch.zeros(3, 1), torch.tensor([[-1], [0]])), r"column 0 names node -1"),
    "float index": (
        lambda: Graph(torch.zeros(3, 1), torch.zeros(2, 1)),
        r"edge_index must hold integers, got float32",
    ),
    "transposed": (
        lambda: Graph(num_nodes=20, edge_index=torch.zeros(9, 2, dtype=torch.int64)),
        r"edge_index must have shape \[2, edges\], or \[k, tuples\] with k up to 8, got \[9, 2\]; did you mean its",
    ),
    "order": (lambda: Graph.from_hyperedges([[0, 1]], num_nodes=2, order=12), r"order is 12; expected 2 to 8"),
    "shape": (lambda: Graph(torch.zeros(3, 1), torch.zeros(4, dtype=torch.int64)), r"edge_index must have shape"),
    "rows": (
        lambda: Graph(torch.zeros(3, 1), torch.tensor([[0], [1]]), torch.zeros(2, 1)),
        r"edge_features has 2 rows; expected 1",
    ),
    "nan": (
        lambda: Graph(torch.tensor([[0.0, 1.0], [2.0, float("nan")]])),
        r"node_features row 1, column 1 is nan; expected a finite number",
    ),
    "infinite": (
        lambda: Graph(torch.zeros(2, 1), torch.tensor([[0], [1]]), torch.tensor([[float("inf")]])),
        r"edge_features row 0, column 0 is inf",
    ),
    "bool": (lambda: Graph(torch.ones(2, 2, dtype=torch.bool)), r"node_features must hold integers .* got bool"),
    "one-dimensional": (lambda: Graph(torch.zeros(2)), r"node_features must have shape \[2, columns\]"),
    "empty": (lambda: Graph(torch.zeros(0, 3)), r"the graph is empty; expected at least one node"),
    "no size": (lambda: Graph(), r"a graph without node_features needs num_nodes"),
    "sizes differ": (lambda: Graph(torch.zeros(2, 1), num_nodes=3), r"2 rows but num_nodes is 3"),
    "device": (
        lambda: Graph(torch.zeros(2, 1), torch.zeros(2, 1, dtype=torch.int64, device="meta")),
        r"one device, got cpu and meta",
    ),
    "repeated member": (lambda: Graph.from_hyperedges([[0, 0]], num_nodes=2), r"hyperedge 0 is \[0, 0\]"),
    "far member": (lambda: Graph.from_hyperedges([[0, 7]], num_nodes=2), r"names node 7"),
    "twice in a set": (
        lambda: Graph(num_nodes=2, hyperedge_nodes=torch.tensor([0, 0]), hyperedge_offsets=torch.tensor([0, 2])),
        r"hyperedge 0 holds node 0 twice",
    ),
    "offsets": (
        lambda: Graph(num_nodes=2, hyperedge_nodes=torch.tensor([0, 1]), hyperedge_offsets=torch.tensor([0, 1])),
        r"hyperedge_offsets must be integers that rise from 0 to 2",
    ),
    "mixed kinds": (
        lambda: GraphBatch.collate([Graph(torch.zeros(2, 2)), Graph(torch.zeros(2, 2, dtype=torch.int64))]),
        r"graph 1: node_features is 2 categories \(int64\); expected 2 floats \(float32\) as in graph 0",
    ),
    "mixed widths": (
        lambda: GraphBatch.collate([Graph(torch.zeros(2, 2)), Graph(torch.zeros(2, 3))]),
        r"graph 1: node_features is 3 floats",
    ),
    "no graphs": (lambda: GraphBatch.collate([]), r"at least one graph"),
    "far graph": (lambda: GraphBatch.collate(odd_graphs()).select([9]), r"graph 9 is out of range for a batch of 7"),
}


@pytest.mark.parametrize("case", BAD_GRAPHS)
def test_bad_input_is_one_clear_sentence(case: str) -> None:
    build, sentence = BAD_GRAPHS[case]
    with pytest.raises(ValueError, match=sentence):
        build()


def test_graphs_can_be_copied_and_sent_to_other_processes() -> None:
    graph = Graph(torch.ones(2, 1), extras={"name": "water"})
    for copied in (copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        assert_same(copied, graph)
        assert copied.extras == {"name": "water"}
