"""Node identifiers P [n, d_p]: the paper's one degree of freedom (Section 2 and its implementation appendix).

There is one config class per kind, and it makes its own identifiers from the batch and a source of draws, that is, of
random numbers. In training the draws come from a generator. At evaluation they are keyed by the graph itself (its nodes
and edges, whatever their listed order), so the same graph with the same node order always gets the same identifiers,
alone or in any batch. Renumbering the nodes draws anew: predictions of a model with random identifiers depend on the
order of nodes, and averaging draws reduces that. First-order identifiers, one per token, depend on the listed order of
the edges as well.

A new kind is a class like those below, named in ``IdentifierConfig``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.config import kinds_of
from tokengt.draws import Draws, GeneratorDraws, KeyedDraws, chain, mix
from tokengt.models.tokengt.orthogonal import orthogonal_random_features
from tokengt.ragged import Segments, interleave
from tokengt.structure.facts import LaplacianVectors, StructureFact
from tokengt.structure.laplacian import laplacian_eigenvectors, laplacian_fact

IdentifierKind = Literal[
    "orf", "laplacian", "near_orthonormal", "random", "orf_first_order", "random_first_order", "none"
]


@dataclass(frozen=True, eq=False)
class Identifiers:
    """P of every node; for the first-order ablations also one vector per listed edge and per hyperedge."""

    nodes: Float[Tensor, "nodes id_dim"]
    edges: Float[Tensor, "edges id_dim"] | None = None
    hyperedges: Float[Tensor, "hyperedges id_dim"] | None = None

    def to(self, like: Tensor) -> "Identifiers":
        """The same in the precision and on the device of ``like``."""
        parts = (self.nodes, self.edges, self.hyperedges)
        nodes, edges, hyperedges = (None if part is None else part.to(like) for part in parts)
        assert nodes is not None
        return Identifiers(nodes, edges, hyperedges)


@dataclass(frozen=True, eq=False)
class DrawSource:
    """Where draws come from: fresh ones in training or from a ``generator``, else keyed by each graph and ``draw``."""

    training: bool = False
    generator: torch.Generator | None = None
    draw: int = 0

    @property
    def fresh(self) -> bool:
        return self.training or self.generator is not None

    def draws(self, batch: GraphBatch) -> Draws:
        if self.fresh:
            return GeneratorDraws(self.generator, batch.device)
        return KeyedDraws(graph_keys(batch, self.draw))


class _Ids:
    """What the kinds of identifiers have in common."""

    # Whether there is one identifier per token, as in the ablations of Table 1, instead of one per node.
    first_order: ClassVar[bool] = False

    def facts(self) -> tuple[StructureFact, ...]:
        """What of the graphs' structure they are made of: worked out once for a data set."""
        return ()


@dataclass(frozen=True)
class OrfIds(_Ids):
    """Orthogonal random features: orthonormal rows in every graph of at most ``dim`` nodes.

    Args:
        dim: d_p. A graph with fewer nodes is padded with zero columns.
    """

    kind: Literal["orf"] = field(default="orf", init=False)
    dim: int = 16

    def __post_init__(self) -> None:
        _check_dim(self.dim)

    def identify(self, batch: GraphBatch, source: DrawSource) -> Identifiers:
        return Identifiers(orthogonal_random_features(batch.nodes, self.dim, source.draws(batch)))


