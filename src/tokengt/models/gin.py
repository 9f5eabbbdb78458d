"""GIN: the Graph Isomorphism Network with edge features, on PyTorch Geometric's layers; with or without virtual node.

Xu et al. (2019), with the edge features of Hu et al. (2020) and the virtual node of OGB's baselines:

    h_v <- MLP((1 + eps) h_v + sum over edges u -> v of ReLU(h_u + e_uv)),

batch norm and ReLU after each layer. The virtual node is one more node per graph that hears from all nodes after every
layer and speaks to all of them before the next one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from tokengt.batch import GraphBatch
from tokengt.data.store import Store
from tokengt.interop.pyg import as_batch
from tokengt.level import Level
from tokengt.models.contract import Description, Model, ModelConfig
from tokengt.models.features import FeatureEncoder, FeatureSpec, spec_of
from tokengt.ragged import Segments, segment_sum


@dataclass(frozen=True)
class GinConfig(ModelConfig):
    """Size and regularisers of a GIN.

    Args:
        dim: the width of a node's state.
        num_layers: rounds of messages.
        virtual_node: one more node per graph, joined to all others.
        dropout: after every layer.
        node_features: what the node features are.
        edge_features: what the edge features are; every layer embeds them by itself.
        graph_features: what is known about a graph as a whole; it is embedded and added to what the head reads.
        level: one row per graph (the mean of its nodes), per node or per listed edge.
        out_dim: outputs per row.
    """

    kind: Literal["gin"] = field(default="gin", init=False)
    dim: int = 128
    num_layers: int = 5
    virtual_node: bool = False
    dropout: float = 0.1
    node_features: FeatureSpec = field(default_factory=FeatureSpec)
    edge_features: FeatureSpec = field(default_factory=FeatureSpec)
    graph_features: FeatureSpec = field(default_factory=FeatureSpec)
    level: Level = "graph"
    out_dim: int = 1

    def __post_init__(self) -> None:
        for name in ("dim", "num_layers", "out_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}; expected 0 or more and below 1")
        if self.level not in get_args(Level):
            raise ValueError(f"level is {self.level!r}; expected one of {', '.join(get_args(Level))}")

    def fit(self, data: Store, out_dim: int) -> "GinConfig":
        graphs = data.graphs
        if graphs.order != 2 or graphs.hyperedges.total:
            raise ValueError("a GIN passes messages along edges of two nodes; this data has larger ones: use tokengt")
        return replace(
            self.refit(data, out_dim),
            node_features=spec_of(data, "node_features"),
            edge_features=spec_of(data, "edge_features"),
        )

    def refit(self, data: Store, out_dim: int) -> "GinConfig":
        descriptors = FeatureSpec.of(data.graphs.graph_features)
        return replace(self, graph_features=descriptors, level=data.manifest.level, out_dim=out_dim)

    @property
    def num_descriptors(self) -> int:
        return self.graph_features.width

    @property
    def decided(self) -> Sequence[str]:
        return ("level", "out_dim")

    @property
    def float_features(self) -> Sequence[str]:
        return tuple(name for name in ("node_features", "edge_features") if getattr(self, name).width)

    def build(self) -> "Gin":
        return Gin(self)

    def describe(self) -> Description:
        name = "GIN with virtual node" if self.virtual_node else "GIN"
        return Description(
            name,
            f"{name}, {self.num_layers} layers x {self.dim}, {self.level} head of {self.out_dim}",
            {"layers": f"{self.num_layers} x {self.dim}", "virtual node": "yes" if self.virtual_node else "no"},
            ("message-passing",),
        )


class Gin(Model):
    """Packed graphs -> [graphs, out], [nodes, out] or [edges, out] by ``config.level``."""

    config: GinConfig

    def __init__(self, config: GinConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.dim
        self.node_encoder = FeatureEncoder("node_features", config.node_features, dim)
        self.graph_encoder = FeatureEncoder("graph_features", config.graph_features, dim)
        # The state in which nodes without features start: all are alike until messages tell them apart.
        self.blank = nn.Parameter(torch.ones(dim)) if config.node_features == FeatureSpec() else None
        last = config.num_layers - 1
        self.layers = nn.ModuleList([GinLayer(config, last=place == last) for place in range(config.num_layers)])
        exchanges = last if config.virtual_node else 0
        self.exchanges = nn.ModuleList([VirtualNode(dim, config.dropout) for _ in range(exchanges)])
        self.head = nn.Linear(dim * (2 if config.level == "edge" else 1), config.out_dim)
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.xavier_uniform_(module.weight)

    def forward(self, batch: Any, *, draw: int = 0) -> Float[Tensor, "rows out"]:
        packed = as_batch(batch)
        states = self._states(packed)
        descriptors = self.graph_encoder(packed.graph_features)
        if self.config.level == "graph":
            rows = mean_of_rows(states, packed.nodes)
            rows = rows if descriptors is None else rows + descriptors
        else:
            rows = states if descriptors is None else states + descriptors.index_select(0, packed.nodes.ids)
        if self.config.level == "edge":
            ends = packed.edge_index
            rows = torch.cat([rows.index_select(0, ends[0]), rows.index_select(0, ends[1])], 1)
        out: Tensor = self.head(rows)
        return out

    def embed(self, batch: Any) -> Float[Tensor, "graphs dim"]:
        """The mean of the nodes' states."""
        packed = as_batch(batch)
        return mean_of_rows(self._states(packed), packed.nodes)

    @property
    def embedding_width(self) -> int:
        return self.config.dim

    def pieces(self) -> Sequence[nn.Module]:
        return tuple(self.layers)

    def _states(self, batch: GraphBatch) -> Float[Tensor, "nodes dim"]:
        self._check(batch)
        states = self.node_encoder(batch.node_features)
        if self.blank is not None:
            states = self.blank.expand(batch.num_nodes, -1)
        assert states is not None
        spoken = states.new_zeros(batch.num_graphs, self.config.dim)
        for place, layer in enumerate(self.layers):
            if self.config.virtual_node:
                states = states + spoken.to(states.dtype).index_select(0, batch.nodes.ids)
            if place < len(self.exchanges):
                spoken = self.exchanges[place](states, spoken, batch.nodes)
            states = layer(states, batch)
        assert isinstance(states, Tensor)
        return states

    def _check(self, batch: GraphBatch) -> None:
        if batch.order != 2 or batch.num_hyperedges:
            raise ValueError("a GIN passes messages along edges of two nodes; this batch has larger ones")
        self.node_encoder.check(batch, batch.nodes)
        self.graph_encoder.check(batch, Segments.uniform(batch.num_graphs, 1))
        for layer in self.layers:
            assert isinstance(layer, GinLayer)
            layer.edge_encoder.check(batch, batch.edges)


