"""GRPE, Graph Relative Positional Encoding (Park et al., 2022): distances and edges act on queries, keys and values.

There is one virtual node per graph. For nodes i and j at distance d and with the edge e between them,

    a_ij = (q_i . k_j + q_i . P^q_d + k_j . P^k_d + q_i . E^q_e + k_j . E^k_e) / sqrt(d_H),
    z_i = sum over j of softmax over j of a_ij (v_j + P^v_d + E^v_e),

so that a bias depends on the node that it is for: the interaction of nodes with distances and with edges. The vectors P
and E are the same in all layers. Where several edges lead from i to j their vectors E add up; where none does there is
no term, which P_d could hold as well. Blocks are those of a PreLN Transformer.
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
from tokengt.models.pairs import Pairs, feed_forward, heads_in_buckets, out_of_heads, pair_count
from tokengt.structure.distances import LONGEST
from tokengt.structure.facts import HopDistances, StructureFact, fact_of

# Distances are kept as far as they can be, since a far node is told apart from one that no path leads to.
HOPS = HopDistances(LONGEST)


@dataclass(frozen=True)
class GrpeConfig(PairModelConfig):
    """Size and regularisers of a GRPE.

    Args:
        dim: the width of a node's state.
        num_layers: blocks.
        dropout: of what attention and MLP add to the states.
        num_heads: heads of attention.
        mlp_dim: hidden width of the MLP; None for dim.
        attention_dropout: of attention weights.
        max_distance: all distances from this one on share their vectors.
        node_features: as the other fields, described in :class:`~tokengt.models.common.PairModelConfig`.
    """

    kind: Literal["grpe"] = field(default="grpe", init=False)
    name: ClassVar[str] = "GRPE"
    mlp_dim: int | None = None
    max_distance: int = 5
    counts: ClassVar[tuple[str, ...]] = (*PairModelConfig.counts, "mlp_dim")

    def facts(self) -> Sequence[StructureFact]:
        return (HOPS,)

    def step_bytes(self, graphs: GraphBatch, places: Int[Tensor, " graphs"], itemsize: int) -> int:
        """Of every pair: what its distance says to queries, keys and values; per layer and head its weights."""
        return pair_count(graphs, places, 1) * (40 + self.num_layers * (17 * self.num_heads + 34))

    def build(self) -> "Grpe":
        check_heads(self.dim, self.num_heads)
        return Grpe(self)


@dataclass(frozen=True, eq=False)
class Relations:
    """What there is to know about the pairs of a batch, the same for all layers.

    Args:
        kinds: the distance of every pair as a row of the vectors P.
        edge_rows: the pair of every listed edge.
        tokens: the rows of the first and the second token of every listed edge.
        hops: P^q, P^k and P^v.
        edges: E^q, E^k and E^v of every listed edge; None where edges have no features.
    """

    kinds: Int[Tensor, " pairs"]
    edge_rows: Int[Tensor, " edges"]
    tokens: Int[Tensor, "2 edges"]
    hops: Float[Tensor, "3 kinds heads head_dim"]
    edges: Float[Tensor, "3 edges heads head_dim"] | None


class Grpe(GraphModel):
    """Graphs are read off their virtual nodes."""

    config: GrpeConfig

    def __init__(self, config: GrpeConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.dim
        self.node_encoder = NodeEncoder(config.node_features, dim)
        self.graph_encoder = FeatureEncoder("graph_features", config.graph_features, dim)
        self.virtual_node = nn.Parameter(torch.empty(1, dim))
        # For queries, keys and values. The last two rows are for nodes that no path joins, and for virtual nodes.
        self.hops = nn.ModuleList([nn.Embedding(config.max_distance + 3, dim) for _ in range(3)])
        self.edges = nn.ModuleList([FeatureEncoder("edge_features", config.edge_features, dim) for _ in range(3)])
        self.blocks = nn.ModuleList([GrpeBlock(config) for _ in range(config.num_layers)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(config.row_width, config.out_dim)
        # All other weights start where PyTorch's layers start, as in the authors' code.
        nn.init.normal_(self.virtual_node)

    def pieces(self) -> Sequence[nn.Module]:
        return tuple(self.blocks)

    def relations(self, batch: GraphBatch, pairs: Pairs) -> Relations:
        """The vectors P and E, and which pairs they belong to."""
        for encoder in self.edges:
            assert isinstance(encoder, FeatureEncoder)
            encoder.check(batch, batch.edges)
        hops, most = fact_of(batch, HOPS), self.config.max_distance
        kinds = pairs.kinds(hops.long().clamp(max=most).where(hops >= 0, most + 1), virtual=most + 2)
        edges = [encoder(batch.edge_features) for encoder in self.edges]
        shape = (3, -1, self.config.num_heads, self.config.dim // self.config.num_heads)
        return Relations(
            kinds,
            pairs.of_nodes(*batch.edge_index),
            pairs.node_rows.index_select(0, batch.edge_index.flatten()).view(2, -1),
            torch.stack([table.get_parameter("weight") for table in self.hops]).view(shape),
            None if edges[0] is None else torch.stack(edges).view(shape),
        )

    def states(self, batch: GraphBatch) -> tuple[Float[Tensor, "nodes dim"], GraphRows]:
        pairs = Pairs(batch, virtual=1)
        states = pairs.joined(self.node_encoder(batch), self.virtual_node)
        relations = self.relations(batch, pairs)
        for block in self.blocks:
            states = block(states, relations, pairs)
        nodes, graphs = pairs.parted(self.norm(states))
        return nodes, lambda: graphs


class GrpeBlock(nn.Module):
    """h + attention(norm(h)), then h + MLP(norm(h))."""

    def __init__(self, config: GrpeConfig) -> None:
        super().__init__()
        dim = config.dim
        self.heads, self.dropout, self.attention_dropout = config.num_heads, config.dropout, config.attention_dropout
        self.attention_norm, self.mlp_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = feed_forward(dim, config.mlp_dim or dim, nn.GELU())

    def forward(
        self, states: Float[Tensor, "tokens dim"], relations: Relations, pairs: Pairs
    ) -> Float[Tensor, "tokens dim"]:
        attended = self.out(self._attended(self.qkv(self.attention_norm(states)), relations, pairs))
        states = states + F.dropout(attended, self.dropout, self.training)
        return states + F.dropout(self.mlp(self.mlp_norm(states)), self.dropout, self.training)

    def _attended(
        self, qkv: Float[Tensor, "tokens width"], relations: Relations, pairs: Pairs
    ) -> Float[Tensor, "tokens dim"]:
        """z_i of every token."""
        rows = qkv.chunk(3, 1)
        query, key = (x.view(len(x), self.heads, -1) for x in rows[:2])
        bias = pairs.matrices(interactions(query, key, relations, pairs))
        parts = [heads_in_buckets(x, self.heads, pairs.tokens) for x in rows]
        scores = [
            (q @ k.transpose(2, 3) + b) * q.shape[3] ** -0.5 for q, k, b in zip(parts[0], parts[1], bias, strict=True)
        ]
        dropout = self.attention_dropout if self.training else 0.0
        weights = [F.dropout(score.softmax(-1), dropout) for score in pairs.only_real(scores)]
        heard = out_of_heads([w.to(v.dtype) @ v for w, v in zip(weights, parts[2], strict=True)], pairs.tokens)
        return heard + values(pairs.rows(weights), relations, pairs).to(heard.dtype)


def interactions(
    query: Float[Tensor, "tokens heads head_dim"],
    key: Float[Tensor, "tokens heads head_dim"],
    relations: Relations,
    pairs: Pairs,
) -> Float[Tensor, "pairs heads"]:
    """q_i . P^q_d + k_j . P^k_d + q_i . E^q_e + k_j . E^k_e for every pair (i, j)."""
    count = relations.hops.shape[1]
    bias = query.new_zeros(pairs.segments.total, query.shape[1])
    for x, end, table in zip((query, key), pairs.ends, relations.hops[:2], strict=True):
        # The product of every token with every vector P: row token * count + kind.
        products = torch.einsum("thd,khd->tkh", x, table.to(x.dtype)).flatten(0, 1)
        bias = bias + products.index_select(0, end * count + relations.kinds)
    if relations.edges is not None:
        of_edges = [
            (x.index_select(0, token) * edge.to(x.dtype)).sum(-1)
            for x, token, edge in zip((query, key), relations.tokens, relations.edges[:2], strict=True)
        ]
        bias = bias.index_add(0, relations.edge_rows, (of_edges[0] + of_edges[1]).to(bias.dtype))
    return bias


def values(weights: Float[Tensor, "pairs heads"], relations: Relations, pairs: Pairs) -> Float[Tensor, "tokens dim"]:
    """The sum over j of w_ij (P^v_d + E^v_e) for every token i."""
    table = relations.hops[2].to(weights.dtype)
    count, heads, _ = table.shape
    # How much weight a token gives to each distance in all: row token * count + kind.
    shares = weights.new_zeros(pairs.tokens.total * count, heads)
    shares = shares.index_add(0, pairs.ends[0] * count + relations.kinds, weights)
    heard = torch.einsum("tkh,khd->thd", shares.view(-1, count, heads), table)
    if relations.edges is not None:
        of_edges = weights.index_select(0, relations.edge_rows)[:, :, None] * relations.edges[2].to(weights.dtype)
        heard = heard.index_add(0, relations.tokens[0], of_edges.to(heard.dtype))
    return heard.flatten(1)
