"""One round of messages: what each node becomes from its neighbours' states and the embedded edges between them.

Each is a module that is called as PyG's layers are, ``(states, edge_index, edges)``, with shapes [nodes, dim],
[2, edges] and [edges, dim] -> [nodes, dim]. An edge (u, v) carries a message from u to v.

Edges without features say the same to every neighbour. What a node sends is then worked out once per node, and summed
by a sparse matrix (:class:`Joined`) instead of a table of all edges.
"""

from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, final
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from tokengt.batch import GraphBatch
from tokengt.kernels import support
from tokengt.kernels.attend import edge_attention
from tokengt.kernels.edge_orders import SLOPE, EdgeOrders, order_with_loops
from tokengt.models.pyg import pyg_layers, two_layers
from tokengt.numbering import LocalIndex
from tokengt.ragged import Segments
from tokengt.sparse import SparseRows, sparse_product


@final
class Joined:
    """The edges of a batch, ``index`` [2, edges], and what follows from them: worked out once for all rounds."""

    def __init__(self, index: Int[Tensor, "2 edges"], num_nodes: int) -> None:
        self.index, self.num_nodes = index, num_nodes
        self._matrices: dict[tuple[str, torch.dtype], SparseRows] = {}

    @classmethod
    def of(cls, batch: GraphBatch) -> "Joined":
        """Kept as long as the batch keeps the numbers of its edges: a graph that is the batch of every step, always."""
        known = _JOINED.get(batch.edge_numbers)
        if known is None:
            known = _JOINED[batch.edge_numbers] = cls(batch.edge_index, batch.num_nodes)
        return known

    @cached_property
    def counts(self) -> Int[Tensor, " nodes"]:
        """How many edges lead to each node."""
        ones = torch.ones_like(self.index[1])
        return torch.zeros(self.num_nodes, dtype=ones.dtype, device=ones.device).index_add(0, self.index[1], ones)

    def degrees(self, dtype: torch.dtype) -> Float[Tensor, " nodes"]:
        """One more than that."""
        return (self.counts + 1).to(dtype)

    def summed(self, sent: Float[Tensor, "nodes dim"]) -> Float[Tensor, "nodes dim"]:
        """At every node v, the sum of what u sends, over edges u -> v; in float32 at least."""
        return self._mixed("sum", sent, lambda dtype: torch.ones(self.index.shape[1], dtype=dtype, device=sent.device))

    def averaged(self, sent: Float[Tensor, "nodes dim"]) -> Float[Tensor, "nodes dim"]:
        """The same with every edge u -> v counting 1 / sqrt(d_u d_v), d the :meth:`degrees`."""
        return self._mixed("average", sent, self._shares)

    def _shares(self, dtype: torch.dtype) -> Float[Tensor, " edges"]:
        scale = self.degrees(dtype).rsqrt()
        return scale.index_select(0, self.index[0]) * scale.index_select(0, self.index[1])

    def _mixed(
        self, name: str, sent: Float[Tensor, "nodes dim"], shares: Callable[[torch.dtype], Tensor]
    ) -> Float[Tensor, "nodes dim"]:
        dtype = torch.promote_types(sent.dtype, torch.float32)
        if (name, dtype) not in self._matrices:
            # It may be asked for by a prediction in inference mode, and then by a training step.
            with torch.inference_mode(False), torch.no_grad():
                entries, order = self._sorted
                sources = self.index[0].index_select(0, order).int()
                weights = shares(dtype).index_select(0, order)
                self._matrices[name, dtype] = SparseRows(entries, sources, weights, self.num_nodes)
        return sparse_product(self._matrices[name, dtype], sent)

    @cached_property
    def _sorted(self) -> tuple[Segments, Int[Tensor, " edges"]]:
        """Where the edges that lead to each node lie once they are sorted by it, and which they are."""
        return Segments.from_lengths(self.counts.cpu(), self.index.device), torch.argsort(self.index[1], stable=True)

    @cached_property
    def attended(self) -> EdgeOrders:
        """The edges by their targets and by their sources, and for each node one from itself to itself."""
        return order_with_loops(self.index, self.num_nodes)


_JOINED: WeakKeyDictionary[LocalIndex, Joined] = WeakKeyDictionary()


