"""A basis of every eigenspace that does not depend on the eigensolver.

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

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int
from torch import Tensor

EIGENVALUE_GAP = 1e-6
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


def canonical_columns(
    values: Float64[Tensor, "graphs n"], vectors: Float64[Tensor, "graphs n n"], ends: Ends
) -> tuple[Float64[Tensor, "graphs k"], Float64[Tensor, "graphs n k"]]:
    """The wanted eigenpairs of complete decompositions, low end first, in the canonical basis."""
    n, device = values.shape[1], values.device
    positions = torch.cat([torch.arange(ends.low), torch.arange(n - ends.high, n)]).to(device)
    first, size = eigenspace_extents(values)
    # Solvers return columns contiguous: as rows, everything below runs along memory.
    rows = vectors.mT
    chosen = torch.cat([rows[:, : ends.low], rows[:, n - ends.high :]], 1)
    chosen *= _pivot_signs(chosen)
    first, size = (torch.cat([t[:, : ends.low], t[:, n - ends.high :]], 1) for t in (first, size))
    repeated = size[size > 1]
    if len(repeated):
        rank = _ranks(positions, first, n, ends)
        for dimension in torch.unique(repeated).tolist():
            graph, column = torch.nonzero(size == dimension, as_tuple=True)
            # Columns of one eigenspace follow each other, so equal keys do too.
            space, which = torch.unique_consecutive(graph * n + first[graph, column], return_inverse=True)
            members = space[:, None] + torch.arange(dimension, device=device)
            basis = rows.reshape(-1, n)[members].mT
            wanted = rank[graph, column]
            canonical = pivoted_basis(basis, int(wanted.max()) + 1)
            chosen[graph, column] = canonical[which, wanted]
    return torch.cat([values[:, : ends.low], values[:, n - ends.high :]], 1), chosen.mT


def eigenspace_extents(
    values: Float64[Tensor, "graphs n"],
) -> tuple[Int[Tensor, "graphs n"], Int[Tensor, "graphs n"]]:
    """For every ascending eigenvalue, the place of its eigenspace's first one, and the eigenspace's dimension."""
    n = values.shape[1]
    place = torch.arange(n, device=values.device).expand(values.shape)
    apart = values.diff(dim=1) >= EIGENVALUE_GAP
    edge = torch.ones_like(place[:, :1], dtype=torch.bool)
    first = torch.where(torch.cat([edge, apart], 1), place, 0).cummax(1).values
    last = torch.where(torch.cat([apart, edge], 1), place, n).flip(1).cummin(1).values.flip(1)
    return first, last - first + 1


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
    """The lowest index whose entry is within the tie of its row's largest."""
    return (norms >= norms.amax(-1, keepdim=True) - PIVOT_TIE).byte().argmax(-1)


def _pivot_signs(vectors: Float64[Tensor, "graphs k n"]) -> Float64[Tensor, "graphs k 1"]:
    return vectors.gather(2, first_largest(vectors.abs())[:, :, None]).sign()


def _ranks(positions: Int[Tensor, " k"], first: Int[Tensor, "graphs k"], n: int, ends: Ends) -> Int[Tensor, "graphs k"]:
    """Which canonical vector of its eigenspace each wanted position takes."""
    from_high = positions >= n - ends.high
    taken_low = (ends.low - first).clamp(min=0)
    high = positions - first.clamp(min=n - ends.high) + taken_low
    return torch.where(from_high, high, positions - first)
