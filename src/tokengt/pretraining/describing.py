"""Some molecules to arrays: graphs, keys and descriptors. The unit of parallel work and of restart.

This is what worker processes run; it does not import torch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokengt.interop.molecules import MoleculePolicy, PackedMolecules, pack_molecules
from tokengt.interop.reading import DEFAULT_POLICY, TextKind, molecules
from tokengt.pretraining.keys import Excluded, key_hashes, molecule_keys

Arrays = dict[str, NDArray[Any]]

# Measured on drug-like molecules: together these take more time than the two hundred others. Those of BCUT2D come from
# one eigenvalue problem. The E-state indices are worked out anew for each of their four extremes: two are kept.
SLOW = frozenset({"qed", "SPS", "BertzCT", "Ipc", "AvgIpc", "BalabanJ", "MaxAbsEStateIndex", "MinAbsEStateIndex"})
_SLOW_PREFIX = "BCUT2D_"


@cache
def descriptors() -> dict[str, Callable[[Any], float]]:
    """RDKit's descriptors by name, but for the slowest."""
    from rdkit.Chem import Descriptors

    return {
        name: function
        for name, function in Descriptors.descList
        if name not in SLOW and not name.startswith(_SLOW_PREFIX)
    }


@dataclass(frozen=True, eq=False)
class Job:
    """One piece of work.

    Args:
        texts: the molecules.
        described: [molecules] for which of them descriptors are worked out.
        excluded: those to leave out.
        max_atoms: larger molecules are left out too.
    """

    texts: Sequence[str]
    described: NDArray[np.bool_]
    excluded: Excluded
    max_atoms: int
    kind: TextKind = "smiles"


def describe(job: Job) -> Arrays:
    """What a store of pre-training data holds of these molecules, as arrays by name.

    ``kept`` are places of the molecules that are kept; ``left_out`` [2] how many were excluded and how many could not
    be read or are too large. ``descriptors`` has a row for each molecule that is ``described``. A bond stands once,
    with the smaller of its atoms' numbers first.
    """
    keys = key_hashes(molecule_keys(job.texts, job.kind))
    allowed = np.flatnonzero(~job.excluded.holds(keys))
    texts = [job.texts[place] for place in allowed.tolist()]
    packed = pack_molecules(texts, MoleculePolicy(max_atoms=job.max_atoms), job.kind)
    kept = allowed[packed.kept]
    described = job.described[kept]
    return {
        **_graphs(packed),
        "kept": kept.astype(np.int64),
        "keys": keys[kept],
        "described": described,
        "descriptors": _table([job.texts[place] for place in kept[described].tolist()], job.kind),
        "left_out": np.array([len(job.texts) - len(allowed), len(allowed) - len(kept)]),
    }


def _graphs(packed: PackedMolecules) -> Arrays:
    """Every bond is two edges side by side, of which the first is kept."""
    return {
        "node_counts": packed.node_counts,
        "bond_counts": packed.edge_counts // 2,
        "atoms": packed.node_features,
        "ends": packed.edge_index[:, ::2],
        "bonds": packed.edge_features[::2],
    }


def _table(texts: Sequence[str], kind: TextKind) -> NDArray[np.float32]:
    """[molecules, descriptors]; NaN where one is not defined."""
    functions = list(descriptors().values())
    out = np.full((len(texts), len(functions)), np.nan, dtype=np.float32)
    for row, molecule in enumerate(molecules(texts, DEFAULT_POLICY, kind)):
        if not isinstance(molecule, str):
            for column, function in enumerate(functions):
                out[row, column] = _value(function, molecule)
    out[~np.isfinite(out)] = np.nan
    return out


def _value(function: Callable[[Any], float], molecule: Any) -> float:
    """A descriptor of a strange molecule may fail in any way; then it is missing."""
    try:
        return float(np.clip(function(molecule), -3e38, 3e38))
    except Exception:
        return float("nan")
