"""SMILES to :class:`~tokengt.graph.Graph`, with the category columns of the Open Graph Benchmark.

Values and edge order equal ``ogb.utils.mol.smiles2graph``; the vocabularies are fixed, so an element that no
training molecule has still gets a row: ``OTHER``.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokengt.graph import Graph

OTHER = "other"

ATOM_VOCABULARY: Mapping[str, tuple[int | str | bool, ...]] = {
    "atomic_number": (*range(1, 119), OTHER),
    "chirality": ("CHI_UNSPECIFIED", "CHI_TETRAHEDRAL_CW", "CHI_TETRAHEDRAL_CCW", "CHI_OTHER", OTHER),
    "degree": (*range(11), OTHER),
    "formal_charge": (*range(-5, 6), OTHER),
    "hydrogens": (*range(9), OTHER),
    "radical_electrons": (*range(5), OTHER),
    "hybridization": ("SP", "SP2", "SP3", "SP3D", "SP3D2", OTHER),
    "is_aromatic": (False, True),
    "is_in_ring": (False, True),
}

# OGB gives bond stereo no 'other' and fails on atropisomers; here they share the row of unspecified stereo.
BOND_VOCABULARY: Mapping[str, tuple[int | str | bool, ...]] = {
    "type": ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC", OTHER),
    "stereo": ("STEREONONE", "STEREOZ", "STEREOE", "STEREOCIS", "STEREOTRANS", "STEREOANY"),
    "is_conjugated": (False, True),
}

ATOM_CATEGORIES = tuple(len(values) for values in ATOM_VOCABULARY.values())
BOND_CATEGORIES = tuple(len(values) for values in BOND_VOCABULARY.values())


def from_smiles(smiles: str) -> Graph:
    """The molecule as RDKit reads it: hydrogens implicit, bonds in both directions, a salt one disconnected graph.

    Atoms are numbered as the SMILES spells them; what follows a blank is a name, which RDKit leaves out.
    ``node_features`` [atoms, 9] and ``edge_features`` [2 bonds, 3] are int64 rows of :data:`ATOM_VOCABULARY`
    and :data:`BOND_VOCABULARY`; ``edge_index`` [2, 2 bonds] lists (i, j), (j, i) bond by bond.

    Raises:
        ValueError: RDKit cannot read the SMILES (with its reason), or it holds no atom.
        ImportError: RDKit is not installed.
    """
    if not isinstance(smiles, str):
        raise ValueError(
            f"expected one SMILES string, got {type(smiles).__name__}; call from_smiles for each of several"
        )
    if not smiles.isascii():
        # RDKit drops such characters at the ends without a word.
        raise ValueError(f"SMILES {smiles!r} cannot be read: it holds characters that are not ASCII")
    rdkit = _rdkit()
    with rdkit.silence():
        molecule = rdkit.parse(smiles)
    if molecule is None:
        raise ValueError(f"SMILES {smiles!r} cannot be read: {_reason(smiles)}")
    if molecule.GetNumAtoms() == 0:
        raise ValueError(f"SMILES {smiles!r} holds no atom; expected at least one")
    edge_index, edge_features = _bonds(molecule, rdkit)
    return Graph(_atoms(molecule, rdkit), edge_index, edge_features)


@dataclass(frozen=True)
class _RDKit:
    """What a call needs of RDKit, looked up once: ``rows`` map RDKit's values to category rows."""

    parse: Callable[[str], Any]
    silence: Callable[[], Any]
    atom_rows: tuple[Callable[[Any, int], int], ...]
    atom_other: tuple[int, ...]
    bond_rows: tuple[Callable[[Any, int], int], ...]
    bond_other: tuple[int, ...]


@cache
def _rdkit() -> _RDKit:
    try:
        from rdkit import Chem, rdBase
    except ImportError as error:
        raise ImportError("reading SMILES needs RDKit: pip install 'tokengt[chem]'") from error
    enums: dict[str, Any] = {
        "chirality": Chem.ChiralType,
        "hybridization": Chem.HybridizationType,
        "type": Chem.BondType,
        "stereo": Chem.BondStereo,
    }

    def rows(vocabulary: Mapping[str, tuple[int | str | bool, ...]]) -> tuple[Callable[[Any, int], int], ...]:
        tables: list[Callable[[Any, int], int]] = []
        for column, values in vocabulary.items():
            known = enums[column].names if column in enums else {value: value for value in values}
            tables.append({known[v]: row for row, v in enumerate(values) if v != OTHER}.get)
        return tuple(tables)

    return _RDKit(
        parse=Chem.MolFromSmiles,
        silence=rdBase.BlockLogs,
        atom_rows=rows(ATOM_VOCABULARY),
        atom_other=tuple(size - 1 for size in ATOM_CATEGORIES),
        bond_rows=rows(BOND_VOCABULARY),
        bond_other=tuple(size - 1 for size in BOND_CATEGORIES),
    )


def _atoms(molecule: Any, rdkit: _RDKit) -> Tensor:
    number, chirality, degree, charge, hydrogens, radicals, hybridization, _, _ = rdkit.atom_rows
    other_n, other_c, other_d, other_q, other_h, other_r, other_y, _, _ = rdkit.atom_other
    rows = [
        (
            number(atom.GetAtomicNum(), other_n),
            chirality(atom.GetChiralTag(), other_c),
            degree(atom.GetTotalDegree(), other_d),
            charge(atom.GetFormalCharge(), other_q),
            hydrogens(atom.GetTotalNumHs(), other_h),
            radicals(atom.GetNumRadicalElectrons(), other_r),
            hybridization(atom.GetHybridization(), other_y),
            atom.GetIsAromatic(),
            atom.IsInRing(),
        )
        for atom in map(molecule.GetAtomWithIdx, range(molecule.GetNumAtoms()))
    ]
    return torch.from_numpy(np.array(rows, dtype=np.int64))


def _bonds(molecule: Any, rdkit: _RDKit) -> tuple[Tensor, Tensor]:
    kind, stereo, _ = rdkit.bond_rows
    other_kind, other_stereo, _ = rdkit.bond_other
    rows = [
        (
            bond.GetBeginAtomIdx(),
            bond.GetEndAtomIdx(),
            kind(bond.GetBondType(), other_kind),
            stereo(bond.GetStereo(), other_stereo),
            bond.GetIsConjugated(),
        )
        for bond in map(molecule.GetBondWithIdx, range(molecule.GetNumBonds()))
    ]
    bonds = np.array(rows, dtype=np.int64).reshape(-1, 5)
    edge_index = np.empty((2, 2 * len(rows)), dtype=np.int64)
    edge_index[:, 0::2] = bonds[:, :2].T
    edge_index[:, 1::2] = bonds[:, 1::-1].T
    return torch.from_numpy(edge_index), torch.from_numpy(bonds[:, 2:].repeat(2, 0))


def _reason(smiles: str) -> str:
    """Why RDKit refuses these SMILES, in its own words."""
    from rdkit import Chem, rdBase

    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(smiles, sanitize=False)
        if molecule is not None:
            try:
                Chem.SanitizeMol(molecule)
            except ValueError as error:
                return str(error)
    capture = getattr(rdBase, "CaptureErrorLog", None)
    if capture is None:  # RDKit before 2026.03 says this on stderr only
        return "RDKit's parser finds a syntax error"
    with capture() as log:
        Chem.MolFromSmiles(smiles)
    return re.sub(r"^\[[\d:]+\] ", "", log.messages.strip().split("\n")[0])