@dataclass(frozen=True)
class LaplacianIds(_Ids):
    """Eigenvectors of the normalised graph Laplacian.

    Args:
        dim: d_p. A graph with fewer nodes is padded with zero columns.
        which: eigenvectors of the "lowest" eigenvalues, or half from "both_ends".
        sign_flip: random signs in training.
        dropout: probability of dropping a whole eigenvector of a graph in training.
        unit: what has length 1: the "columns", as eigenvectors have, or the "rows" in the mean, as the identifiers of a
            complete basis and near-orthonormal ones have. Of n nodes with d_p < n eigenvectors the rows have a length
            of sqrt(d_p / n), 0.07 for 64 of 13,752: little next to what else a token is the sum of.
    """

    kind: Literal["laplacian"] = field(default="laplacian", init=False)
    dim: int = 16
    which: Literal["lowest", "both_ends"] = "lowest"
    sign_flip: bool = True
    dropout: float = 0.0
    unit: Literal["columns", "rows"] = field(default="columns", metadata={"late": True})

    def __post_init__(self) -> None:
        _check_dim(self.dim)
        if self.which not in ("lowest", "both_ends"):
            raise ValueError(f"which is {self.which!r}; expected 'lowest' or 'both_ends'")
        if self.unit not in ("columns", "rows"):
            raise ValueError(f"unit is {self.unit!r}; expected 'columns' or 'rows'")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"identifier dropout is {self.dropout}; expected 0 or more and below 1")

    def facts(self) -> tuple[StructureFact, ...]:
        return (LaplacianVectors(self.dim, self.which),)

    def identify(self, batch: GraphBatch, source: DrawSource) -> Identifiers:
        """At evaluation, draw 0 is the eigenvectors in their canonical basis, which no choice of a solver affects.

        Other draws have random signs; training has random signs and dropout as configured.
        """
        carried = batch.fact(laplacian_fact(self.dim, self.which))
        vectors = laplacian_eigenvectors(batch, self.dim, self.which).vectors if carried is None else carried
        if self.unit == "rows":
            each = (batch.nodes.lengths / batch.nodes.lengths.clamp(1, self.dim)).sqrt().to(vectors.dtype)
            vectors = vectors * each.index_select(0, batch.nodes.ids)[:, None]
        if not source.fresh and source.draw == 0:
            return Identifiers(vectors)
        draws = source.draws(batch)
        one_each = Segments.uniform(batch.num_graphs, 1, batch.device)
        factor = torch.ones(batch.num_graphs, self.dim, dtype=vectors.dtype, device=batch.device)
        if self.sign_flip or not source.training:
            factor = torch.where(draws.normal(one_each, self.dim) < 0, -factor, factor)
        if source.training and self.dropout:
            # The normal distribution function turns the normal numbers of a draw into uniform ones.
            uniform = torch.special.ndtr(draws.normal(one_each, self.dim))
            factor = factor * (uniform >= self.dropout) / (1 - self.dropout)
        return Identifiers(vectors * factor.index_select(0, batch.nodes.ids))


@dataclass(frozen=True)
class NearOrthonormalIds(_Ids):
    """Random signs over sqrt(dim): any two rows are nearly orthogonal, whatever the number of nodes."""

    kind: Literal["near_orthonormal"] = field(default="near_orthonormal", init=False)
    dim: int = 16

    def __post_init__(self) -> None:
        _check_dim(self.dim)

    def identify(self, batch: GraphBatch, source: DrawSource) -> Identifiers:
        return Identifiers(random_signs(batch.nodes, self.dim, source.draws(batch)))


@dataclass(frozen=True)
class RandomIds(_Ids):
    """Gaussian rows of unit length."""

    kind: Literal["random"] = field(default="random", init=False)
    dim: int = 16

    def __post_init__(self) -> None:
        _check_dim(self.dim)

    def identify(self, batch: GraphBatch, source: DrawSource) -> Identifiers:
        return Identifiers(random_directions(batch.nodes, self.dim, source.draws(batch)))


@dataclass(frozen=True)
class FirstOrderOrfIds(_Ids):
    """An ablation of Table 1: orthogonal random features, one per token, which do not say what an edge joins."""

    kind: Literal["orf_first_order"] = field(default="orf_first_order", init=False)
    dim: int = 16
    first_order: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_dim(self.dim)

    def identify(self, batch: GraphBatch, source: DrawSource) -> Identifiers:
        return _one_per_token(orthogonal_random_features, batch, self.dim, source)


@dataclass(frozen=True)
class FirstOrderRandomIds(_Ids):
    """An ablation of Table 1: Gaussian rows of unit length, one per token, which do not say what an edge joins."""

    kind: Literal["random_first_order"] = field(default="random_first_order", init=False)
    dim: int = 16
    first_order: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_dim(self.dim)

    def identify(self, batch: GraphBatch, source: DrawSource) -> Identifiers:
        return _one_per_token(random_directions, batch, self.dim, source)


