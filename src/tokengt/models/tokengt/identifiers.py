"""Node identifiers P [n, d_p]: the paper's one degree of freedom (Section 2 and its implementation appendix).

Every kind is a function of the batch and a source of random draws. In training the draws come from a generator.
At evaluation they are keyed by the graph itself (its nodes and edges, whatever their listed order), so the same
graph with the same node order always gets the same identifiers, alone or in any batch. Renumbering the nodes
draws anew: predictions of a model with random identifiers depend on node order; averaging draws reduces that.
First-order identifiers, one a token, depend on the listed order of the edges as well.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.draws import Draws, GeneratorDraws, KeyedDraws, chain, mix
from tokengt.ragged import Segments, interleave
from tokengt.structure.laplacian import laplacian_eigenvectors, laplacian_fact

IdentifierKind = Literal[
    "orf", "laplacian", "near_orthonormal", "random", "orf_first_order", "random_first_order", "none"
]


@dataclass(frozen=True)
class IdentifierConfig:
    """Which identifiers, and how wide.

    Args:
        kind: "orf" (orthogonal random features), "laplacian" (eigenvectors), "near_orthonormal" (random signs over
            sqrt(dim)), "random" (unit Gaussian rows), "orf_first_order" / "random_first_order" (the ablations of
            Table 1: one independent vector a token), or "none".
        dim: d_p. A graph with fewer nodes is padded with zero columns.
        which: Laplacian only: eigenvectors of the "lowest" eigenvalues, or half from "both_ends".
        sign_flip: Laplacian only: random signs in training.
        dropout: Laplacian only: probability of dropping a whole eigenvector of a graph in training.
    """

    kind: IdentifierKind = "laplacian"
    dim: int = 16
    which: Literal["lowest", "both_ends"] = "lowest"
    sign_flip: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(IdentifierKind):
            raise ValueError(f"identifier kind is {self.kind!r}; expected one of {', '.join(get_args(IdentifierKind))}")
        if self.which not in ("lowest", "both_ends"):
            raise ValueError(f"which is {self.which!r}; expected 'lowest' or 'both_ends'")
        if self.kind != "none" and self.dim < 1:
            raise ValueError(f"identifier dim is {self.dim}; expected at least 1")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"identifier dropout is {self.dropout}; expected 0 or more and below 1")

    @property
    def first_order(self) -> bool:
        return self.kind in ("orf_first_order", "random_first_order")


@dataclass(frozen=True, eq=False)
class Identifiers:
    """P of every node; for the first-order ablations one vector for every listed edge and hyperedge as well."""

    nodes: Float[Tensor, "nodes id_dim"]
    edges: Float[Tensor, "edges id_dim"] | None = None
    hyperedges: Float[Tensor, "hyperedges id_dim"] | None = None

    def to(self, like: Tensor) -> "Identifiers":
        """The same in the precision and on the device of ``like``."""
        parts = (self.nodes, self.edges, self.hyperedges)
        nodes, edges, hyperedges = (None if part is None else part.to(like) for part in parts)
        assert nodes is not None
        return Identifiers(nodes, edges, hyperedges)


@torch.no_grad()
def identify(
    batch: GraphBatch,
    config: IdentifierConfig,
    *,
    training: bool = False,
    generator: torch.Generator | None = None,
    draw: int = 0,
) -> Identifiers | None:
    """Identifiers of a batch in float64 (eigenvectors the batch carries: in theirs); None for kind "none".

    In training, or with a ``generator``, draws are fresh; else they are keyed by each graph and ``draw``.
    """
    if config.kind == "none":
        return None
    fresh = training or generator is not None
    draws: Draws = GeneratorDraws(generator, batch.device) if fresh else KeyedDraws(graph_keys(batch, draw))
    if config.kind == "laplacian":
        canonical = not fresh and draw == 0
        return Identifiers(_laplacian(batch, config, None if canonical else draws, training))
    if config.first_order:
        return _first_order(batch, config, draws)
    return Identifiers(_random_rows(config.kind, batch.nodes, config.dim, draws))


def given_identifiers(batch: GraphBatch, config: IdentifierConfig, node_ids: Tensor) -> Identifiers:
    """The caller's own P, checked: for tests, parity and research."""
    if config.kind == "none" or config.first_order:
        raise ValueError(f"node_ids were given to a model with {config.kind!r} identifiers, which takes none")
    expected = [batch.num_nodes, config.dim]
    if not isinstance(node_ids, Tensor):
        raise ValueError(f"node_ids must be a torch.Tensor, got {type(node_ids).__name__}")
    if list(node_ids.shape) != expected or not node_ids.is_floating_point():
        raise ValueError(
            f"node_ids is {str(node_ids.dtype).removeprefix('torch.')} of shape {list(node_ids.shape)}; "
            f"expected floats of shape {expected}"
        )
    # On a GPU this would wait for the data, every step.
    if not node_ids.is_cuda and not bool(torch.isfinite(node_ids).all()):
        raise ValueError("node_ids holds a NaN or an infinity; expected finite numbers")
    return Identifiers(node_ids)


