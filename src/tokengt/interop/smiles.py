"""SMILES to :class:`~tokengt.graph.Graph`, with the category columns of the Open Graph Benchmark."""

import torch

from tokengt.batch import GraphBatch
from tokengt.graph import Graph
from tokengt.interop.molecules import (
    ATOM_CATEGORIES,
    ATOM_VOCABULARY,
    BOND_CATEGORIES,
    BOND_VOCABULARY,
    DEFAULT_POLICY,
    OTHER,
    MoleculePolicy,
    PackedMolecules,
    pack_molecules,
)
from tokengt.ragged import Segments

__all__ = [
    "ATOM_CATEGORIES",
    "ATOM_VOCABULARY",
    "BOND_CATEGORIES",
    "BOND_VOCABULARY",
    "OTHER",
    "batch_of_molecules",
    "from_smiles",
]


def from_smiles(smiles: str, policy: MoleculePolicy = DEFAULT_POLICY) -> Graph:
    """The molecule as RDKit reads it: by default hydrogens implicit, bonds in both directions, a salt one graph.

    Atoms are numbered in a canonical order, the same for every spelling of the molecule, unless the policy's ``atoms``
    say otherwise; what follows a blank is a name, which RDKit leaves out.
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
    packed = pack_molecules([smiles], policy)
    for _, problem in packed.problems:
        raise ValueError(f"SMILES {smiles!r} {problem.removeprefix('the SMILES ')}")
    return Graph(
        torch.from_numpy(packed.node_features).long(),
        torch.from_numpy(packed.edge_index).long(),
        torch.from_numpy(packed.edge_features).long(),
        graph_features=torch.from_numpy(packed.features) if packed.features.shape[1] else None,
    )


def batch_of_molecules(molecules: PackedMolecules) -> GraphBatch:
    """The molecules that could be read, as one batch, in the narrow integers they were packed in."""
    features = {"graph_features": torch.from_numpy(molecules.features)} if molecules.features.shape[1] else {}
    return GraphBatch.from_arrays(
        {
            **features,
            "node_offsets": Segments.from_lengths(torch.from_numpy(molecules.node_counts)).host,
            "node_features": torch.from_numpy(molecules.node_features),
            "edge_offsets": Segments.from_lengths(torch.from_numpy(molecules.edge_counts)).host,
            "edge_index": torch.from_numpy(molecules.edge_index),
            "edge_features": torch.from_numpy(molecules.edge_features),
        }
    )
