"""Edges in the two orders in which the kernels of neighbours walk them. Importing this needs no Triton."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Int, Int32
from torch import Tensor

# What LeakyReLU multiplies numbers below zero by, in the scores of edges.
SLOPE = 0.2


@final
@dataclass(frozen=True, eq=False)
class EdgeOrders:
    """Edges u -> v sorted by v, and sorted by u: those of row i are ``offsets[i]`` to ``offsets[i + 1]``.

    Args:
        to_offsets: where the edges that lead to each row begin, sorted by target.
        sources: u of each edge in that order. What lies behind the last offset is no edge.
        from_offsets: where the edges that begin at each row lie, sorted by source.
        targets: v of each edge in that order.
        places: where each edge of that order stands in the order by target.
    """

    to_offsets: Int[Tensor, " bounds"]
    sources: Int32[Tensor, " edges"]
    from_offsets: Int[Tensor, " bounds"]
    targets: Int32[Tensor, " edges"]
    places: Int[Tensor, " edges"]

    @property
    def rows(self) -> int:
        return len(self.to_offsets) - 1


def order_with_loops(index: Int[Tensor, "2 edges"], rows: int) -> EdgeOrders:
    """Edges [sources, targets] between so many rows, but for each row exactly one edge from itself to itself.

    Nothing is read back from a GPU: edges from a row to itself are not taken out, but sorted behind all others.
    """
    own = torch.arange(rows, device=index.device)
    source, target = torch.cat([index, own.expand(2, -1)], 1)
    dropped = torch.cat([index[0] == index[1], torch.zeros_like(own, dtype=torch.bool)])
    to_offsets, by_target = _sorted(target.masked_fill(dropped, rows), rows)
    from_offsets, by_source = _sorted(source.masked_fill(dropped, rows), rows)
    places = torch.empty_like(by_target).scatter_(0, by_target, torch.arange(len(by_target), device=index.device))
    return EdgeOrders(
        to_offsets,
        source.index_select(0, by_target).int(),
        from_offsets,
        target.index_select(0, by_source).int(),
        places.index_select(0, by_source),
    )


def _sorted(keys: Int[Tensor, " edges"], rows: int) -> tuple[Int[Tensor, " bounds"], Int[Tensor, " edges"]]:
    """Where each key's edges begin once they are sorted by key, and which they are."""
    keys, order = torch.sort(keys, stable=True)
    return torch.searchsorted(keys, torch.arange(rows + 1, device=keys.device)), order