def graph_keys(batch: GraphBatch, draw: int = 0) -> Int[Tensor, " graphs"]:
    """A 64-bit key of every graph: its node count and its set of edges and hyperedges, in any listed order."""
    edge_hash = chain(batch.edge_numbers.local.long())
    hyper_hash = mix(_segment_total(mix(batch.member_numbers.local.long() + 1), batch.members) - 1)
    total = _segment_total(edge_hash, batch.edges) + 3 * _segment_total(hyper_hash, batch.hyperedges)
    return mix(mix(total + batch.nodes.lengths) + draw)


def orthogonal_random_features(rows: Segments, dim: int, draws: Draws) -> Float[Tensor, "rows dim"]:
    """Rows of a Haar orthogonal matrix Q [n, n] a segment, ``dim`` of its channels, unit length.

    The channels of a Haar matrix are exchangeable, so d_p random ones of n are the Q factor of an [n, d_p] Gaussian;
    with n <= d_p the rows are orthonormal and zero-padded. Fresh draws on a GPU take another way to the same law, as
    batched QR is slow there; keyed ones are the same numbers on every device.
    """
    gaussian = draws.normal(rows, dim, columns=min(dim, rows.max_length))
    out = gaussian.new_zeros(rows.total, dim)
    if gaussian.is_cuda and isinstance(draws, GeneratorDraws):
        _by_reflections(gaussian, rows, out)
    else:
        _by_qr(gaussian, rows, out)
    return out


def _by_qr(gaussian: Float[Tensor, "rows columns"], rows: Segments, out: Float[Tensor, "rows dim"]) -> None:
    """Segments of one length at a time. Signs are fixed by R's diagonal: bare QR is not Haar."""
    for length, members in _by_length(rows.host_lengths):
        width, first = min(length, out.shape[1]), rows.starts.index_select(0, members.to(out.device))
        index = (first[:, None] + torch.arange(length, device=out.device)).flatten()
        q, r = torch.linalg.qr(gaussian.index_select(0, index)[:, :width].reshape(-1, length, width))
        q = q * r.diagonal(dim1=1, dim2=2).sign()[:, None, :]
        out[index, :width] = torch.nn.functional.normalize(q, dim=2).flatten(0, 1)


def _by_reflections(gaussian: Float[Tensor, "rows columns"], rows: Segments, out: Float[Tensor, "rows dim"]) -> None:
    """Few launches and no wait for the device: lengths are padded to powers of two, from 16 on."""
    powers = 2 ** torch.arange(4, 63)
    lengths = rows.host_lengths
    for width, members in _by_length(torch.where(lengths > 0, powers[torch.searchsorted(powers, lengths)], 0)):
        index, chosen = rows.take(members)
        place = chosen.ids * width + chosen.positions
        columns = min(width, gaussian.shape[1])
        padded = gaussian.new_zeros(len(members) * width, columns)
        padded.index_copy_(0, place, gaussian[:, :columns].index_select(0, index))
        found = torch.nn.functional.normalize(haar_columns(padded.view(-1, width, columns)), dim=2)
        out[:, :columns].index_copy_(0, index, found.flatten(0, 1).index_select(0, place))


