"""Molecules to packed arrays, with the category columns of the Open Graph Benchmark (OGB).

*Packed* means that the atoms (and bonds) of all molecules lie one after another in one array. Every spelling of a
molecule gives the same arrays; with ``MoleculePolicy(atoms="spelled")`` values and edge order are those of
``ogb.utils.mol.smiles2graph`` instead. The vocabularies are fixed, so that every value has a row, if only that of
``OTHER``, whether or not a training molecule has it. Only NumPy and RDKit are needed.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokengt.interop.canonical import chirality, renumbered
from tokengt.interop.descriptors import feature_names, features_of
from tokengt.interop.reading import DEFAULT_POLICY as DEFAULT_POLICY
from tokengt.interop.reading import MoleculePolicy as MoleculePolicy
from tokengt.interop.reading import TextKind as TextKind
from tokengt.interop.reading import implicit, molecules, rdkit_modules

OTHER = "other"

# The rows of chirality are those of atoms as they are spelled; :mod:`tokengt.interop.canonical` has as many, by name.
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
# The sizes of all vocabularies by the features of a graph that hold them: what a model of molecules is made for.
MOLECULE_CATEGORIES = {"node_features": ATOM_CATEGORIES, "edge_features": BOND_CATEGORIES}

# The numbers of one property for all atoms or bonds of a molecule.
_Read = Callable[[list[Any]], Iterable[int]]
# A property's values so far, how they are read, and the mark that a SMILES needs for the value to be other than 0.
_Column = tuple[list[int], _Read, re.Pattern[str] | None]
# How many texts are read before their values, Python numbers at first, become arrays.
_CHUNK = 8192


@dataclass(frozen=True, eq=False)
class PackedMolecules:
    """Molecules one after another; atoms are numbered from 0 in each, in the order that the policy says.

    A bond is two edges, (i, j) and (j, i), side by side, i < j in the canonical order. Features are rows of
    :data:`ATOM_VOCABULARY` and :data:`BOND_VOCABULARY`.
    """

    node_counts: NDArray[np.int64]  # [kept]
    edge_counts: NDArray[np.int64]  # [kept]
    node_features: NDArray[np.uint8]  # [atoms, 9]
    edge_index: NDArray[np.int32]  # [2, edges]
    edge_features: NDArray[np.uint8]  # [edges, 3]
    features: NDArray[np.float32]  # [kept, as many as the policy's features have]
    kept: NDArray[np.int64]  # [kept] places of the texts that could be read, ascending
    problems: tuple[tuple[int, str], ...]  # (place, reason) of the others


def pack_molecules(
    texts: Sequence[str], policy: MoleculePolicy = DEFAULT_POLICY, kind: TextKind = "smiles"
) -> PackedMolecules:
    """Read every text; one that RDKit refuses goes to ``problems`` with its reason and costs the others nothing.

    Raises:
        ImportError: RDKit is not installed.
    """
    starts = range(0, len(texts), _CHUNK) or range(1)
    parts = [_packed(texts[start : start + _CHUNK], start, policy, kind) for start in starts]
    joined = {
        name: np.concatenate([getattr(part, name) for part in parts], 1 if name == "edge_index" else 0)
        for name in (each.name for each in fields(PackedMolecules))
        if name != "problems"
    }
    return PackedMolecules(**joined, problems=tuple(problem for part in parts for problem in part.problems))


def _packed(texts: Sequence[str], start: int, policy: MoleculePolicy, kind: TextKind) -> PackedMolecules:
    """:func:`pack_molecules` of the texts whose places begin at ``start``."""
    rdkit = _rdkit()
    marks = rdkit.marks if kind == "smiles" else {}
    canonical = policy.atoms == "canonical"
    readers = {**rdkit.atoms, **rdkit.canonical} if canonical else rdkit.atoms
    atoms: dict[str, _Column] = {name: ([], read, marks.get(name)) for name, read in readers.items()}
    bonds: dict[str, _Column] = {name: ([], read, marks.get(name)) for name, read in rdkit.bonds.items()}
    counts: tuple[list[int], list[int]] = [], []
    kept, problems, features = [], [], []
    for place, molecule in enumerate(molecules(texts, policy, kind)):
        if isinstance(molecule, str):
            problems.append((start + place, molecule))
            continue
        members = list(map(molecule.GetAtomWithIdx, range(molecule.GetNumAtoms())))
        counts[0].append(len(members))
        _extend(atoms, members, texts[place])
        members = list(map(molecule.GetBondWithIdx, range(molecule.GetNumBonds())))
        counts[1].append(len(members))
        _extend(bonds, members, texts[place])
        kept.append(start + place)
        if policy.features:
            features.append(features_of(implicit(molecule, policy), policy.features))
    node_counts, bond_counts = (np.array(each, dtype=np.int64) for each in counts)
    of_atoms, of_bonds = (
        {name: np.fromiter(values, np.int64) for name, (values, *_) in part.items()} for part in (atoms, bonds)
    )
    starts = np.cumsum(node_counts) - node_counts
    first = np.repeat(starts, bond_counts)
    begin, end = first + of_bonds.pop("begin"), first + of_bonds.pop("end")
    # RDKit's total degree, without a call for every atom: neighbours that are atoms, and hydrogens that are not.
    heard = np.bincount(np.concatenate([begin, end]), minlength=int(node_counts.sum()))
    of_atoms["degree"] = heard + of_atoms["hydrogens"]
    node_rows = _rows(of_atoms, ATOM_VOCABULARY, rdkit.canonical_tables if canonical else rdkit.tables)
    bond_rows = _rows(of_bonds, BOND_VOCABULARY, rdkit.tables)
    if canonical:
        # Ranks number the atoms of each molecule from 0.
        places = np.repeat(starts, node_counts) + of_atoms["rank"]
        begin, end, order = renumbered(places, begin, end)
        node_rows[places], bond_rows = node_rows.copy(), bond_rows[order]
    begin, end = begin - first, end - first
    return PackedMolecules(
        node_counts=node_counts,
        edge_counts=2 * bond_counts,
        node_features=node_rows,
        edge_index=np.stack([np.stack([begin, end], 1).ravel(), np.stack([end, begin], 1).ravel()]).astype(np.int32),
        edge_features=bond_rows.repeat(2, 0),
        features=np.array(features, dtype=np.float32).reshape(len(kept), len(feature_names(policy.features))),
        kept=np.array(kept, dtype=np.int64),
        problems=tuple(problems),
    )


def _extend(columns: Mapping[str, _Column], members: list[Any], text: str) -> None:
    """Adds one molecule's atoms or bonds."""
    for values, read, mark in columns.values():
        flat = mark is not None and mark.search(text) is None
        values.extend(repeat(0, len(members)) if flat else read(members))


