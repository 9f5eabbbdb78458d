"""Molecules begin with the weights that come with the package, where those belong."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workflow.small import QUIET, molecule_csv, molecules, write_csv
from tokengt.data.datasets import bundled
from tokengt.data.joined import SplitFiles
from tokengt.data.manifest import Recipe
from tokengt.data.prepare import prepare
from tokengt.inference import load
from tokengt.interop.molecules import MoleculePolicy
from tokengt.models.tokengt.config import TokenGTConfig
from tokengt.models.tokengt.heads import TokenDescriptors
from tokengt.training.config import TrainingConfig
from tokengt.training.start import Start
from tokengt.workflow import fitting
from tokengt.workflow.fitting import finetune, train
from tokengt.workflow.inputs import is_molecule_table


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


def test_three_models_are_averaged_where_a_few_molecules_are_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the default features alone, named or not; an ensemble that was begun otherwise goes on as it was."""
    data, quick = molecule_csv(tmp_path / "data.csv", 20), {"training.epochs": 1, "training.forest": "never"}
    by_itself = replace(QUIET, ensemble=None)

    def models(name: str, resume: bool = False, settings: Any = None, **wishes: Any) -> int:
        options, chosen = replace(by_itself, **wishes), {**quick, **(settings or {})}
        return len(train(data, tmp_path / name, target="y", settings=chosen, options=options, resume=resume).members)

    assert models("default") == 3
    assert models("named", policy=MoleculePolicy(features=("morgan", "rdkit2d"))) == 3
    assert models("other", policy=MoleculePolicy(features=("morgan",))) == 1
    assert models("without", default_features=False) == 1
    assert models("asked", ensemble=2) == 2
    assert models("folds", folds=3) == 3
    assert models("minutes", settings={"training.minutes": 1}) == 1
    assert models("asked", resume=True) == 2
    monkeypatch.setattr(fitting, "MOST_AVERAGED", 19)
    assert models("many") == 1
    assert models("default", resume=True) == 3


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


STILL = {"training.epochs": 1, "training.learning_rate": 0}


def features_of(folder: Path) -> tuple[str, ...]:
    policy = load(folder, "cpu").spec.molecules
    assert policy is not None
    return policy.features


@pytest.mark.parametrize(
    ("wishes", "features"),
    [
        ({}, ("rdkit2d", "morgan")),
        ({"preset": "small-pretrained"}, ("rdkit2d", "morgan")),
        ({"settings": {**STILL, "model.head.mlp": True}}, ("rdkit2d", "morgan")),
        ({"settings": {**STILL, "model.encoder.num_layers": 1}}, ()),
        ({"preset": "small"}, ()),
        ({"options": replace(QUIET, default_features=False)}, ()),
        ({"options": replace(QUIET, policy=MoleculePolicy(features=("morgan",)))}, ("morgan",)),
        ({"options": replace(QUIET, policy=MoleculePolicy(hydrogens="explicit"))}, ()),
        ({"options": replace(QUIET, auxiliary=("rdkit2d",))}, ()),
    ],
)
def test_a_table_of_molecules_has_descriptors_where_the_weights_of_the_package_are_fine_tuned(
    tmp_path: Path, wishes: dict[str, Any], features: tuple[str, ...]
) -> None:
    source = molecule_csv(tmp_path / "data.csv", 20)
    asked = {"settings": STILL, "options": QUIET, **wishes}
    train(source, tmp_path / "run", target="y", device="cpu", **asked)
    assert features_of(tmp_path / "run") == features


def test_columns_of_a_table_are_read_by_the_graph_token(tmp_path: Path) -> None:
    """What a temperature means depends on the molecule, and it must not be dropped."""
    smiles, values = molecules(20)
    rows = ((text, value, place) for place, (text, value) in enumerate(zip(smiles, values, strict=True)))
    source = write_csv(tmp_path / "data.csv", ("smiles", "y", "pH"), rows)
    given = replace(QUIET, descriptors=("pH",))
    run = train(source, tmp_path / "run", target="y", settings=STILL, options=given, device="cpu")
    assert isinstance(run.spec.model, TokenGTConfig)
    assert isinstance(run.spec.model.descriptors, TokenDescriptors)
    assert run.spec.start is not None


def test_a_store_has_the_descriptors_that_it_was_prepared_with(tmp_path: Path) -> None:
    source = molecule_csv(tmp_path / "data.csv", 20)
    prepare(source, tmp_path / "store", Recipe(targets=("y",)), workers=1, progress=False)
    train(tmp_path / "store", tmp_path / "run", target="y", settings=STILL, options=QUIET, device="cpu")
    assert features_of(tmp_path / "run") == ()


def test_large_tables_have_none_by_themselves(tmp_path: Path) -> None:
    source = molecule_csv(tmp_path / "data.csv", 20)
    assert is_molecule_table(source, 20)
    assert not is_molecule_table(source, 19)
    assert not is_molecule_table(tmp_path, 20)
    frame = pytest.importorskip("pandas").read_csv(source)
    assert is_molecule_table(frame, 20)
    assert not is_molecule_table(frame, 19)
    parts = SplitFiles(source, test=molecule_csv(tmp_path / "test.csv", 5))
    assert is_molecule_table(parts, 25)
    assert not is_molecule_table(parts, 24)


def test_a_run_that_was_begun_without_them_goes_on_without_them(tmp_path: Path) -> None:
    """As runs of older versions were, which gave a model nothing that nobody asked for."""
    source, run = molecule_csv(tmp_path / "data.csv", 20), tmp_path / "run"
    plain = replace(QUIET, default_features=False)
    first = train(source, run, target="y", settings=STILL, options=plain, device="cpu")
    again = train(source, run, target="y", settings=STILL, options=QUIET, device="cpu", resume=True)
    assert again.spec == first.spec
    asked = replace(QUIET, policy=MoleculePolicy(features=("morgan",)))
    with pytest.raises(ValueError, match="is another store: features was"):
        train(source, run, target="y", settings=STILL, options=asked, device="cpu", resume=True)


def test_fine_tuning_a_run_takes_its_descriptors_or_none(tmp_path: Path) -> None:
    source = molecule_csv(tmp_path / "data.csv", 20)
    train(source, tmp_path / "run", target="y", settings=STILL, options=QUIET, device="cpu")
    for name, options, features in (
        ("again", QUIET, ("rdkit2d", "morgan")),
        ("none", replace(QUIET, default_features=False), ()),
    ):
        finetune(tmp_path / "run", source, tmp_path / name, target="z", settings=STILL, options=options, device="cpu")
        assert features_of(tmp_path / name) == features
