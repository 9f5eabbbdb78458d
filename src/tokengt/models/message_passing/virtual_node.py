"""The virtual node: one more node per graph, which hears from all its nodes and speaks to all of them."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from tokengt.models.pyg import batch_norm, two_layers
from tokengt.ragged import Segments, segment_sum


class VirtualNode(nn.Module):
    """What the virtual node says next: s <- MLP(s + sum of its graph's h_v), the MLP's outputs normed and positive.

    Before each round but the first, s is added to every h_v. It starts at zero, where OGB's code learns the start: a
    shift of all nodes alike, which the tables of the node features learn too.
    """

    def __init__(self, dim: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.mlp = nn.Sequential(*two_layers(dim, hidden), batch_norm(dim), nn.ReLU())
        self.dropout = dropout

    def forward(
        self, states: Float[Tensor, "nodes dim"], spoken: Float[Tensor, "graphs dim"], nodes: Segments
    ) -> Float[Tensor, "graphs dim"]:
        return F.dropout(self.mlp(segment_sum(states, nodes) + spoken), self.dropout, self.training)
