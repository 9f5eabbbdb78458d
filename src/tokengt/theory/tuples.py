"""Packed tuples of nodes: the n^k entries of dense tensors, or the tokens of sparse graphs.

Packed means that the tuples of all graphs stand one after another in one list, without padding.

A list may hold any tuples in any order. A tuple listed twice counts twice as a key and gets its own row as a query; a
self-loop (i, i) is a second diagonal tuple beside node i. Nothing is merged and nothing is dropped.
"""

from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import combinations, permutations
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.ragged import Segments, interleave
from tokengt.structure.tuples import equality_patterns
from tokengt.theory.partitions import num_blocks, patterns


@dataclass(eq=False)
class Tuples:
    """``order``-tuples of the nodes of several graphs, graph by graph.

    ``index`` holds packed node numbers (graph g's nodes are ``nodes.host[g]`` up to ``nodes.host[g + 1]``),
    ``segments`` says which tuples are whose. At order 0 every graph has one empty tuple: a graph's own row.
    """

    index: Int[Tensor, "order tuples"]
    segments: Segments
    nodes: Segments
    _links: "WeakKeyDictionary[Tuples, tuple[Link, ...]]" = field(
        default_factory=WeakKeyDictionary, init=False, repr=False
    )

    def __post_init__(self) -> None:
        if self.index.shape[1] != self.segments.total or self.segments.count != self.nodes.count:
            raise ValueError(
                f"{self.index.shape[1]} tuples with segments of {self.segments.total} rows in {self.segments.count} "
                f"graphs and nodes of {self.nodes.count} graphs; expected equal counts"
            )
        if self.order == 0 and not bool((self.segments.host_lengths == 1).all()):
            raise ValueError("at order 0 every graph has just one, empty tuple")
        start, stop = (
            bound.index_select(0, self.segments.ids) for bound in (self.nodes.starts, self.nodes.offsets[1:])
        )
        if bool(((self.index < start) | (self.index >= stop)).any()):
            raise ValueError("a tuple names a node of another graph; index holds packed node numbers")

    def __reduce__(self) -> tuple[type["Tuples"], tuple[Tensor, Segments, Segments]]:
        """Copies and pickles begin without links: those are held weakly, and worked out again when asked for."""
        return type(self), (self.index, self.segments, self.nodes)

    @classmethod
    def dense(cls, nodes: Segments | int, order: int) -> "Tuples":
        """All n^order multi-indices of every graph, lexicographically: the entries of X in R^(n^k x d).

        ``nodes`` may be the n of a single graph.
        """
        if order < 0:
            raise ValueError(f"order is {order}; expected 0 or more")
        nodes = Segments.uniform(1, nodes) if isinstance(nodes, int) else nodes
        segments = Segments.from_lengths(nodes.host_lengths**order, nodes.offsets.device)
        size, start = (part.index_select(0, segments.ids) for part in (nodes.lengths, nodes.starts))
        digits = [segments.positions // size**place % size + start for place in reversed(range(order))]
        empty = torch.empty(0, segments.total, dtype=torch.int64, device=nodes.offsets.device)
        return cls(torch.stack(digits) if digits else empty, segments, nodes)

    @classmethod
    def of_batch(cls, batch: GraphBatch) -> "Tuples":
        """The tokens of every graph: each node as (i, ..., i), then its edges or k-tuples as listed (Section 2).

        The order in which :class:`tokengt.models.tokengt.tokens.Tokenizer` lays them out, without the special tokens.
        """
        if batch.num_hyperedges:
            raise ValueError(f"the batch has {batch.num_hyperedges} hyperedges; unordered sets are no tuples")
        nodes = torch.arange(batch.num_nodes, device=batch.device).expand(batch.order, -1)
        segments, rows = interleave([batch.nodes, batch.edges])
        index = torch.cat([nodes, batch.edge_index], 1)
        return cls(torch.empty_like(index).index_copy(1, torch.cat(rows), index), segments, batch.nodes)

    @property
    def order(self) -> int:
        return self.index.shape[0]

    @property
    def num_tuples(self) -> int:
        return self.index.shape[1]

    @property
    def num_graphs(self) -> int:
        return self.nodes.count

    @cached_property
    def graphs(self) -> "Tuples":
        """The order-0 tuples of the same graphs: one row per graph."""
        return Tuples.dense(self.nodes, 0)

    def to(self, device: torch.device | str) -> "Tuples":
        return Tuples(self.index.to(device), self.segments.to(device), self.nodes.to(device))

    @cached_property
    def classes(self) -> Int[Tensor, " tuples"]:
        """The place of every tuple's equality pattern in ``patterns(order)``."""
        return pattern_places(self.index)

    @cached_property
    def rows(self) -> tuple[Int[Tensor, " _"], ...]:
        """The tuples of every equality pattern, in listed order."""
        return tuple(torch.nonzero(self.classes == place).flatten() for place in range(len(patterns(self.order))))

    def blocks(self, pattern: int, chosen: tuple[int, ...]) -> tuple[Int[Tensor, " rows"], Int[Tensor, " rows"]]:
        """Tuples of one pattern, and one number that tells the nodes in their ``chosen`` blocks, in that order.

        No block chosen: the number of the graph. One: of the node. More: its digits in base ``nodes.total``.
        """
        rows = self.rows[pattern]
        if self.nodes.total ** len(chosen) >= 2**63:
            raise ValueError(
                f"{len(chosen)} of {self.nodes.total} nodes are told by no 64-bit number; use smaller batches"
            )
        if not chosen:
            return rows, self.segments.ids.index_select(0, rows)
        string = patterns(self.order)[pattern]
        code = torch.zeros_like(rows)
        for block in chosen:
            code = code * self.nodes.total + self.index[string.index(block)].index_select(0, rows)
        return rows, code

    def links(self, target: "Tuples") -> tuple["Link", ...]:
        """How sums over these tuples reach the tuples of ``target``, by number of shared nodes; worked out once."""
        links = self._links.get(target)
        if links is None:
            links = tuple(_link(self, target, size) for size in range(min(self.order, target.order) + 1))
            self._links[target] = links
        return links


@dataclass(frozen=True, eq=False)
class Link:
    """Rows to pool and rows to hand out where query and key share ``size`` nodes (or more).

    Row ``key_rows[t]`` is added to slot ``key_slots[t]`` of a table with one row for every asked list of ``size``
    different nodes (a graph for size 0) and one column for every entry of :func:`block_orders`; the last slot takes
    what nobody asks for. Slot ``query_slots[t]`` of a table with the same rows and a column for every entry of
    :func:`block_sets` goes to row ``query_rows[t]``.
    """

    num_places: int
    key_rows: Int[Tensor, " keys"]
    key_slots: Int[Tensor, " keys"]
    query_rows: Int[Tensor, " queries"]
    query_slots: Int[Tensor, " queries"]


def pattern_places(index: Int[Tensor, "order tuples"]) -> Int[Tensor, " tuples"]:
    """The place of every tuple's equality pattern in ``patterns(order)``, order 0 included."""
    if index.shape[0] == 0:
        return torch.zeros(index.shape[1], dtype=torch.int64, device=index.device)
    return equality_patterns(index)


@cache
def block_sets(order: int, size: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Places of patterns, each with ``size`` of its blocks: what a query can share with a key."""
    counts = enumerate(map(num_blocks, patterns(order)))
    return tuple((place, chosen) for place, count in counts for chosen in combinations(range(count), size))


@cache
def block_orders(order: int, size: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Places of patterns, each with ``size`` of its blocks in some order: how a key can meet a query's set."""
    counts = enumerate(map(num_blocks, patterns(order)))
    return tuple((place, chosen) for place, count in counts for chosen in permutations(range(count), size))


def lay_out(
    batch: GraphBatch, node_values: Float[Tensor, "nodes dim"], edge_values: Float[Tensor, "edges dim"]
) -> Float[Tensor, "tokens dim"]:
    """Values of nodes and edges as rows of ``Tuples.of_batch(batch)``."""
    _, rows = interleave([batch.nodes, batch.edges])
    values = torch.cat([node_values, edge_values])
    return torch.empty_like(values).index_copy(0, torch.cat(rows), values)


def densify(values: Float[Tensor, "tokens dim"], tokens: Tuples, dense: Tuples) -> Float[Tensor, "tuples dim"]:
    """A sparse tensor as rows of ``dense``: X_i is the sum of the values listed for i, zero where none is."""
    if tokens.order != dense.order:
        raise ValueError(f"tokens of order {tokens.order} do not lie in a tensor of order {dense.order}")
    size, start = (part.index_select(0, tokens.segments.ids) for part in (tokens.nodes.lengths, tokens.nodes.starts))
    place = torch.zeros_like(start)
    for entry in tokens.index:
        place = place * size + entry - start
    return values.new_zeros(dense.num_tuples, values.shape[1]).index_add(
        0, place + dense.segments.starts.index_select(0, tokens.segments.ids), values
    )


def _link(source: Tuples, target: Tuples, size: int) -> Link:
    asked = [target.blocks(pattern, chosen) for pattern, chosen in block_sets(target.order, size)]
    given = [source.blocks(pattern, chosen) for pattern, chosen in block_orders(source.order, size)]
    asked_codes = torch.cat([code for _, code in asked])
    given_codes = torch.cat([code for _, code in given])
    if size < 2:
        count = target.num_graphs if size == 0 else target.nodes.total
        query_places, key_places = asked_codes, given_codes
    else:
        codes, query_places = torch.unique(asked_codes, return_inverse=True)
        count = len(codes)
        # Keys that share their nodes with no query are sent to one place behind the last, which nobody reads.
        key_places = torch.searchsorted(codes, given_codes)
        is_asked = torch.cat([codes, codes.new_full((1,), -1)]).index_select(0, key_places) == given_codes
        key_places = torch.where(is_asked, key_places, count)
    return Link(
        count,
        torch.cat([rows for rows, _ in given]),
        _slots(key_places, [len(rows) for rows, _ in given], count),
        torch.cat([rows for rows, _ in asked]),
        _slots(query_places, [len(rows) for rows, _ in asked], count),
    )


def _slots(places: Int[Tensor, " rows"], lengths: list[int], count: int) -> Int[Tensor, " rows"]:
    """Slots of a [count, columns] table, column c for the c-th run of rows; places past the end share one slot."""
    columns = Segments.from_lengths(torch.tensor(lengths, dtype=torch.int64), places.device)
    slots = places * columns.count + columns.ids
    return slots.clamp(max=count * columns.count)
