"""One round of messages: what each node becomes from its neighbours' states and the embedded edges between them.

Each is a module that is called as PyG's layers are, ``(states, edge_index, edges)``, with shapes [nodes, dim],
[2, edges] and [edges, dim] -> [nodes, dim]. An edge (u, v) carries a message from u to v.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from tokengt.models.pyg import pyg_layers, two_layers


def gin_round(dim: int, hidden: int) -> nn.Module:
    """h_v <- MLP((1 + eps) h_v + sum over edges u -> v of ReLU(h_u + e_uv)), eps learned."""
    conv: nn.Module = pyg_layers().GINEConv(two_layers(dim, hidden), train_eps=True)
    return conv


def gat_round(dim: int, num_heads: int) -> nn.Module:
    """h_v <- sum over edges u -> v of a_uv W h_u, with a_uv = softmax over u of a . LeakyReLU(W h_u + W' h_v + e_uv).

    Every node also hears from itself, along an edge with the mean of the edges that lead to it.
    """
    conv: nn.Module = pyg_layers().GATv2Conv(dim, dim // num_heads, heads=num_heads, edge_dim=dim)
    # The table that embeds edges is the only map of theirs: a second one behind it would say nothing new.
    conv.lin_edge = nn.Identity()
    return conv


class GcnRound(nn.Module):
    """h_v <- sum over edges u -> v of ReLU(W h_u + e_uv) / sqrt(d_u d_v) + ReLU(W h_v + r) / d_v.

    d_v is one more than the number of edges that lead to v, and r is learned: the edge from a node to itself. This is
    OGB's GCN. PyG's own layer takes no features of edges.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, dim)
        self.root = nn.Parameter(torch.zeros(dim))

    def forward(
        self, states: Float[Tensor, "nodes dim"], edge_index: Int[Tensor, "2 edges"], edges: Float[Tensor, "edges dim"]
    ) -> Float[Tensor, "nodes dim"]:
        source, target = edge_index
        mapped = self.linear(states)
        degree = mapped.new_ones(len(states)).index_add(0, target, mapped.new_ones(len(target)))
        scale = degree.rsqrt()
        share = scale.index_select(0, source) * scale.index_select(0, target)
        messages = F.relu(mapped.index_select(0, source) + edges) * share[:, None]
        own: Tensor = F.relu(mapped + self.root) / degree[:, None]
        return own.index_add(0, target, messages.to(own.dtype))
