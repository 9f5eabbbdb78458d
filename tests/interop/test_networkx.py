"""NetworkX graphs: values by hand, and both ways for odd shapes."""

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tokengt.batch import GraphBatch
from tokengt.graph import Graph
from tokengt.interop.networkx import from_networkx, to_networkx


def test_undirected_graph_lists_both_directions_and_a_self_loop_once():
    g = nx.Graph()
    g.add_nodes_from(["a", "b", "c"])
    g.add_edge("b", "a", w=1.5)
    g.add_edge("c", "c", w=2)
    graph = from_networkx(g, edge_features="w")
    assert graph.edge_index.tolist() == [[0, 1, 2], [1, 0, 2]]
    assert graph.edge_features is not None
    assert graph.edge_features.tolist() == [[1.5], [1.5], [2.0]]
    assert graph.edge_features.dtype == torch.get_default_dtype()
    assert graph.node_features is None
    assert graph.num_nodes == 3
    assert graph.extras == {"node_labels": ["a", "b", "c"]}


def test_features_stack_numbers_lists_arrays_and_booleans():
    g = nx.DiGraph()
    g.add_node(0, kind=3, ring=True, pair=[1, 2])
    g.add_node(1, kind=np.int32(4), ring=False, pair=np.array([5, 6]))
    graph = from_networkx(g, ["kind", "ring", "pair"])
    assert graph.node_features is not None
    assert graph.node_features.tolist() == [[3, 1, 1, 2], [4, 0, 5, 6]]
    assert graph.node_features.dtype == torch.int64
    assert graph.num_edges == 0
    assert dict(graph.extras) == {}


def test_multigraph_keeps_repeated_edges():
    g = nx.MultiGraph([(0, 1), (0, 1), (1, 1), (1, 1)])
    assert from_networkx(g).edge_index.tolist() == [[0, 1, 0, 1, 1, 1], [1, 0, 1, 0, 1, 1]]
    d = nx.MultiDiGraph([(1, 0), (1, 0)])
    assert from_networkx(d).edge_index.tolist() == [[0, 0], [1, 1]]  # 1 was added first
    assert from_networkx(d).extras["node_labels"] == [1, 0]


def test_a_graph_without_edges_joins_a_batch_of_others():
    g = nx.Graph([(0, 1)])
    nx.set_edge_attributes(g, 7, "a")
    batch = GraphBatch.collate(
        [from_networkx(nx.empty_graph(2), edge_features="a"), from_networkx(g, edge_features="a")]
    )
    assert batch.edge_features is not None
    assert batch.edge_features.tolist() == [[7], [7]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"x": 1}, "node 'b' has no attribute 'x'"),
        ({"x": 1, "b": "red"}, "node 'b': attribute 'x' is 'red'; expected a number"),
        ({"x": [1, 2], "b": [1]}, "node 'b': attribute 'x' has 1 numbers; expected 2"),
        ({"x": [[1]], "b": [[1]]}, "node 'a': attribute 'x' is .*expected a number"),
        ({"x": 1.0, "b": float("nan")}, "node_features row 1, column 0 is nan"),
    ],
)
def test_bad_attributes_name_node_and_attribute(values, message):
    g = nx.Graph()
    g.add_node("a", x=values["x"])
    g.add_node("b", **({"x": values["b"]} if "b" in values else {}))
    with pytest.raises(ValueError, match=message):
        from_networkx(g, "x")


def test_missing_edge_attribute_names_the_edge():
    g = nx.Graph([("a", "b")])
    with pytest.raises(ValueError, match=r"edge 'a' -> 'b' has no attribute 'w'"):
        from_networkx(g, edge_features="w")


def test_empty_graph_is_refused():
    with pytest.raises(ValueError, match="the graph is empty"):
        from_networkx(nx.Graph())


def test_to_networkx_chooses_the_class():
    one = Graph(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
    two = Graph(edge_index=torch.tensor([[0, 1, 0, 1], [1, 0, 1, 0]]), num_nodes=2)
    assert type(to_networkx(one)) is nx.DiGraph
    assert type(to_networkx(two)) is nx.MultiDiGraph
    assert type(to_networkx(one, undirected=True)) is nx.Graph
    assert type(to_networkx(two, undirected=True)) is nx.MultiGraph
    assert to_networkx(one, undirected=True).number_of_edges() == 1
    assert to_networkx(two, undirected=True).number_of_edges() == 2
    half = Graph(edge_index=torch.tensor([[1], [0]]), num_nodes=2)
    assert list(to_networkx(half, undirected=True).edges) == [(0, 1)]


def test_to_networkx_features_are_lists():
    x = torch.tensor([[1, 2], [3, 4]])
    g = to_networkx(Graph(x, torch.tensor([[0], [1]]), torch.tensor([[0.5]])))
    assert dict(g.nodes(data="features")) == {0: [1, 2], 1: [3, 4]}
    assert list(g.edges(data="features")) == [(0, 1, [0.5])]


def test_directions_that_differ_are_not_merged():
    graph = Graph(num_nodes=2, edge_index=torch.tensor([[0, 1], [1, 0]]), edge_features=torch.tensor([[1], [2]]))
    with pytest.raises(ValueError, match="edges 0 -> 1 and 1 -> 0 differ in their features"):
        to_networkx(graph, undirected=True)


def test_hyperedges_and_tuples_are_refused():
    for graph in (
        Graph.from_hyperedges([[0, 1, 2]], num_nodes=3),
        Graph(num_nodes=3, edge_index=torch.tensor([[0], [1], [2]])),
    ):
        with pytest.raises(ValueError, match="expected a graph without hyperedges"):
            to_networkx(graph)


def _edges(graph: Graph) -> list[tuple[object, ...]]:
    features = [] if graph.edge_features is None else graph.edge_features.T.tolist()
    return sorted(zip(*graph.edge_index.tolist(), *features, strict=True))


@given(st.data())
def test_round_trip_of_odd_graphs(data):
    nodes = data.draw(st.integers(1, 5))
    pair = st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1))
    edges = data.draw(st.lists(pair, max_size=8))
    graph = Graph(
        torch.arange(2 * nodes).view(nodes, 2),
        torch.tensor(edges, dtype=torch.int64).view(-1, 2).T,
        torch.arange(len(edges))[:, None] % 3,
    )
    back = from_networkx(to_networkx(graph), "features", "features")
    assert torch.equal(back.node_features, graph.node_features)
    assert sorted(zip(*back.edge_index.tolist(), strict=True)) == sorted(edges)
    if edges:
        assert _edges(back) == _edges(graph)


@given(st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_round_trip_of_undirected_networkx_graphs(nodes, seed):
    rng = np.random.default_rng(seed)
    g = nx.MultiGraph()
    g.add_nodes_from(f"n{i}" for i in range(nodes))
    for u, v in rng.integers(0, nodes, (rng.integers(0, 8), 2)):
        g.add_edge(f"n{u}", f"n{v}", features=[int(rng.integers(3))])
    back = to_networkx(from_networkx(g, None, "features"), undirected=True)
    assert list(back.nodes) == list(g.nodes)

    def edges(graph):
        return sorted((*sorted(ends), *features) for *ends, features in graph.edges(data="features"))

    assert edges(back) == edges(g)
