"""From a request and a store to the models that are trained."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.stores import graph_store, molecule_store, ring
from tokengt import GraphBatch, TokenGTConfig
from tokengt.attention import SoftmaxConfig
from tokengt.data.splits import STANDARD, Split
from tokengt.data.splitting import SplitRequest
from tokengt.data.store import Store
from tokengt.models.message_passing.model import GinConfig
from tokengt.training.request import TrainRequest
from tokengt.training.resolve import Member, fit_task, resolve, shown_targets
from tokengt.training.spec import Descriptors

NAN = float("nan")


def test_labels_of_training_graphs_are_their_rows() -> None:
    store = graph_store([ring(3), ring(4), ring(5)], "node")
    split = Split(torch.tensor([0, 2]), torch.tensor([1]), torch.empty(0, dtype=torch.int64))
    assert shown_targets(store, split, by_row=False).flatten().tolist() == [0, 1, 2, 7, 8, 9, 10, 11]


def test_text_labels_need_multiclass() -> None:
    store = molecule_store(4)
    target = replace(store.manifest.targets[0], classes=("a", "b"))
    places = torch.tensor([[0.0], [1.0], [1.0], [0.0]], dtype=torch.float64)
    store = replace(store, manifest=replace(store.manifest, targets=(target,)), targets=places)
    with pytest.raises(ValueError, match="target 'y' holds text; expected numbers for the task regression"):
        fit_task("regression", store, torch.zeros(4, 1, dtype=torch.float64))
    assert fit_task(None, store, torch.zeros(4, 1, dtype=torch.float64)).kind == "multiclass"


def test_descriptors_are_scaled_by_their_training_rows() -> None:
    fitted = Descriptors.fit(("a", "b"), torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    assert fitted.mean == (2.0, 5.0)
    assert fitted.scale == (1.0, 1.0)
    assert fitted.scaled(torch.tensor([[4.0, 6.0]])).tolist() == [[2.0, 1.0]]
    large = Descriptors.fit(("a",), torch.tensor([[1e8], [1e8 + 16]]))
    assert large.scaled(torch.tensor([[1e8], [1e8 + 16]])).flatten().tolist() == [-1.0, 1.0]


def test_descriptors_are_scaled_by_the_rows_that_are_trained_on(tmp_path: Path) -> None:
    """The rows of the other parts, here a thousand times larger, are not looked at; each fold has its own rows."""
    graphs = GraphBatch.collate([ring(3 + place) for place in range(6)])
    numbers = torch.tensor([[1.0], [3.0], [5.0], [7.0], [4000.0], [-9000.0]])
    codes = torch.tensor([0, 0, 0, 0, 1, 2], dtype=torch.int8)
    store = Store.from_memory(
        graphs.with_graph_features(numbers),
        torch.arange(6.0)[:, None],
        target_names=("y",),
        split=codes,
    )
    store = replace(store, manifest=replace(store.manifest, descriptors=("T",)))
    (member,) = resolved(store, tmp_path, preset="small")
    assert member.spec.descriptors == Descriptors(("T",), (4.0,), (5.0**0.5,))
    scaled = member.store.graphs.graph_features
    assert scaled is not None
    assert scaled[:4].flatten().tolist() == pytest.approx([value / 5**0.5 for value in (-3, -1, 1, 3)])
    assert float(scaled[4]) == pytest.approx((4000 - 4) / 5**0.5)
    folds = resolved(store, tmp_path, preset="small", split=SplitRequest("random", 0, STANDARD, 3))
    for fold in folds:
        shown = numbers[fold.split.train].double()
        assert fold.spec.descriptors.mean == pytest.approx(shown.mean(0).tolist())
        assert fold.spec.descriptors.scale == pytest.approx(shown.std(0, correction=0).tolist())
    assert len({fold.spec.descriptors.mean for fold in folds}) == 3


def test_the_kind_of_a_task_follows_from_all_labels() -> None:
    """Zeros and ones in the training part alone do not make a binary task."""
    graphs = GraphBatch.collate([ring(3 + place) for place in range(6)])
    targets = torch.tensor([[0.0], [1.0], [1.0], [0.0], [2.5], [3.5]])
    store = Store.from_memory(graphs, targets, target_names=("y",))
    assert fit_task(None, store, store.targets[:4]).kind == "regression"
    with pytest.raises(ValueError, match=r"target 'y' holds 2.5; expected 0 or 1"):
        fit_task("binary", store, store.targets[:4])


def resolved(store: Store, tmp_path: Path, **wishes: Any) -> list[Member]:
    return resolve(TrainRequest(**wishes), store, None, tmp_path, lambda sentence: None)


def test_settings_reach_their_fields(tmp_path: Path) -> None:
    settings = {"model.dim": "64", "model.encoder.attention.dropout": 0.5, "training.schedule": "linear"}
    (member,) = resolved(molecule_store(), tmp_path, preset="small", settings=settings)
    model = member.spec.model
    assert isinstance(model, TokenGTConfig)
    assert model.encoder.attention == SoftmaxConfig(dropout=0.5)
    assert (model.dim, member.spec.training.schedule) == (64, "linear")
    for path in ("dim", "model", "optimizer.lr"):
        with pytest.raises(ValueError, match=f"setting '{path}' is unknown"):
            TrainRequest(settings={path: "1"})


def test_a_setting_has_the_last_word_over_the_fit(tmp_path: Path) -> None:
    """One graph's signs stay by themselves; whoever wants them flipped says so, and is heard."""
    store = graph_store([ring(9)], "node")
    wishes = {"model.identifiers.sign_flip": True, "training.epochs": 1}
    (member,) = resolved(store, tmp_path, preset="small", settings=wishes)
    assert member.spec.model.identifiers.sign_flip  # type: ignore[attr-defined]


