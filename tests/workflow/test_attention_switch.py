"""A trained run goes on with another kind of attention: TokenGT (Lap) + Performer, as the paper's appendix makes it."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.cli.command import here, refused, succeeded
from tests.workflow.small import QUIET, molecule_csv, molecules, read_csv, train_small, write_csv
from tokengt import EluConfig, FavorConfig, TokenGT
from tokengt.inference import Predictor, load
from tokengt.models.tokengt.identifiers import LaplacianIds
from tokengt.training.request import TrainRequest
from tokengt.workflow.fitting import TrainOptions, finetune, train

RECIPE: dict[str, Any] = {
    "training.epochs": 21,
    "training.learning_rate": 3e-3,
    "training.batch_size": 8,
    "training.schedule": "linear",
    "training.loss": "mae",
    "training.clip": 0.7,
    "model.encoder.drop_path": 0.1,
    "model.identifiers.dropout": 0.2,
    "model.encoder.attention.dropout": 0.1,
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A softmax run with Laplacian identifiers, and its data."""
    folder = tmp_path_factory.mktemp("switch")
    train_small(molecule_csv(folder / "data.csv"), folder / "run", ("y", "z"), settings=RECIPE)
    return folder


def switched(home: Path, out: Path, attention: str, **more: Any) -> Predictor:
    more = {"target": ("y", "z"), **more}
    return finetune(home / "run", home / "data.csv", out, attention=attention, device="cpu", options=QUIET, **more)


def the_model(run: Predictor) -> TokenGT:
    model = run.members[0].model
    assert isinstance(model, TokenGT)
    return model


@pytest.mark.slow
def test_the_recipe_is_that_of_the_appendix(home: Path, tmp_path: Path) -> None:
    """A tenth of the epochs (0.1M of 1M steps), 1% of warm-up (1k of 0.1M), cosine; no stochastic depth and eigenvector
    dropout; all else is the recipe of the run."""
    old, new = load(home / "run").spec, switched(home, tmp_path / "new", "favor").spec
    assert (new.training.epochs, new.training.warmup, new.training.schedule) == (3, 0.01, "cosine")
    for name in ("learning_rate", "batch_size", "loss", "clip", "weight_decay", "beta2", "ema", "metric"):
        assert getattr(new.training, name) == getattr(old.training, name), name
    before, after = old.model, new.model
    assert isinstance(before.identifiers, LaplacianIds)  # type: ignore[attr-defined]
    assert (before.identifiers.dropout, before.encoder.drop_path) == (0.2, 0.1)  # type: ignore[attr-defined]
    assert (after.identifiers.dropout, after.encoder.drop_path) == (0.0, 0.0)  # type: ignore[attr-defined]
    assert after.encoder.attention == FavorConfig()  # type: ignore[attr-defined]
    assert after.encoder.mlp_dropout == before.encoder.mlp_dropout  # type: ignore[attr-defined]
    assert (new.kept_head, new.frozen, old.kept_head) == (True, False, False)
    assert (new.task.mean, new.task.scale) == (old.task.mean, old.task.scale)
    assert read_csv(home / "run" / "split.csv") == read_csv(tmp_path / "new" / "split.csv")


@pytest.mark.parametrize("attention", ["favor", "elu", "softmax"])
def test_all_weights_are_kept_the_head_too(home: Path, tmp_path: Path, attention: str) -> None:
    """At a learning rate of 0 nothing changes but the attention: the run is the old model with its kernel switched."""
    new = switched(home, tmp_path / "new", attention, settings={"training.learning_rate": 0, "training.epochs": 1})
    old = load(home / "run", "cpu")
    for name, value in the_model(old).state_dict().items():
        assert torch.equal(the_model(new).state_dict()[name], value), name
    smiles = molecules(12)[0]
    changed = np.abs(new.predict(smiles).mean - old.predict(smiles).mean).max()
    assert (changed == 0) == (attention == "softmax")
    the_model(old).set_attention(the_model(new).config.encoder.attention)
    the_model(old).load_state_dict(the_model(new).state_dict())
    assert np.array_equal(new.predict(smiles).mean, old.predict(smiles).mean)


@pytest.mark.slow
def test_there_and_back_again(home: Path, tmp_path: Path) -> None:
    """The features that FAVOR+ drew have no place in other kinds, and FAVOR+ again keeps them."""
    still = {"settings": {"training.learning_rate": 0, "training.epochs": 1}}
    switched(home, tmp_path / "run", "favor", settings={"training.learning_rate": 0, "training.epochs": 1})
    shutil.copy(home / "data.csv", tmp_path / "data.csv")
    first = the_model(load(tmp_path / "run", "cpu")).state_dict()
    again = the_model(switched(tmp_path, tmp_path / "again", "favor", **still)).state_dict()
    name = "encoder.blocks.0.attention.kernel.projection"
    assert torch.equal(first[name], again[name])
    back = switched(tmp_path, tmp_path / "back", "softmax", **still)
    assert name not in the_model(back).state_dict()
    smiles = molecules(12)[0]
    assert np.array_equal(back.predict(smiles).mean, load(home / "run", "cpu").predict(smiles).mean)


