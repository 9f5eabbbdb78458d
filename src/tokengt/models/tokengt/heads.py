"""From encoded tokens to predictions: graph, node, edge and link heads, any number of outputs."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tokengt.batch import GraphBatch
from tokengt.dropout import Dropout
from tokengt.level import Level
from tokengt.models.common import check_symmetric, pair_rows, row_states
from tokengt.models.features import FeatureEncoder, FeatureSpec
from tokengt.models.tokengt.token_batch import TokenBatch, TokenKind, pool
from tokengt.ragged import Segments
from tokengt.tracing import eager_only
from tokengt.validation import INTEGERS


@dataclass(frozen=True)
class TokenDescriptors:
    """Features of a whole graph are embedded and added to its [graph] token, before the first block."""

    kind: Literal["token"] = field(default="token", init=False)


@dataclass(frozen=True)
class HeadDescriptors:
    """Features of a whole graph are read by the head alone, beside the encoded [graph] token.

    The encoder then sees what it saw without them, so that weights that are trained already are not disturbed.

    Args:
        width: how many numbers the head makes of the features.
        feature_dropout: in training, the share of single float features set to zero.
        dropout: in training, the share of the numbers made of them that is set to zero.
    """

    kind: Literal["head"] = field(default="head", init=False)
    width: int = 64
    feature_dropout: float = 0.5
    dropout: float = 0.5

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"width of descriptors is {self.width}; expected at least 1")
        for name in ("feature_dropout", "dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} of descriptors is {getattr(self, name)}; expected 0 or more and below 1")


DescriptorConfig = TokenDescriptors | HeadDescriptors
Readout = Literal["token", "sum", "mean"]


@dataclass(frozen=True)
class HeadConfig:
    """What is predicted.

    Args:
        level: one row per "graph", per "node", per listed "edge" (in the order of ``edge_index``), or per queried pair
            of nodes, edge or not ("link").
        out_dim: outputs per row (tasks or classes).
        readout: graph level only: the [graph] token, or the "sum" (Theorem 2) or "mean" over all other tokens.
        mlp: Linear, GELU, LayerNorm, Linear (the authors' code) instead of one linear map (the paper).
        symmetric: link level only: (u, v) and (v, u) score alike.
        hidden: widths of the hidden layers of a plain MLP without norm (Theorem 2); none for one linear map.
        activation: between the layers of the MLP of ``hidden`` only; ``mlp`` keeps its GELU.
    """

    level: Level = "graph"
    out_dim: int = 1
    readout: Readout = "token"
    mlp: bool = False
    symmetric: bool = True
    hidden: tuple[int, ...] = ()
    activation: Literal["gelu", "relu"] = "gelu"

    def __post_init__(self) -> None:
        if self.level not in get_args(Level):
            raise ValueError(f"head level is {self.level!r}; expected 'graph', 'node', 'edge' or 'link'")
        if self.readout not in get_args(Readout):
            raise ValueError(f"readout is {self.readout!r}; expected 'token', 'sum' or 'mean'")
        if self.out_dim < 1:
            raise ValueError(f"out_dim is {self.out_dim}; expected at least 1")
        if any(width < 1 for width in self.hidden):
            raise ValueError(f"hidden is {self.hidden}; expected widths of at least 1")
        if self.mlp and self.hidden:
            raise ValueError("a head is either the authors' MLP or one of your widths; set mlp or hidden, not both")
        if self.activation not in ("gelu", "relu"):
            raise ValueError(f"head activation is {self.activation!r}; expected 'gelu' or 'relu'")
        # A setting without effect is refused, so that a config never says what the model does not do.
        if self.level != "graph" and self.readout != "token":
            raise ValueError(f"readout {self.readout!r} is for heads of level 'graph'; this one's is {self.level!r}")
        check_symmetric(self.level, self.symmetric)
        if self.activation != "gelu" and not self.hidden:
            raise ValueError(
                f"activation {self.activation!r} is for a head with hidden layers; give hidden, or leave it"
            )


class DescriptorReader(nn.Module):
    """What the head is told of a graph as a whole: its features through one hidden layer, normalised, dropped out.

    Shapes: [graphs, columns] -> [graphs, width].
    """

    def __init__(self, spec: FeatureSpec, config: HeadDescriptors) -> None:
        super().__init__()
        self.encoder = FeatureEncoder("graph_features", spec, config.width, config.feature_dropout)
        self.norm = nn.LayerNorm(config.width)
        self.dropout = Dropout(config.dropout)

    def forward(self, batch: GraphBatch) -> Float[Tensor, "graphs width"]:
        out: Tensor = self.dropout(F.gelu(self.norm(self.encoder(batch.graph_features))))
        return out

    def check(self, batch: GraphBatch) -> None:
        """Refuse a batch that has none of these features, or others, in one sentence."""
        self.encoder.check(batch, Segments.uniform(batch.num_graphs, 1))


def descriptor_reader(config: DescriptorConfig, spec: FeatureSpec, level: Level) -> DescriptorReader | None:
    """What a head of this level reads features of whole graphs with; None where no head reads them.

    Raises:
        ValueError: one sentence: the head is to read features that it cannot read, or that there are not.
    """
    if not isinstance(config, HeadDescriptors):
        return None
    if level != "graph":
        raise ValueError(
            f"a head of level {level!r} reads no features of whole graphs; set descriptors.kind to 'token'"
        )
    if spec == FeatureSpec():
        raise ValueError("the head is to read features of whole graphs, and there are none; leave out descriptors.kind")
    return DescriptorReader(spec, config)


class Head(nn.Module):
    """Shapes: encoded tokens -> [graphs, out], [nodes, out], [edges, out] or [pairs, out].

    With ``descriptors``, which graph heads alone take, it reads the features of the whole graph too.
    """

    def __init__(self, dim: int, config: HeadConfig, descriptors: DescriptorReader | None = None) -> None:
        super().__init__()
        self.config = config
        # Before the projection, whose last layer has to be the last of the head: fine-tuning begins with zeros there.
        self.descriptors = descriptors
        width = (1 if config.level == "edge" else row_states(config.level, config.symmetric)) * dim
        width += 0 if descriptors is None else descriptors.norm.normalized_shape[0]
        if config.mlp:
            self.project: nn.Module = nn.Sequential(
                nn.Linear(width, dim), nn.GELU(), nn.LayerNorm(dim), nn.Linear(dim, config.out_dim)
            )
        elif config.hidden:
            self.project = _plain_mlp((width, *config.hidden, config.out_dim), config.activation)
        else:
            self.project = nn.Linear(width, config.out_dim)

    def rows(self, tokens: TokenBatch) -> Int[Tensor, " rows"] | None:
        """Which encoded tokens the head reads, each once; None when :meth:`read` has to see all of them."""
        if self.config.level == "graph":
            return tokens.graph_rows if self.config.readout == "token" else None
        return None if self.config.level == "edge" else tokens.node_rows

    def read(self, tokens: TokenBatch) -> Float[Tensor, "_ dim"]:
        """One row per listed edge (two may share a token), or the sum or mean over each graph's tokens."""
        if self.config.level == "edge":
            return tokens.edges
        return self.pool(tokens.values, tokens.kinds == TokenKind.SPECIAL, tokens.segments)

    def pool(
        self, values: Float[Tensor, "tokens dim"], special: Bool[Tensor, " tokens"], segments: Segments
    ) -> Float[Tensor, "graphs dim"]:
        """The sum or the mean over each graph's tokens, as the readout says."""
        return pool(values, special, segments, mean=self.config.readout == "mean")

    def forward(
        self, read: Float[Tensor, "rows dim"], batch: GraphBatch, pairs: Tensor | None = None
    ) -> Float[Tensor, "_ out"]:
        """Predict from the encoded tokens at :meth:`rows`, or from what :meth:`read` makes of all.

        A head of links answers about ``pairs``, or by itself about those that come with the batch.
        """
        if self.config.level != "link":
            if pairs is not None:
                raise ValueError(f"a head of level {self.config.level!r} takes no pairs")
        elif pairs is None:
            read = pair_rows(read, batch.link_index, symmetric=self.config.symmetric)
        else:
            check_pairs(pairs, batch)
            read = pair_rows(read, pairs.long(), symmetric=self.config.symmetric)
        if self.descriptors is not None:
            # Expanded, because explanations ask about many copies of one graph.
            known = self.descriptors(batch).to(read.dtype)
            read = torch.cat([read, known.expand(len(read), -1)], 1)
        out: Tensor = self.project(read)
        return out


def _plain_mlp(widths: tuple[int, ...], activation: str) -> nn.Sequential:
    parts: list[nn.Module] = []
    for narrow, wide in pairwise(widths):
        parts += [nn.Linear(narrow, wide), nn.GELU() if activation == "gelu" else nn.ReLU()]
    return nn.Sequential(*parts[:-1])


@eager_only
def check_pairs(pairs: Tensor, batch: GraphBatch) -> None:
    """Pairs are node numbers of the packed batch, both of the same graph."""
    if not isinstance(pairs, Tensor):
        raise ValueError(f"pairs must be a torch.Tensor of shape [2, pairs], got {type(pairs).__name__}")
    if pairs.ndim != 2 or pairs.shape[0] != 2 or pairs.dtype not in INTEGERS:
        raise ValueError(f"pairs must be integers of shape [2, pairs], got {list(pairs.shape)} {pairs.dtype}")
    if pairs.shape[1] == 0:
        return
    if int(pairs.min()) < 0 or int(pairs.max()) >= batch.num_nodes:
        raise ValueError(f"pairs name nodes outside 0 to {batch.num_nodes - 1} of the packed batch")
    graph = batch.nodes.ids[pairs.long()]
    apart = torch.nonzero(graph[0] != graph[1]).flatten()
    if len(apart):
        place = int(apart[0])
        raise ValueError(
            f"pair {place} joins graph {int(graph[0, place])} and graph {int(graph[1, place])}; expected one graph"
        )
