"""Molecules to packed arrays, with the category columns of the Open Graph Benchmark (OGB).

*Packed* means that the atoms (and bonds) of all molecules lie one after another in one array. Values and edge order
equal ``ogb.utils.mol.smiles2graph``. The vocabularies are fixed, so that every value has a row, if only that of
``OTHER``, whether or not a training molecule has it. Only NumPy and RDKit are needed.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import repeat
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

# Is increased whenever the same molecule and policy would give other numbers, so that old stores are not reused.
FEATURISATION_VERSION = 1

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
# The sizes of all vocabularies by the features of a graph that hold them: what a model of molecules is made for.
MOLECULE_CATEGORIES = {"node_features": ATOM_CATEGORIES, "edge_features": BOND_CATEGORIES}

TextKind = Literal["smiles", "molblock"]
# A property's values so far, its getter, and the mark that a SMILES needs for the value to be other than 0.
_Column = tuple[list[int], Callable[[Any], int], re.Pattern[str] | None]
# How many texts are read before their values, Python numbers at first, become arrays.
_CHUNK = 8192
_NAMES: Mapping[str, str] = {"smiles": "SMILES", "molblock": "mol block"}
# RDKit takes a second for the rings of a thousand atoms with this many ring bonds, and minutes for those with twice as
# many. No molecule comes near it: C540 closes 271 rings, a cage of twelve borons 19.
_RING_BONDS, _RING_BONDS_PER_ATOM = 100, 0.5
# Texts shorter than this are never slow and not looked through. The others have at most so many characters per atom.
_SHORT = 200
_CHARACTERS_PER_ATOM: Mapping[str, int] = {"smiles": 20, "molblock": 500}
_LONGEST_REASON = 300
# Atoms of a SMILES, and the ends of its ring bonds once what stands in brackets is gone.
_ATOM = re.compile(r"\[[^\[\]]*\]|Br|Cl|[BCNOPSFIbcnops*]")
_RING_END = re.compile(r"%\(\d+\)|%\d\d|\d")
# Atoms and bonds as a mol block announces them: in three digits each, or as the newer form writes them.
_COUNTS = re.compile(r"(?:.*\n){3}([ \d]{3})([ \d]{3})")
_COUNTS_V3000 = re.compile(r"^M  V30 COUNTS +(\d+) +(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class MoleculePolicy:
    """What of a molecule becomes the graph.

    ``salts``: "keep" all fragments as one disconnected graph, or the "largest" only: most heavy atoms, of equals
    the first. ``stereo``: "keep" or "drop" chirality and bond stereo. ``hydrogens``: "implicit" counts them at
    their atom, as RDKit reads a molecule; "explicit" makes every one a node, after the heavy atoms. ``max_atoms``: a
    text of more atoms, or a graph of more nodes, is refused. It decides which molecules are read and not how, so
    policies that differ in it alone are equal.
    """

    salts: Literal["keep", "largest"] = "keep"
    stereo: Literal["keep", "drop"] = "keep"
    hydrogens: Literal["implicit", "explicit"] = "implicit"
    max_atoms: int = field(default=1000, compare=False, metadata={"late": True})

    def __post_init__(self) -> None:
        for name, kind in type(self).__annotations__.items():
            if get_args(kind) and getattr(self, name) not in get_args(kind):
                expected = " or ".join(get_args(kind))
                raise ValueError(f"policy {name} is {getattr(self, name)!r}; expected {expected}")
        if type(self.max_atoms) is not int or self.max_atoms < 1:
            raise ValueError(f"max_atoms is {self.max_atoms!r}; expected a whole number of at least 1")

    @property
    def of_whole(self) -> "MoleculePolicy":
        """All of a molecule as it is written, under the same limit."""
        return replace(DEFAULT_POLICY, max_atoms=self.max_atoms)


DEFAULT_POLICY = MoleculePolicy()


@dataclass(frozen=True, eq=False)
class PackedMolecules:
    """Molecules one after another; atoms are numbered from 0 in each, as its text spells them.

    A bond is two edges, (i, j) and (j, i), side by side. Features are rows of :data:`ATOM_VOCABULARY` and
    :data:`BOND_VOCABULARY`.
    """

    node_counts: NDArray[np.int64]  # [kept]
    edge_counts: NDArray[np.int64]  # [kept]
    node_features: NDArray[np.uint8]  # [atoms, 9]
    edge_index: NDArray[np.int32]  # [2, edges]
    edge_features: NDArray[np.uint8]  # [edges, 3]
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
    marks = rdkit.stereo_marks if kind == "smiles" else {}
    atoms: list[_Column] = [([], getter, marks.get(getter)) for getter in rdkit.atom_getters]
    bonds: list[_Column] = [([], getter, marks.get(getter)) for getter in rdkit.bond_getters]
    node_counts, bond_counts, kept, problems = [], [], [], []
    for place, molecule in enumerate(_molecules(texts, policy, kind)):
        if isinstance(molecule, str):
            problems.append((start + place, molecule))
            continue
        members = list(map(molecule.GetAtomWithIdx, range(molecule.GetNumAtoms())))
        node_counts.append(len(members))
        _extend(atoms, members, texts[place])
        members = list(map(molecule.GetBondWithIdx, range(molecule.GetNumBonds())))
        bond_counts.append(len(members))
        _extend(bonds, members, texts[place])
        kept.append(start + place)
    begin, end, *properties = (np.fromiter(values, dtype=np.int32) for values, *_ in bonds)
    return PackedMolecules(
        node_counts=np.array(node_counts, dtype=np.int64),
        edge_counts=2 * np.array(bond_counts, dtype=np.int64),
        node_features=_rows([np.fromiter(values, dtype=np.int32) for values, *_ in atoms], rdkit.atom_tables),
        edge_index=np.stack([np.stack([begin, end], 1).ravel(), np.stack([end, begin], 1).ravel()]),
        edge_features=_rows(properties, rdkit.bond_tables).repeat(2, 0),
        kept=np.array(kept, dtype=np.int64),
        problems=tuple(problems),
    )


def _extend(columns: list[_Column], members: list[Any], text: str) -> None:
    """Adds one molecule's atoms or bonds; getters run under map, which spends no Python bytecode on each of them."""
    for values, getter, mark in columns:
        flat = mark is not None and mark.search(text) is None
        values.extend(repeat(0, len(members)) if flat else map(getter, members))


