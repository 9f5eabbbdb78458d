"""Facts: results that were worked out from a batch's graphs, kept with the batch so that nobody computes them again.

A fact is computed from some fields of a batch (its edges, say) and is true as long as the batch has those very tensors;
about other tensors it says nothing. When graphs are selected or moved to another device, their facts are selected and
moved with them, without reading anything back from a GPU. Which facts about a graph's structure a model can ask for,
and how they are computed, is in :mod:`tokengt.structure.facts`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from tokengt.numbering import LocalIndex
from tokengt.ragged import Segments

# What one row of a fact about the structure belongs to: a graph, a node, a listed edge, or an ordered pair of nodes.
Per = Literal["graph", "node", "edge", "pair"]
# The smallest category of every column, and the largest.
CategoryRange = tuple[list[int], list[int]]
# Fields of a batch that say which nodes are joined, whatever their features are.
STRUCTURE = ("edge_numbers", "member_numbers")
# A batch's fields by name, as its constructor takes them.
Fields = Mapping[str, Any]


class Cut:
    """A selection of graphs: their places on the CPU (``chosen``) and on the device of the data (``there``).

    Rows of other kinds (nodes, edges, ...) come along with their graphs. Everything here is looked up by the data's own
    segments of that kind, and computed once, when it is first asked for.
    """

    def __init__(self, chosen: Int[Tensor, " chosen"], there: Int[Tensor, " chosen"]) -> None:
        self.chosen = chosen
        self.there = there
        self._taken: dict[Segments, tuple[Int[Tensor, " rows"], Segments]] = {}

    def rows(self, segments: Segments) -> Int[Tensor, " rows"]:
        """Which of the rows in ``segments`` are taken, in their new order."""
        return self._take(segments)[0]

    def packed(self, segments: Segments) -> Segments:
        """Where they lie when packed anew."""
        return self._take(segments)[1]

    def numbers(self, index: LocalIndex) -> LocalIndex:
        """The entries of an index that come along, naming the rows that do."""
        return index.take(self.rows(index.entries), self.packed(index.entries), self.packed(index.rows))

    def _take(self, segments: Segments) -> tuple[Int[Tensor, " rows"], Segments]:
        if segments not in self._taken:
            self._taken[segments] = self._taken_from(segments)
        return self._taken[segments]

    def _taken_from(self, segments: Segments) -> tuple[Int[Tensor, " rows"], Segments]:
        return segments.take(self.chosen, self.there)


class Fact(ABC):
    """Something known about a batch: it was computed from the fields named ``about``, whose values are ``source``."""

    about: tuple[str, ...]
    source: tuple[object, ...]

    def holds_in(self, batch: object) -> bool:
        """Whether the batch still has the tensors that the fact was computed from; values are not compared."""
        return all(getattr(batch, name) is value for name, value in zip(self.about, self.source, strict=True))

    @abstractmethod
    def select(self, cut: Cut, fields: Fields) -> "Fact":
        """The fact about the selected graphs, whose new batch has these ``fields``."""

    @abstractmethod
    def moved(self, fields: Fields) -> "Fact":
        """The same fact on the device of ``fields``, which are the batch's own fields, moved or narrowed."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """How many bytes its tensors take."""


@final
@dataclass(frozen=True, eq=False)
class Rows(Fact):
    """One row per graph, node, listed edge, or ordered pair of nodes of a graph: what the structure alone decides.

    Rows of edges lie in the order in which the edges are listed. Pair (i, j) of a graph of n nodes is row i * n + j of
    that graph's n * n rows.
    """

    per: Per
    rows: Shaped[Tensor, "rows *rest"]
    source: tuple[object, ...]
    about: tuple[str, ...] = STRUCTURE

    def select(self, cut: Cut, fields: Fields) -> "Rows":
        segments = _segments_of(self.per, self.source)
        places = cut.there if segments is None else cut.rows(segments)
        return Rows(self.per, self.rows.index_select(0, places), sources(STRUCTURE, fields))

    def moved(self, fields: Fields) -> "Rows":
        return Rows(self.per, self.rows.to(fields["nodes"].offsets.device), sources(STRUCTURE, fields))

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes


@final
@dataclass(frozen=True, eq=False)
class MergedEdges(Fact):
    """Which listed (directed) edges are two directions of one undirected edge.

    ``firsts`` names the listed edge that stands for each undirected edge, ``owners`` the undirected edge of each listed
    edge; ``segments`` packs the undirected edges by graph, in the order in which their first direction is listed.
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
        firsts, owners = cut.numbers(self.firsts), cut.numbers(self.owners)
        return MergedEdges(firsts, owners, cut.packed(self.segments), sources(self.about, fields))

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

    All batches cut from one data set share one of these objects. Bounds of each batch's own would be tighter, but on a
    GPU the host would have to wait for them at every step.
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
    """Bounds on the integer features called ``about[0]``: those of these rows, or of the rows they were cut from."""

    bounds: Bounds
    about: tuple[str, ...]
    source: tuple[object, ...]

    def select(self, cut: Cut, fields: Fields) -> "CategoryBounds":
        # Some of the rows lie within the bounds of all of them.
        return self.moved(fields)

    def moved(self, fields: Fields) -> "CategoryBounds":
        return CategoryBounds(self.bounds, self.about, sources(self.about, fields))

    @property
    def nbytes(self) -> int:
        return 0


def sources(about: tuple[str, ...], fields: Fields) -> tuple[object, ...]:
    """The values that a fact about these fields is computed from."""
    return tuple(fields[name] for name in about)


def _segments_of(per: Per, source: tuple[object, ...]) -> Segments | None:
    """Where the rows of each graph lie in a fact about this structure; None for one row per graph."""
    edge_numbers = source[STRUCTURE.index("edge_numbers")]
    assert isinstance(edge_numbers, LocalIndex)
    if per == "graph":
        return None
    if per == "edge":
        return edge_numbers.entries
    return edge_numbers.rows if per == "node" else edge_numbers.rows.pairs


def _column_bounds(features: Shaped[Tensor, "rows _"]) -> CategoryRange | None:
    if features.is_floating_point() or features.numel() == 0:
        return None
    low, high = torch.aminmax(features, dim=0)
    return low.tolist(), high.tolist()
