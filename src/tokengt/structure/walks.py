"""Random walks: how likely a walker is back where it started after 1, 2, ... steps."""

import torch
from jaxtyping import Float32
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.structure.adjacency import adjacency_pairs
from tokengt.structure.distances import MAX_NODES

# How many entries the walkers of one chunk may take: all nodes of some graphs, times the nodes of the largest of them.
_AT_ONCE = 2**22


def return_probabilities(batch: GraphBatch, steps: int) -> Float32[Tensor, "nodes steps"]:
    """[M_vv, (M^2)_vv, ..., (M^steps)_vv] of every node v, with M = D^-1 A the step of a random walk.

    A is the symmetric adjacency of :mod:`tokengt.structure.adjacency`, so repeated edges count once. A walker on a node
    without neighbours has nowhere to go and never returns.

    Raises:
        ValueError: a graph has more than 8,192 nodes.
    """
    nodes = batch.nodes
    if nodes.max_length > MAX_NODES:
        graph = int(nodes.host_lengths.argmax())
        raise ValueError(f"graph {graph} has {nodes.max_length:,} nodes; random walks are for up to {MAX_NODES:,}")
    out = torch.zeros(nodes.total, steps, dtype=torch.float32, device=batch.device)
    if not nodes.total:
        return out
    walk = _walk(batch)
    # Walkers from the first, second, ... node of all graphs go together: column c starts at node c of each graph.
    widest = max(1, _AT_ONCE // nodes.total)
    for first in range(0, nodes.max_length, widest):
        own = torch.arange(first, min(first + widest, nodes.max_length), device=batch.device)
        home = nodes.positions[:, None] == own
        row, column = torch.nonzero(home).unbind(1)
        # In float64, whose rounding does not show in float32: the order of the nodes is not to matter.
        at = home.double()
        for step in range(steps):
            at = torch.sparse.mm(walk, at)
            out[row, step] = at[row, column].float()
    return out


def _walk(batch: GraphBatch) -> Tensor:
    """D^-1 A of all graphs, sparse."""
    pairs, nodes = adjacency_pairs(batch), batch.num_nodes
    joined = torch.unique(torch.cat([pairs[0] * nodes + pairs[1], pairs[1] * nodes + pairs[0]]))
    source, target = joined // nodes, joined % nodes
    degree = torch.bincount(source, minlength=nodes)
    share = 1 / degree.index_select(0, source).double()
    return torch.sparse_coo_tensor(
        torch.stack([source, target]), share, (nodes, nodes), is_coalesced=True, check_invariants=False
    )
