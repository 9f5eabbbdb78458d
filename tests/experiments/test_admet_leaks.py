"""The leak report: molecules that are the same but for salt, charge and stereo; neighbours; what weights saw."""

from pathlib import Path

import numpy as np
import pytest

from tests.experiments.small_admet import small_endpoints
from tests.workflow.small import write_csv
from tokengt.experiments.admet import leak_cells
from tokengt.experiments.admet.endpoints import ENDPOINTS
from tokengt.experiments.admet.leak_cells import WITHIN, leak_report
from tokengt.experiments.admet.leaks import binned, overlap, overlap_with_keys
from tokengt.experiments.admet.reading import read_endpoint
from tokengt.experiments.admet.seen import named_corpus, shipped_corpus
from tokengt.pretraining.keys import key_hashes, molecule_keys

ALANINE = "CC(N)C(=O)O"


def test_salts_charges_and_stereoisomers_have_the_same_parent() -> None:
    spellings = ["C[C@H](N)C(=O)[O-].[Na+]", "C[C@@H](N)C(=O)O", "OC(=O)C(C)[NH3+].[Cl-]", "C[C@H]([NH3+])C(=O)[O-]"]
    assert molecule_keys([*spellings, "not a molecule"]) == [ALANINE] * 4 + [None]
    assert molecule_keys(["C/C=C/C", "C/C=C\\C"]) == ["CC=CC"] * 2
    # A charge that no proton explains stays.
    assert molecule_keys(["C[N+](C)(C)C.[Br-]"]) == ["C[N+](C)(C)C"]


def test_test_molecules_are_found_themselves_by_parent_and_by_neighbour() -> None:
    test = ["CCO", "C[C@H](N)C(=O)[O-].[Na+]", "c1ccccc1CCCCCCN", "FC(F)(F)F"]
    found = overlap(test, iter(["OCC", "C[C@@H](N)C(=O)O", "c1ccccc1CCCCCCCN", "nonsense"]))
    assert found.same is not None
    assert found.nearest is not None
    assert found.same.tolist() == [True, False, False, False]
    assert found.parent.tolist() == [True, True, False, False]
    assert found.molecules == 3
    assert found.nearest[0] == 1.0
    assert found.nearest[3] < 0.2 < found.nearest[2] <= 1.0
    assert found.part(np.array([1, 2])).told()["rows"] == "0"


def test_neighbours_are_left_out_where_nobody_asks_for_them() -> None:
    found = overlap(["CCO", "C[C@H](N)C(=O)O"], ["OCC", "CC(N)C(=O)[O-].[K+]"], neighbours=False)
    assert found.nearest is None
    assert found.told()["neighbours"] is None
    assert (found.told()["same"], found.told()["parent"], found.molecules) == (1, 2, 2)


def test_a_similarity_is_the_bits_shared_divided_by_the_bits_of_either() -> None:
    """Ethane has one kind of neighbourhood at radius 0 and one at 1; propane shares only that of its end atoms."""
    found = overlap(["CC"], ["CCC"])
    assert found.nearest is not None
    from rdkit import Chem
    from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator

    make = GetMorganGenerator(radius=2, fpSize=2048)
    ours, theirs = (set(make.GetFingerprint(Chem.MolFromSmiles(text)).GetOnBits()) for text in ("CC", "CCC"))
    assert found.nearest[0] == pytest.approx(len(ours & theirs) / len(ours | theirs))


def test_bins_hold_their_lower_end_and_1_is_alone() -> None:
    assert binned(np.array([0.0, 0.39, 0.4, 0.6, 0.79, 0.8, 0.999, 1.0])) == [2, 1, 2, 2, 1]
    assert binned(np.array([])) == [0, 0, 0, 0, 0]


def test_hashed_keys_tell_parents_alone() -> None:
    keys = key_hashes([ALANINE, None, "CCO"])
    found = overlap_with_keys(["C[C@H](N)C(=O)O", "CCC", "not a molecule"], keys)
    assert found.parent.tolist() == [True, False, False]
    assert found.told()["same"] is None
    assert found.molecules == 2


def test_tables_and_keys_of_what_weights_saw_are_checked(tmp_path: Path) -> None:
    table = write_csv(tmp_path / "mine.csv", ("molecule",), [("C",)])
    with pytest.raises(ValueError, match="has no column 'smiles'"):
        named_corpus(table)
    np.save(tmp_path / "keys.npy", np.zeros(3))
    with pytest.raises(ValueError, match="holds float64 of shape"):
        named_corpus(tmp_path / "keys.npy")


def test_without_the_data_nobody_knows_what_the_shipped_weights_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENGT_DATA", raising=False)
    told = shipped_corpus()
    assert isinstance(told, str)
    assert "set TOKENGT_DATA" in told


def test_a_leak_report_is_made_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENGT_DATA", raising=False)
    data = read_endpoint(ENDPOINTS["herg"], small_endpoints(tmp_path / "data"))
    first, second = data.texts(data.test)[:2]
    corpus = named_corpus(
        write_csv(tmp_path / "seen.csv", ("smiles",), [(f"{first}.[Na+].[Cl-]",), (second,), ("CI",)])
    )
    said: list[str] = []
    found, notes = leak_report([data], [corpus], tmp_path, said.append)
    assert len(notes) == 1
    told = found["seen"]["herg"]
    assert (told["same"], told["parent"], told["rows"], told["molecules"]) == (1, 2, "0 1", 3)
    assert sum(told["neighbours"]) == found[WITHIN]["herg"]["test"] == 10

    alone, notes_alone = leak_report([data], [corpus], tmp_path, said.append, "within")
    assert alone == {WITHIN: found[WITHIN]}
    assert "was not looked at" in notes_alone[0]

    def nothing(*_: object) -> None:
        raise AssertionError("it was looked for again")

    monkeypatch.setattr(leak_cells, "found_in", nothing)
    monkeypatch.setattr(leak_cells, "overlap", nothing)
    assert leak_report([data], [corpus], tmp_path, said.append) == (found, notes)