def read_molecule(text: str, policy: MoleculePolicy = DEFAULT_POLICY, kind: TextKind = "smiles") -> Any:
    """RDKit's molecule of one text, atoms and bonds ordered as in its graph; a ValueError says why there is none."""
    (molecule,) = _molecules([text], policy, kind)
    if isinstance(molecule, str):
        raise ValueError(molecule)
    return molecule


def canonical_smiles(
    texts: Sequence[str], policy: MoleculePolicy = DEFAULT_POLICY, kind: TextKind = "smiles"
) -> list[str | None]:
    """RDKit's canonical SMILES of the molecules that the policy leaves; None where a text cannot be read."""
    write = _rdkit().chem.MolToSmiles
    return [None if isinstance(molecule, str) else write(molecule) for molecule in _molecules(texts, policy, kind)]


def scaffolds(texts: Sequence[str], kind: TextKind = "smiles") -> list[str]:
    """Bemis-Murcko scaffolds as canonical SMILES without chirality; "" for acyclic or unreadable molecules.

    The texts are those of molecules that were read before, so there is no limit to their atoms.
    """
    _rdkit()
    policy = replace(DEFAULT_POLICY, max_atoms=max(map(len, texts), default=0) + 1)
    from rdkit.Chem.Scaffolds import MurckoScaffold

    write: Callable[..., str] = MurckoScaffold.MurckoScaffoldSmiles
    return [
        "" if isinstance(molecule, str) else write(mol=molecule, includeChirality=False)
        for molecule in _molecules(texts, policy, kind)
    ]


@dataclass(frozen=True)
class _RDKit:
    """What a call needs of RDKit, looked up once."""

    chem: Any
    base: Any
    atom_getters: tuple[Callable[[Any], int], ...]
    bond_getters: tuple[Callable[[Any], int], ...]
    # Slow getters whose value is 0 in molecules of a SMILES that does not hold the mark.
    stereo_marks: Mapping[Callable[[Any], int], re.Pattern[str]]
    atom_tables: tuple["_Table", ...]
    bond_tables: tuple["_Table", ...]


