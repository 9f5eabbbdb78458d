"""Stronger inputs for the same plain encoder: what the structure of a graph says about each node and each edge.

The paper's tokens have features, node identifiers and types. Here more terms are added to that sum, all of them off by
default: probabilities of random walks, eigenvectors together with their eigenvalues, rings and degrees. They are facts
(:mod:`tokengt.structure.facts`), which a data set works out once; only their embedding is learned.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tokengt.batch import GraphBatch
from tokengt.models.features import multi_hot
from tokengt.models.tokengt.identifiers import DrawSource, LaplacianIds
from tokengt.ragged import take_rows
from tokengt.structure.facts import (
    Degrees,
    EdgeRings,
    EdgeWalks,
    LaplacianValues,
    NodeRings,
    StructureFact,
    WalkReturns,
    fact_of,
)
from tokengt.structure.rings import COLUMNS

# Larger degrees share the last row of the table.
MOST_DEGREE = 63
# More than this many steps or eigenpairs per node are a slip of the pen, not a model.
_MOST = 1024
# Probabilities far below this one are as good as zero; see `spread`.
_SMALL = 0.01
# A ring of this many nodes more counts as much as one more ring; see `ring_numbers`.
_LONG_RING = 10.0
# The width in which eigenpairs are summed.
_SET_WIDTH = 32


@dataclass(frozen=True)
class StructureConfig:
    """What tokens are told about the structure of their graph, besides identifiers; nothing of it by default.

    Args:
        walks: K, the number of steps of random walks. With P = D^-1 A, a node token reads [P, P^2, ..., P^K]_uu, and an
            edge token [P, ..., P^K]_uv and [P, ..., P^K]_vu (the relative random-walk probabilities of GRIT).
        eigenpairs: how many of the lowest eigenpairs (v_i, lambda_i) of the normalised Laplacian a node is encoded by,
            rho(sum_i phi(v_i(u), lambda_i)). An edge token reads the encodings of both its nodes.
        degree: a learned vector for every number of neighbours, up to 62, and one for more, on node tokens.
        sign_flip: random signs of the eigenpairs in training.
        rings: the size of the largest rings that are counted, 3 or more. Node and edge tokens read how many rings of
            3, 4, ..., 8 nodes go through them, how many longer ones, and how many nodes these have.
    """

    walks: int = 0
    eigenpairs: int = 0
    degree: bool = False
    sign_flip: bool = True
    rings: int = field(default=0, metadata={"late": True})

    def __post_init__(self) -> None:
        for name in ("walks", "eigenpairs", "rings"):
            if not 0 <= getattr(self, name) <= _MOST:
                raise ValueError(f"structure.{name} is {getattr(self, name)}; expected 0 to {_MOST:,}")
        if 0 < self.rings < 3:
            raise ValueError(f"structure.rings is {self.rings}; expected 0, or at least 3: no ring has fewer nodes")
        if not self.sign_flip and not self.eigenpairs:
            raise ValueError(
                "structure.sign_flip is false, and there are no signs; give structure.eigenpairs, or leave it"
            )

    @property
    def used(self) -> bool:
        return self != StructureConfig()

    def facts(self) -> tuple[StructureFact, ...]:
        walks = (WalkReturns(self.walks), EdgeWalks(self.walks)) if self.walks else ()
        pairs = (*self._ids().facts(), LaplacianValues(self.eigenpairs)) if self.eigenpairs else ()
        rings = (NodeRings(self.rings), EdgeRings(self.rings)) if self.rings else ()
        return (*walks, *pairs, *rings, *((Degrees(),) if self.degree else ()))

    @torch.no_grad()
    def eigenvectors(self, batch: GraphBatch, source: DrawSource) -> Float[Tensor, "nodes pairs"] | None:
        """The eigenvectors with their signs: random in training, canonical at evaluation, as those of identifiers."""
        return self._ids().identify(batch, source).nodes if self.eigenpairs else None

    def with_fixed_signs(self) -> "StructureConfig":
        return replace(self, sign_flip=False) if self.eigenpairs else self

    def check_tokens(self, order: int, hyperedges: bool) -> None:
        """Refuse tokens that are no nodes and edges of a graph.

        Raises:
            ValueError: one sentence.
        """
        if order != 2 or hyperedges:
            raise ValueError(
                "structure.walks, structure.eigenpairs, structure.rings and structure.degree are for graphs whose "
                "edges join two nodes; leave them off for sets, tuples and hyperedges"
            )

    def __str__(self) -> str:
        walks = [f"{self.walks} walk steps"] if self.walks else []
        pairs = [f"{self.eigenpairs} eigenpairs"] if self.eigenpairs else []
        rings = [f"rings of up to {self.rings} nodes"] if self.rings else []
        return ", ".join([*walks, *pairs, *rings, *(["degrees"] if self.degree else [])])

    def _ids(self) -> LaplacianIds:
        return LaplacianIds(self.eigenpairs, sign_flip=self.sign_flip)


def spread(probabilities: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """log(1 + p / 0.01): 0 for 0, 4.6 for 1, and differences of about one for whatever matters in between.

    A ring shows as a few hundredths on top of probabilities of a few tenths, or in place of zero. A linear map of the
    probabilities themselves would have to grow for a long time before it sees that.
    """
    return torch.log1p(probabilities / _SMALL)


def both_ways(
    walks: Float[Tensor, "edges columns"], layout: Literal["directed", "undirected"]
) -> Float[Tensor, "edges columns"]:
    """What an edge token reads of its walks there and back; one token for both directions reads no direction.

    That one reads the larger and the smaller of the two probabilities. It loses nothing by that: d_u (P^k)_uv is equal
    to d_v (P^k)_vu, so that for every k the larger one is that of the node with fewer neighbours.
    """
    if layout == "directed":
        return walks
    there, back = walks.chunk(2, 1)
    return torch.cat([torch.maximum(there, back), torch.minimum(there, back)], 1)


def ring_numbers(counts: Int[Tensor, "rows columns"], like: Tensor) -> Float[Tensor, "rows columns"]:
    """Counts of rings as a model reads them: log(1 + count), and the nodes of the longer ones in tens.

    The nodes stay linear, so that what is learned of a ring of twelve goes on to one of twenty.
    """
    numbers = counts.to(like)
    return torch.cat([torch.log1p(numbers[:, :-1]), numbers[:, -1:] / _LONG_RING], 1)


class EigenpairSet(nn.Module):
    """rho(sum_i phi(v_i(u), lambda_i)) of every node u: a DeepSet, for any number of eigenpairs.

    Signs are flipped at random in training, where ``StructureConfig.sign_flip`` says so. The other way to have no sign,
    phi(v) + phi(-v), would keep only |v_i(u)| of a node, and with it no word about which nodes are on the same side of
    a cut. Entries of eigenvectors are scaled by sqrt(n) to a mean square of one; eigenvalues lie in [0, 2] and are
    centred. The result is normalised, and its gain begins at zero: at the start the model is the one without
    eigenpairs.

    Shapes: vectors [nodes, pairs], values [nodes, pairs] -> [nodes, dim].
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(2, _SET_WIDTH), nn.GELU(), nn.Linear(_SET_WIDTH, _SET_WIDTH))
        self.rho = nn.Sequential(nn.Linear(_SET_WIDTH, dim), nn.GELU(), nn.Linear(dim, dim))
        self.norm = nn.LayerNorm(dim)
        nn.init.zeros_(self.norm.weight)

    def forward(
        self,
        vectors: Float[Tensor, "nodes pairs"],
        values: Float[Tensor, "nodes pairs"],
        sizes: Int[Tensor, " nodes"],
    ) -> Float[Tensor, "nodes dim"]:
        """``sizes`` is the number of nodes in each node's graph, which has no more eigenpairs than that."""
        scaled = vectors * sizes.to(vectors.dtype).sqrt()[:, None]
        elements = self.phi(torch.stack([scaled, values - 1], 2))
        real: Bool[Tensor, "nodes pairs"] = torch.arange(vectors.shape[1], device=vectors.device) < sizes[:, None]
        out: Tensor = self.norm(self.rho((elements * real[:, :, None]).sum(1)))
        return out


