"""Random walks: how likely a walker is back where it started, or at the other end of an edge, after 1, 2, ... steps."""

from dataclasses import dataclass

import torch
from jaxtyping import Float32, Float64, Int
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.sparse import sparse_matrix
from tokengt.structure.adjacency import joined_nodes
from tokengt.structure.distances import MAX_NODES

# How many entries the walkers of one chunk may take: all nodes of some graphs, times how many are followed together.
_AT_ONCE = 2**22
# How many walkers of a graph are followed together at most. Graphs with fewer nodes left are filled up to this number.
_TOGETHER = 32


def return_probabilities(batch: GraphBatch, steps: int) -> Float32[Tensor, "nodes steps"]:
    """[M_vv, (M^2)_vv, ..., (M^steps)_vv] of every node v, with M = D^-1 A the step of a random walk.

    A is the symmetric adjacency of :mod:`tokengt.structure.adjacency`, so repeated edges count once. A walker on a node
    without neighbours has nowhere to go and never returns.

    Raises:
        ValueError: a graph has more than 8,192 nodes.
    """
    every = torch.arange(batch.num_nodes, device=batch.device)
    return _probabilities(batch, steps, every, every)


def edge_probabilities(batch: GraphBatch, steps: int) -> Float32[Tensor, "edges columns"]:
    """[M_uv, ..., (M^steps)_uv, M_vu, ..., (M^steps)_vu] of every listed edge (u, v); M as above.

    Raises:
        ValueError: a graph has more than 8,192 nodes, or an edge has more than two.
    """
    if batch.order != 2:
        raise ValueError(f"edge_index has {batch.order} rows; random walks along edges are for edges of two nodes")
    source, target = batch.edge_index
    both = _probabilities(batch, steps, torch.cat([source, target]), torch.cat([target, source]))
    return both.view(2, batch.num_edges, steps).transpose(0, 1).reshape(batch.num_edges, 2 * steps)


def neighbour_counts(batch: GraphBatch) -> Int[Tensor, " nodes"]:
    """The degree of every node in A, where a self-loop counts once and makes a node a neighbour of itself."""
    return torch.bincount(joined_nodes(batch)[0], minlength=batch.num_nodes)


def _probabilities(
    batch: GraphBatch, steps: int, source: Int[Tensor, " pairs"], target: Int[Tensor, " pairs"]
) -> Float32[Tensor, "pairs steps"]:
    """Entries (source, target) of M, M^2, ..., M^steps; each pair names two packed nodes of one graph."""
    nodes = batch.nodes
    if nodes.max_length > MAX_NODES:
        graph = int(nodes.host_lengths.argmax())
        raise ValueError(f"graph {graph} has {nodes.max_length:,} nodes; random walks are for up to {MAX_NODES:,}")
    out = torch.zeros(len(source), steps, dtype=torch.float32, device=batch.device)
    if not len(source):
        return out
    # Graphs lie in the order of their sizes, the largest first. Then those that have a c-th node are the first ones.
    largest = torch.argsort(nodes.host_lengths, descending=True, stable=True)
    rows, by_size = nodes.take(largest)
    row_of = torch.empty_like(rows)
    row_of[rows] = torch.arange(nodes.total, device=batch.device)
    walk, begin = _Walk.of(batch, row_of), row_of.index_select(0, source)
    place = nodes.positions.index_select(0, target)
    # Walks to the first, second, ... node of all graphs are followed together: column c ends at node c of each graph.
    first = 0
    while first < nodes.max_length:
        present = int(by_size.host[int((by_size.host_lengths > first).sum())])
        own = torch.arange(first, min(first + max(1, min(_TOGETHER, _AT_ONCE // present)), nodes.max_length))
        asked = torch.nonzero((place >= first) & (place <= int(own[-1]))).flatten()
        there, end = begin.index_select(0, asked), place.index_select(0, asked) - first
        # In float64, whose rounding does not show in float32: the order of the nodes is not to matter.
        at = (by_size.positions[:present, None] == own.to(batch.device)).double()
        matrix = walk.of_first(present)
        for step in range(steps):
            at = torch.sparse.mm(matrix, at)
            out[asked, step] = at[there, end].float()
        first += len(own)
    return out


@dataclass(frozen=True, eq=False)
class _Walk:
    """D^-1 A of all graphs, sparse, its entries row by row; graph after graph, so that it is made of blocks."""

    index: Int[Tensor, "2 entries"]
    share: Float64[Tensor, " entries"]

    @classmethod
    def of(cls, batch: GraphBatch, row_of: Int[Tensor, " nodes"]) -> "_Walk":
        """``row_of``: where each node of the batch has its row."""
        source, target = joined_nodes(batch)
        degree = torch.bincount(source, minlength=batch.num_nodes)
        share = 1 / degree.index_select(0, source).double()
        source, target = row_of.index_select(0, source), row_of.index_select(0, target)
        order = torch.argsort(source, stable=True)
        return cls(torch.stack([source, target]).index_select(1, order), share.index_select(0, order))

    def of_first(self, rows: int) -> Tensor:
        """The matrix of the graphs that have the first so many rows."""
        entries = int(torch.searchsorted(self.index[0].contiguous(), rows))
        return sparse_matrix(self.index[:, :entries], self.share[:entries], (rows, rows))
