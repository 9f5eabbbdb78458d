"""Numbers about a molecule as a whole: given to a model beside the graph, or learned by it beside its targets."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from tests.workflow.small import QUIET, molecules, read_csv, train_small, write_csv
from tokengt.interop.descriptors import DESCRIPTORS, MORGAN_BITS, feature_names, is_feature
from tokengt.interop.molecules import MoleculePolicy, pack_molecules
from tokengt.workflow.evaluating import evaluate
from tokengt.workflow.explaining import explain
from tokengt.workflow.predicting import predict_file

BOTH = MoleculePolicy(features=("rdkit2d", "morgan"))
GIVEN = replace(QUIET, policy=MoleculePolicy(features=("rdkit2d",)), descriptors=("dose",))


def test_numbers_by_hand() -> None:
    """Ethanol weighs 46.069, and methane has one neighbourhood, once."""
    packed = pack_molecules(["CCO", "C"], BOTH)
    names = feature_names(BOTH.features)
    assert packed.features.shape == (2, len(names)) == (2, len(DESCRIPTORS) + MORGAN_BITS)
    weight, rings = names.index("rdkit2d:MolWt"), names.index("rdkit2d:RingCount")
    assert packed.features[0, weight] == pytest.approx(math.asinh(46.069), abs=1e-4)
    assert packed.features[0, rings] == 0
    counts = packed.features[1, len(DESCRIPTORS) :]
    assert counts[counts > 0].tolist() == pytest.approx([math.log(2)])
    assert is_feature("rdkit2d:MolWt")
    assert not is_feature("dose")


def test_numbers_do_not_depend_on_the_spelling_or_on_how_hydrogens_are_kept() -> None:
    spelled = ["C[C@H](N)C(=O)O", "OC(=O)[C@@H](N)C", "[H]OC(=O)[C@@]([H])(N)C"]
    rows = pack_molecules(spelled, BOTH).features
    assert np.array_equal(rows[0], rows[1])
    assert np.array_equal(rows[0], rows[2])
    explicit = pack_molecules(spelled[:1], replace(BOTH, hydrogens="explicit")).features
    assert np.allclose(explicit, rows[:1], atol=1e-6)


def test_a_lone_ion_has_finite_numbers() -> None:
    assert np.isfinite(pack_molecules(["[Na+]", "[H][H]", "[Na+].[Cl-]"], BOTH).features).all()


@pytest.mark.parametrize("kinds", [("rdkit",), ("morgan", "morgan")])
def test_other_kinds_are_refused(kinds: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="expected some of rdkit2d, morgan, each once"):
        MoleculePolicy(features=kinds)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is given RDKit's descriptors, and a column of the table beside them."""
    folder = tmp_path_factory.mktemp("features")
    smiles, values = molecules(40)
    rows = [(text, value, place % 4) for place, (text, value) in enumerate(zip(smiles, values, strict=True))]
    data = write_csv(folder / "data.csv", ("smiles", "y", "dose"), rows)
    train_small(data, folder / "run", "y", options=GIVEN)
    return folder


def test_a_run_works_them_out_again_for_whatever_it_predicts(home: Path) -> None:
    """A list of SMILES, a file, an explanation and an evaluation are given the same numbers."""
    from tokengt.inference import load

    run, smiles = load(home / "run"), molecules(6)[0]
    assert run.spec.descriptors.names[:2] == ("dose", "rdkit2d:MaxAbsEStateIndex")
    assert run.spec.descriptors.columns == ("dose",)
    told = run.predict(smiles, descriptors=[[place % 4] for place in range(6)]).mean[:, 0]
    predict_file(run, home / "data.csv", home / "out.csv", quiet=True, workers=1)
    written = [float(row["predicted_y"]) for row in read_csv(home / "out.csv")[:6]]
    assert written == pytest.approx(told.tolist(), abs=1e-5)
    for asked in ({"given": home / "data.csv", "row": 3}, {"given": smiles[2], "descriptors": [2.0]}):
        assert explain(run, methods=(), usual=0, **asked).prediction[0] == pytest.approx(told[2], abs=1e-5)
    assert evaluate(run, home / "data.csv", quiet=True).rows == 40
    other = run.predict(smiles, descriptors=[[3]] * 6).mean[:, 0]
    assert not np.allclose(other, told)
    with pytest.raises(ValueError, match="trained with descriptors; expected 1 rows of 1 numbers"):
        run.predict(["CCO"])
    card = (home / "run" / "README.md").read_text()
    assert "`dose`" in card
    assert "Beside the graph the model is given rdkit2d of each molecule." in card


def test_they_change_what_is_learned(home: Path, tmp_path: Path) -> None:
    plain = train_small(home / "data.csv", tmp_path / "run", "y", options=replace(GIVEN, policy=MoleculePolicy()))
    assert plain.spec.descriptors.names == ("dose",)
    assert plain.spec.model != train_small(home / "data.csv", home / "run", "y", options=GIVEN, resume=True).spec.model


def test_auxiliary_numbers_are_learned_and_never_predicted(home: Path, tmp_path: Path) -> None:
    """The head has an output for each of them; a person sees the target alone, and a resumed run is the same one."""
    taught = replace(QUIET, auxiliary=("rdkit2d",), ensemble=2)
    run = train_small(home / "data.csv", tmp_path / "run", "y", options=taught)
    assert run.task.out_dim == 1 + len(DESCRIPTORS)
    told = run.predict(["CCO", "CCC"], draws=2)
    assert told.mean.shape == (2, 1)
    plain = train_small(home / "data.csv", tmp_path / "plain", "y", options=replace(QUIET, ensemble=2))
    assert not np.allclose(plain.predict(["CCO", "CCC"], draws=2).mean, told.mean)
    assert "It also learned to predict rdkit2d of each molecule" in (tmp_path / "run" / "README.md").read_text()
    weights = run.members[0].model.state_dict()
    assert all(torch.isfinite(tensor).all() for tensor in weights.values() if tensor.is_floating_point())
    with pytest.raises(ValueError, match="was begun with other settings"):
        train_small(home / "data.csv", tmp_path / "run", "y", options=replace(taught, auxiliary=()), resume=True)


def test_graphs_that_are_no_molecules_have_none(tmp_path: Path) -> None:
    ring = torch.tensor([[0, 1, 2], [1, 2, 0]])
    graphs = [Data(x=torch.ones(3, 1), edge_index=ring, y=torch.tensor([float(place)])) for place in range(8)]
    features = replace(QUIET, policy=MoleculePolicy(features=("morgan",)))
    with pytest.raises(ValueError, match="the features morgan are worked out from molecules; this data has none"):
        train_small(graphs, tmp_path / "run", options=features)
    with pytest.raises(ValueError, match="auxiliary numbers are worked out from SMILES; this data has none"):
        train_small(graphs, tmp_path / "run", options=replace(QUIET, auxiliary=("morgan",)))
