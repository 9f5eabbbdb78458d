"""Two layers over the nodes: an MLP, which sees no structure, and a GCN on the clique expansion, which does.

    MLP:  h = ReLU(X W_1 + b)       GCN:  h = S ReLU(S X W_1 + b),  S = (D + I)^(-1/2) (A + I) (D + I)^(-1/2)

and a linear head on h. A joins every two nodes of an edge, a tuple or a hyperedge (Kipf and Welling 2017). They are
baselines: a model that beats the MLP has learned from structure, and a model that beats the GCN has learned from more
than which nodes occur together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from tokengt.batch import GraphBatch, Level
from tokengt.data.store import Store
from tokengt.interop.pyg import as_batch
from tokengt.models.common import check_symmetric, is_symmetric_task, read_rows, row_states
from tokengt.models.contract import Description, Model, ModelConfig
from tokengt.models.features import FeatureEncoder, FeatureSpec, spec_of
from tokengt.ragged import segment_sum
from tokengt.structure.adjacency import normalised_adjacency


@dataclass(frozen=True)
class TwoLayersConfig(ModelConfig):
    """What the two have in common; :class:`MlpConfig` and :class:`CliqueGcnConfig` are the kinds.

    Args:
        dim: hidden channels.
        dropout: of hidden channels, in training.
        feature_dropout: of single float features, in training.
        node_features: what the node features are; features of edges are not read.
        level: one row per node, per graph (the mean of its nodes) or per link, a pair of nodes that is asked about.
        out_dim: outputs per row.
        symmetric: of links: (u, v) and (v, u) score alike; it follows from the data.
    """

    kind: str = field(default="", init=False)
    # The model's usual name, and whether a node's state is mixed with those of the nodes it is joined to.
    name: ClassVar[str]
    mixes: ClassVar[bool]
    dim: int = 64
    dropout: float = 0.1
    feature_dropout: float = 0.0
    node_features: FeatureSpec = field(default_factory=FeatureSpec)
    level: Level = "graph"
    out_dim: int = 1
    symmetric: bool = field(default=True, metadata={"late": True})

    def __post_init__(self) -> None:
        for name in ("dim", "out_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")
        for name in ("dropout", "feature_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 0 or more and below 1")
        if self.level not in ("graph", "node", "link"):
            rows = "graph, node or link, the rows"
            raise ValueError(f"level is {self.level!r}; expected {rows} that a {self.name} predicts")
        check_symmetric(self.level, self.symmetric)

    def fit(self, data: Store, out_dim: int) -> "TwoLayersConfig":
        return replace(self.refit(data, out_dim), node_features=spec_of(data, "node_features"))

    def refit(self, data: Store, out_dim: int) -> "TwoLayersConfig":
        level = data.manifest.level
        if level == "edge":
            raise ValueError(
                f"{self.name} predicts graphs, nodes and links, and these labels are of edges: use tokengt"
            )
        if data.graphs.graph_features is not None:
            raise ValueError(f"a {self.name} reads the features of nodes alone; leave the descriptors out")
        return replace(self, level=level, out_dim=out_dim, symmetric=is_symmetric_task(data))

    @property
    def decided(self) -> Sequence[str]:
        return ("level", "out_dim")

    @property
    def float_features(self) -> Sequence[str]:
        return ("node_features",) if self.node_features.width else ()

    def build(self) -> "TwoLayers":
        return TwoLayers(self)

    def describe(self) -> Description:
        summary = f"{self.name}, 2 layers x {self.dim}, {self.level} head of {self.out_dim}"
        return Description(self.name, summary, {"layers": f"2 x {self.dim}"}, ("baseline",))


@dataclass(frozen=True)
class MlpConfig(TwoLayersConfig):
    """Every node by itself."""

    kind: Literal["mlp"] = field(default="mlp", init=False)
    name: ClassVar[str] = "MLP"
    mixes: ClassVar[bool] = False


@dataclass(frozen=True)
class CliqueGcnConfig(TwoLayersConfig):
    """Every node with the nodes it shares an edge or hyperedge with."""

    kind: Literal["clique_gcn"] = field(default="clique_gcn", init=False)
    name: ClassVar[str] = "GCN"
    mixes: ClassVar[bool] = True


class TwoLayers(Model):
    """Packed graphs -> [nodes, out], [graphs, out] or [links, out] by ``config.level``."""

    config: TwoLayersConfig

    def __init__(self, config: TwoLayersConfig) -> None:
        super().__init__()
        self.config = config
        self.node_encoder = FeatureEncoder("node_features", config.node_features, config.dim, config.feature_dropout)
        self.bias = nn.Parameter(torch.zeros(config.dim))
        self.head = nn.Linear(config.dim * row_states(config.level, config.symmetric), config.out_dim)

    def forward(self, batch: Any, *, draw: int = 0) -> Float[Tensor, "rows out"]:
        packed = as_batch(batch)
        states, config = self._states(packed), self.config
        rows = read_rows(config.level, packed, states, lambda: _means(states, packed), None, symmetric=config.symmetric)
        out: Tensor = self.head(rows)
        return out

    def embed(self, batch: Any) -> Float[Tensor, "graphs dim"]:
        """The mean of the nodes' states."""
        packed = as_batch(batch)
        return _means(self._states(packed), packed)

    @property
    def embedding_width(self) -> int:
        return self.config.dim

    def _states(self, batch: GraphBatch) -> Float[Tensor, "nodes dim"]:
        self.node_encoder.check(batch, batch.nodes)
        inputs = self.node_encoder(batch.node_features)
        if inputs is None:
            # Nodes without features are all alike, until a GCN tells them apart by their neighbours.
            inputs = self.bias.new_zeros(batch.num_nodes, self.config.dim)
        mixing = normalised_adjacency(batch, self.bias.dtype) if self.config.mixes else None
        hidden = F.relu(_mixed(inputs, mixing) + self.bias)
        return _mixed(F.dropout(hidden, self.config.dropout, self.training), mixing)


def _mixed(states: Float[Tensor, "nodes dim"], mixing: Tensor | None) -> Float[Tensor, "nodes dim"]:
    """S X, in the precision of S, because sparse products take no lower one."""
    if mixing is None:
        return states
    with torch.autocast(states.device.type, enabled=False):
        out: Tensor = torch.sparse.mm(mixing, states.to(mixing.dtype))
    return out


def _means(states: Float[Tensor, "nodes dim"], batch: GraphBatch) -> Float[Tensor, "graphs dim"]:
    """The mean over each graph's nodes; zeros for one without any."""
    return segment_sum(states, batch.nodes) / batch.nodes.lengths.clamp(min=1)[:, None]
