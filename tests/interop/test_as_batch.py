"""as_batch: what a model may be given, and the sentence for what it may not."""

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData, TemporalData

from tokengt.batch import GraphBatch
from tokengt.graph import Graph
from tokengt.interop.pyg import as_batch, from_pyg


def _data(nodes: int, edges: list[tuple[int, int]], **more: Tensor) -> Data:
    index = torch.tensor(edges, dtype=torch.int64).view(-1, 2).T
    return Data(x=torch.rand(nodes, 2), edge_index=index, edge_attr=torch.rand(len(edges), 3), **more)


def _batch() -> Batch:
    """Nodes 0-2, 3, 4-5; the graph in the middle has no edges."""
    return Batch.from_data_list([_data(3, [(0, 1), (2, 0)]), _data(1, []), _data(2, [(1, 1), (0, 1), (0, 1)])])


def _assert_same_batch(mine: GraphBatch, expected: GraphBatch) -> None:
    for name in ("nodes", "edges", "hyperedges", "members"):
        for part in ("offsets", "host"):
            assert torch.equal(getattr(getattr(mine, name), part), getattr(getattr(expected, name), part))
    for name in ("node_features", "edge_index", "edge_features", "hyperedge_nodes", "hyperedge_features"):
        a, b = getattr(mine, name), getattr(expected, name)
        assert a is b is None or torch.equal(a, b)


def test_a_graph_batch_passes_untouched():
    batch = GraphBatch.collate([Graph(num_nodes=1)])
    assert as_batch(batch) is batch


def test_a_graph_and_a_sequence_of_graphs():
    graphs = [Graph(num_nodes=2), Graph(num_nodes=1)]
    assert as_batch(graphs[0]).nodes.host.tolist() == [0, 2]
    assert as_batch(graphs).nodes.host.tolist() == [0, 2, 3]
    assert as_batch(tuple(graphs)).nodes.host.tolist() == [0, 2, 3]


def test_a_pyg_batch_equals_its_collated_graphs():
    batch = _batch()
    mine = as_batch(batch)
    _assert_same_batch(mine, GraphBatch.collate([from_pyg(data) for data in batch.to_data_list()]))
    assert mine.edges.host.tolist() == [0, 2, 2, 5]
    assert mine.extras == ()


@pytest.mark.parametrize("missing", ["ptr", "batch"])
def test_ptr_or_batch_alone_is_enough(missing):
    batch = _batch()
    expected = as_batch(batch)
    del batch[missing]
    _assert_same_batch(as_batch(batch), expected)


def test_data_with_a_batch_vector_is_a_batch():
    batch = _batch()
    data = Data(x=batch.x, edge_index=batch.edge_index, edge_attr=batch.edge_attr, batch=batch.batch)
    _assert_same_batch(as_batch(data), as_batch(batch))


def test_data_is_a_batch_of_one():
    data = _data(3, [(0, 1)])
    assert as_batch(data).nodes.host.tolist() == [0, 3]


@pytest.mark.parametrize("index", [torch.uint8, torch.int32])
def test_small_integer_indices(index):
    batch = _batch()
    expected = as_batch(batch)
    batch.edge_index = batch.edge_index.to(index)
    _assert_same_batch(as_batch(batch), expected)


@pytest.mark.parametrize("thing", ["graph", 3, None, [1], torch.zeros(2), TemporalData()])
def test_anything_else_says_what_was_expected(thing):
    with pytest.raises(
        ValueError, match="expected a Graph, a GraphBatch, a sequence of Graphs, or a PyG Data or Batch"
    ):
        as_batch(thing)


def test_an_empty_sequence_is_refused():
    with pytest.raises(ValueError, match="at least one graph"):
        as_batch([])


@pytest.mark.parametrize("read", [as_batch, from_pyg])
def test_heterogeneous_data_is_refused(read):
    data = HeteroData()
    data["a"].x = torch.rand(2, 1)
    for refused in (data, Batch.from_data_list([data, data])):
        with pytest.raises(ValueError, match="HeteroData has several kinds of nodes"):
            read(refused)


def test_edges_between_graphs_are_named():
    batch = _batch()
    batch.edge_index[1, 1] = 4
    with pytest.raises(ValueError, match="edge_index column 1 joins node 2 of graph 0 and node 4 of graph 2"):
        as_batch(batch)


def test_edges_out_of_order_are_refused():
    batch = _batch()
    batch.edge_index = batch.edge_index.flip(1)
    with pytest.raises(ValueError, match="edge_index mixes the graphs"):
        as_batch(batch)


def _set(key: str, value: object):
    def change(batch):
        batch[key] = value(batch) if callable(value) else value

    return change


