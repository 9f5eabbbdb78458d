"""Which molecules are the same, what of them is kept, and how small."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tokengt.interop.molecules import pack_molecules
from tokengt.interop.smiles import batch_of_molecules
from tokengt.pretraining import preparing
from tokengt.pretraining.assays import SLOTS, first_slots, slot_table, slots_of, value_codes
from tokengt.pretraining.describing import SLOW, Job, describe, descriptors
from tokengt.pretraining.keys import Excluded, key_hashes, molecule_keys
from tokengt.pretraining.preparing import Wish, prepare
from tokengt.pretraining.quantise import MISSING, Ranges, from_codes, to_codes
from tokengt.pretraining.run import graphs_of
from tokengt.pretraining.sources import ABOVE, BELOW, EQUAL, UNKNOWN, Measurements, read_excluded, read_source
from tokengt.pretraining.store import ARRAYS, read_arrays, read_manifest


@pytest.mark.parametrize(
    "other",
    [
        "CC(N)C(=O)O",  # Its mirror images are one.
        "C[C@@H](N)C(=O)O",
        "C[C@H](N)C(=O)[O-].[Na+]",  # A salt.
        "C[C@H]([NH3+])C(=O)[O-]",  # As it is in water.
        "Cl.OC(=O)[C@H](C)N",
    ],
)
def test_salts_stereo_and_charges_do_not_make_another_molecule(other: str) -> None:
    assert molecule_keys([other]) == ["CC(N)C(=O)O"]


def test_other_molecules_have_other_keys_and_nitro_groups_keep_their_charges() -> None:
    assert molecule_keys(["CC(N)C(=O)OC", "no molecule"]) == ["COC(=O)C(C)N", None]
    assert molecule_keys(["C[N+](=O)[O-]"]) == ["C[N+](=O)[O-]"]
    # A bond's sides are stereo too.
    assert len(set(molecule_keys(["C/C=C/C", "C/C=C\\C", "CC=CC"]))) == 1


def test_what_is_excluded_is_known_by_a_checksum_that_the_order_does_not_change() -> None:
    one, other = Excluded.of(["CCO", "CCN", "OCC"]), Excluded.of(["CCN", "CCO.Cl"])
    assert one.sha256 == other.sha256
    assert len(one.hashes) == 2
    assert one.holds(key_hashes(["CCO", "CCC", None])).tolist() == [True, False, False]
    assert Excluded.of(["CCO", "C1CC"]).unread == 1


def test_numbers_in_eight_bits() -> None:
    """Between 0 and 10 a step is 10/254; the middle is code 127."""
    ranges = Ranges((0.0, 1.0), (10.0, 1.0))
    values = np.array([[5.0, 1.0], [-3.0, 1.0], [12.0, 7.0], [np.nan, np.inf], [10 / 254 * 3.4, 1.0]])
    codes = to_codes(values, ranges)
    assert codes[:, 0].tolist() == [127, 0, 254, MISSING, 3]
    assert codes[:, 1].tolist() == [0, 0, 254, MISSING, 0]
    assert from_codes(codes, ranges)[:3, 0].tolist() == [5.0, 0.0, 10.0]
    assert np.isnan(from_codes(codes, ranges)[3]).all()
    assert ranges.informative.tolist() == [True, False]


def test_one_wild_number_does_not_take_all_steps() -> None:
    values = np.append(np.arange(10_000.0), 1e12)[:, None]
    ranges = Ranges.of(values)
    assert ranges.low[0] == pytest.approx(10.0)
    assert ranges.high[0] == pytest.approx(9990.0)
    inside = (values >= ranges.low[0]) & (values <= ranges.high[0])
    error = np.abs(from_codes(to_codes(values, ranges), ranges) - values)[inside]
    assert error.max() <= (9990 - 10) / 254 / 2 + 1e-9


def test_values_of_an_assay_in_eighths_of_its_deviation_with_their_bounds() -> None:
    """Assay 0 measured 1 and 3: mean 2, deviation 1. Assay 1 measured the same twice, and tells nothing."""
    assays, values = np.array([0, 0, 1, 1, 0]), np.array([1.0, 3.0, 5.0, 5.0, np.nan])
    relations = np.array([EQUAL, ABOVE, EQUAL, BELOW, EQUAL], dtype=np.uint8)
    assert value_codes(assays, values, relations, 2).tolist() == [24, 40 + 2 * 64, MISSING, MISSING, MISSING]


def test_of_too_many_labels_those_of_the_rarest_assays_have_a_slot() -> None:
    rows = np.array([0] * (SLOTS + 1) + [1])
    assays = np.array([*range(SLOTS + 1), 5])
    chosen = first_slots(rows, assays)
    assert len(chosen) == SLOTS + 1
    assert 5 not in assays[chosen][:SLOTS]
    assert chosen[-1] == len(rows) - 1


def test_labels_travel_by_molecule() -> None:
    """Two sources, of which the second loses its first molecule; its assay comes after those of the first."""
    rows, active, values, equal = np.arange(2), np.array([1, 0], np.uint8), np.array([1.0, 2.0]), np.zeros(2, np.uint8)
    first = Measurements(("a", "b"), rows, np.array([1, 0]), active, values, equal)
    second = Measurements(("c",), rows, np.array([0, 0]), active, values, equal)
    arrays, names = slots_of([first, second], [np.array([0, 1]), np.array([1])])
    assert names == ("a", "b", "c")
    assert arrays["slot_counts"].tolist() == [1, 1, 1]
    table = slot_table(arrays).reshape(3, SLOTS, 4)
    assert table[:, 0, 0].tolist() == [1, 0, 2]
    assert table[:, 0, 2].tolist() == [1, 0, 0]
    assert (table[:, 1:] == MISSING).all()


def test_descriptors_are_those_of_rdkit_without_the_slow_ones() -> None:
    from rdkit import Chem
    from rdkit.Chem import Descriptors

    names = list(descriptors())
    assert len(names) > 190
    assert not SLOW & set(names)
    assert "MolWt" in names
    job = Job(["CCO", "C1CC", "CCN.Cl", "c1ccccc1"], np.array([True, True, True, False]), Excluded.of(["CCN"]), 100)
    found = describe(job)
    assert found["kept"].tolist() == [0, 3]
    assert found["left_out"].tolist() == [1, 1]
    assert found["described"].tolist() == [True, False]
    assert found["descriptors"].shape == (1, len(names))
    expected = Descriptors.MolWt(Chem.MolFromSmiles("CCO"))
    assert found["descriptors"][0, names.index("MolWt")] == pytest.approx(expected, rel=1e-6)


def _library(folder: Path) -> Path:
    file = folder / "library.csv"
    rows = ["smiles,id,active,logP", "CCO,1,1,-0.3", "CCN,2,0,", "C1CC,3,1,2", "c1ccccc1O,4,,1.5", "[Na+].[Cl-],5,0,0"]
    rows += ["C" * size + "O,9,1,1" for size in range(2, 8)]
    file.write_text("\n".join(rows) + "\n")
    return file


def test_a_store_gives_back_graphs_and_labels(tmp_path: Path) -> None:
    file, out = _library(tmp_path), tmp_path / "store"
    (tmp_path / "test.csv").write_text("smiles\nNCC.Cl\n")
    wish = Wish((str(file),), (str(tmp_path / "test.csv"),), max_atoms=7)
    manifest = prepare(wish, out, workers=1, quiet=True)
    (origin,) = manifest.origins
    # CCN is excluded; one text is no molecule, and octanol and heptanol have more than seven atoms.
    assert (origin.kept, origin.excluded, origin.refused) == (8, 1, 2)
    assert manifest.answers == ("library.csv: active",)
    assert manifest.numbers == ("library.csv: logP",)
    arrays = read_arrays(out, manifest)
    assert arrays["answers"][:, 0].tolist() == [1, UNKNOWN, 0, 1, 1, 1, 1, 1]
    smiles = ["CCO", "c1ccccc1O", "[Na+].[Cl-]", *("C" * size + "O" for size in range(2, 7))]
    expected, found = batch_of_molecules(pack_molecules(smiles)), graphs_of(arrays)
    for name, tensor in expected.arrays().items():
        assert torch.equal(found.arrays()[name].long(), tensor.long()), name
    assert manifest.excluded_keys == 1
    assert manifest == read_manifest(out)
    torn = (out / ARRAYS).read_bytes()
    (out / ARRAYS).write_bytes(torn[:-1] + b"x")
    with pytest.raises(ValueError, match="does not match its checksum"):
        read_arrays(out, manifest)


def test_what_was_described_is_not_described_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, out = _library(tmp_path), tmp_path / "store"
    monkeypatch.setattr(preparing, "_PIECE", 4)
    asked: list[int] = []

    def stopped(job: Job) -> dict[str, np.ndarray]:
        asked.append(len(job.texts))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return describe(job)

    monkeypatch.setattr(preparing, "describe", stopped)
    with pytest.raises(KeyboardInterrupt):
        prepare(Wish((str(file),)), out, workers=1, quiet=True)
    monkeypatch.setattr(preparing, "describe", lambda job: asked.append(len(job.texts)) or describe(job))
    once = prepare(Wish((str(file),)), out, workers=1, quiet=True)
    # Eleven molecules in three pieces: the first was done before the second was stopped.
    assert len(asked) == 4
    assert sum(asked) == 11 + asked[1]
    monkeypatch.setattr(preparing, "_PIECE", 2000)
    whole = prepare(Wish((str(file),)), tmp_path / "whole", workers=1, quiet=True)
    assert once.sha256 == whole.sha256
    with pytest.raises(ValueError, match="begun with other max_atoms"):
        prepare(Wish((str(file),), max_atoms=50), out, workers=1, quiet=True)


def test_what_fits_into_the_time_and_later_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The labels of what is there stay with their molecules."""
    file, out = _library(tmp_path), tmp_path / "store"
    monkeypatch.setattr(preparing, "_PIECE", 4)
    some = prepare(Wish((str(file),)), out, workers=1, minutes=0.0, quiet=True)
    assert some.left in (7, 8)
    assert some.count + some.left + some.origins[0].refused == 11
    labels = {tuple(row) for row in read_arrays(out, some)["answers"].tolist()}
    whole = prepare(Wish((str(file),)), out, workers=1, quiet=True)
    assert (whole.left, whole.count) == (0, 10)
    assert labels <= {tuple(row) for row in read_arrays(out, whole)["answers"].tolist()}
    assert whole.sha256 == prepare(Wish((str(file),)), tmp_path / "other", workers=1, quiet=True).sha256


def test_sources_by_name_and_bad_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _library(tmp_path)
    some = read_source(f"{file}:3")
    assert list(some.texts) == ["CCO", "c1ccccc1O", "CCCCO"]
    with pytest.raises(ValueError, match="does not exist; expected a file of molecules, or one of moses"):
        read_source(tmp_path / "nothing.csv")
    monkeypatch.delenv("TOKENGT_DATA", raising=False)
    with pytest.raises(ValueError, match="set TOKENGT_DATA"):
        read_source("moses")
    folder = tmp_path / "data" / "admet"
    folder.mkdir(parents=True)
    import lzma

    (folder / "one.csv.xz").write_bytes(lzma.compress(b"smiles,y,split\nCCO,1,train_val\nCCN,0,test\n"))
    monkeypatch.setenv("TOKENGT_DATA", str(tmp_path / "data"))
    assert read_excluded("admet") == ["CCN"]
