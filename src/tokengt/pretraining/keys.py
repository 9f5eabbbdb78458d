"""What makes two molecules the same for an honest test: their largest fragment, without stereo and charges.

A molecule of a test part that stands in the pre-training data as another salt, another stereoisomer or another state of
charge is still one that the model has seen. So molecules are compared by a *key*: RDKit's canonical SMILES of the
largest fragment, after stereo is removed and charges that a proton explains are gone. This module does not import
torch.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokengt.interop.reading import MoleculePolicy, TextKind, molecules, rdkit_modules

_POLICY = MoleculePolicy(salts="largest", stereo="drop")


def molecule_keys(texts: Sequence[str], kind: TextKind = "smiles") -> list[str | None]:
    """The key of every molecule; None where a text cannot be read.

    >>> molecule_keys(["C[C@H](N)C(=O)[O-].[Na+]", "CC(N)C(=O)O"])
    ['CC(N)C(=O)O', 'CC(N)C(=O)O']
    """
    # The part that takes charges away tells of each molecule that it does.
    with rdkit_modules()[1].BlockLogs():
        return [None if isinstance(molecule, str) else key_of(molecule) for molecule in molecules(texts, _POLICY, kind)]


def key_of(molecule: Any) -> str:
    """The key of a molecule that is its largest fragment, without stereo."""
    write = rdkit_modules()[0].MolToSmiles
    if any(atom.GetFormalCharge() for atom in molecule.GetAtoms()):
        molecule = _uncharger().uncharge(molecule)
    text: str = write(molecule)
    return text


@cache
def _uncharger() -> Any:
    from rdkit.Chem.MolStandardize.rdMolStandardize import Uncharger

    return Uncharger()


def key_hashes(keys: Iterable[str | None]) -> NDArray[np.uint64]:
    """[keys] 64 bits of each key; 0 for None, which no key has."""
    digests = (b"" if key is None else hashlib.blake2b(key.encode(), digest_size=8).digest() for key in keys)
    return np.array([int.from_bytes(digest, "little") for digest in digests], dtype=np.uint64)


@dataclass(frozen=True, eq=False)
class Excluded:
    """Molecules that must not be trained on.

    Args:
        hashes: their keys' 64 bits, ascending, each once.
        names: where they come from.
        unread: how many of their texts RDKit cannot read, which exclude nothing.
    """

    hashes: NDArray[np.uint64]
    names: tuple[str, ...] = ()
    unread: int = 0

    @classmethod
    def of(cls, texts: Sequence[str], names: Sequence[str] = (), kind: TextKind = "smiles") -> "Excluded":
        keys = molecule_keys(texts, kind)
        found = key_hashes(key for key in keys if key is not None)
        return cls(np.unique(found), tuple(names), sum(key is None for key in keys))

    @property
    def sha256(self) -> str:
        """A checksum of all that is excluded, for a leak report to be compared with."""
        return hashlib.sha256(self.hashes.astype("<u8").tobytes()).hexdigest()

    def holds(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which of these are excluded."""
        return np.isin(hashes, self.hashes)
