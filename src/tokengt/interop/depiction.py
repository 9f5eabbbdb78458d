"""Molecules on paper: where atoms lie and how their bonds are drawn, as data that anything can draw from.

RDKit places the atoms; what they look like is left to whoever draws them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from tokengt.interop.molecules import DEFAULT_POLICY, MoleculePolicy, TextKind, read_molecule

BondStyle = Literal["single", "double", "triple", "aromatic", "dative", "wedge", "hash", "wavy"]
Side = Literal["right", "left", "above", "below"]
Corner = Literal["upper right", "upper left", "lower right", "lower left"]
# Where a name beside an atom lies, as an angle. Of places that are equally free, the first is taken.
_SIDES: dict[Side, float] = {"right": 0.0, "left": math.pi, "above": math.pi / 2, "below": -math.pi / 2}
_CORNERS: dict[Corner, float] = {
    "upper right": math.pi / 4,
    "upper left": 3 * math.pi / 4,
    "lower right": -math.pi / 4,
    "lower left": -3 * math.pi / 4,
}
# A bond this near to what is written beside an atom runs into it: a hydrogen is wider than a charge.
_NEAR_HYDROGENS, _NEAR_CHARGE = math.radians(50), math.radians(35)
_Place = TypeVar("_Place", bound=str)
# RDKit's names of what one bond in a drawing can be; whatever is not listed is drawn as a single line.
_ORDERS: dict[str, BondStyle] = {"DOUBLE": "double", "TRIPLE": "triple", "AROMATIC": "aromatic", "DATIVE": "dative"}
_DIRECTIONS: dict[str, BondStyle] = {"BEGINWEDGE": "wedge", "BEGINDASH": "hash", "UNKNOWN": "wavy"}


@dataclass(frozen=True)
class DrawnAtom:
    """One atom: its element, and what is written beside it.

    ``written`` is whether its symbol is: a carbon in a chain or ring is only a corner. ``hydrogens`` are those that are
    no atoms of their own, to be written on ``hydrogens_side`` of the symbol; ``charge_corner`` is where a charge has
    most room.
    """

    symbol: str
    written: bool
    hydrogens: int = 0
    hydrogens_side: Side = "right"
    charge: int = 0
    charge_corner: Corner = "upper right"
    isotope: int = 0


@dataclass(frozen=True)
class DrawnBond:
    """One bond between the atoms ``begin`` and ``end``; the narrow end of a wedge is at ``begin``.

    ``side`` is where the second line of a double bond lies, seen from begin to end: 1 left, -1 right, 0 for two lines
    around the middle.
    """

    begin: int
    end: int
    style: BondStyle
    side: Literal[-1, 0, 1] = 0


@dataclass(frozen=True, eq=False)
class Depiction:
    """A molecule on paper; atoms and bonds are numbered as those of its graph.

    ``places`` [atoms, 2] are in bond lengths, with y upwards and the middle at the origin.
    """

    places: NDArray[np.float64]
    atoms: tuple[DrawnAtom, ...]
    bonds: tuple[DrawnBond, ...]


def depict(text: str, policy: MoleculePolicy = DEFAULT_POLICY, kind: TextKind = "smiles") -> Depiction:
    """The molecule of a text as the policy leaves it, laid out; the same text gives the same drawing.

    Raises:
        ValueError: one sentence: why the text cannot be read.
        ImportError: RDKit is not installed.
    """
    molecule = read_molecule(text, policy, kind)
    from rdkit import Chem
    from rdkit.Chem import rdDepictor

    molecule = Chem.Mol(molecule)
    rdDepictor.Compute2DCoords(molecule, canonOrient=True, useRingTemplates=True)
    rdDepictor.StraightenDepiction(molecule)
    rings = [tuple(ring) for ring in molecule.GetRingInfo().AtomRings()]
    _kekulised(molecule)
    Chem.WedgeMolBonds(molecule, molecule.GetConformer())
    places = _scaled(np.array(molecule.GetConformer().GetPositions())[:, :2], molecule)
    neighbours = [[other.GetIdx() for other in atom.GetNeighbors()] for atom in molecule.GetAtoms()]
    return Depiction(
        places,
        tuple(_atom(atom, places, neighbours[atom.GetIdx()]) for atom in molecule.GetAtoms()),
        tuple(_bond(bond, places, neighbours, rings) for bond in _in_order(molecule, policy)),
    )


def _in_order(molecule: Any, policy: MoleculePolicy) -> list[Any]:
    """Bonds as the graph lists them."""
    bonds = list(molecule.GetBonds())
    if policy.atoms == "canonical":
        bonds.sort(key=lambda bond: sorted((bond.GetBeginAtomIdx(), bond.GetEndAtomIdx())))
    return bonds


def _kekulised(molecule: Any) -> None:
    """Aromatic rings as double and single bonds in turns; one that cannot be written so stays aromatic."""
    from rdkit import Chem

    try:
        Chem.Kekulize(molecule, clearAromaticFlags=True)
    except Chem.KekulizeException:
        return


def _scaled(places: NDArray[np.float64], molecule: Any) -> NDArray[np.float64]:
    """Coordinates in which the usual bond is 1 long."""
    ends = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in molecule.GetBonds()]
    lengths = [float(np.hypot(*(places[one] - places[other]))) for one, other in ends]
    middle = (places.min(0) + places.max(0)) / 2
    scaled: NDArray[np.float64] = (places - middle) / (float(np.median(lengths)) if lengths else 1.5)
    return scaled


def _atom(atom: Any, places: NDArray[np.float64], neighbours: Sequence[int]) -> DrawnAtom:
    plain = atom.GetFormalCharge() == 0 and atom.GetIsotope() == 0 and atom.GetNumRadicalElectrons() == 0
    corner = atom.GetSymbol() == "C" and plain and len(neighbours) > 0
    away = places[list(neighbours)] - places[atom.GetIdx()]
    bonds = np.arctan2(away[:, 1], away[:, 0])
    side = _hydrogens_side(bonds)
    hydrogens = atom.GetTotalNumHs()
    # A straight line of carbons would look like one bond.
    straight = len(neighbours) == 2 and _is_straight(places, neighbours[0], atom.GetIdx(), neighbours[1])
    return DrawnAtom(
        atom.GetSymbol(),
        not corner or straight,
        0 if corner and not straight else hydrogens,
        side,
        atom.GetFormalCharge(),
        _freest(_CORNERS, np.append(bonds, _SIDES["left"]) if hydrogens and side == "left" else bonds, _NEAR_CHARGE),
        atom.GetIsotope(),
    )


def _hydrogens_side(bonds: NDArray[np.float64]) -> Side:
    """Beside the symbol, as letters are read; above or below it where bonds leave to both sides."""
    best: Side = "left" if _room(_SIDES["left"], bonds) > _room(_SIDES["right"], bonds) + 0.05 else "right"
    return best if _room(_SIDES[best], bonds) > _NEAR_HYDROGENS else _freest(_SIDES, bonds, math.pi)


def _freest(options: Mapping[_Place, float], bonds: NDArray[np.float64], enough: float) -> _Place:
    """The first option that is so far from all bonds, or the one that is furthest from them."""
    rooms = {name: min(_room(angle, bonds), enough) for name, angle in options.items()}
    return max(rooms, key=lambda name: round(rooms[name], 2))


def _room(angle: float, bonds: NDArray[np.float64]) -> float:
    """The angle to the nearest bond."""
    return min((abs(math.remainder(angle - float(bond), math.tau)) for bond in bonds), default=math.pi)


def _is_straight(places: NDArray[np.float64], one: int, middle: int, other: int) -> bool:
    (a, b), (c, d) = places[one] - places[middle], places[other] - places[middle]
    return bool(abs(a * d - b * c) < 0.05 and a * c + b * d < 0)


def _bond(
    bond: Any, places: NDArray[np.float64], neighbours: list[list[int]], rings: list[tuple[int, ...]]
) -> DrawnBond:
    begin, end = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
    style = _DIRECTIONS.get(str(bond.GetBondDir())) or _ORDERS.get(str(bond.GetBondType()), "single")
    if style not in ("double", "aromatic"):
        return DrawnBond(begin, end, style)
    return DrawnBond(begin, end, style, _second_line(begin, end, places, neighbours, rings))


def _second_line(
    begin: int, end: int, places: NDArray[np.float64], neighbours: list[list[int]], rings: list[tuple[int, ...]]
) -> Literal[-1, 0, 1]:
    """Inside a ring (of several the smallest); in a chain where more neighbours are; around the middle at an end."""
    around = sorted((ring for ring in rings if begin in ring and end in ring), key=len)
    if around:
        towards = places[list(around[0])].mean(0) - places[begin]
    elif min(len(neighbours[begin]), len(neighbours[end])) == 1:
        return 0
    else:
        others = [other for atom in (begin, end) for other in neighbours[atom] if other not in (begin, end)]
        towards = sum((places[other] - places[begin] for other in others), np.zeros(2))
    along = places[end] - places[begin]
    left = along[0] * towards[1] - along[1] * towards[0]
    if abs(left) < 1e-6:
        return 0
    return 1 if left > 0 else -1
