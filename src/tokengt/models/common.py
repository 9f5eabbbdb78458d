"""What models of nodes and edges have in common: fields that follow from the data, and the rows that a head reads."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tokengt.batch import GraphBatch
from tokengt.data.store import Store
from tokengt.interop.pyg import as_batch
from tokengt.level import Level
from tokengt.links import is_directed
from tokengt.models.contract import Description, Model, ModelConfig
from tokengt.models.features import FeatureEncoder, FeatureSpec, spec_of
from tokengt.ragged import Segments, segment_sum
from tokengt.structure.distances import LONGEST
from tokengt.structure.facts import HopDistances, StructureFact

# One vector per graph, worked out when it is asked for: for one large graph that takes longer than a layer, and heads
# of nodes do not read it.
GraphRows = Callable[[], Float[Tensor, "graphs width"]]


def check_heads(dim: int, num_heads: int) -> None:
    """Refuse a width that heads cannot share evenly."""
    if dim % num_heads:
        raise ValueError(f"dim {dim} is no multiple of num_heads {num_heads}")


@dataclass(frozen=True)
class GraphModelConfig(ModelConfig):
    """Size, features and outputs of a model that reads the nodes and the edges of graphs; its subclasses are the kinds.

    Args:
        dim: the width of a node's state.
        num_layers: how many layers.
        dropout: share of numbers that training sets to zero; the kind says where.
        node_features: what the node features are.
        edge_features: what the edge features are.
        graph_features: what is known about a graph as a whole; it is embedded and added to what the head reads.
        level: one row per graph, per node, per listed edge (from the states of its two nodes) or per link, a pair of
            nodes that is asked about.
        out_dim: outputs per row.
        symmetric: of links: (u, v) and (v, u) score alike; it follows from the data, whose edges have a direction or
            not.
    """

    kind: str = field(default="", init=False)
    dim: int = 128
    num_layers: int = 5
    dropout: float = 0.1
    node_features: FeatureSpec = field(default_factory=FeatureSpec)
    edge_features: FeatureSpec = field(default_factory=FeatureSpec)
    graph_features: FeatureSpec = field(default_factory=FeatureSpec)
    level: Level = "graph"
    out_dim: int = 1
    symmetric: bool = field(default=True, metadata={"late": True})
    # The model's usual name; and which fields count something, and which are a share.
    name: ClassVar[str]
    counts: ClassVar[tuple[str, ...]] = ("dim", "num_layers", "out_dim")
    shares: ClassVar[tuple[str, ...]] = ("dropout",)

    def __post_init__(self) -> None:
        for name in self.counts:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; expected at least 1")
        for name in self.shares:
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 0 or more and below 1")
        if self.level not in get_args(Level):
            raise ValueError(f"level is {self.level!r}; expected one of {', '.join(get_args(Level))}")
        check_symmetric(self.level, self.symmetric)

    def fit(self, data: Store, out_dim: int) -> "GraphModelConfig":
        self.check_edges(data.graphs)
        return replace(
            self.refit(data, out_dim),
            node_features=spec_of(data, "node_features"),
            edge_features=spec_of(data, "edge_features"),
        )

    def refit(self, data: Store, out_dim: int) -> "GraphModelConfig":
        descriptors = FeatureSpec.of(data.graphs.graph_features)
        level, symmetric = data.manifest.level, is_symmetric_task(data)
        return replace(self, graph_features=descriptors, level=level, out_dim=out_dim, symmetric=symmetric)

    @property
    def row_width(self) -> int:
        """How wide a row is that the head reads, where a graph's is as wide as a node's."""
        return self.dim * row_states(self.level, self.symmetric)

    def check_edges(self, graphs: GraphBatch) -> None:
        """Refuse graphs with edges of more than two nodes."""
        if graphs.order != 2 or graphs.hyperedges.total:
            raise ValueError(f"a {self.name} reads edges of two nodes; these graphs have larger ones: use tokengt")

    @property
    def num_descriptors(self) -> int:
        return self.graph_features.width

    @property
    def decided(self) -> Sequence[str]:
        return ("level", "out_dim")

    @property
    def float_features(self) -> Sequence[str]:
        return tuple(name for name in ("node_features", "edge_features") if getattr(self, name).width)

    @abstractmethod
    def build(self) -> Model: ...


@dataclass(frozen=True)
class PairModelConfig(GraphModelConfig):
    """A Transformer over the nodes of a graph that knows how far apart every two of them are.

    Args:
        num_heads: heads of attention.
        attention_dropout: of attention weights.
        max_distance: how far distances are told apart; the kind says what becomes of larger ones.
        dim: as the other fields, described in :class:`GraphModelConfig`.
    """

    num_layers: int = 4
    num_heads: int = 8
    attention_dropout: float = 0.1
    max_distance: int = 16
    counts: ClassVar[tuple[str, ...]] = (*GraphModelConfig.counts, "num_heads")
    shares: ClassVar[tuple[str, ...]] = (*GraphModelConfig.shares, "attention_dropout")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.max_distance <= LONGEST:
            raise ValueError(f"max_distance is {self.max_distance}; expected 1 to {LONGEST}")

    def facts(self) -> Sequence[StructureFact]:
        return (HopDistances(self.max_distance),)

    def meanings(self) -> Mapping[str, Any]:
        return {"num_heads": self.num_heads}

    @property
    def size(self) -> str:
        """In words."""
        return f"{self.num_layers} layers x {self.dim}, {self.num_heads} heads"

    def describe(self) -> Description:
        summary = f"{self.name}, {self.size}, {self.level} head of {self.out_dim}"
        return Description(self.name, summary, {"layers": self.size}, ("graph-transformer",))


class GraphModel(Model):
    """Packed graphs -> [graphs, out], [nodes, out], [edges, out] or [links, out] by ``config.level``.

    A subclass has the ``head`` and the ``graph_encoder`` that embeds descriptors, and says what states there are.
    """

    config: GraphModelConfig
    graph_encoder: FeatureEncoder
    head: nn.Module

    @abstractmethod
    def states(self, batch: GraphBatch) -> tuple[Float[Tensor, "nodes dim"], GraphRows]:
        """The last states of all nodes, and a way to one vector per graph, for those who ask for it."""

    def forward(self, batch: Any, *, draw: int = 0) -> Float[Tensor, "rows out"]:
        packed = as_batch(batch)
        self.config.check_edges(packed)
        self.graph_encoder.check(packed, Segments.uniform(packed.num_graphs, 1))
        nodes, graphs = self.states(packed)
        descriptors = self.graph_encoder(packed.graph_features)
        out: Tensor = self.head(
            read_rows(self.config.level, packed, nodes, graphs, descriptors, symmetric=self.config.symmetric)
        )
        return out

    def embed(self, batch: Any) -> Float[Tensor, "graphs width"]:
        """The vector of each graph, before descriptors are added."""
        packed = as_batch(batch)
        self.config.check_edges(packed)
        return self.states(packed)[1]()

    @property
    def embedding_width(self) -> int:
        return self.config.dim


class NodeEncoder(nn.Module):
    """States of nodes at the start: embedded features, or one vector for all nodes that have none.

    Shapes: [nodes, columns] -> [nodes, dim].
    """

    def __init__(self, spec: FeatureSpec, dim: int) -> None:
        super().__init__()
        self.features = FeatureEncoder("node_features", spec, dim)
        self.blank = nn.Parameter(torch.ones(dim)) if spec == FeatureSpec() else None

    def forward(self, batch: GraphBatch) -> Float[Tensor, "nodes dim"]:
        self.features.check(batch, batch.nodes)
        states = self.features(batch.node_features)
        if self.blank is not None:
            return self.blank.expand(batch.num_nodes, -1)
        assert isinstance(states, Tensor)
        return states


def read_rows(
    level: Level,
    batch: GraphBatch,
    nodes: Float[Tensor, "nodes dim"],
    graphs: GraphRows,
    descriptors: Float[Tensor, "graphs _"] | None,
    *,
    symmetric: bool = True,
) -> Float[Tensor, "rows _"]:
    """What a head reads: the graphs' rows, the nodes' rows, or for each listed edge or link those of its two nodes.

    Embedded descriptors are added to the row of their graph, or to those of all its nodes.
    """
    if level == "graph":
        return graphs() if descriptors is None else graphs() + descriptors
    rows = nodes if descriptors is None else nodes + descriptors.index_select(0, batch.nodes.ids)
    if level == "node":
        return rows
    if level == "link":
        return pair_rows(rows, batch.link_index, symmetric=symmetric)
    first, second = batch.edge_index
    return torch.cat([rows.index_select(0, first), rows.index_select(0, second)], 1)


def pair_rows(
    nodes: Float[Tensor, "nodes dim"], pairs: Int[Tensor, "2 pairs"], *, symmetric: bool
) -> Float[Tensor, "pairs _"]:
    """What a head of links reads of the states h of two nodes: [h_u + h_v, h_u * h_v], or [h_u, h_v, h_u * h_v].

    The product makes a linear head a weighted inner product, which says how alike two nodes are.
    """
    first, second = nodes.index_select(0, pairs[0]), nodes.index_select(0, pairs[1])
    if symmetric:
        return torch.cat([first + second, first * second], 1)
    return torch.cat([first, second, first * second], 1)


def row_states(level: Level, symmetric: bool) -> int:
    """How many states of nodes lie side by side in a row that a head reads."""
    return {"graph": 1, "node": 1, "edge": 2, "link": 2 if symmetric else 3}[level]


def is_symmetric_task(data: Store) -> bool:
    """Whether (u, v) and (v, u) are one question: always but for links of graphs whose edges have a direction."""
    return data.manifest.level != "link" or not is_directed(data.graphs)


def check_symmetric(level: Level, symmetric: bool) -> None:
    """A setting without effect is refused, so that a config never says what the model does not do."""
    if level != "link" and not symmetric:
        raise ValueError(f"symmetric=False is for heads of level 'link'; this one's is {level!r}")


def pooled(rows: Float[Tensor, "nodes dim"], segments: Segments, pooling: str) -> Float[Tensor, "segments dim"]:
    """The "sum" over each segment, or its "mean"; zeros for one without rows."""
    total = segment_sum(rows, segments)
    return total if pooling == "sum" else total / segments.lengths.clamp(min=1)[:, None]