class StructureEncoder(nn.Module):
    """The terms that structure adds to node tokens and to edge tokens.

    Walks and rings go through two-layer MLPs, one for nodes and one for edges; degrees through a table; eigenpairs
    through :class:`EigenpairSet` and, on edge tokens, one linear map (one per end where edges have a direction).
    """

    def __init__(self, dim: int, config: StructureConfig, layout: Literal["directed", "undirected"]) -> None:
        super().__init__()
        self.config, self.layout = config, layout
        self.node_walks = _mlp(config.walks, dim) if config.walks else None
        self.edge_walks = _mlp(2 * config.walks, dim) if config.walks else None
        self.node_rings = _mlp(COLUMNS, dim) if config.rings else None
        self.edge_rings = _mlp(COLUMNS, dim) if config.rings else None
        self.degrees = nn.Embedding(MOST_DEGREE + 1, dim) if config.degree else None
        self.pairs = EigenpairSet(dim) if config.eigenpairs else None
        ends = 2 if layout == "directed" else 1
        self.ends = nn.Linear(dim, ends * dim, bias=False) if config.eigenpairs else None

    def forward(
        self,
        batch: GraphBatch,
        first: Int[Tensor, " edge_tokens"] | None,
        ends: Int[Tensor, "edge_tokens 2"],
        eigenvectors: Float[Tensor, "nodes pairs"] | None,
    ) -> tuple[Float[Tensor, "nodes dim"], Float[Tensor, "edge_tokens dim"] | None]:
        """What is added to node tokens, and to edge tokens (None: nothing).

        ``first`` is the listed edge that stands for each edge token (None: all of them, in order); ``ends`` are its
        nodes.
        """
        weight = next(self.parameters())
        nodes: list[Tensor] = []
        edges: list[Tensor] = []
        if self.node_walks is not None and self.edge_walks is not None:
            nodes.append(self.node_walks(spread(fact_of(batch, WalkReturns(self.config.walks)).to(weight))))
            walks = fact_of(batch, EdgeWalks(self.config.walks))
            walks = walks if first is None else walks.index_select(0, first)
            edges.append(self.edge_walks(both_ways(spread(walks.to(weight)), self.layout)))
        if self.node_rings is not None and self.edge_rings is not None:
            nodes.append(self.node_rings(ring_numbers(fact_of(batch, NodeRings(self.config.rings)), weight)))
            rings = fact_of(batch, EdgeRings(self.config.rings))
            rings = rings if first is None else rings.index_select(0, first)
            edges.append(self.edge_rings(ring_numbers(rings, weight)))
        if self.degrees is not None:
            nodes.append(self._degrees(batch, self.degrees.weight))
        if self.pairs is not None and self.ends is not None:
            assert eigenvectors is not None
            encoded = self._pairs(batch, eigenvectors.to(weight), self.pairs)
            nodes.append(encoded)
            one, *other = self.ends(encoded).chunk(2 if self.layout == "directed" else 1, 1)
            second = other[0] if other else one
            edges.append(take_rows(one, ends[:, 0]) + take_rows(second, ends[:, 1]))
        return sum(nodes[1:], start=nodes[0]), sum(edges[1:], start=edges[0]) if edges else None

    def rows_of_weights(self) -> list[Float[Tensor, "_ dim"]]:
        """Vectors that begin to be added to tokens, as rows: views. Eigenpairs begin as nothing, whatever they are."""
        rows: list[Tensor] = [] if self.degrees is None else [self.degrees.weight]
        for mlp in (self.node_walks, self.edge_walks, self.node_rings, self.edge_rings):
            if mlp is not None:
                last = mlp[-1]
                assert isinstance(last, nn.Linear)
                rows += [last.weight.T, last.bias[None]]
        return rows

    def _degrees(self, batch: GraphBatch, table: Float[Tensor, "degrees dim"]) -> Float[Tensor, "nodes dim"]:
        index = fact_of(batch, Degrees()).long().clamp(max=MOST_DEGREE)
        # As features are embedded: a product, whose gradient sorts nothing, in the table's own precision.
        with torch.autocast(table.device.type, enabled=False):
            return multi_hot(index[:, None], table) @ table

    def _pairs(
        self, batch: GraphBatch, vectors: Float[Tensor, "nodes pairs"], encode: EigenpairSet
    ) -> Float[Tensor, "nodes dim"]:
        values = fact_of(batch, LaplacianValues(self.config.eigenpairs)).to(vectors.dtype)
        of_node = batch.nodes.ids
        sizes = batch.nodes.lengths.index_select(0, of_node)
        out: Tensor = encode(vectors, values.index_select(0, of_node), sizes)
        return out


def _mlp(width: int, dim: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, dim), nn.GELU(), nn.Linear(dim, dim))
