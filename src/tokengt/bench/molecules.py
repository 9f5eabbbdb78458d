"""Random molecules: trees with small rings, as many atoms and bonds as a data set has, OGB's categories on them.

They are made for timing: sizes, degrees and feature columns are those of molecules, chemistry is not. All graphs grow
together, one atom at a time, so that thousands take a fraction of a second.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tokengt.batch import GraphBatch
from tokengt.interop.molecules import ATOM_CATEGORIES, ATOM_VOCABULARY, BOND_CATEGORIES
from tokengt.numbering import narrowed

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_VALENCE = 4
# This share of the atoms hangs on the atom just before; the others branch off at one of the _REACH atoms before that.
_CHAIN = 0.6
_REACH = 4
# One more bond across 4 or 5 bonds of the tree closes a ring of five or six atoms.
_RING_STEPS = (4, 5)
_ELEMENTS, _ELEMENT_SHARES = ("C", "N", "O", "F", "S"), (0.73, 0.12, 0.11, 0.02, 0.02)
_ATOMIC_NUMBERS = {"C": 6, "N": 7, "O": 8, "F": 9, "S": 16}


@dataclass(frozen=True)
class MoleculeStatistics:
    """Sizes of a set of molecules.

    Args:
        atoms: mean number of atoms per molecule.
        bonds: mean number of bonds, each counted once.
        spread: standard deviation of the atoms (a Gamma distribution).
        least: fewest atoms.
        most: most atoms, but for the tail.
        tail: share of molecules that are longer, up to ``longest`` atoms.
        longest: see ``tail``.
    """

    atoms: float
    bonds: float
    spread: float
    least: int
    most: int
    tail: float = 0.0
    longest: int = 0


@dataclass(frozen=True, eq=False)
class _Skeletons:
    """Trees and the bonds that close their rings; entries beyond a graph's ``sizes`` mean nothing.

    ``parents[g, i]`` is the atom before i that i hangs on; ``closes[g, i]`` is the atom that a ring bond joins to i,
    or -1; ``in_ring`` marks atoms of a ring, ``ring_bond`` tree bonds (i, parent) of one.
    """

    sizes: Ints
    parents: Ints
    closes: Ints
    degrees: Ints
    in_ring: Bools
    ring_bond: Bools


def random_molecules(count: int, statistics: MoleculeStatistics, seed: int) -> GraphBatch:
    """``count`` connected molecules, no atom with more than four neighbours, every bond in both directions."""
    random = np.random.default_rng(seed)
    trees = _grown(_sizes(count, statistics, random), random)
    _close_rings(trees, (statistics.bonds - statistics.atoms + 1) / statistics.atoms, random)
    place = np.arange(trees.parents.shape[1])
    present = place < trees.sizes[:, None]
    bonds = present & (place > 0)
    rings = present & (trees.closes >= 0)
    graph, atom = np.nonzero(bonds)
    ring_graph, ring_atom = np.nonzero(rings)
    owner = np.concatenate([graph, ring_graph])
    order = np.argsort(owner, kind="stable")
    first = np.concatenate([trees.parents[bonds], trees.closes[rings]])[order]
    second = np.concatenate([atom, ring_atom])[order]
    is_ring = np.concatenate([trees.ring_bond[bonds], np.ones(len(ring_atom), dtype=bool)])[order]
    # The edges (u, v) and (v, u) stand one after the other, as OGB lists them.
    edges = np.stack([np.stack([first, second], 1).ravel(), np.stack([second, first], 1).ravel()])
    return GraphBatch.from_arrays(
        {
            "node_offsets": _offsets(trees.sizes),
            "node_features": torch.from_numpy(_atom_features(trees, present, random)),
            "edge_offsets": _offsets(2 * np.bincount(owner, minlength=count)),
            "edge_index": narrowed(torch.from_numpy(edges)),
            "edge_features": torch.from_numpy(_bond_features(is_ring, random).repeat(2, axis=0)),
        }
    )


def _sizes(count: int, wanted: MoleculeStatistics, random: np.random.Generator) -> Ints:
    """Atoms of every molecule; the bulk's mean is lowered by what the tail adds."""
    bulk = (wanted.atoms - wanted.tail * (wanted.most + wanted.longest) / 2) / (1 - wanted.tail)
    drawn = random.gamma((bulk / wanted.spread) ** 2, wanted.spread**2 / bulk, count)
    sizes = np.clip(np.rint(drawn), wanted.least, wanted.most).astype(np.int64)
    if wanted.tail:
        long = random.random(count) < wanted.tail
        sizes = np.where(long, random.integers(wanted.most, wanted.longest + 1, count), sizes)
    return sizes


