"""from_smiles: equal to OGB's smiles2graph on real molecules, by hand on odd ones."""

import csv
import gzip
import importlib
import lzma
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rdkit import rdBase

from tokengt.interop import molecules as module
from tokengt.interop import reading
from tokengt.interop.molecules import MoleculePolicy
from tokengt.interop.smiles import ATOM_CATEGORIES, ATOM_VOCABULARY, BOND_CATEGORIES, from_smiles

# As OGB reads them.
SPELLED = MoleculePolicy(atoms="spelled")
_REPO = Path(__file__).parents[2]
_BUNDLED = _REPO / "src/tokengt/data/bundled/esol.csv.xz"
_SHARED = Path(os.environ.get("TOKENGT_DATA", _REPO.parent / "shared/data")) / "molecules"
# Each file with its column of SMILES, and how many rows are skipped between two that are read.
_FILES = [
    ("freesolv.csv.xz", "smiles", 1),
    ("bace.csv.xz", "mol", 1),
    ("hiv.csv.xz", "smiles", 40),
    ("tox21.csv.xz", "smiles", 8),
    ("pcqm4mv2_train_first1999.csv", "smiles", 1),
    ("pcqm4mv2_valid_1000.csv", "smiles", 1),
]


@pytest.fixture(scope="module")
def smiles2graph() -> Iterator[Callable[[str], dict[str, Any]]]:
    """OGB's function; without ``outdated`` its import does not ask the network for a newer version."""
    with pytest.MonkeyPatch.context() as patch, rdBase.BlockLogs():
        if "ogb" not in sys.modules:
            patch.setitem(sys.modules, "outdated", None)
        yield importlib.import_module("ogb.utils.mol").smiles2graph


def _molecules(path: Path, column: str, step: int) -> list[str]:
    opener = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    with opener(path, "rt", encoding="utf-8") as file:
        return [row[column] for row in csv.DictReader(file)][::step]


def _assert_equals_ogb(smiles: str, expected: dict[str, Any]) -> None:
    graph = from_smiles(smiles, SPELLED)
    assert graph.node_features is not None
    assert graph.edge_features is not None
    for mine, theirs in (
        (graph.node_features, expected["node_feat"]),
        (graph.edge_index, expected["edge_index"]),
        (graph.edge_features, expected["edge_feat"]),
    ):
        assert mine.dtype == torch.int64
        assert torch.equal(mine, torch.from_numpy(theirs)), smiles


def test_bundled_molecules_equal_ogb(smiles2graph):
    molecules = _molecules(_BUNDLED, "smiles", 1)
    assert len(molecules) == 1128
    for smiles in molecules:
        _assert_equals_ogb(smiles, smiles2graph(smiles))


@pytest.mark.parametrize(("file", "column", "step"), _FILES)
def test_shared_molecules_equal_ogb(file, column, step, smiles2graph):
    if not (_SHARED / file).exists():
        pytest.skip("no shared data here (set TOKENGT_DATA)")
    for smiles in _molecules(_SHARED / file, column, step):
        try:
            expected = smiles2graph(smiles)
        except AttributeError:  # OGB has no molecule: RDKit refused, and so must we
            with pytest.raises(ValueError, match="cannot be read"):
                from_smiles(smiles)
        else:
            _assert_equals_ogb(smiles, expected)


@pytest.mark.parametrize(
    "smiles",
    [
        "C",
        "[H][H]",
        "[Na+].[Cl-]",
        "[13CH4]",
        "*CC",
        "[NH3]->[Fe]",
        "F/C=C/F",
        "F/C=C\\F",
        "c1ccccc1",
        "c1cc[nH]c1",
        "C[C@H](N)O",
        "C[C@@H](N)O",
        "[CH3]",
        "[CH2]",
        "[C]",
        "[Fe+6]",
        "[Ta-6]",
        "S(F)(F)(F)(F)(F)F",
        "[Og]",
        "F[Pt@SP1](Cl)(Br)I",
        "C#N",
        "C$C",
        "CC(=O)O[Hg]c1ccccc1.O.[K+]",
        "CCO ethanol",
    ],
)
def test_odd_molecules_equal_ogb(smiles, smiles2graph):
    _assert_equals_ogb(smiles, smiles2graph(smiles))


