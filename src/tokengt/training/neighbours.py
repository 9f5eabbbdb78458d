"""How near a graph is to those that a model was trained on, and what labels these have.

Two graphs are near in two ways. The *similarity* is that of their circular fingerprints
(:mod:`tokengt.training.floor`): the neighbourhoods that both have, over those that either has (Tanimoto), 0 to 1. The
*distance* is between the vectors that the model makes of them, each number over its deviation in training; 1 is how far
training graphs usually are from their nearest neighbours. All of it is NumPy and SciPy, on whatever machine predicts.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from numpy import ndarray
from numpy.typing import NDArray
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.data.batching import evaluation_batches, permutation
from tokengt.interop.molecules import ATOM_VOCABULARY, BOND_VOCABULARY
from tokengt.training.floor import fingerprints

BITS = 2048
# How many neighbours are looked at, and of how many training graphs at most: more would take longer than the model.
NEAREST, MOST_KNOWN = 5, 20_000
# A graph is unlike anything trained on where fewer than this share of the training graphs is as far from all others.
RARE = 0.01
# Training graphs whose own neighbours say what is usual, and rows that are compared at once.
_MOST_ASKED, _CHUNK = 1000, 256
_TOKENS = 1 << 18

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Described:
    """Graphs as they are compared: packed bits, and vectors; None where there are none of the kind."""

    bits: UInt8[ndarray, "rows bytes"] | None
    vectors: Float[ndarray, "rows dim"] | None

    def __len__(self) -> int:
        known = self.bits if self.bits is not None else self.vectors
        return 0 if known is None else len(known)

    def take(self, places: Any) -> "Described":
        return Described(*(None if part is None else part[places] for part in (self.bits, self.vectors)))


@dataclass(frozen=True, eq=False)
class Labels:
    """Mean and standard deviation of the labels of a row's nearest neighbours, for each target; NaN for none."""

    mean: Float[ndarray, "rows targets"]
    std: Float[ndarray, "rows targets"]


@dataclass(frozen=True, eq=False)
class Near:
    """What is known of some rows' neighbours; NaN where there is nothing to compare.

    ``similarity`` is that of the most similar training graph, ``similar`` the mean over the nearest few, and
    ``distance`` the mean distance to the nearest few. ``by_bits`` and ``by_vectors`` are labels of neighbours.
    """

    similarity: Float[ndarray, " rows"]
    similar: Float[ndarray, " rows"]
    distance: Float[ndarray, " rows"]
    by_bits: Labels
    by_vectors: Labels


@dataclass(frozen=True, eq=False)
class Usual:
    """How near training graphs are to each other, each without itself.

    ``similarity`` is undercut by one in a hundred of them, ``distance`` exceeded by as many; ``unit`` is the middle of
    their distances, in which all distances are told.
    """

    similarity: float
    distance: float
    unit: float