def _put(key: str, place: tuple[int, int], value: float):
    def change(batch):
        batch[key][place] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_put("x", (5, 1), float("nan")), "^graph 2: node_features row 1, column 1 is nan; expected a finite number"),
        (_put("edge_attr", (3, 2), float("inf")), "^graph 2: edge_features row 1, column 2 is inf"),
        (_put("edge_index", (1, 3), 9), "^graph 2: edge_index column 3 names node 9; expected 0 to 5"),
        (_put("edge_index", (0, 0), -1), "^graph 0: edge_index column 0 names node -1; expected 0 to 5"),
        (_set("edge_index", lambda b: b.edge_index.float()), "edge_index must hold integers, got float32"),
        (_set("edge_index", lambda b: b.edge_index[0]), "edge_index must have shape"),
        (_set("x", lambda b: b.x > 0), "^graph 0: node_features must hold integers .* got bool"),
        (_set("x", lambda b: b.x[:, :, None]), r"^node_features must have shape \[6, columns\], got \[6, 2, 1\]"),
        (_set("x", lambda b: b.x[:5]), "ptr and batch must agree and share out all 5 nodes"),
        (_set("x", lambda b: b.x.numpy()), "x must be a dense tensor, got ndarray"),
        (_set("edge_attr", lambda b: b.edge_attr.to_sparse()), "edge_attr must be a dense tensor"),
        (_set("edge_attr", lambda b: b.edge_attr[:4]), "^edge_features has 4 rows; expected 5"),
        (_set("batch", torch.tensor([0, 0, 1, 1, 2, 2])), "ptr and batch must agree"),
        (_set("ptr", torch.tensor([0, 3, 3, 6])), "^graph 1: the graph is empty"),
        (_set("num_nodes", 7), "x has 6 rows but num_nodes is 7"),
    ],
)
def test_bad_batches_name_graph_field_and_expectation(change, message):
    batch = _batch()
    change(batch)
    with pytest.raises(ValueError, match=message) as caught:
        as_batch(batch)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("vector", [[0, 1, 0], [-1, 0, 0]])
def test_a_batch_vector_must_rise(vector):
    data = Data(x=torch.rand(3, 1), batch=torch.tensor(vector))
    with pytest.raises(ValueError, match="batch must rise from 0"):
        as_batch(data)


def test_a_batch_vector_may_not_leave_out_a_graph():
    with pytest.raises(ValueError, match="graph 1: the graph is empty"):
        as_batch(Data(x=torch.rand(3, 1), batch=torch.tensor([0, 0, 2])))


@pytest.mark.parametrize(
    ("incidence", "message"),
    [
        ([[0, 1], [0, 2]], "hyperedge_index must number each graph's hyperedges 0, 1, 2"),
        ([[0, 7], [0, 0]], r"hyperedge_index column 1 is \[7, 0\]; expected a node from 0 to 2"),
        ([[0, 1], [0, -1]], r"hyperedge_index column 1 is \[1, -1\]"),
        ([[0.0], [1.0]], "hyperedge_index must be integers"),
        ([[0], [1], [2]], r"hyperedge_index must be integers \[2, incidences\], got \[3, 1\]"),
    ],
)
def test_bad_hyperedges(incidence, message):
    with pytest.raises(ValueError, match=message):
        as_batch(Data(num_nodes=3, hyperedge_index=torch.tensor(incidence)))


def test_bad_hyperedge_features_name_their_graph():
    data = Data(num_nodes=2, hyperedge_index=torch.tensor([[0, 1], [0, 0]]), hyperedge_attr=torch.ones(1, 1))
    batch = Batch.from_data_list([data, data])
    batch.hyperedge_attr[1] = float("nan")
    with pytest.raises(ValueError, match="graph 1: hyperedge_features row 0, column 0 is nan"):
        as_batch(batch)
    batch.hyperedge_attr = None
    batch.hyperedge_index[1, 2:] = 3  # graph 1 would have a hyperedge 1 and no hyperedge 0
    with pytest.raises(ValueError, match="graph 1: hyperedge_index must number"):
        as_batch(batch)


def test_sparse_adjacency_without_edge_index_is_refused():
    with pytest.raises(ValueError, match="adj_t; expected edge_index"):
        as_batch(Data(x=torch.rand(2, 1), adj_t=torch.eye(2).to_sparse()))


def test_nodes_must_be_countable():
    with pytest.raises(ValueError, match="without x needs num_nodes"):
        as_batch(Data(y=torch.rand(1)))


def test_errors_in_one_graph_carry_no_place():
    with pytest.raises(ValueError, match=r"^node_features row 0, column 0 is nan"):
        from_pyg(Data(x=torch.tensor([[float("nan")]])))


def test_a_list_of_pyg_graphs_is_a_batch():
    parts = [
        Data(x=torch.randn(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]])),
        Data(x=torch.randn(1, 2), edge_index=torch.empty(2, 0, dtype=torch.int64)),
    ]
    joined, expected = as_batch(parts), as_batch(Batch.from_data_list(parts))
    assert torch.equal(joined.node_features, expected.node_features)
    assert torch.equal(joined.edge_index, expected.edge_index)
    with pytest.raises(ValueError, match=r"graph 1: node_features row 0, column 1 is nan"):
        as_batch([parts[0], Data(x=torch.tensor([[0.0, float("nan")]]))])
    with pytest.raises(ValueError, match=r"graph 0 is the text 'CCO'.*from_smiles"):
        as_batch(["CCO"])
