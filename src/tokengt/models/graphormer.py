"""Graphormer (Ying et al., NeurIPS 2021): a Transformer over nodes that is told of structure in its attention.

A node starts with its features and its degrees (centrality encoding), with one virtual node for the whole graph:

    h_i = x_i + z-[indegree of i] + z+[outdegree of i].

Attention from i to j is biased by their distance (spatial encoding) and by the edges between them (edge encoding):

    A_ij = q_i . k_j / sqrt(d_H) + b[dist(i, j)] + c_ij,    c_ij = 1 / N sum over n of x_{e_n} . w_n,

where e_1, ..., e_N are the first edges of a shortest path from i to j. Where there are several shortest paths, the
authors' code takes the one that it finds; here x_{e_n} is the mean over all edges that can be the n-th, so that the
numbering of the nodes does not matter. Blocks are those of a PreLN Transformer.
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
from tokengt.models.features import FeatureEncoder
from tokengt.models.pairs import Pairs, biased_attention, feed_forward, pair_count
from tokengt.structure.facts import HopDistances, fact_of
from tokengt.structure.paths import path_edges


@dataclass(frozen=True)
class GraphormerConfig(PairModelConfig):
    """Size and regularisers of a Graphormer.

    Args:
        dim: the width of a node's state.
        num_layers: blocks.
        dropout: of what attention and MLP add to the states.
        num_heads: heads of attention.
        mlp_dim: hidden width of the MLP; None for dim.
        attention_dropout: of attention weights.
        max_degree: degrees above share the last row of their table.
        max_distance: nodes farther apart are as nodes that no path joins: one bias for all, and no edge is read.
        path_edges: how many edges of a shortest path are read, from its beginning.
        mlp_head: Linear, GELU, LayerNorm, Linear (the authors' code) instead of one linear map.
        node_features: as the other fields, described in :class:`~tokengt.models.common.PairModelConfig`.
    """

    kind: Literal["graphormer"] = field(default="graphormer", init=False)
    name: ClassVar[str] = "Graphormer"
    mlp_dim: int | None = None
    max_degree: int = 16
    max_distance: int = 20
    path_edges: int = 5
    mlp_head: bool = False
    counts: ClassVar[tuple[str, ...]] = (*PairModelConfig.counts, "mlp_dim", "max_degree", "path_edges")

    def step_bytes(self, graphs: GraphBatch, places: Int[Tensor, " graphs"], itemsize: int) -> int:
        """Of every pair: its distance and biases; per layer and head its weight before and after dropout."""
        return pair_count(graphs, places, 1) * (self.num_heads * (8 + 12 * self.num_layers) + 40)

    def build(self) -> "Graphormer":
        check_heads(self.dim, self.num_heads)
        return Graphormer(self)


class Graphormer(GraphModel):
    """Graphs are read off their virtual nodes."""

    config: GraphormerConfig

    def __init__(self, config: GraphormerConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.dim
        self.node_encoder = NodeEncoder(config.node_features, dim)
        self.graph_encoder = FeatureEncoder("graph_features", config.graph_features, dim)
        self.in_degree = nn.Embedding(config.max_degree + 1, dim)
        self.out_degree = nn.Embedding(config.max_degree + 1, dim)
        self.virtual_node = nn.Parameter(torch.empty(1, dim))
        self.bias = PairBias(config)
        self.blocks = nn.ModuleList([GraphormerBlock(config) for _ in range(config.num_layers)])
        self.norm = nn.LayerNorm(dim)
        width = config.row_width
        self.head: nn.Module = nn.Linear(width, config.out_dim)
        if config.mlp_head:
            self.head = nn.Sequential(
                nn.Linear(width, dim), nn.GELU(), nn.LayerNorm(dim), nn.Linear(dim, config.out_dim)
            )
        _initialise(self)

    def pieces(self) -> Sequence[nn.Module]:
        return tuple(self.blocks)

    def states(self, batch: GraphBatch) -> tuple[Float[Tensor, "nodes dim"], GraphRows]:
        pairs = Pairs(batch, virtual=1)
        most = self.config.max_degree
        nodes = self.node_encoder(batch)
        source, target = batch.edge_index
        nodes = nodes + self.in_degree(degrees(target, batch.num_nodes).clamp(max=most))
        nodes = nodes + self.out_degree(degrees(source, batch.num_nodes).clamp(max=most))
        states = pairs.joined(nodes, self.virtual_node)
        bias = pairs.only_real(pairs.matrices(self.bias(batch, pairs)))
        for block in self.blocks:
            states = block(states, bias, pairs)
        nodes, graphs = pairs.parted(self.norm(states))
        return nodes, lambda: graphs


class PairBias(nn.Module):
    """b[dist(i, j)] + c_ij for every head: the spatial and the edge encoding.

    The last two rows of ``distance`` are for nodes that no path (or only a longer one) joins, and for all pairs with
    the virtual node. Shapes: a batch -> [pairs, heads].
    """

    def __init__(self, config: GraphormerConfig) -> None:
        super().__init__()
        self.hops, self.longest = HopDistances(config.max_distance), config.path_edges
        self.distance = nn.Embedding(config.max_distance + 3, config.num_heads)
        self.edge_encoder = FeatureEncoder("edge_features", config.edge_features, config.num_heads)
        has_features = config.edge_features.categories or config.edge_features.width
        # w_n of every step n and head; edges without features say no more than the distance.
        self.steps = (
            nn.Parameter(torch.empty(config.path_edges, config.num_heads, config.num_heads)) if has_features else None
        )
        if self.steps is not None:
            nn.init.normal_(self.steps, std=config.num_heads**-0.5)

    def forward(self, batch: GraphBatch, pairs: Pairs) -> Float[Tensor, "pairs heads"]:
        self.edge_encoder.check(batch, batch.edges)
        hops = fact_of(batch, self.hops)
        far = self.hops.limit + 1
        bias: Tensor = self.distance(pairs.kinds(hops.long().where(hops >= 0, far), virtual=far + 1))
        edges = self.edge_encoder(batch.edge_features)
        if self.steps is None or edges is None:
            return bias
        on_path = path_edges(batch, hops, self.longest)
        # x_e . w_n for every edge e and step n: row e * steps + n.
        products = torch.einsum("ed,ndh->enh", edges, self.steps).flatten(0, 1)
        parts = products.index_select(0, on_path.edges * self.longest + on_path.steps)
        # A mean over N steps of means over the edges that can be each of them.
        count = hops.index_select(0, on_path.pairs).clamp(max=self.longest) * on_path.alike
        parts = parts.to(bias.dtype) / count[:, None]
        return bias.index_add(0, pairs.of_node_pairs.index_select(0, on_path.pairs), parts)


class GraphormerBlock(nn.Module):
    """h + attention(norm(h)), then h + MLP(norm(h))."""

    def __init__(self, config: GraphormerConfig) -> None:
        super().__init__()
        dim = config.dim
        self.attention_norm, self.mlp_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = feed_forward(dim, config.mlp_dim or dim, nn.GELU())
        self.dropout, self.attention_dropout = config.dropout, config.attention_dropout

    def forward(
        self, states: Float[Tensor, "tokens dim"], bias: Sequence[Tensor], pairs: Pairs
    ) -> Float[Tensor, "tokens dim"]:
        dropout = self.attention_dropout if self.training else 0.0
        attended = self.out(biased_attention(self.qkv(self.attention_norm(states)), bias, pairs, dropout))
        states = states + F.dropout(attended, self.dropout, self.training)
        return states + F.dropout(self.mlp(self.mlp_norm(states)), self.dropout, self.training)


def degrees(ends: Int[Tensor, " edges"], nodes: int) -> Int[Tensor, " nodes"]:
    """At how many edges each node is this end."""
    # Not bincount, for whose result the host would have to wait on a GPU.
    return torch.zeros(nodes, dtype=torch.int64, device=ends.device).index_add(0, ends, torch.ones_like(ends))


def _initialise(model: Graphormer, std: float = 0.02) -> None:
    """Linear maps, embeddings and the virtual node N(0, 0.02), biases zero, norms the identity: the authors' start."""
    nn.init.normal_(model.virtual_node, std=std)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
