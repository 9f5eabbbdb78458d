"""Identifiers of many graphs at once, padded: fresh ones for training, the production ones for evaluation.

The model's own ``identify`` factors matrices size by size in float64, 7,000 to 23,000 per second on a GPU; the
3,000 steps of one run need about a million. Here the graphs of many steps are drawn together, whatever their sizes,
from the same distributions.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.draws import GeneratorDraws
from tokengt.models.tokengt.identifiers import (
    FirstOrderOrfIds,
    IdentifierConfig,
    Identifiers,
    LaplacianIds,
    NoIds,
    OrfIds,
    identify,
)
from tokengt.models.tokengt.orthogonal import orthogonal_random_features
from tokengt.ragged import Segments, interleave


def orthonormal_rows(gaussian: Float[Tensor, "matrices n dim"]) -> Float[Tensor, "matrices n dim"]:
    """Gram-Schmidt on the rows of every matrix; a zero row stays zero.

    Rows of independent Gaussians become rows of a Haar orthogonal matrix: each is uniform on the unit sphere of what
    the rows before it leave. Projecting twice makes them orthonormal to float32 whatever the conditioning.
    """
    rows = gaussian.clone()
    for place in range(rows.shape[1]):
        row, before = rows[:, place : place + 1], rows[:, :place]
        for _ in range(2):
            row = F.normalize(row - (row @ before.mT) @ before, dim=2)
        rows[:, place] = row[:, 0]
    return rows


def evaluation_identifiers(
    batch: GraphBatch, config: IdentifierConfig, seed: int
) -> Float[Tensor, "graphs rows id_dim"] | None:
    """The production model's identifiers of a batch, padded; the same for the same seed.

    Laplacian eigenvectors are in their canonical basis: of the signs and rotations that eigenvectors may have, the one
    that a fixed rule chooses. Random kinds come from a generator, not from each graph's key (a hash of the graph):
    complete graphs of one size have the same key, and would all have the same draw.
    """
    generator = None if isinstance(config, LaplacianIds) else torch.Generator().manual_seed(seed)
    ids = identify(batch, config, generator=generator)
    return None if ids is None else padded_identifiers(batch, ids)


def padded_identifiers(batch: GraphBatch, ids: Identifiers) -> Float[Tensor, "graphs rows id_dim"]:
    """A row for every node; for first-order identifiers one for every token but [null], nodes first."""
    if ids.edges is None:
        rows, segments = ids.nodes, batch.nodes
    else:
        segments, (node_rows, edge_rows) = interleave([batch.nodes, batch.edges])
        rows = ids.nodes.new_empty(segments.total, ids.nodes.shape[1])
        rows[node_rows], rows[edge_rows] = ids.nodes, ids.edges
    out = torch.zeros(segments.count, segments.max_length, rows.shape[1], device=rows.device)
    out[segments.ids, segments.positions] = rows.float()
    return out


@dataclass(frozen=True, eq=False)
class FreshIdentifiers:
    """New identifiers in training for the graphs of one batch, on the generator's device.

    Attributes:
        config: which kind.
        sizes: nodes of every graph.
        most_nodes: the largest of them.
        most_tokens: tokens of the largest graph, without [null].
        vectors: Laplacian eigenvectors of every graph; None for other kinds.
        generator: where the draws come from.
    """

    config: IdentifierConfig
    sizes: Int[Tensor, " graphs"]
    most_nodes: int
    most_tokens: int
    vectors: Float[Tensor, "graphs nodes id_dim"] | None
    generator: torch.Generator

    @classmethod
    def of(cls, batch: GraphBatch, config: IdentifierConfig, generator: torch.Generator) -> "FreshIdentifiers":
        sizes, device = batch.nodes.host_lengths, generator.device
        most_nodes, most_tokens = int(sizes.max()), int((sizes + batch.edges.host_lengths).max())
        if isinstance(config, OrfIds) and most_nodes > config.dim:
            raise ValueError(
                f"a graph has {most_nodes} nodes; orthonormal identifiers of width {config.dim} need fewer"
            )
        vectors = evaluation_identifiers(batch, config, 0) if isinstance(config, LaplacianIds) else None
        on_device = None if vectors is None else vectors.to(device)
        return cls(config, sizes.to(device), most_nodes, most_tokens, on_device, generator)

    @torch.no_grad()
    def draw(self, graphs: Int[Tensor, " chosen"]) -> Float[Tensor, "chosen rows id_dim"] | None:
        """Identifiers of these graphs' nodes, or first-order ones of their tokens; a repeated graph draws anew.

        Rows that a graph does not have may hold anything.
        """
        count = len(graphs)
        match self.config:
            case NoIds():
                return None
            case LaplacianIds(dim=dim, sign_flip=sign_flip):
                assert self.vectors is not None
                chosen = self.vectors.index_select(0, graphs)
                return chosen * self._normal(count, 1, dim).sign() if sign_flip else chosen
            case OrfIds():
                return self._orthonormal(graphs)
            case FirstOrderOrfIds():
                return self._shared_rows(count)
            case _:
                rows = self.most_tokens if self.config.first_order else self.most_nodes
                return F.normalize(self._normal(count, rows, self.config.dim), dim=2)

    def _orthonormal(self, graphs: Int[Tensor, " chosen"]) -> Float[Tensor, "chosen nodes id_dim"]:
        """A Haar matrix of each graph's own size, the rest zero."""
        most = self.most_nodes
        inside = torch.arange(most, device=graphs.device) < self.sizes.index_select(0, graphs)[:, None]
        square = self._normal(len(graphs), most, most) * (inside[:, :, None] & inside[:, None, :])
        return F.pad(orthonormal_rows(square), (0, self.config.dim - most))

    def _shared_rows(self, count: int) -> Float[Tensor, "chosen tokens id_dim"]:
        """For each graph other rows, in random order, of one orthogonal matrix: the authors' way, which is fast."""
        total, device = max(self.config.dim, self.most_tokens), self.generator.device
        draws = GeneratorDraws(self.generator, device)
        table = orthogonal_random_features(Segments.uniform(1, total, device), self.config.dim, draws).float()
        order = torch.rand(count, total, generator=self.generator, device=device).argsort(1)
        return table[order[:, : self.most_tokens]]

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.generator.device)
