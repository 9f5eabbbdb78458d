"""Which test molecules stand in other data: themselves, as another salt or stereoisomer, or as a near neighbour.

Two molecules are the same where their canonical SMILES are. They have the same parent where the largest fragment,
uncharged and without stereo, is the same (:mod:`tokengt.pretraining.keys`): what another salt, another charge and other
stereoisomers have in common. Neighbours are told by the Tanimoto similarity of Morgan fingerprints (radius 2, 2,048
bits): the bits that two molecules share, divided by the bits that either has.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokengt.interop.reading import DEFAULT_POLICY, molecules, rdkit_modules
from tokengt.pretraining.keys import key_hashes, molecule_keys

RADIUS, BITS = 2, 2048
# Lower ends of the bins of similarity; the last holds equal fingerprints alone.
EDGES = (0.0, 0.4, 0.6, 0.8, 1.0)
BINS = ("below 0.4", "0.4 to 0.6", "0.6 to 0.8", "0.8 to 1", "1")
_MARKS = re.compile(r"[.\[/\\]")
_CHUNK = 2000


@dataclass(frozen=True, eq=False)
class Described:
    """Molecules as they are compared; None, and no fingerprint, where a text cannot be read."""

    whole: list[str | None]
    parents: list[str | None]
    prints: list[Any]


def described(smiles: Sequence[str], prints: bool = True) -> Described:
    """Canonical SMILES and parents of all molecules and, if asked for, fingerprints."""
    from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator

    generator, write = GetMorganGenerator(radius=RADIUS, fpSize=BITS), rdkit_modules()[0].MolToSmiles
    whole: list[str | None] = []
    found = []
    for molecule in molecules(smiles, DEFAULT_POLICY, "smiles"):
        readable = not isinstance(molecule, str)
        whole.append(str(write(molecule)) if readable else None)
        found.append(generator.GetFingerprint(molecule) if readable and prints else None)
    # One fragment without charges and stereo, which all stand in such signs, is its own parent.
    bare = [text is None or not _MARKS.search(text) for text in whole]
    others = iter(molecule_keys([text for text, plain in zip(smiles, bare, strict=True) if not plain]))
    own = [text if plain else next(others) for text, plain in zip(whole, bare, strict=True)]
    return Described(whole, own, found)


@dataclass(frozen=True, eq=False)
class Overlap:
    """What of some test molecules stands in other data.

    Args:
        same: whether the molecule itself does; None where only keys of the other data are known.
        parent: whether one with the same parent does.
        nearest: similarity to the nearest one; None where only keys are known.
        molecules: how many the other data holds that can be read.
    """

    same: NDArray[np.bool_] | None
    parent: NDArray[np.bool_]
    nearest: NDArray[np.float64] | None
    molecules: int

    def part(self, places: NDArray[np.int64]) -> "Overlap":
        same = None if self.same is None else self.same[places]
        nearest = None if self.nearest is None else self.nearest[places]
        return Overlap(same, self.parent[places], nearest, self.molecules)

    def told(self) -> dict[str, Any]:
        """As JSON has it; ``rows`` are the places of the test molecules whose parent was found."""
        return {
            "test": len(self.parent),
            "same": None if self.same is None else int(self.same.sum()),
            "parent": int(self.parent.sum()),
            "neighbours": None if self.nearest is None else binned(self.nearest),
            "molecules": self.molecules,
            "rows": " ".join(map(str, np.flatnonzero(self.parent).tolist())),
        }


def binned(similarities: NDArray[np.float64]) -> list[int]:
    """How many lie in each bin of :data:`BINS`."""
    places = np.searchsorted(EDGES, similarities, side="right") - 1
    return [int(count) for count in np.bincount(places, minlength=len(BINS))]


def overlap(
    test: Sequence[str], other: Iterable[str], say: Callable[[int], None] | None = None, neighbours: bool = True
) -> Overlap:
    """Look for every test molecule in the other data, which is read once, piece by piece.

    Without ``neighbours`` nothing is said of how similar the nearest one is, which takes most of the time.
    """
    from rdkit.DataStructs import BulkTanimotoSimilarity

    asked = described(test, neighbours)
    same, parent = np.zeros(len(test), dtype=bool), np.zeros(len(test), dtype=bool)
    nearest = np.zeros(len(test))
    count = 0
    for chunk in _chunks(other):
        found = described(chunk, neighbours)
        whole, bare = set(found.whole) - {None}, set(found.parents) - {None}
        same |= np.array([text in whole for text in asked.whole], dtype=bool)
        parent |= np.array([text in bare for text in asked.parents], dtype=bool)
        prints = [each for each in found.prints if each is not None]
        count += sum(text is not None for text in found.whole)
        for place, own in enumerate(asked.prints):
            # Nothing is nearer than an equal fingerprint.
            if prints and own is not None and nearest[place] < 1:
                nearest[place] = max(nearest[place], max(BulkTanimotoSimilarity(own, prints)))
        if say is not None:
            say(count)
    return Overlap(same, same | parent, nearest if neighbours else None, count)


def overlap_with_keys(test: Sequence[str], keys: NDArray[np.uint64]) -> Overlap:
    """Look for the parent of every test molecule among hashed keys of other data."""
    own = key_hashes(molecule_keys(test))
    return Overlap(None, np.isin(own, keys) & (own != 0), None, int((keys != 0).sum()))


def _chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    source = iter(texts)
    while chunk := list(islice(source, _CHUNK)):
        yield chunk
