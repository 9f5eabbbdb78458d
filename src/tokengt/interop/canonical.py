"""What of a molecule does not depend on how it was written: its stereo centres by name, and one order of its atoms.

A SMILES may begin at any atom, and RDKit's chiral tags say how the neighbours of an atom turn *in the order in which
they were written*. Here a stereo centre has its name by the rules of Cahn, Ingold and Prelog (CIP), R or S. Centres
that differ only together, such as those of 1,4-dimethylcyclohexane, have no such name; of them it is said whether
their groups lie on the same side of the ring. Atoms come in RDKit's canonical order, so that all spellings of a
molecule give the same arrays, bit for bit.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The rows of the chirality column. The last holds centres with their group on the other side of the ring, and all that
# are not tetrahedral, which are rare: a vocabulary of another size would not fit weights that are trained already.
NO_CENTRE, R, S, SAME_SIDE, OTHER_CENTRE = range(5)
_NAMED = {"R": R, "S": S}
# RDKit's numbers of tetrahedral tags, and which way each turns.
_TURNS = {1: -1, 2: 1}

Ranks = Callable[..., Sequence[int]]


def chirality(atoms: Sequence[Any], ranks: Ranks) -> list[int]:
    """The row of every atom of one molecule, whose stereo RDKit has assigned.

    Args:
        atoms: RDKit's, all of one molecule.
        ranks: RDKit's ``CanonicalRankAtoms``.
    """
    rows, unnamed = [NO_CENTRE] * len(atoms), {}
    for place, tag in enumerate(map(int, map(type(atoms[0]).GetChiralTag, atoms))):
        if not tag:
            continue
        if tag not in _TURNS:
            rows[place] = OTHER_CENTRE
        elif atoms[place].HasProp("_CIPCode"):
            rows[place] = _NAMED.get(atoms[place].GetProp("_CIPCode"), OTHER_CENTRE)
        else:
            unnamed[place] = _TURNS[tag]
    for place, agreement in _agreements(atoms, unnamed, ranks):
        rows[place] = SAME_SIDE if agreement >= 0 else OTHER_CENTRE
    return rows


def _agreements(atoms: Sequence[Any], turns: Mapping[int, int], ranks: Ranks) -> Iterator[tuple[int, int]]:
    """Every centre that shares a ring with others, and how many more of them are on its side than on the other side."""
    if len(turns) < 2:
        return
    molecule = atoms[0].GetOwningMol()
    kinds = list(ranks(molecule, breakTies=False, includeAtomMaps=False))
    found: dict[int, int] = {}
    for ring in molecule.GetRingInfo().AtomRings():
        sides = {
            atom: side
            for place, atom in enumerate(ring)
            if atom in turns
            and (side := _side(atoms, atom, (ring[place - 1], ring[(place + 1) % len(ring)]), turns[atom], kinds))
        }
        total = sum(sides.values())
        for atom, side in sides.items() if len(sides) > 1 else ():
            # The sum over all others of side * their side; that of a centre with itself is 1.
            found[atom] = found.get(atom, 0) + side * total - 1
    yield from found.items()


def _side(atoms: Sequence[Any], centre: int, along: tuple[int, int], turn: int, kinds: Sequence[int]) -> int:
    """On which side of the ring the centre's first group is, 1 or -1, walking from ``along[0]`` to ``along[1]``.

    The other direction gives the other sign for all centres of a ring. 0 where its groups are alike.
    """
    written = [bond.GetOtherAtomIdx(centre) for bond in atoms[centre].GetBonds()]
    groups = [place for place in written if place not in along]
    order = {place: (atoms[place].GetAtomicNum(), kinds[place]) for place in groups}
    if len(set(order.values())) < len(groups) or not 1 <= len(groups) <= 2:
        return 0
    # A hydrogen that is not an atom of its own comes last in both orders, and so changes nothing.
    turned = [*along, *sorted(groups, key=order.__getitem__, reverse=True)]
    places = [written.index(place) for place in turned]
    swaps = sum(first > second for at, first in enumerate(places) for second in places[at + 1 :])
    return -turn if swaps % 2 else turn


def renumbered(
    places: NDArray[np.int64], begin: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The ends of every bond when atoms move to these places, the lower end first, and which bond comes first.

    Places, and the ends of bonds as they are given and returned, count the atoms of all molecules.
    """
    begin, end = places[begin], places[end]
    low, high = np.minimum(begin, end), np.maximum(begin, end)
    bonds = np.argsort(low * max(len(places), 1) + high)
    return low[bonds], high[bonds], bonds
