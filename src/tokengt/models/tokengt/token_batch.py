"""The tokens of a batch, packed: their values, and which rows are [graph], nodes, edges and hyperedges."""

from dataclasses import dataclass, replace
from enum import IntEnum

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokengt.facts import MergedEdges
from tokengt.ragged import Segments, segment_sum
from tokengt.structure.tuples import equality_patterns


class TokenKind(IntEnum):
    """Rows of the type identifiers at order 2; -1 marks a special token.

    At order k row gamma is a tuple's equality pattern (row 0: all entries equal, as a node's). Pooled hyperedges
    take one more row at the end.
    """

    SPECIAL = -1
    NODE = 0
    EDGE = 1


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """Packed tokens of many graphs, and where everything lies among them.

    ``node_rows``, ``token_rows`` and ``hyperedge_rows`` say which tokens are those of nodes, edges and hyperedges.
    ``tuples`` are the nodes of every edge's token; ``merged`` says which listed edges share one (None: each has its
    own). What only some readers ask for is worked out when they do.
    """

    values: Float[Tensor, "tokens dim"]
    segments: Segments
    order: int
    num_types: int
    graph_rows: Int[Tensor, " graphs"] | None
    node_rows: Int[Tensor, " nodes"]
    token_rows: Int[Tensor, " edge_tokens"]
    tuples: Int[Tensor, "edge_tokens order"]
    merged: MergedEdges | None
    hyperedge_rows: Int[Tensor, " hyperedges"]

    @property
    def edge_rows(self) -> Int[Tensor, " edges"]:
        """The token of every listed edge, in the order of ``edge_index``; both directions of a merged edge share it."""
        return self.token_rows if self.merged is None else self.token_rows.index_select(0, self.merged.of_edge)

    @property
    def endpoints(self) -> Int[Tensor, "tokens order"]:
        """The nodes (u, v) of every token (a node has u = v), -1 where there are none: specials, pooled hyperedges."""
        nodes = torch.arange(len(self.node_rows), device=self.node_rows.device)[:, None].expand(-1, self.order)
        blank = torch.full((self.segments.total, self.order), -1, device=self.node_rows.device)
        return blank.index_copy(0, self.node_rows, nodes).index_copy(0, self.token_rows, self.tuples)

    @property
    def kinds(self) -> Int[Tensor, " tokens"]:
        """Which row of the type identifiers every token has; :class:`TokenKind` at order 2."""
        # index_fill and not an assignment, for which the number would be copied to a GPU first while the host waits.
        blank = torch.full((self.segments.total,), int(TokenKind.SPECIAL), device=self.node_rows.device)
        kinds = blank.index_fill(0, self.node_rows, TokenKind.NODE)
        kinds = kinds.index_copy(0, self.token_rows, edge_kinds(self.tuples))
        return kinds.index_fill(0, self.hyperedge_rows, self.num_types - 1)

    def with_values(self, values: Float[Tensor, "tokens dim"]) -> "TokenBatch":
        return replace(self, values=values)

    @property
    def graph(self) -> Float[Tensor, "graphs dim"]:
        """The [graph] tokens."""
        if self.graph_rows is None:
            raise ValueError("there is no [graph] token; build the model with tokens.graph_token=True")
        return self.values.index_select(0, self.graph_rows)

    @property
    def pooled(self) -> Float[Tensor, "graphs dim"]:
        """The sum over a graph's tokens, special ones left out (Theorem 2)."""
        return pool(self.values, self.kinds == TokenKind.SPECIAL, self.segments)

    @property
    def nodes(self) -> Float[Tensor, "nodes dim"]:
        return self.values.index_select(0, self.node_rows)

    @property
    def edges(self) -> Float[Tensor, "edges dim"]:
        return self.values.index_select(0, self.edge_rows)


def pool(
    values: Float[Tensor, "tokens dim"], special: Bool[Tensor, " tokens"], segments: Segments, *, mean: bool = False
) -> Float[Tensor, "graphs dim"]:
    """The sum or the mean over each graph's tokens, special ones left out; zeros for a graph that has no others."""
    real = (~special)[:, None]
    total = segment_sum(values * real.to(values.dtype), segments)
    if not mean:
        return total
    # Counted in float32: bfloat16 has no 257.
    return (total / segment_sum(real.float(), segments).clamp(min=1)).to(total.dtype)


def edge_kinds(tuples: Int[Tensor, "edge_tokens order"]) -> Int[Tensor, " edge_tokens"]:
    """The type of every edge token: at order 2 they are all edges, above it is the equality pattern."""
    return equality_patterns(tuples.T) if tuples.shape[1] > 2 else torch.full_like(tuples[:, 0], TokenKind.EDGE)