def read_molecule(text: str, policy: MoleculePolicy = DEFAULT_POLICY, kind: TextKind = "smiles") -> Any:
    """RDKit's molecule of one text as the policy wants it; its atoms are the nodes of the graph, in its order.

    Raises:
        ValueError: one sentence: why it cannot be read.
    """
    (molecule,) = molecules([text], policy, kind)
    if isinstance(molecule, str):
        raise ValueError(molecule)
    if policy.atoms == "spelled" or not molecule.GetNumAtoms():
        return molecule
    ranks = list(_rdkit().canonical["rank"](list(molecule.GetAtoms())))
    return rdkit_modules()[0].RenumberAtoms(molecule, np.argsort(ranks).tolist())


def canonical_smiles(
    texts: Sequence[str], policy: MoleculePolicy = DEFAULT_POLICY, kind: TextKind = "smiles"
) -> list[str | None]:
    """RDKit's canonical SMILES of the molecules that the policy leaves; None where a text cannot be read."""
    write = rdkit_modules()[0].MolToSmiles
    return [None if isinstance(molecule, str) else write(molecule) for molecule in molecules(texts, policy, kind)]


def scaffolds(texts: Sequence[str], kind: TextKind = "smiles") -> list[str]:
    """Bemis-Murcko scaffolds as canonical SMILES without chirality; "" for acyclic or unreadable molecules.

    The texts are those of molecules that were read before, so there is no limit to their atoms.
    """
    rdkit_modules()
    policy = replace(DEFAULT_POLICY, max_atoms=max(map(len, texts), default=0) + 1)
    from rdkit.Chem.Scaffolds import MurckoScaffold

    write: Callable[..., str] = MurckoScaffold.MurckoScaffoldSmiles
    return [
        "" if isinstance(molecule, str) else write(mol=molecule, includeChirality=False)
        for molecule in molecules(texts, policy, kind)
    ]


