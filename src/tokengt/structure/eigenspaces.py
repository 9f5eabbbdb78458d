"""The canonical basis: a basis of every eigenspace that does not depend on the eigensolver.

A solver returns an eigenspace in an arbitrary orthonormal basis V [n, r], defined up to a rotation of its
columns; only the projector ``V V^T`` is a fact of the graph. The canonical basis is pivoted Gram-Schmidt on the
projector's columns: take the node p whose column has the largest residual norm (ties within 1e-4 go to the
lowest node index), normalise that column, remove it, repeat. In coordinates, with ``V_p`` row p of V,

    c = V_p / |V_p|,   basis vector V c,   V <- V - (V c) c^T,

and for r = 1 this is a choice of sign: the pivot entry becomes positive.

Eigenvalues whose consecutive gap is below 1e-6 form one eigenspace. Where only some vectors of an eigenspace
are wanted, they are its first ones, those with the largest residuals; where both ends of the spectrum cut the
same eigenspace, the high end takes the ones that follow the low end's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int, Shaped
from torch import Tensor
from torch.nn.functional import pad

# Eigenvalues closer than this belong to one eigenspace: it is far above rounding and far below most real gaps.
EIGENVALUE_GAP = 1e-6
# Norms closer than this count as equal, so that rounding does not decide which node is the pivot.
PIVOT_TIE = 1e-4


@dataclass(frozen=True)
class Ends:
    """How many eigenvectors are wanted from each end of a spectrum."""

    low: int
    high: int

    @classmethod
    def of(cls, num_nodes: int, count: int, both_ends: bool) -> "Ends":
        """All of them when there are no more than ``count``."""
        if num_nodes <= count:
            return cls(num_nodes, 0)
        low = count // 2 if both_ends else count
        return cls(low, count - low)


@dataclass(frozen=True, eq=False)
class _Repeated:
    """The wanted columns of one group that lie in eigenspaces of more than one dimension.

    Column ``column`` of graph ``graph`` takes canonical vector ``rank`` of eigenspace ``space``; eigenspace s has
    ``dimension[s]`` basis vectors, one after another in ``basis``.
    """

    graph: Int[Tensor, " columns"]
    column: Int[Tensor, " columns"]
    space: Int[Tensor, " columns"]
    rank: Int[Tensor, " columns"]
    dimension: Int[Tensor, " spaces"]
    basis: Float64[Tensor, "vectors n"]


def canonical_columns(
    groups: Sequence[tuple[Float64[Tensor, "_ _"], Float64[Tensor, "_ _ _"]]], ends: Sequence[Ends]
) -> list[tuple[Float64[Tensor, "_ _"], Float64[Tensor, "_ _ _"]]]:
    """The wanted eigenpairs of complete decompositions, low end first, in the canonical basis.

    Each group holds all eigenvalues [graphs, n] and eigenvectors [graphs, n, n] of graphs of one size; its answer
    has shapes [graphs, k] and [graphs, n, k]. Eigenspaces of one dimension are treated together across groups.
    """
    out, repeated = [], []
    for (values, vectors), group_ends in zip(groups, ends, strict=True):
        # Solvers store eigenvectors column by column; transposed, each is a contiguous row, which is faster below.
        chosen = _both_ends(vectors.mT, group_ends)
        out.append((_both_ends(values, group_ends), chosen * _pivot_signs(chosen)))
        repeated.append(_repeated(values, vectors.mT, group_ends))
    for (_, rows), group, canonical in zip(out, repeated, _canonical_bases(repeated), strict=True):
        start = group.dimension.cumsum(0) - group.dimension
        rows[group.graph, group.column] = canonical[start[group.space] + group.rank]
    return [(values, rows.mT) for values, rows in out]


def _repeated(values: Float64[Tensor, "graphs n"], rows: Float64[Tensor, "graphs n n"], ends: Ends) -> _Repeated:
    n, device = values.shape[1], values.device
    first, size = (_both_ends(t, ends) for t in eigenspace_extents(values))
    graph, column = torch.nonzero(size > 1, as_tuple=True)
    begin = first[graph, column]
    # Columns of one eigenspace follow each other, so equal numbers do too.
    number, space = torch.unique_consecutive(graph * n + begin, return_inverse=True)
    dimension = torch.empty_like(number)
    dimension[space] = size[graph, column]
    total = int(dimension.sum())
    skipped = number - (dimension.cumsum(0) - dimension)
    member = torch.repeat_interleave(skipped, dimension, output_size=total) + torch.arange(total, device=device)
    basis = rows.reshape(-1, n).index_select(0, member)
    return _Repeated(graph, column, space, _ranks(column, begin, n, ends), dimension, basis)


def _canonical_bases(groups: Sequence[_Repeated]) -> list[Float64[Tensor, "_ _"]]:
    """Every group's ``basis`` with the vectors that are wanted made canonical."""
    width = max(group.basis.shape[1] for group in groups)
    # Padding rows have norm zero, so no pivot falls on them.
    vectors = torch.cat([pad(group.basis, (0, width - group.basis.shape[1])) for group in groups])
    dimension = torch.cat([group.dimension for group in groups])
    start = dimension.cumsum(0) - dimension
    steps = max((int(group.rank.max()) + 1 for group in groups if len(group.rank)), default=0)
    for r in torch.unique(dimension).tolist():
        rows = start[dimension == r][:, None] + torch.arange(r, device=vectors.device)
        vectors[rows[:, :steps]] = pivoted_basis(vectors[rows].mT, min(r, steps))
    parts = torch.split_with_sizes(vectors, [len(group.basis) for group in groups])
    return [part[:, : group.basis.shape[1]] for part, group in zip(parts, groups, strict=True)]


