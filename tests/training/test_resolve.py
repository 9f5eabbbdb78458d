"""From a store and a person's wishes to configs."""

from dataclasses import replace

import pytest
import torch

from tests.graphs import odd_graphs, random_graph
from tests.workflow.small import molecules
from tokengt import FeatureSpec, Graph, GraphBatch, TokenGT, from_smiles
from tokengt.data.splits import Split
from tokengt.data.store import Store
from tokengt.presets import small
from tokengt.training.config import TrainingConfig
from tokengt.training.resolve import (
    SplitRequest,
    apply_settings,
    fit_task,
    fit_tokens,
    is_symmetric,
    make_splits,
    resolve_model,
    shown_targets,
)
from tokengt.training.spec import Descriptors

NAN = float("nan")


def molecule_store(count: int = 12) -> Store:
    texts, values = molecules(count)
    graphs = GraphBatch.collate([from_smiles(text) for text in texts])
    return Store.from_memory(graphs, torch.tensor(values)[:, None], target_names=("y",), texts=texts)


def graph_store(graphs: list[Graph], level: str = "graph", split: torch.Tensor | None = None) -> Store:
    batch = GraphBatch.collate(graphs)
    rows = {"graph": len(batch), "node": batch.num_nodes, "edge": batch.num_edges}[level]
    targets = torch.arange(rows, dtype=torch.float64)[:, None]
    return Store.from_memory(batch, targets, target_names=("y",), level=level, split=split)  # type: ignore[arg-type]


def ring(size: int) -> Graph:
    nodes = torch.arange(size)
    ahead = torch.stack([nodes, nodes.roll(-1)])
    return Graph(torch.ones(size, 1), torch.cat([ahead, ahead.flip(0)], 1))


def test_symmetry_is_of_edges_and_features() -> None:
    def packed(*graphs: Graph) -> GraphBatch:
        return GraphBatch.collate(graphs).narrowed()

    assert is_symmetric(packed(random_graph(6, 9, 1, undirected=True), random_graph(4, 5, 2, undirected=True)))
    assert not is_symmetric(packed(Graph(num_nodes=2, edge_index=torch.tensor([[0], [1]]))))
    both = torch.tensor([[0, 1], [1, 0]])
    assert is_symmetric(packed(Graph(num_nodes=2, edge_index=both, edge_features=torch.tensor([[1.0], [1.0]]))))
    assert not is_symmetric(packed(Graph(num_nodes=2, edge_index=both, edge_features=torch.tensor([[1.0], [2.0]]))))
    assert is_symmetric(packed(Graph(num_nodes=1, edge_index=torch.tensor([[0], [0]])), Graph(num_nodes=1)))
    loops = torch.tensor([[0, 1, 0, 1], [1, 0, 0, 1]])
    assert is_symmetric(packed(Graph(num_nodes=2, edge_index=loops)))


def test_directed_graphs_keep_a_token_a_direction() -> None:
    assert fit_tokens(graph_store([ring(4), ring(5)]), small().tokens).layout == "undirected"
    one_way = Graph(torch.ones(3, 1), torch.tensor([[0, 1], [1, 2]]))
    assert fit_tokens(graph_store([ring(4), one_way]), small().tokens).layout == "directed"


def test_tokens_fit_the_data_and_molecules_keep_their_vocabularies() -> None:
    found = fit_tokens(graph_store(odd_graphs()), small().tokens)
    assert found.node_features.categories == (4, 3)
    assert found.edge_features == FeatureSpec(width=3)
    assert fit_tokens(molecule_store(), small().tokens).node_features == small().tokens.node_features


def test_a_resolved_model_reads_its_store() -> None:
    store = graph_store(odd_graphs(), "node")
    task = fit_task(None, store, store.targets)
    config = resolve_model(small(), store, task)
    assert config.head.level == "node"
    out = TokenGT(config)(store.graphs.select(torch.arange(len(store))))
    assert out.shape == (store.graphs.nodes.total, 1)


def test_signs_stay_when_all_nodes_are_in_one_graph() -> None:
    task = fit_task(None, one := graph_store([ring(9)], "node"), one.targets)
    assert not resolve_model(small(), one, task).identifiers.sign_flip
    assert resolve_model(small(), graph_store([ring(4), ring(5)], "node"), task).identifiers.sign_flip


def test_one_graphs_rows_are_split_and_many_graphs_are_not() -> None:
    splits, by_row = make_splits(graph_store([ring(10)], "node"), SplitRequest())
    assert by_row
    assert sum(len(part) for part in splits[0].parts().values()) == 10
    splits, by_row = make_splits(graph_store([ring(4) for _ in range(10)], "node"), SplitRequest())
    assert not by_row
    assert [len(part) for part in splits[0].parts().values()] == [8, 1, 1]


