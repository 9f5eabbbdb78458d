"""One molecule, one answer: predictions do not depend on how a SMILES is written, but for older stores and runs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rdkit import Chem, rdBase

from tests.interop.test_canonical import _FILES, ODD, _real, _same
from tests.workflow.small import QUIET, molecule_csv, train_small, write_csv
from tokengt.data.manifest import Recipe
from tokengt.data.prepare import prepare
from tokengt.data.store import Store
from tokengt.inference import Predictor, load
from tokengt.interop.molecules import MoleculePolicy, pack_molecules

SPELLED = MoleculePolicy(atoms="spelled")
LIKE_OLD = replace(QUIET, policy=SPELLED)
# One molecule, from its two ends: with another order and the same chirality.
ONE_WAY, OTHER_WAY = "C[C@H](N)C(=O)OCC", "CCOC(=O)[C@@H](N)C"


@pytest.fixture(scope="module")
def chiral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Molecules with stereo centres, and labels that depend on them."""
    folder = tmp_path_factory.mktemp("chiral")
    texts = [text for text in ODD if "@" in text or "/" in text]
    return write_csv(folder / "data.csv", ("smiles", "y"), ((text, len(text) % 7) for text in texts))


def spread(predictor: Predictor, molecules: list[str], times: int) -> float:
    """The largest difference between predictions of spellings of one molecule."""
    texts: list[str] = []
    with rdBase.BlockLogs():
        for smiles in molecules:
            molecule = Chem.MolFromSmiles(smiles)
            drawn = Chem.MolToRandomSmilesVect(molecule, times, randomSeed=3)
            # What RDKit writes and then reads as another molecule is not a spelling of this one.
            texts += [text if _same(text, molecule) else smiles for text in drawn]
    values = predictor.predict(texts).mean.reshape(len(molecules), times, -1)
    assert np.isfinite(values).all()
    return float((values.max(1) - values.min(1)).max())


@pytest.mark.parametrize("identifiers", ["laplacian", "orf"])
def test_every_spelling_has_the_same_prediction(chiral: Path, identifiers: str, tmp_path: Path) -> None:
    settings = {"model.identifiers.kind": identifiers, "training.learning_rate": 0.01}
    run = train_small(chiral, tmp_path / "run", "y", preset="small", settings=settings)
    assert spread(run, ODD, 6) < 1e-5
    # The same weights, reading atoms as they are spelled, have several answers: the test can fail.
    old = Predictor(replace(run.spec, molecules=SPELLED), run.members, run.device)
    assert spread(old, ODD, 6) > 1e-4


def test_the_bundled_run_gives_one_answer() -> None:
    assert spread(load("pretrained:gap", "cpu"), ODD[:16], 4) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("identifiers", ["laplacian", "orf"])
def test_a_thousand_molecules_ten_spellings(chiral: Path, identifiers: str, tmp_path: Path) -> None:
    settings = {"model.identifiers.kind": identifiers, "training.learning_rate": 0.01}
    run = train_small(chiral, tmp_path / "run", "y", preset="small", settings=settings)
    with rdBase.BlockLogs():
        molecules = [smiles for file in _FILES for smiles in _real(file, 170)]
    assert len(molecules) >= 1000
    assert spread(run, molecules, 10) < 1e-5
    if identifiers == "laplacian":
        assert spread(load("pretrained:gap", "cpu"), molecules, 10) < 1e-5


def test_a_store_of_an_older_version_keeps_its_order(tmp_path: Path) -> None:
    source = molecule_csv(tmp_path / "data.csv")
    store = prepare(source, tmp_path / "store", Recipe(targets=("y",), policy=SPELLED), workers=1, progress=False)
    # As those versions wrote it: nothing in the manifest says that atoms are spelled, but its version.
    told = json.loads((tmp_path / "store" / "manifest.json").read_text())["featurisation"]
    assert told["version"] == 1
    assert told["policy"] == {"salts": "keep", "stereo": "keep", "hydrogens": "implicit"}
    asked = Recipe(targets=("y",))
    with pytest.raises(ValueError, match="version of featurisation was 1 and is now 2; atoms was spelled and is now"):
        prepare(source, tmp_path / "store", asked, workers=1, progress=False)
    run = train_small(tmp_path / "store", tmp_path / "run", "y")
    assert run.spec.molecules == SPELLED
    graphs, _, _ = run.read_texts([OTHER_WAY])
    assert np.array_equal(graphs.node_features, pack_molecules([OTHER_WAY], SPELLED).node_features)
    # Whoever asks a store for what it is not hears of it.
    new = prepare(source, tmp_path / "new", asked, workers=1, progress=False)
    assert new.manifest.featurisation["version"] == 2
    with pytest.raises(ValueError, match=r"the molecule policy is .*spelled.*prepared with .*canonical"):
        train_small(tmp_path / "new", tmp_path / "other", "y", options=LIKE_OLD)
    with pytest.raises(ValueError, match=r"the store holds molecules with atoms canonical; .* with atoms spelled"):
        _predicted(run, new)
    assert len(store) == len(new)


def _predicted(run: Predictor, store: Store) -> Any:
    from tokengt.workflow.stores import check_alike

    return check_alike(store, run.spec)


def test_a_run_of_an_older_version_goes_on_as_it_was_begun(tmp_path: Path) -> None:
    source = molecule_csv(tmp_path / "data.csv")
    first = train_small(source, tmp_path / "run", ("y", "z"), options=LIKE_OLD)
    assert "atoms" not in json.loads((tmp_path / "run" / "run.json").read_text())["molecules"]
    # Nobody says again how it was begun.
    again = train_small(source, tmp_path / "run", ("y", "z"), resume=True)
    assert again.spec == first.spec
    tuned = train_small(source, tmp_path / "tuned", "y", start=tmp_path / "run", settings={"training.epochs": 1})
    assert tuned.spec.molecules == SPELLED


def test_one_molecule_written_from_two_ends_is_one_graph() -> None:
    packed, spelled = (pack_molecules([ONE_WAY, OTHER_WAY], policy) for policy in (MoleculePolicy(), SPELLED))
    half = len(packed.node_features) // 2
    assert np.array_equal(packed.node_features[:half], packed.node_features[half:])
    assert not np.array_equal(spelled.node_features[:half], spelled.node_features[half:])
