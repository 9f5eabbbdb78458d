"""Shortest paths between the nodes of each graph, for all graphs of a batch at once.

The distance from i to j is the least number of steps from i to j. A step follows an edge in the direction in which it
is listed, from its first node to its second (an undirected graph lists both directions); it may also go from any node
of a k-tuple or a hyperedge to any other node of it. A node is at distance 0 from itself; self-loops and repeated edges
change nothing.
"""

import torch
from jaxtyping import Int, Int8
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.ragged import Segments
from tokengt.sparse import sparse_matrix
from tokengt.structure.adjacency import adjacency_pairs

# The longest distance that int8 can hold.
LONGEST = 127
# A graph has n * n ordered pairs of nodes. For this many nodes they take 1 GiB, and eight times that while computing.
MAX_NODES = 32_768
# The limit for all graphs of a data set together: one byte per pair makes 16 GiB.
MAX_PAIRS = 2**34
# How many entries one search may hold: all nodes of some graphs, times the nodes of the largest of these graphs.
_AT_ONCE = 2**22


def hop_distances(batch: GraphBatch, limit: int) -> Int8[Tensor, " pairs"]:
    """Steps from node i to node j of every graph, in row i * n + j of its n * n; -1 beyond ``limit`` or without a path.

    Raises:
        ValueError: a graph has more than ``MAX_NODES`` nodes, or the graphs more than ``MAX_PAIRS`` pairs.
    """
    nodes, pairs = batch.nodes, batch.nodes.pairs
    check_pairs(nodes)
    steps = _steps(batch)
    out = torch.full((pairs.total,), -1, dtype=torch.int8, device=batch.device)
    for chosen in _alike(nodes.host_lengths):
        rows, own = nodes.take(chosen)
        width = own.max_length
        hops = _searched(_renumbered(steps, rows, nodes.total), own, width, limit)
        # Entry (j, i) of the search is the pair (i, j); sources beyond a graph's own nodes are padding.
        target, source = own.positions[:, None], torch.arange(width, device=batch.device)
        size = own.lengths.index_select(0, own.ids)[:, None]
        first = pairs.starts.index_select(0, chosen.to(batch.device)).index_select(0, own.ids)[:, None]
        inside = source < size
        out[(first + source * size + target)[inside]] = hops[inside]
    return out


def _searched(steps: Int[Tensor, "2 steps"], own: Segments, width: int, limit: int) -> Int8[Tensor, "nodes width"]:
    """Steps to every node from each of the ``width`` first nodes of its graph, breadth first."""
    device = own.offsets.device
    ones = torch.ones(steps.shape[1], device=device)
    # Entry (v, u) is 1 if one can step from u to v, so that a product with this matrix moves every search one step on.
    onward = sparse_matrix(steps.flip(0), ones, (own.total, own.total), ordered=False).coalesce()
    front = (own.positions[:, None] == torch.arange(width, device=device)).float()
    hops = (front - 1).to(torch.int8)
    for hop in range(1, limit + 1):
        new = (torch.sparse.mm(onward, front) > 0) & (hops < 0)
        if not bool(new.any()):
            break
        hops = torch.where(new, hop, hops)
        front = new.float()
    return hops


def _steps(batch: GraphBatch) -> Int[Tensor, "2 steps"]:
    """Every step from a packed node row to another: edges as listed, tuples and hyperedges both ways."""
    joined = adjacency_pairs(batch)
    listed = batch.num_edges if batch.order == 2 else 0
    return torch.cat([joined, joined[:, listed:].flip(0)], 1)


def _renumbered(steps: Int[Tensor, "2 steps"], rows: Int[Tensor, " chosen"], total: int) -> Int[Tensor, "2 kept"]:
    """The steps among the chosen rows, renumbered as these rows lie one after another."""
    number = torch.full((total,), -1, device=rows.device)
    number[rows] = torch.arange(len(rows), device=rows.device)
    moved = number[steps]
    return moved[:, moved[0] >= 0]


def _alike(sizes: Int[Tensor, " graphs"]) -> list[Int[Tensor, " chosen"]]:
    """Graphs by size, in groups that fit into one search: within a group each graph is padded to the largest."""
    ordered, order = torch.sort(sizes, stable=True)
    ends = torch.cumsum(ordered, 0)
    groups, first = [], 0
    while first < len(order):
        before = int(ends[first - 1]) if first else 0
        # Both the sum of sizes and the size itself only grow, so the first that does not fit ends the group.
        fits = (ends[first:] - before) * ordered[first:] <= _AT_ONCE
        count = max(1, int(fits.sum()))
        groups.append(order[first : first + count])
        first += count
    return groups


def check_pairs(nodes: Segments) -> None:
    """Refuse graphs for which one row per ordered pair of nodes would not fit into memory.

    Raises:
        ValueError: a graph has more than ``MAX_NODES`` nodes, or the graphs more than ``MAX_PAIRS`` pairs.
    """
    if nodes.max_length > MAX_NODES:
        graph = int(nodes.host_lengths.argmax())
        raise ValueError(
            f"graph {graph} has {nodes.max_length:,} nodes; facts of all pairs of nodes are kept for graphs of up to "
            f"{MAX_NODES:,} nodes, so use a model that needs none for graphs as large as this"
        )
    if nodes.pairs.total > MAX_PAIRS:
        raise ValueError(
            f"the graphs have {nodes.pairs.total:,} pairs of nodes; facts of pairs are kept for up to {MAX_PAIRS:,}, "
            "so use fewer or smaller graphs, or a model that needs none"
        )
