"""Attention between the nodes of each graph, with something to say about every ordered pair of them.

The tokens of a graph are its virtual nodes, if there are any, and then its nodes. Rows of tokens and rows of pairs are
packed: pair (i, j) of a graph of n tokens is row i * n + j of that graph's n * n. What needs a matrix per graph is done
in buckets of graphs of similar size (:mod:`tokengt.ragged`), without a loop over graphs.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from tokengt.batch import GraphBatch
from tokengt.ragged import Bucket, Segments, interleave, into_buckets, out_of_buckets, reorder
from tokengt.structure.distances import check_pairs


@final
class Pairs:
    """Where tokens and their ordered pairs lie, in packed rows and in buckets. Worked out once per batch.

    ``tokens`` has each graph's rows of tokens and ``segments`` its rows of pairs; ``virtual_rows`` and ``node_rows``
    are the tokens that are virtual nodes and nodes.
    """

    def __init__(self, batch: GraphBatch, virtual: int) -> None:
        check_pairs(batch.nodes)
        self._nodes, self.virtual = batch.nodes, virtual
        extra = Segments.uniform(batch.num_graphs, virtual, batch.device)
        self.tokens, (self.virtual_rows, self.node_rows) = interleave([extra, batch.nodes])
        self.segments = self.tokens.pairs

    def joined(
        self, nodes: Float[Tensor, "nodes dim"], virtual: Float[Tensor, "virtual dim"]
    ) -> Float[Tensor, "tokens dim"]:
        """Rows of all tokens: those of nodes, and the same few for every graph's virtual nodes."""
        rows = nodes.new_zeros(self.tokens.total, nodes.shape[1])
        rows = rows.index_copy(0, self.node_rows, nodes)
        return rows.index_copy(0, self.virtual_rows, virtual.repeat(self.tokens.count, 1).to(nodes.dtype))

    def parted(
        self, rows: Float[Tensor, "tokens dim"]
    ) -> tuple[Float[Tensor, "nodes dim"], Float[Tensor, "graphs width"]]:
        """The rows of nodes, and for every graph those of its virtual nodes side by side."""
        virtual = rows.index_select(0, self.virtual_rows).view(self.tokens.count, -1)
        return rows.index_select(0, self.node_rows), virtual

    def of_nodes(self, first: Int[Tensor, " chosen"], second: Int[Tensor, " chosen"]) -> Int[Tensor, " chosen"]:
        """Rows of the pairs of these nodes, which are numbered over the batch; each two are of one graph."""
        graph = self._nodes.ids.index_select(0, first)
        place = self._nodes.positions + self.virtual
        size = self.tokens.lengths.index_select(0, graph)
        start = self.segments.starts.index_select(0, graph)
        return start + place.index_select(0, first) * size + place.index_select(0, second)

    @cached_property
    def of_node_pairs(self) -> Int[Tensor, " node_pairs"]:
        """The row of every pair of nodes, in the order of facts about pairs."""
        pairs = self._nodes.pairs
        size, start = (x.index_select(0, pairs.ids) for x in (self._nodes.lengths, self._nodes.starts))
        first = pairs.positions // size
        return self.of_nodes(start + first, start + pairs.positions - first * size)

    def kinds(self, of_nodes: Int[Tensor, " node_pairs"], virtual: int) -> Int[Tensor, " pairs"]:
        """One number per pair: those of pairs of nodes, and ``virtual`` for pairs with a virtual node."""
        kinds = torch.full((self.segments.total,), virtual, device=of_nodes.device)
        return kinds.index_copy(0, self.of_node_pairs, of_nodes.long())

    @cached_property
    def places(self) -> tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]:
        """The places of both tokens of every pair inside their graph."""
        size = self.tokens.lengths.index_select(0, self.segments.ids)
        first = self.segments.positions // size
        return first, self.segments.positions - first * size

    @cached_property
    def ends(self) -> tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]:
        """The packed rows of both tokens of every pair."""
        start = self.tokens.starts.index_select(0, self.segments.ids)
        return start + self.places[0], start + self.places[1]

    @cached_property
    def _slots(self) -> tuple[Int[Tensor, " slots"], Int[Tensor, " pairs"]]:
        """The row of pairs behind every entry of all buckets' matrices, and the entry of every row of pairs."""
        device, there, begin = self.tokens.offsets.device, [], 0
        starts, widths = torch.zeros_like(self.tokens.lengths), torch.zeros_like(self.tokens.lengths)
        for bucket in self.tokens.buckets:
            count, width = bucket.rows.shape
            graph = self.tokens.ids.index_select(0, bucket.rows[:, 0])
            size, start = (x.index_select(0, graph)[:, None, None] for x in (self.tokens.lengths, self.segments.starts))
            place = torch.arange(width, device=device)
            rows = start + (place[:, None] * size + place).where(_inside(bucket), 0)
            there.append(rows.flatten())
            starts[graph] = begin + torch.arange(count, device=device) * width * width
            widths[graph] = width
            begin += rows.numel()
        starts, widths = (x.index_select(0, self.segments.ids) for x in (starts, widths))
        return torch.cat(there), starts + self.places[0] * widths + self.places[1]

    def matrices(self, rows: Float[Tensor, "pairs channels"]) -> list[Float[Tensor, "_ channels _ _"]]:
        """Rows of pairs as one [graphs, channels, width, width] tensor per bucket.

        What stands in the padding is no number to read, and gets no gradient: callers mask it out.
        """
        slots = reorder(rows, *self._slots)
        shapes = [(*bucket.rows.shape, bucket.rows.shape[1], rows.shape[1]) for bucket in self.tokens.buckets]
        parts = torch.split(slots, [count * width * width for count, width, _, _ in shapes])
        return [part.view(shape).permute(0, 3, 1, 2) for part, shape in zip(parts, shapes, strict=True)]

    def rows(self, matrices: Sequence[Float[Tensor, "_ channels _ _"]]) -> Float[Tensor, "pairs channels"]:
        """The inverse of :meth:`matrices`."""
        flat = [matrix.permute(0, 2, 3, 1).flatten(0, 2) for matrix in matrices]
        return torch.cat(flat).index_select(0, self._slots[1])

    @cached_property
    def real(self) -> list[Tensor | None]:
        """For every bucket: which keys are tokens and no padding, [graphs, 1, 1, width]; None for all."""
        return [None if bucket.mask is None else bucket.mask[:, None, None, :] for bucket in self.tokens.buckets]

    def only_real(
        self, scores: Sequence[Float[Tensor, "_ heads _ _"]], fill: float = -torch.inf
    ) -> list[Float[Tensor, "_ heads _ _"]]:
        """Scores with ``fill`` at keys that are padding."""
        return [x if real is None else x.masked_fill(~real, fill) for x, real in zip(scores, self.real, strict=True)]