def test_parts_that_do_not_go_together_are_refused_and_the_remedy_works(tmp_path: Path) -> None:
    """A graph head reads the [graph] token: without it the sentence names two ways out, and both are ways out."""
    without = {"model.tokens.graph_token": "false"}
    with pytest.raises(ValueError, match=r"set tokens\.graph_token=True or head\.readout='sum' or 'mean'"):
        resolved(molecule_store(), tmp_path, preset="small", settings=without)
    resolved(molecule_store(), tmp_path, preset="small", settings={**without, "model.head.readout": "sum"})
    resolved(molecule_store(), tmp_path, preset="small", settings={"model.tokens.graph_token": "true"})


def test_what_follows_from_the_targets_cannot_be_set(tmp_path: Path) -> None:
    for preset, path, value in (("small", "head.out_dim", "3"), ("gin", "out_dim", "3"), ("gin", "level", "node")):
        with pytest.raises(ValueError, match=f"setting 'model.{path}' follows from the targets"):
            resolved(molecule_store(), tmp_path, preset=preset, settings={f"model.{path}": value})


def test_a_setting_that_does_not_exist_is_refused_before_any_data_is_read() -> None:
    with pytest.raises(ValueError, match=r"model.encoder.num_layer is unknown .did you mean num_layers"):
        TrainRequest(settings={"model.encoder.num_layer": "3"})
    with pytest.raises(ValueError, match=r"training.epoch is unknown .did you mean epochs"):
        TrainRequest(settings={"training.epoch": "3"})


def test_a_preset_of_another_kind_fits_itself(tmp_path: Path) -> None:
    (member,) = resolved(graph_store([ring(4), ring(5)], "node"), tmp_path, preset="gin-vn")
    model = member.spec.model
    assert isinstance(model, GinConfig)
    assert (model.level, model.node_features.width, model.virtual_node) == ("node", 1, True)


def test_experiments_presets_are_not_offered() -> None:
    with pytest.raises(ValueError, match="preset 'basis-lap' is unknown; expected one of auto, small"):
        TrainRequest(preset="basis-lap")


def test_a_request_names_one_model() -> None:
    with pytest.raises(ValueError, match="a preset and a start are given; expected one of them"):
        TrainRequest(preset="small", start=Path("run"))
    with pytest.raises(ValueError, match="a model and a start"):
        TrainRequest(model=torch.nn.Linear(1, 1), start=Path("run"))
    with pytest.raises(ValueError, match="freeze trains a new head"):
        TrainRequest(freeze=True)
    with pytest.raises(ValueError, match=r"setting model\.dim is for presets"):
        TrainRequest(model=torch.nn.Linear(1, 1), settings={"model.dim": 3})


def test_a_kind_that_is_switched_is_fitted_to_the_data(tmp_path: Path) -> None:
    """One graph's eigenvectors keep their signs, whichever preset they were switched from."""
    settings = {"model.identifiers.kind": "laplacian"}
    (member,) = resolved(graph_store([ring(9)], "node"), tmp_path, preset="regression-orf", settings=settings)
    assert not member.spec.model.identifiers.sign_flip  # type: ignore[attr-defined]


def test_settings_that_fit_the_data_and_not_the_preset_are_taken(tmp_path: Path) -> None:
    """The presets are made for molecules: features of this width go together with the data only."""
    store = graph_store([ring(4), ring(5)], "node")
    (member,) = resolved(store, tmp_path, preset="gin", settings={"model.node_features.width": 1})
    assert member.spec.model.node_features.width == 1  # type: ignore[attr-defined]
