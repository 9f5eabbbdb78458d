"""Sparse features: the same numbers as dense ones, wherever features go."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.graphs import small_model
from tokengt import EncoderConfig, FeatureSpec, Graph, GraphBatch, TokensConfig, from_pyg, to_pyg
from tokengt.data.graph_sources import LabelledGraphs
from tokengt.data.graph_store import packed
from tokengt.data.manifest import Recipe, featurisation
from tokengt.data.merge import write_store
from tokengt.data.store import Store
from tokengt.data.workspace import Origin
from tokengt.sparse import SparseRows, as_dense, sparse_linear


def matrix(rows: int, width: int, seed: int, share: float = 0.3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    kept = torch.rand(rows, width, generator=generator) < share
    return torch.randn(rows, width, generator=generator) * kept


@given(st.integers(0, 6), st.integers(1, 5), st.integers(0, 2**20), st.sampled_from([0.0, 0.3, 1.0]))
def test_the_product_with_a_weight_and_its_gradient_are_those_of_the_dense_matrix(
    rows: int, width: int, seed: int, share: float
) -> None:
    dense = matrix(rows, width, seed, share).double()
    weight = torch.randn(4, width, dtype=torch.float64, requires_grad=True)
    out, wanted = sparse_linear(SparseRows.of(dense), weight), dense @ weight.T
    torch.testing.assert_close(out, wanted)
    slope = torch.randn_like(wanted)
    (grad,) = torch.autograd.grad(out, weight, slope)
    torch.testing.assert_close(grad, slope.T @ dense)


def test_entries_may_come_in_any_order_and_are_added_up() -> None:
    rows = SparseRows.from_entries(
        torch.tensor([2, 0, 2, 0]), torch.tensor([1, 3, 1, 0]), torch.tensor([1.0, 2.0, 4.0, 8.0]), 3, 4
    )
    assert rows.dense().tolist() == [[8, 0, 0, 2], [0, 0, 0, 0], [0, 5, 0, 0]]
    assert rows.by_column.rows.tolist() == [0, 2, 0]
    assert rows.by_column.offsets.tolist() == [0, 1, 2, 2, 3]
    with pytest.raises(ValueError, match="names column 4; expected 0 to 3"):
        SparseRows.from_entries(torch.tensor([0]), torch.tensor([4]), torch.ones(1), 3, 4)


def test_dropout_drops_entries_scales_the_others_and_gives_the_gradient_of_what_is_left() -> None:
    rows, weight = SparseRows.of(torch.ones(200, 10)), torch.eye(10, requires_grad=True)
    torch.manual_seed(3)
    out = sparse_linear(rows, weight, dropout=0.25, training=True)
    torch.testing.assert_close(out.detach().unique(), torch.tensor([0.0, 4 / 3]))
    assert float((out == 0).double().mean()) == pytest.approx(0.25, abs=0.03)
    out.sum().backward()
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad[0], out.detach().sum(0))
    torch.testing.assert_close(sparse_linear(rows, weight, dropout=0.25), torch.ones(200, 10))


@given(st.lists(st.integers(0, 4), max_size=6), st.integers(0, 2**20))
def test_rows_are_selected_as_those_of_a_dense_matrix(chosen: list[int], seed: int) -> None:
    dense, index = matrix(5, 4, seed), torch.tensor(chosen, dtype=torch.int64)
    rows = SparseRows.of(dense)
    assert torch.equal(rows.index_select(0, index).dense(), dense.index_select(0, index))
    assert torch.equal(rows[1:4].dense(), dense[1:4])
    assert torch.equal(SparseRows.from_torch(rows.to_torch()).dense(), dense)


def pair(seed: int) -> tuple[Graph, Graph]:
    """The same graph with dense and with sparse features."""
    dense, index = matrix(7, 6, seed), torch.randint(0, 7, (2, 9), generator=torch.Generator().manual_seed(seed))
    return Graph(dense, index), Graph(dense.to_sparse_coo(), index)


def test_a_batch_of_sparse_graphs_is_that_of_the_dense_ones() -> None:
    pairs = [pair(seed) for seed in range(3)]
    dense, sparse = GraphBatch.collate([one for one, _ in pairs]), GraphBatch.collate([other for _, other in pairs])
    for change in (lambda batch: batch, lambda batch: batch.select([2, 0]), GraphBatch.narrowed):
        one, other = change(dense), change(sparse)
        assert isinstance(other.node_features, SparseRows)
        assert torch.equal(as_dense(one.node_features), other.node_features.dense())
    again = GraphBatch.from_arrays(sparse.arrays())
    assert torch.equal(as_dense(again.node_features), dense.node_features)
    assert torch.equal(as_dense(sparse[1].node_features), dense[1].node_features)
    assert "6 floats (sparse float32)" in repr(sparse)


def test_a_model_gives_the_same_for_sparse_and_dense_features() -> None:
    model = small_model(tokens=TokensConfig(node_features=FeatureSpec(width=6)))
    dense, sparse = pair(1)
    assert FeatureSpec.of(sparse.node_features) == FeatureSpec(width=6)
    torch.testing.assert_close(model(sparse), model(dense))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_models_in_half_precision_read_sparse_features_and_sum_the_sparse_basis(dtype: torch.dtype) -> None:
    encoder = EncoderConfig(num_layers=2, num_heads=2, sparse_basis_residual=True)
    model = small_model(tokens=TokensConfig(node_features=FeatureSpec(width=6)), encoder=encoder)
    _, sparse = pair(1)
    exact = model(sparse)
    found = model.to(dtype)(sparse)
    assert found.dtype == dtype
    torch.testing.assert_close(found.to(exact.dtype), exact, rtol=0.1, atol=0.1)


def test_pyg_data_with_sparse_x_comes_and_goes() -> None:
    pytest.importorskip("torch_geometric")
    from torch_geometric.data import Data

    dense = matrix(5, 4, 2)
    data = Data(x=dense.to_sparse_coo(), edge_index=torch.tensor([[0, 1], [1, 2]]))
    graph = from_pyg(data)
    assert isinstance(graph, Graph)
    assert isinstance(graph.node_features, SparseRows)
    assert torch.equal(to_pyg(graph).x.to_dense(), dense)


def test_a_store_keeps_sparse_features_sparse(tmp_path: Path) -> None:
    _, graph = pair(4)
    batch = GraphBatch.collate([graph])
    labelled = LabelledGraphs(
        batch, torch.zeros(7, 1, dtype=torch.float64), "node", ("y",), None, torch.tensor([1]), ()
    )
    manifest, tensors, _ = packed(labelled, Origin("odd", "0" * 64, Recipe(), featurisation(None)))
    write_store(tmp_path / "store", manifest, tensors, (), [])
    store = Store.open(tmp_path / "store")
    assert isinstance(store.graphs.node_features, SparseRows)
    assert torch.equal(store.graphs.node_features.dense(), as_dense(graph.node_features))


def test_wrong_sparse_features_are_refused_in_one_sentence() -> None:
    rows = SparseRows.of(torch.eye(3))
    with pytest.raises(ValueError, match="node_features has 3 rows but num_nodes is 4"):
        Graph(rows, num_nodes=4)
    bad = SparseRows(rows.entries, rows.columns, torch.tensor([1.0, torch.nan, 1.0]), 3)
    with pytest.raises(ValueError, match="node_features row 1, column 1 is nan"):
        Graph(bad)
    far = SparseRows(rows.entries, rows.columns, rows.values, 2)
    with pytest.raises(ValueError, match="node_features names column 2; expected 0 to 1"):
        Graph(far)
    with pytest.raises(ValueError, match="edge_features is a sparse tensor"):
        Graph(rows, torch.tensor([[0], [1]]), torch.ones(1, 1).to_sparse_coo())
    model = small_model(tokens=TokensConfig(node_features=FeatureSpec(width=6)))
    with pytest.raises(ValueError, match="node_features is 3 floats \\(sparse float32\\); this model expects 6 floats"):
        model(Graph(rows))