def _inside(bucket: Bucket) -> Tensor:
    """Which entries of a bucket's matrices are pairs of tokens."""
    if bucket.mask is None:
        return torch.ones((), dtype=torch.bool, device=bucket.rows.device)
    return bucket.mask[:, :, None] & bucket.mask[:, None, :]


def heads_in_buckets(
    rows: Float[Tensor, "tokens width"], heads: int, tokens: Segments
) -> list[Float[Tensor, "_ heads _ head_dim"]]:
    """Queries, keys or values of all tokens as one [graphs, heads, width, head_dim] tensor per bucket."""
    parts = into_buckets(rows.view(len(rows), heads, -1), tokens)
    return [part.transpose(1, 2) for part in parts]


def out_of_heads(
    parts: Sequence[Float[Tensor, "_ heads _ head_dim"]], tokens: Segments
) -> Float[Tensor, "tokens width"]:
    """The inverse of :func:`heads_in_buckets`."""
    return out_of_buckets([part.transpose(1, 2) for part in parts], tokens).flatten(1)


def biased_attention(
    qkv: Float[Tensor, "tokens width"],
    bias: Sequence[Float[Tensor, "_ heads _ _"]],
    pairs: Pairs,
    dropout: float,
) -> Float[Tensor, "tokens dim"]:
    """softmax(Q K^T / sqrt(d_H) + bias) V for every graph; ``bias`` is -inf where a key is padding."""
    heads = bias[0].shape[1]
    queries, keys, values = (heads_in_buckets(x, heads, pairs.tokens) for x in qkv.chunk(3, 1))
    out = []
    for query, key, value, part in zip(queries, keys, values, bias, strict=True):
        scores = query @ key.transpose(2, 3) * query.shape[3] ** -0.5 + part
        weights = F.dropout(scores.softmax(-1), dropout)
        out.append(weights.to(value.dtype) @ value)
    return out_of_heads(out, pairs.tokens)


def pair_count(graphs: GraphBatch, places: Int[Tensor, " graphs"], virtual: int) -> int:
    """How many ordered pairs of tokens the graphs at these places have, with so many virtual nodes in each."""
    return int((graphs.nodes.host_lengths.index_select(0, places) + virtual).square().sum())


def feed_forward(dim: int, hidden: int, activation: nn.Module) -> nn.Sequential:
    """Two linear layers with the activation between them."""
    return nn.Sequential(nn.Linear(dim, hidden), activation, nn.Linear(hidden, dim))
