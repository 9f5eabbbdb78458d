"""PyG both ways: equal key by key, odd shapes and hypergraphs included."""

import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data
from torch_geometric.data.hypergraph_data import HyperGraphData

from tokengt.batch import GraphBatch
from tokengt.graph import Graph
from tokengt.interop.pyg import as_batch, counted_by, from_pyg, to_pyg

# The data here has attributes of every kind, and is read in most tests for another reason.
pytestmark = pytest.mark.filterwarnings("ignore:no model reads")

_EDGES = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 2]])
_INCIDENCE = torch.tensor([[2, 0, 1, 1], [0, 0, 0, 1]])


class PairData(Data):
    """A user's own class, with a rule of its own for batching."""

    def __inc__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        return 100 if key == "partner_index" else super().__inc__(key, value, *args, **kwargs)


def assert_same(mine: Any, expected: Any) -> None:
    """Equal, tensors in shape, dtype and values."""
    assert type(mine) is type(expected)
    if isinstance(expected, Tensor):
        assert mine.dtype == expected.dtype
        assert torch.equal(mine, expected)
    elif isinstance(expected, dict):
        assert mine.keys() == expected.keys()
        for key in expected:
            assert_same(mine[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(mine) == len(expected)
        for a, b in zip(mine, expected, strict=True):
            assert_same(a, b)
    else:
        assert mine == expected


def assert_same_data(mine: Any, expected: Any) -> None:
    assert type(mine) is type(expected)
    assert set(mine.keys()) == set(expected.keys())
    for key in expected.keys():  # noqa: SIM118, PyG's Data is no dict
        assert_same(mine[key], expected[key])


def assert_same_graph(mine: Graph, expected: Graph) -> None:
    names = ("num_nodes", "node_features", "edge_index", "edge_features")
    for name in (*names, "hyperedge_nodes", "hyperedge_offsets", "hyperedge_features"):
        assert_same(getattr(mine, name), getattr(expected, name))
    assert_same(dict(mine.extras), dict(expected.extras))


def _rich(nodes: int = 3) -> Data:
    return Data(
        x=torch.rand(nodes, 2, dtype=torch.float64),
        edge_index=_EDGES,
        edge_attr=torch.tensor([[1], [1], [2], [0]], dtype=torch.int16),
        y=torch.tensor([0.5]),
        pos=torch.rand(nodes, 3),
        edge_weight=torch.rand(4),
        name="ethanol",
        tags=["a", "b"],
        level=3,
        table={"a": torch.ones(1, 2)},
        train_mask=torch.tensor([True, False, True]),
    )


DATA = {
    "rich": _rich,
    "zinc, one-dimensional edge_attr": lambda: Data(
        x=torch.tensor([[1], [2], [3]]), edge_index=_EDGES, edge_attr=torch.tensor([1, 1, 2, 3]), y=torch.tensor([1.0])
    ),
    "one-dimensional x": lambda: Data(x=torch.arange(3), edge_index=_EDGES),
    "no x": lambda: Data(edge_index=_EDGES, num_nodes=3),
    "no x, counted by pos": lambda: Data(edge_index=_EDGES, pos=torch.rand(4, 3)),
    "x and num_nodes": lambda: Data(x=torch.rand(3, 1), edge_index=_EDGES, num_nodes=3),
    "no edge_index": lambda: Data(x=torch.rand(3, 2), y=torch.tensor([[1, 2]])),
    "no edges": lambda: Data(x=torch.rand(3, 2), edge_index=torch.empty(2, 0, dtype=torch.int64)),
    "no edges, edge_attr": lambda: Data(
        x=torch.rand(1, 2), edge_index=torch.empty(2, 0, dtype=torch.int64), edge_attr=torch.empty(0, 4)
    ),
    "only num_nodes": lambda: Data(num_nodes=2),
    "int32 edge_index": lambda: Data(x=torch.rand(3, 2), edge_index=_EDGES.int()),
    "node labels": lambda: Data(x=torch.rand(3, 2), edge_index=_EDGES, y=torch.tensor([0, 1, 0])),
    "scalar y": lambda: Data(x=torch.rand(3, 2), edge_index=_EDGES, y=1.5),
    "3-tuples": lambda: Data(x=torch.rand(3, 2), edge_index=torch.tensor([[0], [1], [2]])),
    "hyperedges": lambda: Data(x=torch.rand(3, 2), hyperedge_index=_INCIDENCE, hyperedge_attr=torch.rand(2, 3)),
    "edges and hyperedges": lambda: Data(x=torch.rand(3, 2), edge_index=_EDGES, hyperedge_index=_INCIDENCE),
    "one-dimensional hyperedge_attr": lambda: Data(
        num_nodes=4, hyperedge_index=_INCIDENCE.int(), hyperedge_attr=torch.tensor([3, 4])
    ),
    "HyperGraphData": lambda: HyperGraphData(
        x=torch.rand(5, 2), edge_index=_INCIDENCE, edge_attr=torch.rand(2, 3), y=torch.tensor([1])
    ),
    "a class of the user's": lambda: PairData(
        x=torch.rand(3, 2), edge_index=_EDGES, partner_index=torch.tensor([0, 1])
    ),
}


@pytest.mark.parametrize("name", DATA)
def test_data_round_trip(name):
    data = DATA[name]()
    graph = from_pyg(data)
    assert isinstance(graph, Graph)
    assert_same_data(to_pyg(graph), data)
    assert_same_graph(from_pyg(to_pyg(graph)), graph)


@pytest.mark.parametrize("name", DATA)
def test_batch_round_trip(name):
    batch = Batch.from_data_list([DATA[name]() for _ in range(3)])
    graphs = from_pyg(batch)
    assert isinstance(graphs, GraphBatch)
    assert_same_data(to_pyg(graphs), batch)
    for mine, data in zip(to_pyg(graphs).to_data_list(), batch.to_data_list(), strict=True):
        assert_same_data(mine, data)


@pytest.mark.parametrize("name", DATA)
def test_batch_equals_its_graphs_one_at_a_time(name):
    parts = [DATA[name]() for _ in range(3)]
    mine, expected = from_pyg(Batch.from_data_list(parts)), GraphBatch.collate([from_pyg(p) for p in parts])
    for a, b in zip(mine, expected, strict=True):
        a, b = (Graph(**{**_fields(g), "extras": {}}) for g in (a, b))
        assert_same_graph(a, b)


def _fields(graph: Graph) -> dict[str, Any]:
    names = ("node_features", "edge_index", "edge_features", "num_nodes")
    return {n: getattr(graph, n) for n in (*names, "hyperedge_nodes", "hyperedge_offsets", "hyperedge_features")}


def test_fields_by_hand():
    graph = from_pyg(DATA["zinc, one-dimensional edge_attr"]())
    assert graph.edge_features.tolist() == [[1], [1], [2], [3]]
    assert graph.extras["y"].tolist() == [1.0]
    graph = from_pyg(_rich())
    assert set(graph.extras) == {"y", "pos", "edge_weight", "name", "tags", "level", "table", "train_mask"}


def test_numbers_that_no_model_reads_are_named() -> None:
    """Labels, masks, names and numbers of nodes are no features; pos and edge_weight would be missed."""
    expected = (
        "no model reads pos (of nodes: x) and edge_weight (of edges: edge_attr) and level (of graphs: graph_features); "
        "concatenate what it should read to the attribute named beside it"
    )
    for data in (_rich(), Batch.from_data_list([_rich(), _rich()])):
        with pytest.warns(UserWarning, match="no model reads") as caught:
            from_pyg(data)
        assert [str(each.message) for each in caught] == [expected]
    plain = Data(x=torch.rand(3, 2), edge_index=_EDGES, y=torch.tensor([1]), name="a", train_mask=torch.ones(3) > 0)
    plain.partner_index = torch.tensor([0, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_pyg(plain)
        as_batch([_rich()] * 3)
    with pytest.warns(UserWarning, match=r"no model reads u \(of graphs: graph_features\)"):
        from_pyg(Data(x=torch.rand(3, 2), edge_index=_EDGES, u=torch.rand(1, 5)))


def test_what_an_attribute_is_counted_by() -> None:
    """Where nodes and edges are equally many, its name decides; looking leaves nothing behind in the object."""
    data = Data(num_nodes=4, edge_index=_EDGES, edge_weight=torch.rand(4), pos=torch.rand(4, 3), u=torch.rand(1))
    before = dict(vars(data._store))
    assert [counted_by(data, key) for key in ("edge_weight", "pos", "u")] == ["edge", "node", "graph"]
    assert vars(data._store).keys() == before.keys()
    data.num_nodes, data.pos = 3, torch.rand(4, 3)
    assert counted_by(data, "pos") == "edge"


def test_incidence_is_sorted_and_keeps_the_order_of_members():
    data = Data(num_nodes=4, hyperedge_index=torch.tensor([[3, 1, 2, 0], [1, 0, 1, 0]]))
    graph = from_pyg(data)
    assert graph.hyperedge_nodes.tolist() == [1, 0, 3, 2]
    assert graph.hyperedge_offsets.tolist() == [0, 2, 4]
    assert to_pyg(graph).hyperedge_index.tolist() == [[1, 0, 3, 2], [0, 0, 1, 1]]


@pytest.mark.parametrize("name", ["hyperedges", "HyperGraphData"])
def test_batched_hypergraphs_undo_what_collating_adds(name):
    batch = Batch.from_data_list([DATA[name]() for _ in range(2)])
    nodes = batch.num_nodes // 2
    key = "hyperedge_index" if name == "hyperedges" else "edge_index"
    # PyG's plain Data counts nodes on in both rows, HyperGraphData counts hyperedges on in the second.
    assert batch[key][1].tolist() == [0, 0, 0, 1] + [n + (nodes if name == "hyperedges" else 2) for n in (0, 0, 0, 1)]
    graphs = from_pyg(batch)
    assert graphs.hyperedge_nodes.tolist() == [2, 0, 1, 1, 2 + nodes, nodes, 1 + nodes, 1 + nodes]
    assert graphs.hyperedges.host.tolist() == [0, 2, 4]
    assert graphs.members.host.tolist() == [0, 3, 4, 7, 8]


def test_hyperedge_numbers_may_overlap_between_collated_graphs():
    many = Data(num_nodes=2, hyperedge_index=torch.tensor([[0, 1, 0, 1], [0, 1, 2, 2]]))  # 3 hyperedges, 2 nodes
    graphs = from_pyg(Batch.from_data_list([many, many]))
    assert graphs.hyperedges.host.tolist() == [0, 3, 6]
    assert graphs.hyperedge_nodes.tolist() == [0, 1, 0, 1, 2, 3, 2, 3]


def test_batch_of_graphs_some_without_hyperedges():
    graphs = [Graph(num_nodes=2), Graph.from_hyperedges([[0, 1]], num_nodes=2), Graph(num_nodes=1)]
    for a, b in zip(from_pyg(to_pyg(GraphBatch.collate(graphs))), graphs, strict=True):
        assert_same_graph(a, b)


def test_follow_batch_and_late_attributes_come_back():
    batch = Batch.from_data_list([_rich(), _rich()], follow_batch=["edge_weight"])
    batch.note = "set later"
    graphs = from_pyg(batch)
    assert_same_data(to_pyg(graphs), batch)
    half = to_pyg(graphs.select([1]))
    assert "note" not in half
    assert half.name == ["ethanol"]


def test_attributes_of_a_batch_come_back_only_to_the_same_batch():
    """An attribute of the batch as a whole has rows that belong to its graphs in their order, and to no other."""
    batch = Batch.from_data_list([Data(x=torch.full((2, 1), float(n)), edge_index=_EDGES[:, :2]) for n in range(3)])
    batch.weight = torch.tensor([10.0, 11.0, 12.0])
    graphs = from_pyg(batch)
    assert to_pyg(graphs).weight.tolist() == [10.0, 11.0, 12.0]
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2], [0, 1], [0, 1, 2, 2], [0, 0, 2]):
        written = to_pyg(graphs.select(order))
        assert written.x[::2, 0].tolist() == order
        assert ("weight" in written) == (order == [0, 1, 2]), order
    other = from_pyg(batch.clone())
    mixed = GraphBatch.collate([graphs[0], other[1], graphs[2]])
    assert "weight" not in to_pyg(mixed)


def test_batch_made_by_hand():
    batch = Batch(x=torch.rand(3, 2), edge_index=torch.tensor([[0, 2], [1, 2]]), batch=torch.tensor([0, 0, 1]))
    batch.y = torch.tensor([1.0, 2.0])
    graphs = from_pyg(batch)
    assert [g.num_nodes for g in graphs] == [2, 1]
    assert [g.num_edges for g in graphs] == [1, 1]
    assert_same_data(to_pyg(graphs), batch)


def test_edge_index_class_reads_as_a_tensor():
    index = EdgeIndex(_EDGES.tolist(), sparse_size=(3, 3))
    graph = from_pyg(Data(x=torch.rand(3, 1), edge_index=index))
    assert type(graph.edge_index) is Tensor
    assert graph.edge_index.tolist() == _EDGES.tolist()


def test_extras_must_be_writable():
    with pytest.raises(ValueError, match="extras hold 'x'"):
        to_pyg(Graph(torch.rand(1, 1), extras={"x": 1}))
    uneven = GraphBatch.collate([Graph(num_nodes=1, extras={"a": 1}), Graph(num_nodes=1)])
    with pytest.raises(ValueError, match=r"graph 1: extras \['a'\] are not in all graphs"):
        to_pyg(uneven)


def test_extras_on_another_graph_do_not_hide_what_it_holds():
    extras = from_pyg(DATA["HyperGraphData"]()).extras
    data = to_pyg(Graph(num_nodes=3, edge_index=_EDGES, extras=extras))
    assert type(data) is Data
    assert data.num_nodes == 3
    assert torch.equal(data.edge_index, _EDGES)


def test_reading_does_not_import_torch_geometric():
    code = (
        "import sys; sys.modules['torch_geometric'] = None\n"
        "from tokengt.graph import Graph\n"
        "from tokengt.interop.pyg import as_batch, to_pyg\n"
        "assert as_batch(Graph(num_nodes=1)).num_graphs == 1\n"
        "try: to_pyg(Graph(num_nodes=1))\n"
        "except ImportError as error: print(error)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "to_pyg needs PyTorch Geometric: pip install torch_geometric\n"


@st.composite
def _graphs(draw: st.DrawFn, edge_columns: int | None, node_columns: int | None, hyperedges: bool) -> Graph:
    nodes = draw(st.integers(1, 4))
    node = st.integers(0, nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=5))
    sets = draw(st.lists(st.lists(node, min_size=1, max_size=3, unique=True), max_size=3)) if hyperedges else []
    return Graph(
        None if node_columns is None else torch.rand(nodes, node_columns),
        torch.tensor(edges, dtype=torch.int64).view(-1, 2).T,
        None if edge_columns is None else torch.randint(9, (len(edges), edge_columns)),
        num_nodes=nodes,
        hyperedge_nodes=torch.tensor([v for s in sets for v in s], dtype=torch.int64),
        hyperedge_offsets=torch.tensor([0, *(len(s) for s in sets)]).cumsum(0),
        extras={"y": torch.rand(1, 2), "name": draw(st.text())},
    )


@settings(deadline=None)
@given(st.data(), st.sampled_from([None, 1, 2]), st.sampled_from([None, 1, 3]), st.booleans())
def test_round_trips_of_odd_graphs(data, edge_columns, node_columns, hyperedges):
    graphs = data.draw(st.lists(_graphs(edge_columns, node_columns, hyperedges), min_size=1, max_size=4))
    for graph in graphs:
        assert_same_graph(from_pyg(to_pyg(graph)), graph)
    batch = GraphBatch.collate(graphs)
    written = to_pyg(batch)
    for mine, expected in zip(from_pyg(written), batch, strict=True):
        assert_same_graph(mine, expected)
    assert_same_data(to_pyg(from_pyg(written)), written)