class GinLayer(nn.Module):
    """One round of messages, batch norm, and (but for the last layer) ReLU; dropout."""

    def __init__(self, config: GinConfig, last: bool) -> None:
        super().__init__()
        layers = pyg_layers()
        self.edge_encoder = FeatureEncoder("edge_features", config.edge_features, config.dim)
        self.conv = layers.GINEConv(two_layers(config.dim), train_eps=True)
        self.norm = batch_norm(config.dim)
        self.dropout, self.last = config.dropout, last

    def forward(self, states: Float[Tensor, "nodes dim"], batch: GraphBatch) -> Float[Tensor, "nodes dim"]:
        edges = self.edge_encoder(batch.edge_features)
        if edges is None:
            # The layer always adds edge features, so edges without features add zeros.
            edges = states.new_zeros(batch.num_edges, states.shape[1])
        out = self.norm(self.conv(states, batch.edge_index, edges.to(states.dtype)))
        return F.dropout(out if self.last else F.relu(out), self.dropout, self.training)


class VirtualNode(nn.Module):
    """What the virtual node says next: an MLP of what it said last and the sum of its graph's nodes."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.mlp = nn.Sequential(*two_layers(dim), batch_norm(dim), nn.ReLU())
        self.dropout = dropout

    def forward(
        self, states: Float[Tensor, "nodes dim"], spoken: Float[Tensor, "graphs dim"], nodes: Segments
    ) -> Float[Tensor, "graphs dim"]:
        return F.dropout(self.mlp(segment_sum(states, nodes) + spoken), self.dropout, self.training)


def two_layers(dim: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(dim, 2 * dim), batch_norm(2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))


def batch_norm(dim: int) -> nn.Module:
    """Batch norm that takes a single row too, with its running moments: a step may hold one node in all."""
    norm: nn.Module = pyg_layers().BatchNorm(dim, allow_single_element=True)
    return norm


def mean_of_rows(rows: Float[Tensor, "nodes dim"], segments: Segments) -> Float[Tensor, "segments dim"]:
    """The mean over each segment; zeros for one without rows."""
    return segment_sum(rows, segments) / segments.lengths.clamp(min=1)[:, None]


def pyg_layers() -> Any:
    """PyTorch Geometric's layers; imported when such a model is built, since the other models do not need them."""
    try:
        from torch_geometric import nn as layers
    except ImportError as error:
        raise ImportError(
            "a GIN is made of PyTorch Geometric's layers; pip install torch_geometric brings them"
        ) from error
    return layers
