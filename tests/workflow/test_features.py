"""Numbers about a molecule as a whole: given to a model beside the graph, or learned by it beside its targets."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from tests.workflow.small import QUIET, molecules, read_csv, train_small, write_csv
from tokengt.data import engines
from tokengt.data.manifest import Recipe
from tokengt.data.prepare import prepare
from tokengt.inference import load
from tokengt.interop.descriptors import DESCRIPTORS, MORGAN_BITS, feature_names, is_feature
from tokengt.interop.molecules import MoleculePolicy, pack_molecules
from tokengt.models.tokengt.config import TokenGTConfig
from tokengt.models.tokengt.heads import HeadDescriptors, TokenDescriptors
from tokengt.training.spec import Descriptors
from tokengt.workflow.evaluating import evaluate
from tokengt.workflow.explaining import explain
from tokengt.workflow.fitting import finetune, train
from tokengt.workflow.predicting import predict_file
from tokengt.workflow.rows import chunk_rows

BOTH = MoleculePolicy(features=("rdkit2d", "morgan"))
DOSED = replace(QUIET, descriptors=("dose",))
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


@pytest.fixture(scope="module", params=["token", "head"])
def place(request: pytest.FixtureRequest) -> str:
    """Where the model reads them."""
    return str(request.param)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, place: str) -> Path:
    """A run that is given RDKit's descriptors, and a column of the table beside them."""
    folder = tmp_path_factory.mktemp("features")
    smiles, values = molecules(40)
    rows = [(text, value, row % 4) for row, (text, value) in enumerate(zip(smiles, values, strict=True))]
    data = write_csv(folder / "data.csv", ("smiles", "y", "dose"), rows)
    train_small(data, folder / "run", "y", options=GIVEN, settings={"model.descriptors.kind": place})
    return folder


def test_a_run_works_them_out_again_for_whatever_it_predicts(home: Path) -> None:
    """A list of SMILES, a file, an explanation and an evaluation are given the same numbers."""
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
    assert plain.spec.model != load(home / "run", "cpu").spec.model


def test_a_prepared_store_is_predicted_like_its_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store carries the numbers that a file has worked out anew."""
    recipe = Recipe(targets=("y",), descriptors=("dose",), policy=GIVEN.policy)
    prepare(home / "data.csv", home / "store", recipe, workers=1, progress=False)
    run = load(home / "run", "cpu")
    for source in ("data.csv", "store"):
        predict_file(run, home / source, home / f"{source}.out.csv", quiet=True, workers=1)
    tables = [read_csv(home / f"{source}.out.csv") for source in ("data.csv", "store")]
    told = [[float(row["predicted_y"]) for row in table] for table in tables]
    assert len(told[0]) == 40
    assert told[0] == told[1]
    # In several chunks too, which are cut alike: descriptors take so long that each core gets fewer rows than usual.
    monkeypatch.setattr(engines, "_FEWEST_SLOW_ROWS", 7)
    assert chunk_rows(run, 40) == 7
    for source in ("data.csv", "store"):
        predict_file(run, home / source, home / f"{source}.out.csv", quiet=True, workers=2, overwrite=True)
        again = [float(row["predicted_y"]) for row in read_csv(home / f"{source}.out.csv")]
        assert again == pytest.approx(told[0], abs=1e-5)
    assert (home / "data.csv.out.csv").read_text().count("\n") == (home / "store.out.csv").read_text().count("\n") == 41
    # Whoever forgot them when the store was made hears what is missing, and not all that there is to say of molecules.
    plain = replace(recipe, policy=MoleculePolicy())
    prepare(home / "data.csv", home / "plain", plain, workers=1, progress=False)
    with pytest.raises(ValueError, match="molecules with features none; this run was trained on those with features r"):
        predict_file(run, home / "plain", home / "none.csv", quiet=True)
    with pytest.raises(
        ValueError, match=r"policy is features r\S*, but the store was prepared with features none; prep"
    ):
        evaluate(run, home / "plain", quiet=True)


def test_vectors_are_those_of_the_encoder(home: Path, place: str) -> None:
    """What the head alone reads is no part of what `embed` writes; what the [graph] token reads is."""
    run = load(home / "run", "cpu")
    few, many = (run.embed(["CCO", "c1ccccc1"], descriptors=[[dose]] * 2) for dose in (0, 3))
    assert np.array_equal(few, many) == (place == "head")


def test_weights_of_the_package_are_not_disturbed_by_them(tmp_path: Path) -> None:
    """Before the first step the encoder of a fine-tuned model says what it said without descriptors."""
    smiles, values = molecules(20)
    data = write_csv(tmp_path / "data.csv", ("smiles", "y"), zip(smiles, values, strict=True))
    still = {"training.epochs": 1, "training.learning_rate": 0}
    given = replace(QUIET, policy=BOTH)
    late = train(data, tmp_path / "late", target="y", settings=still, options=given, device="cpu")
    plain = train(data, tmp_path / "plain", target="y", settings=still, options=QUIET, device="cpu")
    assert isinstance(late.spec.model, TokenGTConfig)
    assert isinstance(late.spec.model.descriptors, HeadDescriptors)
    assert np.array_equal(late.embed(smiles[:5]), plain.embed(smiles[:5]))
    assert late.predict(smiles[:5]).mean == pytest.approx(plain.predict(smiles[:5]).mean)
    asked = {**still, "model.descriptors.kind": "token"}
    early = train(data, tmp_path / "early", target="y", settings=asked, options=given, device="cpu")
    assert isinstance(early.spec.model, TokenGTConfig)
    assert isinstance(early.spec.model.descriptors, TokenDescriptors)
    assert early.spec.start == late.spec.start


def test_fine_tuning_gives_them_again_and_others_where_the_head_alone_reads_them(
    home: Path, place: str, tmp_path: Path
) -> None:
    """Weights that are kept need the numbers that they read; a new head takes those that there are."""
    start, quick = home / "run", {"training.epochs": 1}
    again = finetune(start, home / "data.csv", tmp_path / "again", target="y", settings=quick, options=DOSED)
    assert again.spec.descriptors.names == load(start, "cpu").spec.descriptors.names
    other = replace(DOSED, policy=MoleculePolicy(features=("morgan",)))
    if place == "token":
        with pytest.raises(ValueError, match="the model to begin with takes 198 descriptors, got 1025"):
            finetune(start, home / "data.csv", tmp_path / "other", target="y", settings=quick, options=other)
        return
    changed = finetune(start, home / "data.csv", tmp_path / "other", target="y", settings=quick, options=other)
    assert changed.spec.descriptors.names == ("dose", *feature_names(["morgan"]))


def test_counts_of_neighbourhoods_keep_their_scale() -> None:
    """A count is log(1 + n) for the model too, however few training molecules have it; a weight is standardised."""
    names = ("rdkit2d:MolWt", "morgan:5")
    values = torch.tensor([[4.0, 0.0]] * 99 + [[6.0, math.log(2)]])
    known = Descriptors.fit(names, values)
    assert float(known.scaled(values)[-1, 1]) == 4.0  # 9.9 deviations, cut.
    own = known.with_own_scale()
    assert own.scaled(values)[-1].tolist() == pytest.approx([4.0, math.log(2)])
    assert own.mean[0] == known.mean[0]
    assert Descriptors.fit(("dose",), values[:, :1]).with_own_scale() == Descriptors.fit(("dose",), values[:, :1])


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