def _both_ends(ascending: Shaped[Tensor, "graphs n *rest"], ends: Ends) -> Shaped[Tensor, "graphs k *rest"]:
    low = ascending[:, : ends.low]
    return torch.cat([low, ascending[:, -ends.high :]], 1) if ends.high else low


def eigenspace_extents(
    values: Float64[Tensor, "graphs n"],
) -> tuple[Int[Tensor, "graphs n"], Int[Tensor, "graphs n"]]:
    """For every ascending eigenvalue, the place of its eigenspace's first one, and the eigenspace's dimension."""
    n = values.shape[1]
    starts = torch.arange(n, device=values.device).repeat(len(values), 1)
    starts[:, 1:] *= values.diff(dim=1) >= EIGENVALUE_GAP
    first = starts.cummax(1).values
    # Every eigenspace has a number of its own in the batch: how often it occurs is its dimension.
    number = first + n * torch.arange(len(values), device=values.device)[:, None]
    return first, torch.bincount(number.flatten(), minlength=number.numel())[number]


def pivoted_basis(basis: Float64[Tensor, "spaces n r"], steps: int) -> Float64[Tensor, "spaces steps n"]:
    """The first ``steps`` canonical basis vectors of every eigenspace, whatever basis it is given in."""
    out = []
    space = torch.arange(len(basis), device=basis.device)
    for step in range(steps):
        norms = basis.square().sum(2).sqrt_()
        pivot = first_largest(norms)
        direction = basis[space, pivot] / norms[space, pivot][:, None]
        vector = (basis @ direction[:, :, None])[:, :, 0]
        out.append(vector)
        if step + 1 < steps:
            basis = basis - vector[:, :, None] * direction[:, None]
    return torch.stack(out, 1)


def first_largest(norms: Float64[Tensor, "*rows n"]) -> Int[Tensor, "*rows"]:
    """The lowest index whose entry is within ``PIVOT_TIE`` of its row's largest."""
    return (norms >= norms.amax(-1, keepdim=True) - PIVOT_TIE).byte().argmax(-1)


def _pivot_signs(vectors: Float64[Tensor, "graphs k n"]) -> Float64[Tensor, "graphs k 1"]:
    return vectors.gather(2, first_largest(vectors.abs())[:, :, None]).sign()


def _ranks(
    column: Int[Tensor, " columns"], first: Int[Tensor, " columns"], n: int, ends: Ends
) -> Int[Tensor, " columns"]:
    """Which canonical vector of its eigenspace, which begins at ``first``, each wanted column takes."""
    high = column - ends.low - (first - (n - ends.high)).clamp(min=0) + (ends.low - first).clamp(min=0)
    return torch.where(column < ends.low, column - first, high)
