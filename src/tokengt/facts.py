"""What was worked out of a batch's graphs before, so that nobody works it out again.

A fact is made of some fields of a batch (its edges, say) and holds while the batch has those very tensors: of others
it says nothing. It is cut along when graphs are selected and moved along when the batch moves, without a question to
a GPU. Which facts of a graph's structure there are to ask for, and how they are computed, is in
:mod:`tokengt.structure.facts`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, final

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from tokengt.numbering import LocalIndex
from tokengt.ragged import Segments

Per = Literal["node", "pair"]
# The smallest category of every column, and the largest.
CategoryRange = tuple[list[int], list[int]]
# Fields of a batch that say which nodes are joined, whatever their features are.
STRUCTURE = ("edge_numbers", "member_numbers")
# A batch's fields by name, as its constructor takes them.
Fields = Mapping[str, Any]


@final
class Cut:
    """Which rows a selection of graphs takes; ``chosen`` are places of graphs on the CPU, ``there`` on the device."""

    def __init__(
        self,
        chosen: Int[Tensor, " chosen"],
        there: Int[Tensor, " chosen"],
        nodes: Segments,
        node_rows: Int[Tensor, " nodes"],
        edge_rows: Int[Tensor, " edges"],
    ) -> None:
        self.chosen = chosen
        self.there = there
        self.node_rows = node_rows
        self.edge_rows = edge_rows
        self._nodes = nodes

    @cached_property
    def pair_rows(self) -> Int[Tensor, " pairs"]:
        """Rows of ordered pairs of nodes; worked out only when a fact has them."""
        return self._nodes.pairs.take(self.chosen, self.there)[0]


class Fact(ABC):
    """Something known of a batch: ``source`` are the very values of the fields named ``about`` it was made of."""

    about: tuple[str, ...]
    source: tuple[object, ...]

    def holds_in(self, batch: object) -> bool:
        return all(getattr(batch, name) is value for name, value in zip(self.about, self.source, strict=True))

    @abstractmethod
    def select(self, cut: Cut, fields: Fields) -> "Fact":
        """The fact of the selected graphs, whose batch has these ``fields``."""

    @abstractmethod
    def moved(self, fields: Fields) -> "Fact":
        """The same on the device of ``fields``, which are the batch's own, moved there or narrowed."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """What its tensors take."""


@final
@dataclass(frozen=True, eq=False)
class Rows(Fact):
    """One row per node, or one per ordered pair of nodes of a graph, of what follows from the structure alone.

    Pair (i, j) of a graph of n nodes is row i * n + j of that graph's n * n rows.
    """

    per: Per
    rows: Shaped[Tensor, "rows *rest"]
    source: tuple[object, ...]
    about: tuple[str, ...] = STRUCTURE

    def select(self, cut: Cut, fields: Fields) -> "Rows":
        places = cut.node_rows if self.per == "node" else cut.pair_rows
        return Rows(self.per, self.rows.index_select(0, places), sources(STRUCTURE, fields))

    def moved(self, fields: Fields) -> "Rows":
        return Rows(self.per, self.rows.to(fields["nodes"].offsets.device), sources(STRUCTURE, fields))

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes


@final
@dataclass(frozen=True, eq=False)
class MergedEdges(Fact):
    """Undirected edges behind a list of directed ones.

    ``firsts`` has the listed edge that stands for each undirected edge, ``owners`` the undirected edge of each listed
    one; ``segments`` packs the undirected edges by graph, in the order their first direction is listed.
    """

    firsts: LocalIndex
    owners: LocalIndex
    segments: Segments
    source: tuple[object, ...]
    about: tuple[str, ...] = ("edge_numbers", "edge_features")

    @property
    def first(self) -> Int[Tensor, " merged"]:
        """``first[t]`` is the listed edge that stands for undirected edge t."""
        return self.firsts.packed

    @property
    def of_edge(self) -> Int[Tensor, " edges"]:
        """``of_edge[e]`` is the undirected edge of listed edge e."""
        return self.owners.packed

    def select(self, cut: Cut, fields: Fields) -> "MergedEdges":
        rows, segments = self.segments.take(cut.chosen, cut.there)
        edges: Segments = fields["edges"]
        firsts = self.firsts.take(rows, segments, edges)
        owners = self.owners.take(cut.edge_rows, edges, segments)
        return MergedEdges(firsts, owners, segments, sources(self.about, fields))

    def moved(self, fields: Fields) -> "MergedEdges":
        edges: Segments = fields["edges"]
        segments = self.segments.to(edges.offsets.device)
        firsts, owners = self.firsts.moved(segments, edges), self.owners.moved(edges, segments)
        return MergedEdges(firsts, owners, segments, sources(self.about, fields))

    @property
    def nbytes(self) -> int:
        return self.firsts.local.nbytes + self.owners.local.nbytes


@final
class Bounds:
    """Smallest and largest value of every column of some features, read once, when first asked for.

    All batches cut from one data set share one of these: on a GPU every batch's own would mean to wait for it.
    """

    def __init__(self, features: Shaped[Tensor, "rows _"]) -> None:
        self._features: Tensor | None = features
        self._columns: CategoryRange | None = None

    @property
    def columns(self) -> CategoryRange | None:
        """None for floats and for no rows."""
        if self._features is not None:
            self._columns = _column_bounds(self._features)
            self._features = None
        return self._columns


@final
@dataclass(frozen=True, eq=False)
class CategoryBounds(Fact):
    """Bounds on the integer features called ``about[0]``: of these rows, or of those they were cut from."""

    bounds: Bounds
    about: tuple[str, ...]
    source: tuple[object, ...]

    def select(self, cut: Cut, fields: Fields) -> "CategoryBounds":
        return self.moved(fields)

    def moved(self, fields: Fields) -> "CategoryBounds":
        return CategoryBounds(self.bounds, self.about, sources(self.about, fields))

    @property
    def nbytes(self) -> int:
        return 0


def sources(about: tuple[str, ...], fields: Fields) -> tuple[object, ...]:
    return tuple(fields[name] for name in about)


def _column_bounds(features: Shaped[Tensor, "rows _"]) -> CategoryRange | None:
    if features.is_floating_point() or features.numel() == 0:
        return None
    low, high = torch.aminmax(features, dim=0)
    return low.tolist(), high.tolist()