class Round(nn.Module):
    """A round that has a shorter way for edges without features."""

    @abstractmethod
    def without_features(self, states: Float[Tensor, "nodes dim"], joined: Joined) -> Float[Tensor, "nodes dim"]:
        """What forward gives for edges whose embedding is zero."""


class GinRound(Round):
    """h_v <- MLP((1 + eps) h_v + sum over edges u -> v of ReLU(h_u + e_uv)), eps learned.

    The names of its weights are those of PyG's ``GINEConv``.
    """

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.nn = two_layers(dim, hidden)
        self.eps = nn.Parameter(torch.zeros(1))

    def forward(
        self, states: Float[Tensor, "nodes dim"], edge_index: Int[Tensor, "2 edges"], edges: Float[Tensor, "edges dim"]
    ) -> Float[Tensor, "nodes dim"]:
        sent = F.relu(states.index_select(0, edge_index[0]) + edges)
        return self._mixed(states, torch.zeros_like(states).index_add(0, edge_index[1], sent.to(states.dtype)))

    def without_features(self, states: Float[Tensor, "nodes dim"], joined: Joined) -> Float[Tensor, "nodes dim"]:
        return self._mixed(states, joined.summed(F.relu(states)))

    def _mixed(
        self, states: Float[Tensor, "nodes dim"], heard: Float[Tensor, "nodes dim"]
    ) -> Float[Tensor, "nodes dim"]:
        out: Tensor = self.nn((1 + self.eps) * states + heard)
        return out


def gat_round(dim: int, num_heads: int) -> nn.Module:
    """h_v <- sum over edges u -> v of a_uv W h_u, with a_uv = softmax over u of a . LeakyReLU(W h_u + W' h_v + e_uv).

    Every node also hears from itself, along an edge with the mean of the edges that lead to it.
    """
    conv: nn.Module = pyg_layers().GATv2Conv(dim, dim // num_heads, heads=num_heads, edge_dim=dim)
    # The table that embeds edges is the only map of theirs: a second one behind it would say nothing new.
    conv.lin_edge = nn.Identity()
    return conv


def gat_without_features(conv: Any, states: Float[Tensor, "nodes dim"], joined: Joined) -> Float[Tensor, "nodes dim"]:
    """What PyG's layer gives for edges without features, by kernels that make no table of all edges."""
    sizes = (-1, conv.heads, conv.out_channels)
    left, right = conv.lin_l(states).view(sizes), conv.lin_r(states).view(sizes)
    out: Tensor = edge_attention(left, right, conv.att[0], joined.attended).flatten(1) + conv.bias
    return out


def without_features(conv: nn.Module, states: Float[Tensor, "nodes dim"]) -> Callable[[Tensor, Joined], Tensor] | None:
    """The shorter way of a round for edges without features, ``(states, joined)``; None where it has none.

    That of GAT needs kernels, which run on a GPU. It also needs nothing computed again: it keeps no table of edges.
    """
    if isinstance(conv, Round):
        return conv.without_features
    if isinstance(conv, pyg_layers().GATv2Conv) and _is_plain(conv) and _kernels_run(conv, states):
        return partial(gat_without_features, conv)
    return None


def _is_plain(conv: Any) -> bool:
    """Whether the layer is what the kernels compute, and nobody looks into it or masks its edges, as explainers do."""
    heard = conv.explain or conv._edge_mask is not None or conv._forward_hooks or conv._forward_pre_hooks
    return not heard and conv.negative_slope == SLOPE and conv.dropout == 0


def _kernels_run(conv: Any, states: Float[Tensor, "nodes dim"]) -> bool:
    """Whether the kernels of attention to neighbours take what this GAT makes of such states, and run here."""
    device, dtype = states.device, states.dtype
    mixed = torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
    if mixed and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device.type)
    fits = support.edges_fit(dtype, conv.out_channels)
    return fits and support.edges_work(device, dtype, conv.heads, conv.out_channels)


class GcnRound(Round):
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

    def without_features(self, states: Float[Tensor, "nodes dim"], joined: Joined) -> Float[Tensor, "nodes dim"]:
        mapped = self.linear(states)
        degrees = joined.degrees(mapped.dtype if mapped.dtype == torch.float64 else torch.float32)
        return F.relu(mapped + self.root) / degrees[:, None] + joined.averaged(F.relu(mapped))