def test_settings_are_the_last_word(home: Path, tmp_path: Path) -> None:
    chosen = {
        "training.epochs": "1",
        "training.warmup": 0.2,
        "model.encoder.attention.num_features": "7",
        "model.encoder.drop_path": 0.05,
    }
    spec = switched(home, tmp_path / "new", "favor", settings=chosen).spec
    assert (spec.training.epochs, spec.training.warmup) == (1, 0.2)
    assert spec.model.encoder.attention.num_features == 7  # type: ignore[attr-defined]
    assert spec.model.encoder.drop_path == 0.05  # type: ignore[attr-defined]
    eps = switched(home, tmp_path / "elu", "elu", settings={"training.epochs": 1, "model.encoder.attention.eps": 0.5})
    assert eps.spec.model.encoder.attention == EluConfig(eps=0.5)  # type: ignore[attr-defined]


def test_a_stopped_one_is_resumed_and_another_is_refused(home: Path, tmp_path: Path) -> None:
    first = switched(home, tmp_path / "new", "favor").spec
    assert switched(home, tmp_path / "new", "favor", resume=True).spec == first
    with pytest.raises(ValueError, match=r"was begun with other settings: .*attention"):
        switched(home, tmp_path / "new", "elu", resume=True)


def test_other_targets_need_a_new_head(home: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"predicts y, z \(regression\), and the data has y \(regression\); expected"):
        switched(home, tmp_path / "new", "favor", target="y")
    smiles, values = molecules(40)
    rows = [(text, int(value > -2), int(value > -3)) for text, value in zip(smiles, values, strict=True)]
    classes = write_csv(tmp_path / "classes.csv", ("smiles", "y", "z"), rows)
    with pytest.raises(ValueError, match=r"the data has y, z \(binary\)"):
        finetune(home / "run", classes, tmp_path / "b", attention="favor", target=("y", "z"), options=QUIET)


def test_rows_that_were_learned_from_are_not_tested_on(home: Path, tmp_path: Path) -> None:
    """Another seed is another split of the same rows; other data may be split as one likes, in the old units."""
    with pytest.raises(ValueError, match=r"another split of this data \(random.*seed 0.*give the same split"):
        switched(home, tmp_path / "new", "favor", seed=1)
    smiles, values = molecules(60)
    rows = [(text, 100 + value, value) for text, value in zip(smiles[40:], values[40:], strict=True)]
    other = write_csv(tmp_path / "other.csv", ("smiles", "y", "z"), rows)
    spec = finetune(
        home / "run", other, tmp_path / "o", attention="elu", target=("y", "z"), seed=1, device="cpu", options=QUIET
    ).spec
    assert spec.task.mean == load(home / "run").spec.task.mean


def test_what_cannot_be_switched_says_why(home: Path, tmp_path: Path) -> None:
    load(home / "run", "cpu").members[0].model.save_pretrained(tmp_path / "saved")
    with pytest.raises(ValueError, match="holds a saved model; expected a run"):
        finetune(tmp_path / "saved", home / "data.csv", tmp_path / "a", attention="favor", target="y", options=QUIET)
    train(
        home / "data.csv",
        tmp_path / "gin",
        target="y",
        preset="gin",
        settings={"model.dim": 8, "model.num_layers": 1, "training.epochs": 1},
        device="cpu",
        options=QUIET,
    )
    with pytest.raises(ValueError, match="GIN has no attention that can be switched under its weights"):
        finetune(tmp_path / "gin", home / "data.csv", tmp_path / "b", attention="favor", target="y", options=QUIET)
    with pytest.raises(ValueError, match=r"'favour'.*favor"):
        switched(home, tmp_path / "c", "favour")
    assert not any((tmp_path / name).exists() for name in "abc")


def test_requests_that_contradict_themselves(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give a start"):
        TrainRequest(attention="favor")
    with pytest.raises(ValueError, match="freeze trains a new head alone, and attention keeps the head"):
        TrainRequest(start=tmp_path, attention="favor", freeze=True)
    with pytest.raises(ValueError, match=r"attention is favor, but setting model.encoder.attention.kind is elu"):
        TrainRequest(start=tmp_path, attention="favor", settings={"model.encoder.attention.kind": "elu"})


def test_folds_would_be_tested_on_what_the_first_model_learned_from(home: Path, tmp_path: Path) -> None:
    options = TrainOptions(quiet=True, workers=1, folds=3)
    with pytest.raises(ValueError, match="another split of this data"):
        finetune(home / "run", home / "data.csv", tmp_path / "n", attention="elu", target=("y", "z"), options=options)


def test_the_command_switches_the_attention(home: Path, tmp_path: Path) -> None:
    command = ("finetune", home / "run", home / "data.csv", "--target", "y", "z", "--device", "cpu", "--workers", "1")
    done = here(*command, "--attention", "elu", "--epochs", "1", "--out", tmp_path / "new")
    assert "predict with" in succeeded(done).stdout
    spec = load(tmp_path / "new").spec
    assert spec.model.encoder.attention == EluConfig()  # type: ignore[attr-defined]
    assert (spec.training.epochs, spec.kept_head) == (1, True)
    for words, sentence in (
        (("--attention", "favour"), "'favour'"),
        (("--attention", "elu", "--freeze"), "expected one of the two"),
        (("--attention", "elu", "--seed", "5"), "another split of this data"),
        (("--attention", "elu", "--set", "model.encoder.attention.kind=favor"), "attention is elu, but setting"),
    ):
        assert sentence in refused(here(*command, *words, "--out", tmp_path / "other"))
    assert not (tmp_path / "other").exists()
    plain = here("train", "a.csv", "--attention", "elu", "--out", "b")
    assert "tokengt train has no option --attention" in plain.stderr
