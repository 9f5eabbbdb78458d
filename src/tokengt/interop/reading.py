"""Texts to RDKit's molecules, as a policy wants them; what is too large, or cannot be read, has its reason instead."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal, get_args

from tokengt.interop.descriptors import check_features

# Is increased whenever the same molecule and policy would give other numbers, so that old stores are not reused. Atoms
# as they are spelled have stayed what they were in the first version.
FEATURISATION_VERSION, _SPELLED_VERSION = 2, 1

TextKind = Literal["smiles", "molblock"]
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
    always the same one. ``stereo``: "keep" or "drop" chirality and bond stereo. ``hydrogens``: "implicit" counts them
    at their atom, as RDKit reads a molecule; "explicit" makes every one a node. ``max_atoms``: a text of more atoms, or
    a graph of more nodes, is refused. It decides which molecules are read and not how, so policies that differ in it
    alone are equal.

    ``atoms``: "canonical" puts atoms into an order, and chirality into a form, that are the same for every spelling of
    a molecule (:mod:`tokengt.interop.canonical`). "spelled" leaves atoms in the order of the text, and chirality as
    RDKit's tag, which depends on that order; of equal fragments the first is the largest. Files that do not say which
    are of versions that knew only "spelled".

    ``features``: kinds of numbers about the molecule as a whole that come with the graph: "rdkit2d", "morgan"
    (:mod:`tokengt.interop.descriptors`).
    """

    salts: Literal["keep", "largest"] = "keep"
    stereo: Literal["keep", "drop"] = "keep"
    hydrogens: Literal["implicit", "explicit"] = "implicit"
    max_atoms: int = field(default=1000, compare=False, metadata={"late": True})
    atoms: Literal["canonical", "spelled"] = field(default="canonical", metadata={"late": True, "absent": "spelled"})
    features: tuple[str, ...] = field(default=(), metadata={"late": True})

    def __post_init__(self) -> None:
        check_features(self.features)
        for name in ("salts", "stereo", "hydrogens", "atoms"):
            options = get_args(type(self).__annotations__[name])
            if getattr(self, name) not in options:
                expected = " or ".join(options)
                raise ValueError(f"policy {name} is {getattr(self, name)!r}; expected {expected}")
        if type(self.max_atoms) is not int or self.max_atoms < 1:
            raise ValueError(f"max_atoms is {self.max_atoms!r}; expected a whole number of at least 1")

    @property
    def version(self) -> int:
        """The version of the numbers that molecules become under this policy."""
        return FEATURISATION_VERSION if self.atoms == "canonical" else _SPELLED_VERSION

    @property
    def of_whole(self) -> "MoleculePolicy":
        """All of a molecule as it is written, under the same limit."""
        return replace(DEFAULT_POLICY, max_atoms=self.max_atoms)


DEFAULT_POLICY = MoleculePolicy()


def differences(*policies: MoleculePolicy) -> list[str]:
    """What each policy says where they differ, such as ``features rdkit2d,morgan``."""
    names = [each.name for each in fields(MoleculePolicy) if each.compare]
    apart = [name for name in names if len({getattr(policy, name) for policy in policies}) > 1]
    told = [{**vars(policy), "features": ",".join(policy.features) or "none"} for policy in policies]
    return [", ".join(f"{name} {own[name]}" for name in apart) for own in told]


@cache
def rdkit_modules() -> tuple[Any, Any]:
    """``rdkit.Chem`` and ``rdkit.rdBase``.

    Raises:
        ImportError: RDKit is not installed.
    """
    try:
        from rdkit import Chem, rdBase
    except ImportError as error:
        raise ImportError("reading molecules needs RDKit: pip install 'tokengt[chem]'") from error
    return Chem, rdBase


def molecules(texts: Sequence[str], policy: MoleculePolicy, kind: TextKind) -> Iterator[Any]:
    """Every text's RDKit molecule, or the reason that there is none, a str."""
    chem, base = rdkit_modules()
    parse: Callable[..., Any] = chem.MolFromSmiles if kind == "smiles" else chem.MolFromMolBlock
    with base.BlockLogs(), _one_stereo(chem):
        for text in texts:
            try:
                yield _read(text, parse, policy, kind)
            except (ValueError, RuntimeError) as error:
                yield _first_line(str(error))


@contextmanager
def _one_stereo(chem: Any) -> Iterator[None]:
    """Stereo is found in one of RDKit's two ways, whichever the program around has chosen for itself."""
    before = chem.GetUseLegacyStereoPerception()
    chem.SetUseLegacyStereoPerception(True)
    try:
        yield
    finally:
        chem.SetUseLegacyStereoPerception(before)


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
    chem, _ = rdkit_modules()
    if policy.salts == "largest" and len(chem.GetMolFrags(molecule)) > 1:
        fragments = chem.GetMolFrags(molecule, asMols=True)
        most = max(fragment.GetNumHeavyAtoms() for fragment in fragments)
        equals = [fragment for fragment in fragments if fragment.GetNumHeavyAtoms() == most]
        molecule = equals[0] if len(equals) == 1 or policy.atoms == "spelled" else max(equals, key=chem.MolToSmiles)
    if policy.stereo == "drop":
        chem.RemoveStereochemistry(molecule)
        # RDKit leaves the stereo of atropisomers.
        for bond in molecule.GetBonds():
            bond.SetStereo(chem.BondStereo.STEREONONE)
    return chem.AddHs(molecule) if policy.hydrogens == "explicit" else molecule


def implicit(molecule: Any, policy: MoleculePolicy) -> Any:
    """A molecule that was read by a policy, with its hydrogens counted at their atoms, as descriptors want it."""
    return rdkit_modules()[0].RemoveHs(molecule) if policy.hydrogens == "explicit" else molecule


def _unreadable(kind: TextKind, reason: str) -> str:
    return f"the {_NAMES[kind]} cannot be read: {reason}"


def _reason(text: str, parse: Callable[..., Any]) -> str:
    """Why RDKit refuses this text, in its own words."""
    chem, base = rdkit_modules()
    molecule = parse(text, sanitize=False)
    if molecule is not None:
        try:
            chem.SanitizeMol(molecule)
        except ValueError as error:
            return _first_line(str(error))
    capture = getattr(base, "CaptureErrorLog", None)
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