@dataclass(frozen=True)
class _RDKit:
    """What a call needs of RDKit, looked up once.

    Each property of atoms and of bonds has a function that reads it of all members of a molecule. ``canonical`` has
    those that are read otherwise, or as well, where the spelling must not matter. ``marks`` are of slow ones, whose
    value is 0 in molecules of a SMILES that does not hold the mark.
    """

    atoms: Mapping[str, _Read]
    canonical: Mapping[str, _Read]
    bonds: Mapping[str, _Read]
    marks: Mapping[str, re.Pattern[str]]
    tables: Mapping[str, "_Table"]
    canonical_tables: Mapping[str, "_Table"]


@dataclass(frozen=True, eq=False)
class _Table:
    """RDKit's number of a property -> category row: ``rows[number - first]``, the end rows for all outside."""

    first: int
    rows: NDArray[np.uint8]


@cache
def _rdkit() -> _RDKit:
    chem, _ = rdkit_modules()
    enums: dict[str, Any] = {
        "chirality": chem.ChiralType,
        "hybridization": chem.HybridizationType,
        "type": chem.BondType,
        "stereo": chem.BondStereo,
    }
    vocabularies = {**ATOM_VOCABULARY, **BOND_VOCABULARY}
    tables = {name: _table(values, getattr(enums.get(name), "names", {})) for name, values in vocabularies.items()}
    as_they_are = _table(tuple(range(len(ATOM_VOCABULARY["chirality"]))), {})
    atom, bond, rank = chem.Atom, chem.Bond, chem.CanonicalRankAtoms

    def ranks(members: list[Any]) -> Iterable[int]:
        found = rank(members[0].GetOwningMol(), includeAtomMaps=False)
        # Its own iterator takes longer than all the ranking.
        return map(found.__getitem__, range(len(found)))

    def reading(getters: Mapping[str, Callable[[Any], int]]) -> dict[str, _Read]:
        # Getters run under map, which spends no Python bytecode on each atom.
        return {name: partial(map, getter) for name, getter in getters.items()}

    return _RDKit(
        atoms=reading(
            {
                "atomic_number": atom.GetAtomicNum,
                "chirality": atom.GetChiralTag,
                "formal_charge": atom.GetFormalCharge,
                "hydrogens": atom.GetTotalNumHs,
                "radical_electrons": atom.GetNumRadicalElectrons,
                "hybridization": atom.GetHybridization,
                "is_aromatic": atom.GetIsAromatic,
                "is_in_ring": atom.IsInRing,
            }
        ),
        canonical={
            "chirality": partial(chirality, ranks=rank),
            "rank": ranks,
        },
        bonds=reading(
            {
                "begin": bond.GetBeginAtomIdx,
                "end": bond.GetEndAtomIdx,
                "type": bond.GetBondType,
                "stereo": bond.GetStereo,
                "is_conjugated": bond.GetIsConjugated,
            }
        ),
        marks={
            "chirality": re.compile(r"[@|]"),
            "radical_electrons": re.compile(r"\["),
            "stereo": re.compile(r"[/\\|]"),
        },
        tables=tables,
        canonical_tables={**tables, "chirality": as_they_are},
    )


def _table(values: tuple[int | str | bool, ...], names: Mapping[str, int]) -> _Table:
    """Numbers that no value has take the last row."""
    numbers = {int(names.get(str(value), value)): row for row, value in enumerate(values) if value != OTHER}
    first = min(numbers) - 1
    rows = np.full(max(numbers) + 2 - first, len(values) - 1, dtype=np.uint8)
    for number, row in numbers.items():
        rows[number - first] = row
    return _Table(first, rows)


def _rows(
    columns: Mapping[str, NDArray[Any]], vocabulary: Iterable[str], tables: Mapping[str, _Table]
) -> NDArray[np.uint8]:
    """Category rows [rows, columns] of RDKit's numbers, in the order of the vocabulary."""
    names = tuple(vocabulary)
    out = np.empty((len(columns[names[0]]), len(names)), dtype=np.uint8)
    for place, name in enumerate(names):
        table = tables[name]
        out[:, place] = table.rows.take(columns[name] - table.first, mode="clip")
    return out
