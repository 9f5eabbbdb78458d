"""What is timed: synthetic graphs with the sizes of four public data sets. No download, no RDKit."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from tokengt.batch import GraphBatch, Level
from tokengt.bench.molecules import MoleculeStatistics, random_molecules
from tokengt.interop.molecules import ATOM_CATEGORIES, BOND_CATEGORIES
from tokengt.models.features import FeatureSpec
from tokengt.models.tokengt.tokens import TokensConfig
from tokengt.numbering import narrowed

Shape = Literal["pcqm4mv2", "zinc", "peptides", "physics"]

# The means of atoms and bonds are those of the data sets (PCQM4Mv2, ZINC-12k, LRGB peptides); the standard deviations
# are close to theirs.
MOLECULES: dict[str, MoleculeStatistics] = {
    "pcqm4mv2": MoleculeStatistics(14.1, 14.6, spread=2.5, least=4, most=30, tail=0.001, longest=50),
    "zinc": MoleculeStatistics(23.2, 24.9, spread=4.5, least=9, most=37),
    "peptides": MoleculeStatistics(150.9, 153.7, spread=84.0, least=8, most=444),
}
PHYSICS_NODES, PHYSICS_EDGES, PHYSICS_CLASSES = 34_493, 247_962, 5
# Numbers per node. The real data set has 8,415, which would only add the time of one larger matrix product.
_PHYSICS_WIDTH = 32


@dataclass(frozen=True, eq=False)
class Sample:
    """Graphs with labels, as a training run has them: [rows, 1] numbers, or the places of ``classes``."""

    graphs: GraphBatch
    level: Level
    targets: Float[Tensor, "rows 1"]
    classes: int
    tokens: TokensConfig


def make_sample(shape: Shape, count: int, seed: int = 0, scale: float = 1.0) -> Sample:
    """``count`` molecules of a data set's shape, or for "physics" one graph, ``scale`` times as large."""
    if shape not in get_args(Shape):
        raise ValueError(f"shape is {shape!r}; expected one of {', '.join(get_args(Shape))}")
    if count < 1:
        raise ValueError(f"count is {count}; expected at least one graph")
    if not 0 < scale <= 1 or (scale != 1 and shape != "physics"):
        raise ValueError(f"scale is {scale:g} with shape {shape!r}; expected 1, or for 'physics' above 0 up to 1")
    if shape == "physics":
        return _physics(seed, scale)
    graphs = random_molecules(count, MOLECULES[shape], seed)
    targets = torch.randn(count, 1, generator=torch.Generator().manual_seed(seed))
    tokens = TokensConfig(FeatureSpec(ATOM_CATEGORIES), FeatureSpec(BOND_CATEGORIES))
    return Sample(graphs, "graph", targets, 0, tokens)


def _physics(seed: int, scale: float) -> Sample:
    """One graph with the nodes, edges and classes of Coauthor Physics, degrees heavy-tailed."""
    nodes, edges = max(16, round(PHYSICS_NODES * scale)), max(32, round(PHYSICS_EDGES * scale))
    random = np.random.default_rng(seed)
    first, second = _distinct_pairs(nodes, edges, random)
    index = np.stack([np.stack([first, second], 1).ravel(), np.stack([second, first], 1).ravel()])
    features = random.standard_normal((nodes, _PHYSICS_WIDTH), dtype=np.float32)
    graphs = GraphBatch.from_arrays(
        {
            "node_offsets": torch.tensor([0, nodes]),
            "node_features": torch.from_numpy(features),
            "edge_offsets": torch.tensor([0, 2 * edges]),
            "edge_index": narrowed(torch.from_numpy(index)),
        }
    )
    targets = torch.from_numpy(random.integers(0, PHYSICS_CLASSES, (nodes, 1)).astype(np.float32))
    return Sample(graphs, "node", targets, PHYSICS_CLASSES, TokensConfig(FeatureSpec(width=_PHYSICS_WIDTH)))


def _distinct_pairs(nodes: int, edges: int, random: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """``edges`` different pairs u < v, their ends drawn with weights 1 / sqrt(rank)."""
    weights = 1 / np.sqrt(np.arange(1, nodes + 1))
    bounds = np.cumsum(weights) / weights.sum()
    codes = np.empty(0, dtype=np.int64)
    while len(codes) < edges:
        ends = np.sort(np.searchsorted(bounds, random.random((2 * edges, 2))).clip(max=nodes - 1), 1)
        pairs = ends[ends[:, 0] < ends[:, 1]]
        codes = np.unique(np.concatenate([codes, pairs[:, 0] * nodes + pairs[:, 1]]))
    kept = random.permutation(codes)[:edges]
    return kept // nodes, kept % nodes