def haar_columns(gaussian: Float[Tensor, "graphs n columns"]) -> Float[Tensor, "graphs n columns"]:
    """The first columns of Haar orthogonal matrices, from normals on and below the diagonal: Stewart (1980).

    Column k from its diagonal down, x_k, gives the reflection H_k along v_k = x_k + sgn(x_kk) |x_k| e_k, and
    Q = H_1 H_2 ... diag(-sgn x_kk) is what QR of a Gaussian has in law. All at once, with unit v_k as columns of V:
    H_1 H_2 ... = I - V (I/2 + triu(V^T V, 1))^-1 V^T. A graph of fewer nodes has zero rows below, and gets zero rows
    and columns, exactly.
    """
    v, count = gaussian.tril(), gaussian.shape[2]
    length = torch.linalg.vector_norm(v, dim=1)
    # A node that is not there has a column of zeros; no other column has sign 0.
    sign = torch.where(v.diagonal(dim1=1, dim2=2) < 0, -1.0, 1.0).to(v.dtype) * (length > 0)
    v.diagonal(dim1=1, dim2=2).add_(sign * length)
    v = torch.nn.functional.normalize(v, dim=1)
    half = torch.eye(count, dtype=v.dtype, device=v.device) / 2
    inner = torch.linalg.solve_triangular((v.mT @ v).triu(1) + half, v[:, :count].mT, upper=True)
    columns = -(v @ inner)
    columns.diagonal(dim1=1, dim2=2).add_(1.0)
    signed: Tensor = columns * -sign[:, None, :]
    return signed


def _random_rows(kind: str, rows: Segments, dim: int, draws: Draws) -> Tensor:
    if kind.startswith("orf"):
        return orthogonal_random_features(rows, dim, draws)
    normal = draws.normal(rows, dim)
    if kind == "near_orthonormal":
        return torch.where(normal < 0, -1.0, 1.0).double() / math.sqrt(dim)
    return torch.nn.functional.normalize(normal, dim=1)


def _first_order(batch: GraphBatch, config: IdentifierConfig, draws: Draws) -> Identifiers:
    """Independent vectors for all tokens of a graph: nodes, then edges, then hyperedges."""
    together, rows = interleave([batch.nodes, batch.edges, batch.hyperedges])
    vectors = _random_rows(config.kind, together, config.dim, draws)
    return Identifiers(*(vectors.index_select(0, part) for part in rows))


def _laplacian(batch: GraphBatch, config: IdentifierConfig, draws: Draws | None, training: bool) -> Tensor:
    """Eigenvectors in their canonical basis; with draws, random signs (and dropout in training)."""
    known = batch.fact(laplacian_fact(config.dim, config.which))
    vectors = laplacian_eigenvectors(batch, config.dim, config.which).vectors if known is None else known
    if draws is None:
        return vectors
    one_each = Segments.uniform(batch.num_graphs, 1, batch.device)
    factor = torch.ones(batch.num_graphs, config.dim, dtype=vectors.dtype, device=batch.device)
    if config.sign_flip or not training:
        factor = torch.where(draws.normal(one_each, config.dim) < 0, -factor, factor)
    if training and config.dropout:
        uniform = torch.special.ndtr(draws.normal(one_each, config.dim))
        factor = factor * (uniform >= config.dropout) / (1 - config.dropout)
    return vectors * factor.index_select(0, batch.nodes.ids)


def _by_length(lengths: Int[Tensor, " segments"]) -> Iterable[tuple[int, Int[Tensor, " members"]]]:
    """Every length above 0 and, on the CPU, which segments have it."""
    for length in torch.unique(lengths[lengths > 0]).tolist():
        yield length, torch.nonzero(lengths == length).flatten()


def _segment_total(values: Int[Tensor, " rows"], segments: Segments) -> Int[Tensor, " segments"]:
    """Sums that wrap around: the order of rows does not matter."""
    return torch.zeros_like(segments.starts).index_add(0, segments.ids, values)