def _rows(smiles: str) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    graph = from_smiles(smiles, SPELLED)
    assert graph.node_features is not None
    assert graph.edge_features is not None
    return graph.node_features.tolist(), graph.edge_index.tolist(), graph.edge_features.tolist()


def test_methane_by_hand():
    # carbon is row 5; 4 neighbours, charge 0 (row 5), 4 hydrogens, no radical, SP3 (row 2)
    atoms, index, bonds = _rows("C")
    assert atoms == [[5, 0, 4, 5, 4, 0, 2, 0, 0]]
    assert index == [[], []]
    assert bonds == []
    assert from_smiles("C").edge_features.shape == (0, 3)


def test_formic_acid_bond_order_by_hand():
    _, index, bonds = _rows("C(=O)O")
    assert index == [[0, 1, 0, 2], [1, 0, 2, 0]]
    assert bonds == [[1, 0, 1], [1, 0, 1], [0, 0, 1], [0, 0, 1]]


def test_values_outside_the_vocabulary_take_the_last_row():
    dummy, charged = from_smiles("*").node_features, from_smiles("[Fe+6]").node_features
    assert dummy[0, 0] == ATOM_CATEGORIES[0] - 1 == 118
    assert charged[0, 3] == ATOM_CATEGORIES[3] - 1 == 11
    assert from_smiles("[NH3]->[Fe]").edge_features[0, 0] == BOND_CATEGORIES[0] - 1 == 4
    assert from_smiles("[H+]").node_features[0, 6] == ATOM_CATEGORIES[6] - 1


def test_stereo_bonds_by_hand():
    assert from_smiles("F/C=C/F", SPELLED).edge_features[:, 1].tolist() == [0, 0, 2, 2, 0, 0]
    assert from_smiles("F/C=C\\F", SPELLED).edge_features[:, 1].tolist() == [0, 0, 1, 1, 0, 0]


def test_atropisomer_gets_a_row_where_ogb_fails(smiles2graph):
    smiles = "Cc1cccc(I)c1-c1c(C)cccc1Br |wU:7.7|"
    with pytest.raises(ValueError, match="STEREOATROP"):
        smiles2graph(smiles)
    assert 5 in from_smiles(smiles).edge_features[:, 1]


def test_vocabulary_sizes_are_ogbs():
    assert ATOM_CATEGORIES == (119, 5, 12, 12, 10, 6, 6, 2, 2)
    assert BOND_CATEGORIES == (5, 6, 2)
    assert ATOM_VOCABULARY["atomic_number"][5] == 6


@pytest.mark.parametrize(
    ("smiles", "reason"),
    [
        ("C1CC", "unclosed ring"),
        ("xyz", "syntax error"),
        ("CO(C)C", "Explicit valence for atom # 1 O, 3, is greater than permitted"),
        ("c1cccc1", "Can't kekulize"),
    ],
)
def test_unreadable_smiles_say_why_and_stay_quiet(smiles, reason, capfd):
    with pytest.raises(ValueError, match=reason) as caught:
        from_smiles(smiles)
    assert repr(smiles) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_syntax_errors_without_rdkits_log_capture(monkeypatch, capfd):
    monkeypatch.delattr(rdBase, "CaptureErrorLog", raising=False)
    with pytest.raises(ValueError, match=r"SMILES 'C1CC' cannot be read: .*syntax error"):
        from_smiles("C1CC")
    assert capfd.readouterr() == ("", "")


def test_no_atoms_is_refused():
    with pytest.raises(ValueError, match="SMILES '' holds no atom"):
        from_smiles("")


def test_without_rdkit_the_error_says_how_to_install(monkeypatch):
    module._rdkit.cache_clear()
    reading.rdkit_modules.cache_clear()
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(ImportError, match=r"pip install 'tokengt\[chem\]'"):
        from_smiles("C")
