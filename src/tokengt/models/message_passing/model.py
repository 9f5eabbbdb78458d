"""GIN, GCN and GAT (v2) with edge features, on PyTorch Geometric's layers; with or without virtual node.

Each layer is a round of messages (:mod:`tokengt.models.message_passing.rounds`), batch norm, ReLU (but for the last
layer) and dropout; the head is linear. These are the message-passing baselines of OGB and of the paper's Table 2.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from tokengt.batch import GraphBatch
from tokengt.kernels.support import installed
from tokengt.models.common import GraphModel, GraphModelConfig, GraphRows, check_heads, pooled
from tokengt.models.contract import Description
from tokengt.models.features import FeatureEncoder, FeatureSpec
from tokengt.models.message_passing.rounds import GcnRound, GinRound, Joined, gat_round, without_features
from tokengt.models.message_passing.virtual_node import VirtualNode
from tokengt.models.pyg import batch_norm
from tokengt.recomputing import recomputed


@dataclass(frozen=True)
class MessagePassingConfig(GraphModelConfig):
    """Size and regularisers; :class:`GinConfig`, :class:`GcnConfig` and :class:`GatConfig` are the kinds.

    Args:
        dim: the width of a node's state.
        num_layers: rounds of messages; each embeds the edge features by itself.
        dropout: after every round, and of what the virtual node says.
        virtual_node: one more node per graph, joined to all others.
        mlp_dim: hidden width of the MLPs, which are the virtual node's and those of GIN's rounds; None for 2 dim.
        pooling: what the head reads of a graph, the mean or the sum of its nodes' states.
        feature_dropout: share of single float features of nodes that training sets to zero.
        node_features: as the other fields, described in :class:`~tokengt.models.common.GraphModelConfig`.
    """

    virtual_node: bool = False
    mlp_dim: int | None = field(default=None, metadata={"late": True})
    pooling: Literal["mean", "sum"] = field(default="mean", metadata={"late": True})
    feature_dropout: float = field(default=0.0, metadata={"late": True})
    counts: ClassVar[tuple[str, ...]] = ("dim", "num_layers", "out_dim", "mlp_dim")
    shares: ClassVar[tuple[str, ...]] = ("dropout", "feature_dropout")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pooling not in ("mean", "sum"):
            raise ValueError(f"pooling is {self.pooling!r}; expected 'mean' or 'sum'")

    @property
    def hidden(self) -> int:
        """The hidden width of the MLPs."""
        return self.mlp_dim or 2 * self.dim

    @abstractmethod
    def round(self) -> nn.Module:
        """One round of messages, with fresh weights."""

    def step_bytes(self, graphs: GraphBatch, places: Int[Tensor, " graphs"], itemsize: int) -> int:
        nodes, edges = (int(rows.host_lengths.index_select(0, places).sum()) for rows in (graphs.nodes, graphs.edges))
        return self.num_layers * (self.node_bytes(itemsize) * nodes + self.edge_bytes(itemsize) * edges)

    def node_bytes(self, itemsize: int) -> int:
        """About how many bytes training keeps of each node in a layer: states, batch norm, ReLU and dropout."""
        return (4 + 4 + 4 + itemsize) * self.dim

    def edge_bytes(self, itemsize: int) -> int:
        """The same of each edge: what it sends, where edges have features."""
        return 0 if self.edge_features == FeatureSpec() else (4 + 2 * itemsize) * self.dim

    def build(self) -> "MessagePassing":
        return MessagePassing(self)

    def meanings(self) -> Mapping[str, Any]:
        return {"pooling": self.pooling}

    def describe(self) -> Description:
        name = f"{self.name} with virtual node" if self.virtual_node else self.name
        return Description(
            name,
            f"{name}, {self.num_layers} layers x {self.dim}, {self.level} head of {self.out_dim}",
            {"layers": f"{self.num_layers} x {self.dim}", "virtual node": "yes" if self.virtual_node else "no"},
            ("message-passing",),
        )


@dataclass(frozen=True)
class GinConfig(MessagePassingConfig):
    """The Graph Isomorphism Network (Xu et al. 2019) with the edge features of Hu et al. (2020)."""

    kind: Literal["gin"] = field(default="gin", init=False)
    name: ClassVar[str] = "GIN"

    def round(self) -> nn.Module:
        return GinRound(self.dim, self.hidden)

    def node_bytes(self, itemsize: int) -> int:
        return super().node_bytes(itemsize) + (4 + 4 + itemsize) * self.hidden


@dataclass(frozen=True)
class GcnConfig(MessagePassingConfig):
    """The graph convolutional network (Kipf and Welling 2017) with the edge features of OGB's baselines."""

    kind: Literal["gcn"] = field(default="gcn", init=False)
    name: ClassVar[str] = "GCN"

    def round(self) -> nn.Module:
        return GcnRound(self.dim)

    def node_bytes(self, itemsize: int) -> int:
        return super().node_bytes(itemsize) + 2 * 4 * self.dim


