"""Facts about a graph's structure that a model can ask for, such as Laplacian eigenvectors or distances between nodes.

A model's config names the facts it needs. A store, which is a prepared data set, computes them once for all its graphs
and keeps them (:meth:`tokengt.data.store.Store.with_facts`); every batch that is selected from it carries its part. For
a batch that does not have a fact, :func:`fact_of` computes it on the spot.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float32, Int8, Int16, Shaped
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.facts import Per
from tokengt.structure.distances import LONGEST, hop_distances
from tokengt.structure.laplacian import Which, laplacian_eigenvectors, laplacian_fact
from tokengt.structure.rings import edge_rings, node_rings
from tokengt.structure.walks import edge_probabilities, neighbour_counts, return_probabilities

# Degrees are kept in int16: no reader tells larger ones apart.
MANY = 2**15 - 1


@runtime_checkable
class StructureFact(Protocol):
    """Something that the structure of a graph decides: a frozen class with these three members."""

    @property
    def name(self) -> str:
        """What tells facts apart: their name in a batch, and the name of their file in a store."""
        ...

    @property
    def per(self) -> Per:
        """What one row belongs to: a graph, a node, a listed edge, or an ordered pair of nodes of a graph."""
        ...

    def compute(self, batch: GraphBatch) -> Shaped[Tensor, "rows *rest"]:
        """The rows of every graph of a batch, in the type in which they are kept."""
        ...


@dataclass(frozen=True)
class LaplacianVectors:
    """Canonical eigenvectors of the normalised Laplacian, float32 [nodes, count]."""

    count: int
    which: Which = "lowest"
    per: ClassVar[Per] = "node"

    @property
    def name(self) -> str:
        return laplacian_fact(self.count, self.which)

    def compute(self, batch: GraphBatch) -> Float32[Tensor, "nodes count"]:
        return laplacian_eigenvectors(batch, self.count, self.which).vectors.float()


@dataclass(frozen=True)
class LaplacianValues:
    """The eigenvalues of :class:`LaplacianVectors`, float32 [graphs, count]; zero beyond a graph's number of nodes."""

    count: int
    which: Which = "lowest"
    per: ClassVar[Per] = "graph"

    @property
    def name(self) -> str:
        return f"eigenvalues-{self.which}-{self.count}"

    def compute(self, batch: GraphBatch) -> Float32[Tensor, "graphs count"]:
        return laplacian_eigenvectors(batch, self.count, self.which).values.float()


@dataclass(frozen=True)
class HopDistances:
    """How many edges lie between two nodes, int8 [pairs]; -1 where no path has at most ``limit`` of them."""

    limit: int = 20
    per: ClassVar[Per] = "pair"

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= LONGEST:
            raise ValueError(f"limit is {self.limit}; expected 1 to {LONGEST} hops")

    @property
    def name(self) -> str:
        return f"hops-{self.limit}"

    def compute(self, batch: GraphBatch) -> Int8[Tensor, " pairs"]:
        return hop_distances(batch, self.limit)


@dataclass(frozen=True)
class WalkReturns:
    """How likely a random walk is back at its node after 1, 2, ..., ``steps`` steps, float32 [nodes, steps]."""

    steps: int = 16
    per: ClassVar[Per] = "node"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps is {self.steps}; expected at least 1")

    @property
    def name(self) -> str:
        return f"walks-{self.steps}"

    def compute(self, batch: GraphBatch) -> Float32[Tensor, "nodes steps"]:
        return return_probabilities(batch, self.steps)


@dataclass(frozen=True)
class EdgeWalks:
    """How likely a random walk goes from one node of an edge to the other, float32 [edges, 2 * steps].

    For a listed edge (u, v): from u to v in 1, 2, ..., ``steps`` steps, and then the same from v to u.
    """

    steps: int = 16
    per: ClassVar[Per] = "edge"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps is {self.steps}; expected at least 1")

    @property
    def name(self) -> str:
        return f"edge-walks-{self.steps}"

    def compute(self, batch: GraphBatch) -> Float32[Tensor, "edges columns"]:
        return edge_probabilities(batch, self.steps)


@dataclass(frozen=True)
class Degrees:
    """How many nodes each node is joined to, itself included where it has a self-loop, int16 [nodes]."""

    per: ClassVar[Per] = "node"
    name: ClassVar[str] = "degrees"

    def compute(self, batch: GraphBatch) -> Int16[Tensor, " nodes"]:
        return neighbour_counts(batch).clamp(max=MANY).to(torch.int16)


@dataclass(frozen=True)
class NodeRings:
    """How many rings of 3, 4, ..., 8 and of more nodes go through each node, int16 [nodes, 8]: structure/rings.py."""

    longest: int = 20
    per: ClassVar[Per] = "node"

    def __post_init__(self) -> None:
        _check_longest(self.longest)

    @property
    def name(self) -> str:
        return f"rings-{self.longest}"

    def compute(self, batch: GraphBatch) -> Int16[Tensor, "nodes columns"]:
        return node_rings(batch, self.longest)


@dataclass(frozen=True)
class EdgeRings:
    """How many rings of 3, 4, ..., 8 and of more nodes go through each listed edge, int16 [edges, 8]."""

    longest: int = 20
    per: ClassVar[Per] = "edge"

    def __post_init__(self) -> None:
        _check_longest(self.longest)

    @property
    def name(self) -> str:
        return f"edge-rings-{self.longest}"

    def compute(self, batch: GraphBatch) -> Int16[Tensor, "edges columns"]:
        return edge_rings(batch, self.longest)


def _check_longest(longest: int) -> None:
    if longest < 3:
        raise ValueError(f"longest is {longest}; expected at least 3: no ring has fewer nodes")


def fact_of(batch: GraphBatch, fact: StructureFact) -> Shaped[Tensor, "rows *rest"]:
    """The rows that the batch carries, or else rows that are computed now."""
    rows = batch.fact(fact.name)
    return fact.compute(batch) if rows is None else rows


def with_facts(batch: GraphBatch, facts: Iterable[StructureFact]) -> GraphBatch:
    """The same batch, carrying these facts: those that it lacks are computed now."""
    for fact in facts:
        if batch.fact(fact.name) is None:
            batch = batch.with_fact(fact.name, fact.compute(batch), fact.per)
    return batch
