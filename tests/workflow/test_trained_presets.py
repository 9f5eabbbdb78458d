"""Molecules begin with the weights that come with the package, where those belong."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workflow.small import QUIET, molecule_csv
from tokengt.data.datasets import bundled
from tokengt.inference import load
from tokengt.interop.molecules import MoleculePolicy
from tokengt.training.config import TrainingConfig
from tokengt.training.start import Start
from tokengt.workflow.fitting import train


def begun_with(folder: Path) -> str | None:
    start: str | None = json.loads((folder / "run.json").read_text())["start"]
    return start


def test_molecules_begin_with_the_weights_of_the_package(tmp_path: Path) -> None:
    source = molecule_csv(tmp_path / "data.csv")
    still = {"training.epochs": 1, "training.learning_rate": 0}
    train(source, tmp_path / "run", target="y", settings=still, options=QUIET)
    weights = Start.read(bundled("small-pretrained"))
    assert begun_with(tmp_path / "run") == weights.sha256
    kept = load(tmp_path / "run", "cpu").members[0].model.state_dict()
    moved = [name for name, value in weights.weights.items() if not torch.equal(kept[name], value)]
    assert {name.split(".")[0] for name in moved} <= {"head"}


@pytest.mark.parametrize(
    ("preset", "settings", "hydrogens", "begins"),
    [
        ("auto", {"model.head.mlp": True}, "implicit", True),
        ("auto", {"model.encoder.num_layers": 1}, "implicit", False),
        ("auto", {"model.identifiers.kind": "orf"}, "implicit", False),
        ("auto", {}, "explicit", False),
        ("small", {}, "implicit", False),
        ("small-pretrained", {"model.encoder.drop_path": 0}, "implicit", True),
    ],
)
def test_where_the_weights_of_the_package_do_not_fit_training_begins_anew(
    tmp_path: Path, preset: str, settings: dict[str, Any], hydrogens: Any, begins: bool
) -> None:
    source = molecule_csv(tmp_path / "data.csv", 20)
    options = replace(QUIET, policy=MoleculePolicy(hydrogens=hydrogens))
    quick = {"training.epochs": 1, **settings}
    train(source, tmp_path / "run", target="y", preset=preset, settings=quick, options=options)
    assert (begun_with(tmp_path / "run") is not None) == begins


def test_trained_weights_learn_half_as_long() -> None:
    config = TrainingConfig()
    assert [config.for_graphs(1000, begun=begun).epochs for begun in (False, True)] == [60, 30]
    assert [config.for_graphs(8000, begun=begun).epochs for begun in (False, True)] == [20, 10]
    assert config.for_graphs(64, begun=True).epochs == 150  # 300 steps


@pytest.mark.parametrize(
    ("settings", "hydrogens", "sentence"),
    [
        ({}, "explicit", "small-pretrained knows molecules with implicit hydrogens; use the preset small"),
        ({"model.encoder.num_heads": 4}, "implicit", "has model.encoder.num_heads 8, here it is 4"),
        ({"model.identifiers.kind": "orf"}, "implicit", "has model.identifiers.kind laplacian, here it is orf"),
    ],
)
def test_the_weights_of_the_package_are_not_used_for_what_they_do_not_know(
    tmp_path: Path, settings: dict[str, Any], hydrogens: Any, sentence: str
) -> None:
    source = molecule_csv(tmp_path / "data.csv", 20)
    options = replace(QUIET, policy=MoleculePolicy(hydrogens=hydrogens))
    with pytest.raises(ValueError, match=sentence):
        train(source, tmp_path / "run", target="y", preset="small-pretrained", settings=settings, options=options)
    assert not (tmp_path / "run" / "run.json").exists()


@pytest.mark.parametrize("preset", ["auto", "small"])
def test_a_resumed_run_keeps_the_weights_it_was_begun_with(tmp_path: Path, preset: str) -> None:
    source = molecule_csv(tmp_path / "data.csv", 20)
    quick = {"training.epochs": 1}
    train(source, tmp_path / "run", target="y", preset=preset, settings=quick, options=QUIET)
    before = begun_with(tmp_path / "run")
    train(source, tmp_path / "run", target="y", settings=quick, options=QUIET, resume=True)
    assert begun_with(tmp_path / "run") == before
    assert (before is None) == (preset == "small")
    if before is not None:
        assert "the preset small-pretrained" in (tmp_path / "run" / "README.md").read_text()