@dataclass(frozen=True)
class GatConfig(MessagePassingConfig):
    """The graph attention network, version 2 (Brody et al. 2022), with edge features.

    Args:
        num_heads: heads of attention, which share ``dim`` among them.
        dim: as all other fields, described in :class:`MessagePassingConfig`.
    """

    kind: Literal["gat"] = field(default="gat", init=False)
    name: ClassVar[str] = "GAT"
    num_heads: int = 1
    counts: ClassVar[tuple[str, ...]] = ("dim", "num_layers", "out_dim", "mlp_dim", "num_heads")

    def round(self) -> nn.Module:
        check_heads(self.dim, self.num_heads)
        return gat_round(self.dim, self.num_heads)

    @property
    def recomputes(self) -> bool:
        return True

    @property
    def _by_kernels(self) -> bool:
        """Whether kernels are to be expected, which keep no table of edges by channels: on a machine with a GPU."""
        return self.edge_features == FeatureSpec() and torch.cuda.is_available() and installed()

    def node_bytes(self, itemsize: int) -> int:
        """By kernels both ends' mapped states and what is heard are kept of every node, and of no edge."""
        return super().node_bytes(itemsize) + self._by_kernels * (2 * itemsize + 4) * self.dim

    def edge_bytes(self, itemsize: int) -> int:
        """Both ends' mapped states, their sum before and after its activation, and what is sent."""
        return 0 if self._by_kernels else 5 * 4 * self.dim

    def meanings(self) -> Mapping[str, Any]:
        return {**super().meanings(), "num_heads": self.num_heads}


class MessagePassing(GraphModel):
    """Graphs are the mean (or the sum, by ``config.pooling``) of their nodes."""

    config: MessagePassingConfig

    def __init__(self, config: MessagePassingConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.dim
        self.node_encoder = FeatureEncoder("node_features", config.node_features, dim, config.feature_dropout)
        self.graph_encoder = FeatureEncoder("graph_features", config.graph_features, dim)
        # The state in which nodes without features start: all are alike until messages tell them apart.
        self.blank = nn.Parameter(torch.ones(dim)) if config.node_features == FeatureSpec() else None
        last = config.num_layers - 1
        self.layers = nn.ModuleList([Layer(config, last=place == last) for place in range(config.num_layers)])
        exchanges = last if config.virtual_node else 0
        self.exchanges = nn.ModuleList([VirtualNode(dim, config.hidden, config.dropout) for _ in range(exchanges)])
        self.head = nn.Linear(config.row_width, config.out_dim)
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.xavier_uniform_(module.weight)

    def pieces(self) -> Sequence[nn.Module]:
        return tuple(self.layers)

    def set_recompute(self, on: bool) -> bool:
        """GAT alone computes its rounds again, whose tables of all edges are what takes memory; GIN's would count its
        batch norm twice. Where kernels attend without such tables nothing is computed again."""
        for layer in self.layers:
            assert isinstance(layer, Layer)
            layer.recompute = on and self.config.recomputes
        return on and self.config.recomputes

    def states(self, batch: GraphBatch) -> tuple[Float[Tensor, "nodes dim"], GraphRows]:
        self._check(batch)
        states = self.node_encoder(batch.node_features)
        if self.blank is not None:
            states = self.blank.expand(batch.num_nodes, -1)
        assert states is not None
        spoken = states.new_zeros(batch.num_graphs, self.config.dim)
        joined = Joined.of(batch)
        for place, layer in enumerate(self.layers):
            if self.config.virtual_node:
                states = states + spoken.to(states.dtype).index_select(0, batch.nodes.ids)
            if place < len(self.exchanges):
                spoken = self.exchanges[place](states, spoken, batch.nodes)
            states = layer(states, batch, joined)
        return states, lambda: pooled(states, batch.nodes, self.config.pooling)

    def _check(self, batch: GraphBatch) -> None:
        self.node_encoder.check(batch, batch.nodes)
        for layer in self.layers:
            assert isinstance(layer, Layer)
            layer.edge_encoder.check(batch, batch.edges)


class Layer(nn.Module):
    """One round of messages, batch norm, and (but for the last layer) ReLU; dropout."""

    def __init__(self, config: MessagePassingConfig, last: bool) -> None:
        super().__init__()
        self.edge_encoder = FeatureEncoder("edge_features", config.edge_features, config.dim)
        self.conv = config.round()
        self.norm = batch_norm(config.dim)
        self.dropout, self.last, self.recompute = config.dropout, last, False

    def forward(
        self, states: Float[Tensor, "nodes dim"], batch: GraphBatch, joined: Joined
    ) -> Float[Tensor, "nodes dim"]:
        edges = self.edge_encoder(batch.edge_features)
        shorter = without_features(self.conv, states) if edges is None else None
        # Batch norm stays outside of what is computed again: it would count the same rows twice.
        if shorter is not None:
            heard = shorter(states, joined)
        else:
            heard = recomputed(self.heard, states, edges, joined, on=self.recompute)
        out = self.norm(heard)
        return F.dropout(out if self.last else F.relu(out), self.dropout, self.training)

    def heard(
        self, states: Float[Tensor, "nodes dim"], edges: Float[Tensor, "edges dim"] | None, joined: Joined
    ) -> Float[Tensor, "nodes dim"]:
        """One round of messages along a table of all edges."""
        out: Tensor = self.conv(states, joined.index, None if edges is None else edges.to(states.dtype))
        return out