@dataclass(frozen=True, eq=False)
class _Table:
    """RDKit's number of a property -> category row: ``rows[number - first]``, the end rows for all outside."""

    first: int
    rows: NDArray[np.uint8]


@cache
def _rdkit() -> _RDKit:
    try:
        from rdkit import Chem, rdBase
    except ImportError as error:
        raise ImportError("reading molecules needs RDKit: pip install 'tokengt[chem]'") from error
    enums: dict[str, Any] = {
        "chirality": Chem.ChiralType,
        "hybridization": Chem.HybridizationType,
        "type": Chem.BondType,
        "stereo": Chem.BondStereo,
    }

    def tables(vocabulary: Mapping[str, tuple[int | str | bool, ...]]) -> tuple[_Table, ...]:
        return tuple(_table(values, getattr(enums.get(name), "names", {})) for name, values in vocabulary.items())

    atom, bond = Chem.Atom, Chem.Bond
    return _RDKit(
        chem=Chem,
        base=rdBase,
        atom_getters=(
            atom.GetAtomicNum,
            atom.GetChiralTag,
            atom.GetTotalDegree,
            atom.GetFormalCharge,
            atom.GetTotalNumHs,
            atom.GetNumRadicalElectrons,
            atom.GetHybridization,
            atom.GetIsAromatic,
            atom.IsInRing,
        ),
        bond_getters=(
            bond.GetBeginAtomIdx,
            bond.GetEndAtomIdx,
            bond.GetBondType,
            bond.GetStereo,
            bond.GetIsConjugated,
        ),
        stereo_marks={atom.GetChiralTag: re.compile(r"[@|]"), bond.GetStereo: re.compile(r"[/\\|]")},
        atom_tables=tables(ATOM_VOCABULARY),
        bond_tables=tables(BOND_VOCABULARY),
    )


def _table(values: tuple[int | str | bool, ...], names: Mapping[str, int]) -> _Table:
    """Numbers that no value has take the last row."""
    numbers = {int(names.get(str(value), value)): row for row, value in enumerate(values) if value != OTHER}
    first = min(numbers) - 1
    rows = np.full(max(numbers) + 2 - first, len(values) - 1, dtype=np.uint8)
    for number, row in numbers.items():
        rows[number - first] = row
    return _Table(first, rows)


def _rows(columns: Sequence[NDArray[Any]], tables: Sequence[_Table]) -> NDArray[np.uint8]:
    """Category rows [rows, columns] of RDKit's numbers."""
    out = np.empty((len(columns[0]), len(columns)), dtype=np.uint8)
    for place, (column, table) in enumerate(zip(columns, tables, strict=True)):
        out[:, place] = table.rows.take(column - np.int32(table.first), mode="clip")
    return out


def _molecules(texts: Sequence[str], policy: MoleculePolicy, kind: TextKind) -> Iterator[Any]:
    """Every text's RDKit molecule, or the reason that there is none, a str."""
    rdkit = _rdkit()
    parse = rdkit.chem.MolFromSmiles if kind == "smiles" else rdkit.chem.MolFromMolBlock
    with rdkit.base.BlockLogs():
        for text in texts:
            try:
                yield _read(text, parse, policy, kind)
            except (ValueError, RuntimeError) as error:
                yield _first_line(str(error))


def _read(text: str, parse: Callable[..., Any], policy: MoleculePolicy, kind: TextKind) -> Any:
    """One molecule as the policy wants it; a ValueError says why not."""
    if kind == "smiles":
        _check_characters(text)
    if len(text) > _SHORT:
        _check_size(text, policy.max_atoms, kind)
    molecule = parse(text)
    if molecule is None:
        raise ValueError(_unreadable(kind, _reason(text, parse)))
    if molecule.GetNumAtoms() == 0:
        raise ValueError(f"the {_NAMES[kind]} holds no atom; expected at least one")
    molecule = molecule if policy == DEFAULT_POLICY else _applied(policy, molecule)
    _check_atoms(molecule.GetNumAtoms(), policy.max_atoms, kind)
    return molecule


