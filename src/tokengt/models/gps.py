"""GPS (Rampášek et al., NeurIPS 2022), a graph Transformer beside message passing, on PyTorch Geometric's ``GPSConv``.

A node starts with its features and the probabilities that a random walk returns to it (the paper's RWSE), both mapped
to the model's width and added. Each layer passes messages along edges and, beside that, attends to the whole graph:

    h <- norm(h + GINE(h, e)) + norm(h + attention(h)),    h <- norm(h + MLP(h)),

with batch norms. GPSConv pads the graphs of a batch to the largest. The head reads the mean (or the sum) of the nodes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from jaxtyping import Float
from torch import Tensor, nn

from tokengt.batch import GraphBatch
from tokengt.models.common import GraphModel, GraphModelConfig, GraphRows, NodeEncoder, check_heads, pooled
from tokengt.models.contract import Description
from tokengt.models.features import FeatureEncoder
from tokengt.models.pyg import batch_norm, pyg_layers
from tokengt.structure.facts import StructureFact, WalkReturns, fact_of


@dataclass(frozen=True)
class GpsConfig(GraphModelConfig):
    """Size and regularisers of a GPS.

    Args:
        dim: the width of a node's state.
        num_layers: layers.
        dropout: of what messages, attention and the MLP add to the states, and inside the MLP.
        num_heads: heads of attention.
        attention_dropout: of attention weights.
        walk_steps: how many steps of random walks a node's start knows of.
        pooling: what the head reads of a graph, the mean or the sum of its nodes' states.
        node_features: as the other fields, described in :class:`~tokengt.models.common.GraphModelConfig`.
    """

    kind: Literal["gps"] = field(default="gps", init=False)
    name: ClassVar[str] = "GPS"
    dim: int = 64
    num_layers: int = 4
    num_heads: int = 4
    attention_dropout: float = 0.1
    walk_steps: int = 16
    pooling: Literal["mean", "sum"] = "mean"
    counts: ClassVar[tuple[str, ...]] = ("dim", "num_layers", "out_dim", "num_heads", "walk_steps")
    shares: ClassVar[tuple[str, ...]] = ("dropout", "attention_dropout")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pooling not in ("mean", "sum"):
            raise ValueError(f"pooling is {self.pooling!r}; expected 'mean' or 'sum'")

    def facts(self) -> Sequence[StructureFact]:
        return (WalkReturns(self.walk_steps),)

    def build(self) -> "Gps":
        check_heads(self.dim, self.num_heads)
        return Gps(self)

    def meanings(self) -> Mapping[str, Any]:
        return {"num_heads": self.num_heads, "pooling": self.pooling}

    def describe(self) -> Description:
        size = f"{self.num_layers} layers x {self.dim}, {self.num_heads} heads"
        summary = f"{self.name}, {size}, {self.level} head of {self.out_dim}"
        return Description(self.name, summary, {"layers": size}, ("graph-transformer", "message-passing"))


class Gps(GraphModel):
    """Graphs are the mean (or the sum, by ``config.pooling``) of their nodes."""

    config: GpsConfig

    def __init__(self, config: GpsConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.dim
        self.node_encoder = NodeEncoder(config.node_features, dim)
        self.edge_encoder = FeatureEncoder("edge_features", config.edge_features, dim)
        self.graph_encoder = FeatureEncoder("graph_features", config.graph_features, dim)
        self.walks = nn.Sequential(batch_norm(config.walk_steps), nn.Linear(config.walk_steps, dim))
        self.layers = nn.ModuleList([gps_layer(config) for _ in range(config.num_layers)])
        self.head = nn.Linear(config.row_width, config.out_dim)

    def pieces(self) -> Sequence[nn.Module]:
        return tuple(self.layers)

    def states(self, batch: GraphBatch) -> tuple[Float[Tensor, "nodes dim"], GraphRows]:
        self.edge_encoder.check(batch, batch.edges)
        states = self.node_encoder(batch)
        walks = fact_of(batch, WalkReturns(self.config.walk_steps))
        states = states + self.walks(walks.to(states.dtype))
        edges = self.edge_encoder(batch.edge_features)
        if edges is None:
            # The layer always adds edge features, so edges without features add zeros.
            edges = states.new_zeros(batch.num_edges, states.shape[1])
        for layer in self.layers:
            states = layer(states, batch.edge_index, batch.nodes.ids, edge_attr=edges.to(states.dtype))
        return states, lambda: pooled(states, batch.nodes, self.config.pooling)


def gps_layer(config: GpsConfig) -> nn.Module:
    """PyG's layer with the messages of a GIN that reads edges (GINE)."""
    layers, dim = pyg_layers(), config.dim
    local = layers.GINEConv(nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim)))
    layer: nn.Module = layers.GPSConv(
        dim,
        local,
        heads=config.num_heads,
        dropout=config.dropout,
        norm_kwargs={"allow_single_element": True},
        attn_kwargs={"dropout": config.attention_dropout},
    )
    return layer