def _grown(sizes: Ints, random: np.random.Generator) -> _Skeletons:
    count, longest = len(sizes), int(sizes.max())
    rows = np.arange(count)
    parents, degrees = np.zeros((2, count, longest), dtype=np.int64)
    for atom in range(1, longest):
        back = np.where(random.random(count) < _CHAIN, 1, random.integers(2, _REACH + 2, count))
        parent = np.maximum(atom - back, 0)
        # Where the chosen atom is full, the new one hangs on the last atom, which has only one neighbour so far.
        parent = np.where(degrees[rows, parent] < _VALENCE, parent, atom - 1)
        inside = atom < sizes
        parents[:, atom] = parent
        degrees[rows, parent] += inside
        degrees[:, atom] += inside
    in_ring, ring_bond = np.zeros((2, count, longest), dtype=bool)
    return _Skeletons(sizes, parents, np.full_like(parents, -1), degrees, in_ring, ring_bond)


def _close_rings(trees: _Skeletons, rings_an_atom: float, random: np.random.Generator) -> None:
    """Join atoms to ancestors four or five bonds away, about ``rings_an_atom`` per atom, where valences allow it."""
    count, longest = trees.parents.shape
    rows, atoms = np.arange(count), np.arange(longest)
    wanted = np.floor(trees.sizes * rings_an_atom + random.random(count)).astype(np.int64)
    ancestors = _ancestors(trees.parents, max(_RING_STEPS))
    present = (atoms > 0) & (atoms < trees.sizes[:, None])
    for turn in range(int(wanted.max())):
        steps = random.choice(_RING_STEPS, (count, 1))
        ends = np.take_along_axis(ancestors, (steps - 1)[None].repeat(longest, 2), 0)[0]
        free = trees.degrees < _VALENCE
        fits = present & (ends >= 0) & (trees.closes < 0) & free & np.take_along_axis(free, np.maximum(ends, 0), 1)
        chosen = np.argmax(np.where(fits, random.random((count, longest)), -1.0), 1)
        done = fits[rows, chosen] & (turn < wanted)
        graph, atom = rows[done], chosen[done]
        end = ends[graph, atom]
        trees.closes[graph, atom] = end
        trees.degrees[graph, atom] += 1
        trees.degrees[graph, end] += 1
        _mark_ring(trees, graph, atom, end)


def _ancestors(parents: Ints, steps: int) -> Ints:
    """[steps, graphs, atoms]: who is one, two, ... bonds up the tree; -1 above the root."""
    levels, at = [], np.broadcast_to(np.arange(parents.shape[1]), parents.shape)
    for _ in range(steps):
        above = np.take_along_axis(parents, np.maximum(at, 0), 1)
        at = np.where(at > 0, above, -1)
        levels.append(at)
    return np.stack(levels)


def _mark_ring(trees: _Skeletons, graph: Ints, atom: Ints, end: Ints) -> None:
    """From ``atom`` up the tree to ``end``."""
    trees.in_ring[graph, end] = True
    at = atom.copy()
    for _ in range(max(_RING_STEPS)):
        below = at != end
        trees.in_ring[graph[below], at[below]] = True
        trees.ring_bond[graph[below], at[below]] = True
        at = np.where(below, trees.parents[graph, at], end)


def _atom_features(trees: _Skeletons, present: Bools, random: np.random.Generator) -> NDArray[np.uint8]:
    """OGB's nine columns; those that the graph decides are true."""
    degree, in_ring = trees.degrees[present], trees.in_ring[present]
    numbers = np.array([ATOM_VOCABULARY["atomic_number"].index(_ATOMIC_NUMBERS[name]) for name in _ELEMENTS])
    columns = {name: np.zeros(len(degree), dtype=np.int64) for name in ATOM_VOCABULARY}
    columns["atomic_number"] = random.choice(numbers, len(degree), p=_ELEMENT_SHARES)
    columns["degree"] = degree
    columns["formal_charge"][:] = ATOM_VOCABULARY["formal_charge"].index(0)
    columns["hydrogens"] = random.integers(0, _VALENCE - degree + 1)
    columns["hybridization"] = random.integers(0, 3, len(degree))
    columns["is_aromatic"][in_ring] = random.random(int(in_ring.sum())) < 0.6
    columns["is_in_ring"][in_ring] = 1
    features = np.stack(list(columns.values()), 1)
    assert features.shape[1] == len(ATOM_CATEGORIES)
    return features.astype(np.uint8)


def _bond_features(is_ring: Bools, random: np.random.Generator) -> NDArray[np.uint8]:
    """OGB's three columns: aromatic bonds in rings only, no stereo."""
    chance = random.random(len(is_ring))
    kinds = np.where(is_ring & (chance < 0.6), 3, np.where(chance > 0.85, 1, 0))
    features = np.stack([kinds, np.zeros_like(kinds), (kinds > 0).astype(np.int64)], 1)
    assert features.shape[1] == len(BOND_CATEGORIES)
    return features.astype(np.uint8)


def _offsets(counts: Ints) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]))