def _check_size(text: str, limit: int, kind: TextKind) -> None:
    """Refuse what RDKit would take minutes for, by its text alone."""
    atoms, ring_bonds = _spelled(text) if kind == "smiles" else _announced(text)
    _check_atoms(atoms, limit, kind)
    most_rings = int(_RING_BONDS + _RING_BONDS_PER_ATOM * atoms)
    if ring_bonds > most_rings:
        raise ValueError(f"the {_NAMES[kind]} has {ring_bonds:,} ring bonds; expected at most {most_rings:,}")
    # What follows a blank is a name, which costs nothing.
    length = len(text.split(maxsplit=1)[0]) if kind == "smiles" and text.strip() else len(text)
    longest = max(_SHORT, limit) * _CHARACTERS_PER_ATOM[kind]
    if length > longest:
        raise ValueError(
            f"the {_NAMES[kind]} has {length:,} characters; expected at most {longest:,} for the limit of {limit:,} "
            "atoms (max_atoms)"
        )


def _check_atoms(atoms: int, limit: int, kind: TextKind) -> None:
    if atoms > limit:
        raise ValueError(f"the {_NAMES[kind]} has {atoms:,} atoms; expected at most {limit:,} (max_atoms)")


def _spelled(smiles: str) -> tuple[int, int]:
    """Atoms and ring bonds that a SMILES spells."""
    words = smiles.split(maxsplit=1)
    word = words[0] if words else ""
    bare = re.sub(r"\[[^\[\]]*\]", "", word)
    return len(_ATOM.findall(word)), len(_RING_END.findall(bare)) // 2


def _announced(block: str) -> tuple[int, int]:
    """Atoms and ring bonds that a mol block announces; none where it does not, and RDKit refuses it."""
    found = _COUNTS_V3000.search(block) or _COUNTS.match(block)
    atoms, bonds = (int(count.strip() or 0) for count in found.groups()) if found else (0, 0)
    return atoms, bonds - atoms


def _check_characters(smiles: str) -> None:
    """Refuse what RDKit would drop silently: strange characters at the ends, and all that follows a line break."""
    if not smiles.isascii():
        raise ValueError(_unreadable("smiles", "it holds characters that are not ASCII"))
    if not smiles.isprintable() and not smiles.strip().replace("\t", " ").isprintable():
        raise ValueError(_unreadable("smiles", "it holds a line break or another control character"))


def _applied(policy: MoleculePolicy, molecule: Any) -> Any:
    chem = _rdkit().chem
    if policy.salts == "largest" and len(chem.GetMolFrags(molecule)) > 1:
        molecule = max(chem.GetMolFrags(molecule, asMols=True), key=chem.Mol.GetNumHeavyAtoms)
    if policy.stereo == "drop":
        chem.RemoveStereochemistry(molecule)
        # RDKit leaves the stereo of atropisomers.
        for bond in molecule.GetBonds():
            bond.SetStereo(chem.BondStereo.STEREONONE)
    return chem.AddHs(molecule) if policy.hydrogens == "explicit" else molecule


def _unreadable(kind: TextKind, reason: str) -> str:
    return f"the {_NAMES[kind]} cannot be read: {reason}"


def _reason(text: str, parse: Callable[..., Any]) -> str:
    """Why RDKit refuses this text, in its own words."""
    rdkit = _rdkit()
    molecule = parse(text, sanitize=False)
    if molecule is not None:
        try:
            rdkit.chem.SanitizeMol(molecule)
        except ValueError as error:
            return _first_line(str(error))
    capture = getattr(rdkit.base, "CaptureErrorLog", None)
    # RDKit before 2026.03 writes its reason to stderr only.
    if capture is None:
        return "RDKit's parser finds a syntax error"
    with capture() as log:
        parse(text)
    return re.sub(r"^\[[\d:]+\] ", "", _first_line(log.messages))


def _first_line(message: str) -> str:
    """RDKit's words, cut where it quotes a long text."""
    line = message.strip().split("\n")[0]
    return line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]}..."