@dataclass(frozen=True)
class NoIds(_Ids):
    """No identifiers: P has no columns."""

    kind: Literal["none"] = field(default="none", init=False)
    dim: ClassVar[int] = 0

    def identify(self, batch: GraphBatch, source: DrawSource) -> None:
        return None


IdentifierConfig = (
    OrfIds | LaplacianIds | NearOrthonormalIds | RandomIds | FirstOrderOrfIds | FirstOrderRandomIds | NoIds
)


def identifiers_of_kind(kind: IdentifierKind, dim: int) -> IdentifierConfig:
    """The identifiers of a kind with its defaults, ``dim`` wide; those of "none" have no width."""
    chosen: IdentifierConfig = NoIds() if kind == "none" else kinds_of(IdentifierConfig)[kind](dim)
    return chosen


@torch.no_grad()
def identify(
    batch: GraphBatch,
    config: IdentifierConfig,
    *,
    training: bool = False,
    generator: torch.Generator | None = None,
    draw: int = 0,
) -> Identifiers | None:
    """Identifiers of a batch, None for :class:`NoIds`; float64, or the type of eigenvectors that the batch carries.

    In training, or with a ``generator``, draws are fresh; else they are keyed by each graph and ``draw``.
    """
    return config.identify(batch, DrawSource(training, generator, draw))


def given_identifiers(batch: GraphBatch, config: IdentifierConfig, node_ids: Tensor) -> Identifiers:
    """The caller's own P, checked: for tests, parity and research."""
    if isinstance(config, NoIds) or config.first_order:
        raise ValueError(f"node_ids were given to a model with {config.kind!r} identifiers, which takes none")
    expected = [batch.num_nodes, config.dim]
    if not isinstance(node_ids, Tensor):
        raise ValueError(f"node_ids must be a torch.Tensor, got {type(node_ids).__name__}")
    if list(node_ids.shape) != expected or not node_ids.is_floating_point():
        raise ValueError(
            f"node_ids is {str(node_ids.dtype).removeprefix('torch.')} of shape {list(node_ids.shape)}; "
            f"expected floats of shape {expected}"
        )
    # On a GPU this check would make the host wait for the data at every step.
    if not node_ids.is_cuda and not bool(torch.isfinite(node_ids).all()):
        raise ValueError("node_ids holds a NaN or an infinity; expected finite numbers")
    return Identifiers(node_ids)


def graph_keys(batch: GraphBatch, draw: int = 0) -> Int[Tensor, " graphs"]:
    """A 64-bit key of every graph: its node count and its set of edges and hyperedges, in any listed order."""
    edge_hash = chain(batch.edge_numbers.local.long())
    hyper_hash = mix(_segment_total(mix(batch.member_numbers.local.long() + 1), batch.members) - 1)
    total = _segment_total(edge_hash, batch.edges) + 3 * _segment_total(hyper_hash, batch.hyperedges)
    return mix(mix(total + batch.nodes.lengths) + draw)


def random_signs(rows: Segments, dim: int, draws: Draws) -> Float[Tensor, "rows dim"]:
    """Signs over sqrt(dim): rows of unit length."""
    return torch.where(draws.normal(rows, dim) < 0, -1.0, 1.0).double() / math.sqrt(dim)


def random_directions(rows: Segments, dim: int, draws: Draws) -> Float[Tensor, "rows dim"]:
    """Rows that are uniform on the unit sphere."""
    return torch.nn.functional.normalize(draws.normal(rows, dim), dim=1)


def _one_per_token(
    rows_of: Callable[[Segments, int, Draws], Tensor], batch: GraphBatch, dim: int, source: DrawSource
) -> Identifiers:
    """Independent vectors for all tokens of a graph: nodes, then edges, then hyperedges."""
    together, rows = interleave([batch.nodes, batch.edges, batch.hyperedges])
    vectors = rows_of(together, dim, source.draws(batch))
    return Identifiers(*(vectors.index_select(0, part) for part in rows))


def _check_dim(dim: int) -> None:
    if dim < 1:
        raise ValueError(f"identifier dim is {dim}; expected at least 1")


def _segment_total(values: Int[Tensor, " rows"], segments: Segments) -> Int[Tensor, " segments"]:
    """Sums that wrap around: the order of rows does not matter."""
    return torch.zeros_like(segments.starts).index_add(0, segments.ids, values)