@dataclass(frozen=True, eq=False)
class Known:
    """What is kept of the training graphs to compare others with: some of them, with their labels."""

    described: Described
    labels: Float[ndarray, "rows targets"]
    centre: Float[ndarray, " dim"]
    scale: Float[ndarray, " dim"]
    usual: Usual

    @classmethod
    def of(cls, described: Described, labels: Float[ndarray, "rows targets"], seed: int) -> "Known":
        """Of training graphs, of which :func:`sampled` leaves few enough."""
        vectors = described.vectors
        if vectors is None or not len(vectors):
            centre = scale = np.zeros(0)
        else:
            centre, spread = vectors.mean(0, dtype=np.float64), vectors.std(0, dtype=np.float64)
            scale = np.where(spread > 1e-6, spread, 1.0)
        plain = cls(described, labels, centre, scale, Usual(0.0, np.inf, 1.0))
        return cls(described, labels, centre, scale, plain._usual(seed))

    def _usual(self, seed: int) -> Usual:
        asked = permutation(len(self.described), seed + 1)[:_MOST_ASKED].numpy()
        if len(self.described) < 2:
            return Usual(0.0, np.inf, 1.0)
        near = self.look(self.described.take(asked), without=asked)
        unit = float(np.median(near.distance)) if np.isfinite(near.distance).all() else 1.0
        unit = unit if unit > 0 else 1.0
        return Usual(
            float(np.quantile(near.similarity, RARE)) if np.isfinite(near.similarity).all() else 0.0,
            float(np.quantile(near.distance / unit, 1 - RARE)) if np.isfinite(near.distance).all() else np.inf,
            unit,
        )

    def look(self, asked: Described, without: NDArray[np.int64] | None = None) -> Near:
        """The neighbours of other graphs; or of training graphs, each at its place ``without`` itself."""
        parts = [
            self._look(asked.take(slice(at, at + _CHUNK)), None if without is None else without[at : at + _CHUNK])
            for at in range(0, len(asked), _CHUNK)
        ] or [self._look(asked, without)]

        def joined(name: str) -> Array:
            return np.concatenate([getattr(part, name) for part in parts])

        labels = (
            Labels(
                *(np.concatenate([getattr(getattr(part, name), each) for part in parts]) for each in ("mean", "std"))
            )
            for name in ("by_bits", "by_vectors")
        )
        return Near(joined("similarity"), joined("similar"), joined("distance"), *labels)

    def unlike(self, near: Near) -> Bool[ndarray, " rows"]:
        """Whether a row is farther from all training graphs than almost any of these is from the others."""
        # A comparison with NaN, where there is nothing to compare, is False.
        return (near.similarity < self.usual.similarity) | (near.distance > self.usual.distance)

    def _look(self, asked: Described, without: NDArray[np.int64] | None) -> Near:
        rows = len(asked)
        closeness = [self._similarities(asked), self._closeness(asked)]
        if without is not None:
            for table in closeness:
                if table is not None:
                    table[np.arange(rows), without] = -np.inf
        none = np.full(rows, np.nan)
        few = min(NEAREST, len(self.described) - (without is not None))
        similar = [none, none] if closeness[0] is None else _largest(closeness[0], few)
        distance = none if closeness[1] is None else -_largest(closeness[1], few)[1] / self.usual.unit
        labels = (self._labels(table, rows) for table in closeness)
        return Near(similar[0], similar[1], distance, *labels)

    def _similarities(self, asked: Described) -> Array | None:
        """Tanimoto similarities [asked, known]."""
        if asked.bits is None or self.described.bits is None:
            return None
        ours, theirs = (_sparse(bits) for bits in (asked.bits, self.described.bits))
        both = (ours @ theirs.T).toarray().astype(np.float64)
        sizes = [np.asarray(each.sum(1), dtype=np.float64).ravel() for each in (ours, theirs)]
        return np.asarray(both / np.maximum(sizes[0][:, None] + sizes[1] - both, 1.0))

    def _closeness(self, asked: Described) -> Array | None:
        """Distances between vectors [asked, known], negative: more is nearer."""
        if asked.vectors is None or self.described.vectors is None or not len(self.centre):
            return None
        ours, theirs = ((each - self.centre) / self.scale for each in (asked.vectors, self.described.vectors))
        squares = (ours**2).sum(1)[:, None] + (theirs**2).sum(1) - 2 * ours @ theirs.T
        return np.asarray(-np.sqrt(np.maximum(squares, 0.0) / max(len(self.centre), 1)))

    def _labels(self, closeness: Array | None, rows: int) -> Labels:
        targets = self.labels.shape[1]
        out = np.full((2, rows, targets), np.nan)
        there = ~np.isnan(self.labels)
        if closeness is None:
            return Labels(*out)
        if there.all():
            picked = self.labels[_nearest(closeness, NEAREST)]
            return Labels(picked.mean(1), picked.std(1))
        for target in range(targets):
            labelled = np.flatnonzero(there[:, target])
            if len(labelled):
                picked = self.labels[labelled, target][_nearest(closeness[:, labelled], NEAREST)]
                out[:, :, target] = picked.mean(1), picked.std(1)
        return Labels(*out)


def sampled(places: Int[Tensor, " places"], seed: int, most: int = MOST_KNOWN) -> Int[Tensor, " some"]:
    """At most so many of the places, ascending, drawn by the seed."""
    return places if len(places) <= most else places[permutation(len(places), seed)[:most]].sort().values


def bits_of(graphs: GraphBatch, molecules: bool) -> UInt8[ndarray, "graphs bytes"] | None:
    """Which neighbourhoods each graph has, packed; None for graphs whose nodes are not described by categories.

    Those of molecules leave stereo marks aside, as fingerprints usually do: a molecule is like its mirror image.
    """
    nodes = graphs.node_features
    if nodes is None or nodes.is_floating_point() or not nodes.shape[1] or graphs.order != 2 or graphs.hyperedges.total:
        return None
    graphs = _without_stereo(graphs) if molecules else graphs
    packed = np.zeros((len(graphs), BITS // 8), dtype=np.uint8)
    sizes = graphs.nodes.host_lengths + graphs.edges.host_lengths
    for places in evaluation_batches(torch.arange(len(graphs)), sizes, _TOKENS):
        packed[places.numpy()] = np.packbits(fingerprints(graphs.select(places), BITS).numpy() > 0, axis=1)
    return packed


def _without_stereo(graphs: GraphBatch) -> GraphBatch:
    nodes, edges = graphs.node_features, graphs.edge_features
    assert isinstance(nodes, Tensor), "categories of atoms are dense"
    nodes = nodes.clone()
    nodes[:, list(ATOM_VOCABULARY).index("chirality")] = 0
    if edges is not None:
        edges = edges.clone()
        edges[:, list(BOND_VOCABULARY).index("stereo")] = 0
    return replace(graphs, node_features=nodes, edge_features=edges)


def _sparse(bits: UInt8[ndarray, "rows bytes"]) -> Any:
    from scipy import sparse

    return sparse.csr_matrix(np.unpackbits(bits, axis=1).astype(np.float32))


def _nearest(closeness: Array, few: int) -> NDArray[np.int64]:
    """[rows, few] places of the nearest."""
    few = min(few, closeness.shape[1])
    return np.argpartition(-closeness, few - 1, axis=1)[:, :few]


def _largest(closeness: Array, few: int) -> tuple[Array, Array]:
    """The closeness of the nearest, and the mean over the nearest few."""
    values = np.take_along_axis(closeness, _nearest(closeness, few), 1)
    return values.max(1), values.mean(1)