def test_masks_of_rows_are_a_split_by_rows() -> None:
    codes = torch.tensor([0, 0, 1, 2, -1, 0, 2, 1], dtype=torch.int8)
    store = graph_store([ring(4), ring(4)], "node", codes)
    splits, by_row = make_splits(store, SplitRequest("masks"))
    assert by_row
    assert splits[0].train.tolist() == [0, 1, 5]
    assert splits[0].test.tolist() == [3, 6]
    assert shown_targets(store, splits[0], by_row).flatten().tolist() == [0.0, 1.0, 5.0]


def test_labels_of_training_graphs_are_their_rows() -> None:
    store = graph_store([ring(3), ring(4), ring(5)], "node")
    split = Split(torch.tensor([0, 2]), torch.tensor([1]), torch.empty(0, dtype=torch.int64))
    assert shown_targets(store, split, by_row=False).flatten().tolist() == [0, 1, 2, 7, 8, 9, 10, 11]


def test_splits_that_cannot_be_are_one_sentence() -> None:
    with pytest.raises(ValueError, match="a scaffold split needs molecules"):
        make_splits(graph_store([ring(4), ring(5)]), SplitRequest("scaffold"))
    with pytest.raises(
        ValueError,
        match="--split is 'half'; expected random, scaffold, or the split of the data: the data",
    ):
        make_splits(molecule_store(), SplitRequest("half"))
    with pytest.raises(ValueError, match="--folds makes its own splits"):
        make_splits(molecule_store(), SplitRequest("half", folds=3))


def test_folds_by_scaffold_cut_no_scaffold() -> None:
    store = molecule_store(30)
    splits, _ = make_splits(store, SplitRequest("scaffold", folds=3))
    assert sorted(torch.cat([split.test for split in splits]).tolist()) == list(range(30))


def test_a_split_in_words() -> None:
    assert str(SplitRequest("random")) == "random, seed 0, 80% / 10% / 10%"
    assert str(SplitRequest("scaffold")) == "whole scaffolds, 80% / 10% / 10%"
    assert str(SplitRequest("random", folds=5, seed=2)) == "5 folds, random, seed 2"
    assert str(SplitRequest("part")) == "by the column 'part'"


def test_settings_reach_their_fields() -> None:
    texts = {"model.dim": "64", "model.encoder.attention.dropout": "0.5", "training.schedule": "linear"}
    model, training = apply_settings(small(), TrainingConfig(), texts)
    assert (model.dim, model.encoder.attention.dropout, training.schedule) == (64, 0.5, "linear")
    assert replace(model, dim=96, encoder=small().encoder) == small()
    for path in ("dim", "model", "optimizer.lr"):
        with pytest.raises(ValueError, match=f"setting '{path}' is unknown"):
            apply_settings(small(), TrainingConfig(), {path: "1"})


def test_text_labels_need_multiclass() -> None:
    store = molecule_store(4)
    target = replace(store.manifest.targets[0], classes=("a", "b"))
    places = torch.tensor([[0.0], [1.0], [1.0], [0.0]], dtype=torch.float64)
    store = replace(store, manifest=replace(store.manifest, targets=(target,)), targets=places)
    with pytest.raises(ValueError, match="target 'y' holds text; expected numbers for --task regression"):
        fit_task("regression", store, torch.zeros(4, 1, dtype=torch.float64))
    assert fit_task(None, store, torch.zeros(4, 1, dtype=torch.float64)).kind == "multiclass"


def test_descriptors_are_scaled_by_their_training_rows() -> None:
    fitted = Descriptors.fit(("a", "b"), torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    assert fitted.mean == (2.0, 5.0)
    assert fitted.scale == (1.0, 1.0)
    assert fitted.scaled(torch.tensor([[4.0, 6.0]])).tolist() == [[2.0, 1.0]]
    large = Descriptors.fit(("a",), torch.tensor([[1e8], [1e8 + 16]]))
    assert large.scaled(torch.tensor([[1e8], [1e8 + 16]])).flatten().tolist() == [-1.0, 1.0]


def test_both_directions_of_an_edge_stay_in_one_part() -> None:
    """Otherwise the answer to a test edge stands in the training part, at its reverse."""
    store = graph_store([ring(20)], "edge")
    splits, by_row = make_splits(store, SplitRequest("random", seed=3))
    folds, _ = make_splits(store, SplitRequest("random", folds=4))
    assert by_row
    for split in (*splits, *folds):
        codes = split.codes(40)
        # ring() lists every edge in one direction first, then all of them in the other.
        assert torch.equal(codes[:20], codes[20:])
        assert (codes >= 0).all()
    assert len(splits[0].test) == 4


def test_the_kind_of_a_task_follows_from_all_labels() -> None:
    """Zeros and ones in the training part alone do not make a binary task."""
    graphs = GraphBatch.collate([ring(3 + place) for place in range(6)])
    targets = torch.tensor([[0.0], [1.0], [1.0], [0.0], [2.5], [3.5]])
    store = Store.from_memory(graphs, targets, target_names=("y",))
    assert fit_task(None, store, store.targets[:4]).kind == "regression"
    with pytest.raises(ValueError, match=r"target 'y' holds 2.5; expected 0 or 1"):
        fit_task("binary", store, store.targets[:4])
