"""EGT, the Edge-augmented Graph Transformer (Hussain et al., KDD 2022): pairs of nodes have states of their own.

Beside the state h_i of every node there is a state e_ij of every ordered pair, its *edge channels*. They start with the
distance of the two nodes and the features of the edges between them. In each layer, for every head,

    H_ij = clip(q_i . k_j / sqrt(d_H), -5, 5) + E_ij,    A_ij = softmax over j of H_ij * sigmoid(G_ij),

    h_i <- h_i + O_h (s_i sum over j of A_ij v_j),       s_i = ln(1 + sum over j of sigmoid(G_ij)),
    e_ij <- e_ij + O_e H_ij,

where q, k, v are linear in norm(h) and E, G in norm(e); then each has its MLP. The last layer leaves the pairs as they
are. Virtual nodes, whose scaler s is 1, are what the head reads of a graph: their states, side by side.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from tokengt.batch import GraphBatch
from tokengt.models.common import GraphModel, GraphRows, NodeEncoder, PairModelConfig, check_heads
from tokengt.models.contract import Description
from tokengt.models.features import FeatureEncoder
from tokengt.models.pairs import Pairs, feed_forward, heads_in_buckets, out_of_heads, pair_count
from tokengt.structure.facts import HopDistances, fact_of

# Between which numbers products of queries and keys are clipped, as in the authors' code.
CLIP = 5.0


@dataclass(frozen=True)
class EgtConfig(PairModelConfig):
    """Size and regularisers of an EGT.

    Args:
        dim: the width of a node's state.
        num_layers: layers.
        dropout: of what attention and MLPs add to the states, of nodes and of pairs.
        num_heads: heads of attention.
        edge_dim: the width of a pair's state.
        mlp_ratio: hidden width of the MLPs, in widths of the state.
        attention_dropout: of attention weights.
        virtual_nodes: nodes that are added to every graph.
        max_distance: distances above share a row with nodes that no path joins.
        node_features: as the other fields, described in :class:`~tokengt.models.common.PairModelConfig`.
    """

    kind: Literal["egt"] = field(default="egt", init=False)
    name: ClassVar[str] = "EGT"
    edge_dim: int = 32
    mlp_ratio: int = 1
    virtual_nodes: int = 1
    max_distance: int = 16
    counts: ClassVar[tuple[str, ...]] = (*PairModelConfig.counts, "edge_dim", "mlp_ratio", "virtual_nodes")

    def step_bytes(self, graphs: GraphBatch, places: Int[Tensor, " graphs"], itemsize: int) -> int:
        """Of every pair: its own state, and per layer and head its weights and gates."""
        # No layer reads the pairs' states after the last one, which keeps less of them.
        states = (34 * self.num_layers - 21) * self.edge_dim
        return pair_count(graphs, places, self.virtual_nodes) * (40 + 24 * self.num_layers * self.num_heads + states)

    def build(self) -> "Egt":
        check_heads(self.dim, self.num_heads)
        return Egt(self)

    def describe(self) -> Description:
        summary = f"{self.name}, {self.size}, edges x {self.edge_dim}, {self.level} head of {self.out_dim}"
        details = {"layers": self.size, "edge channels": str(self.edge_dim), "virtual nodes": str(self.virtual_nodes)}
        return Description(self.name, summary, details, ("graph-transformer",))


class Egt(GraphModel):
    """Graphs are read off their virtual nodes, side by side."""

    config: EgtConfig

    def __init__(self, config: EgtConfig) -> None:
        super().__init__()
        self.config = config
        dim, virtual = config.dim, config.virtual_nodes
        width = virtual * dim if config.level == "graph" else config.row_width
        self.node_encoder = NodeEncoder(config.node_features, dim)
        self.graph_encoder = FeatureEncoder(
            "graph_features", config.graph_features, virtual * dim if config.level == "graph" else dim
        )
        self.channels = EdgeChannels(config)
        self.virtual_nodes = nn.Parameter(torch.empty(virtual, dim))
        last = config.num_layers - 1
        self.layers = nn.ModuleList([EgtLayer(config, updates_pairs=at < last) for at in range(config.num_layers)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Sequential(
            *(nn.Linear(width, dim), nn.ELU(), nn.Linear(dim, dim), nn.ELU(), nn.Linear(dim, config.out_dim))
        )
        # All other weights start where PyTorch's layers start, as in the authors' code.
        nn.init.normal_(self.virtual_nodes)

    @property
    def embedding_width(self) -> int:
        return self.config.virtual_nodes * self.config.dim

    def pieces(self) -> Sequence[nn.Module]:
        return tuple(self.layers)

    def states(self, batch: GraphBatch) -> tuple[Float[Tensor, "nodes dim"], GraphRows]:
        pairs = Pairs(batch, self.config.virtual_nodes)
        states = pairs.joined(self.node_encoder(batch), self.virtual_nodes)
        channels = self.channels(batch, pairs)
        for layer in self.layers:
            states, channels = layer(states, channels, pairs)
        nodes, graphs = pairs.parted(self.norm(states))
        return nodes, lambda: graphs


class EdgeChannels(nn.Module):
    """The states of pairs at the start: the distance of two nodes, and the features of all edges from i to j, added up.

    A pair with a virtual node starts with that node's vector, a pair of two virtual nodes with the mean of theirs.
    Shapes: a batch -> [pairs, edge_dim].
    """

    def __init__(self, config: EgtConfig) -> None:
        super().__init__()
        self.hops = HopDistances(config.max_distance)
        self.distance = nn.Embedding(config.max_distance + 2, config.edge_dim)
        self.edge_encoder = FeatureEncoder("edge_features", config.edge_features, config.edge_dim)
        self.virtual = nn.Parameter(torch.randn(config.virtual_nodes, config.edge_dim))

    def forward(self, batch: GraphBatch, pairs: Pairs) -> Float[Tensor, "pairs edge_dim"]:
        self.edge_encoder.check(batch, batch.edges)
        hops = fact_of(batch, self.hops)
        near: Tensor = self.distance(hops.long().where(hops >= 0, self.hops.limit + 1))
        channels = near.new_zeros(pairs.segments.total, near.shape[1]).index_copy(0, pairs.of_node_pairs, near)
        edges = self.edge_encoder(batch.edge_features)
        if edges is not None:
            channels = channels.index_add(0, pairs.of_nodes(*batch.edge_index), edges.to(near.dtype))
        # One more row of zeros stands for tokens that are no virtual nodes.
        count = len(self.virtual)
        vectors = F.pad(self.virtual.to(near.dtype), (0, 0, 0, 1))
        first, second = (place.clamp(max=count) for place in pairs.places)
        both = ((first < count) & (second < count)).to(near.dtype)[:, None]
        ends = F.embedding(first, vectors) + F.embedding(second, vectors)
        return channels + ends * (1 - 0.5 * both)


class EgtLayer(nn.Module):
    """One layer for nodes and, with ``updates_pairs``, for pairs; the equations are at the top of this file."""

    def __init__(self, config: EgtConfig, updates_pairs: bool) -> None:
        super().__init__()
        dim, edge_dim, heads = config.dim, config.edge_dim, config.num_heads
        self.heads, self.dropout, self.attention_dropout = heads, config.dropout, config.attention_dropout
        self.norm, self.pair_norm = nn.LayerNorm(dim), nn.LayerNorm(edge_dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.bias, self.gate = nn.Linear(edge_dim, heads), nn.Linear(edge_dim, heads)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), feed_forward(dim, config.mlp_ratio * dim, nn.ELU()))
        self.pair_out = nn.Linear(heads, edge_dim) if updates_pairs else None
        self.pair_mlp = (
            nn.Sequential(nn.LayerNorm(edge_dim), feed_forward(edge_dim, config.mlp_ratio * edge_dim, nn.ELU()))
            if updates_pairs
            else None
        )

    def forward(
        self, states: Float[Tensor, "tokens dim"], channels: Float[Tensor, "pairs edge_dim"], pairs: Pairs
    ) -> tuple[Float[Tensor, "tokens dim"], Float[Tensor, "pairs edge_dim"]]:
        normed = self.pair_norm(channels)
        attended, scores = self._attended(self.qkv(self.norm(states)), self.bias(normed), self.gate(normed), pairs)
        states = states + self._dropped(self.out(attended))
        states = states + self._dropped(self.mlp(states))
        if self.pair_out is not None and self.pair_mlp is not None:
            channels = channels + self._dropped(self.pair_out(pairs.rows(scores)))
            channels = channels + self._dropped(self.pair_mlp(channels))
        return states, channels

    def _attended(
        self, qkv: Tensor, bias: Float[Tensor, "pairs heads"], gate: Float[Tensor, "pairs heads"], pairs: Pairs
    ) -> tuple[Float[Tensor, "tokens dim"], list[Float[Tensor, "_ heads _ _"]]]:
        """s_i sum over j of A_ij v_j for every token, and H for every bucket."""
        queries, keys, values = (heads_in_buckets(x, self.heads, pairs.tokens) for x in qkv.chunk(3, 1))
        scores = [
            (query @ key.transpose(2, 3) * query.shape[3] ** -0.5).clamp(-CLIP, CLIP) + part
            for query, key, part in zip(queries, keys, pairs.matrices(bias), strict=True)
        ]
        gates = pairs.only_real([gate.sigmoid() for gate in pairs.matrices(gate)], 0.0)
        out = []
        for score, open_, value in zip(pairs.only_real(scores), gates, values, strict=True):
            weights = F.dropout(score.softmax(-1) * open_, self.attention_dropout, self.training)
            scaler = open_.sum(-1, keepdim=True).log1p()
            # Virtual nodes come first in every sequence.
            real = torch.arange(scaler.shape[2], device=scaler.device)[:, None] >= pairs.virtual
            out.append(weights.to(value.dtype) @ value * scaler.where(real, 1.0).to(value.dtype))
        return out_of_heads(out, pairs.tokens), scores

    def _dropped(self, added: Tensor) -> Tensor:
        return F.dropout(added, self.dropout, self.training)
