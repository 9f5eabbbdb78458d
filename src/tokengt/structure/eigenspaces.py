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
    low, high = torch.arange(ends.low), torch.arange(n - ends.high, n)
    positions = torch.cat([low, high]).to(device)
    first, size = eigenspace_extents(values)
    first, size = first.index_select(1, positions), size.index_select(1, positions)
    chosen = vectors.index_select(2, positions)
    chosen = chosen * _pivot_signs(chosen)[:, None]
    repeated = size > 1
    if bool(repeated.any()):
        rank = _ranks(positions, first, n, ends)
        for dimension in size[repeated].unique().tolist():
            graph, column = torch.nonzero(size == dimension, as_tuple=True)
            space, which = torch.unique(torch.stack([graph, first[graph, column]]), dim=1, return_inverse=True)
            columns = space[1][:, None] + torch.arange(dimension, device=device)
            basis = vectors[space[0][:, None], :, columns].transpose(1, 2)
            wanted = rank[graph, column]
            canonical = pivoted_basis(basis, int(wanted.max()) + 1)
            chosen[graph, :, column] = canonical[which, :, wanted]
    return values.index_select(1, positions), chosen


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


def pivoted_basis(basis: Float64[Tensor, "spaces n r"], steps: int) -> Float64[Tensor, "spaces n steps"]:
    """The first ``steps`` canonical basis vectors of every eigenspace, whatever basis it is given in."""
    out = []
    space = torch.arange(len(basis), device=basis.device)
    for step in range(steps):
        pivot = first_largest(basis.square().sum(2).sqrt_())
        direction = basis[space, pivot]
        direction = direction / direction.norm(dim=1, keepdim=True)
        vector = basis @ direction[:, :, None]
        out.append(vector)
        if step + 1 < steps:
            basis = torch.baddbmm(basis, vector, direction[:, None], alpha=-1)
    return torch.cat(out, 2)


def first_largest(norms: Float64[Tensor, "*rows n"]) -> Int[Tensor, "*rows"]:
    """The lowest index whose entry is within the tie of its row's largest."""
    return (norms >= norms.amax(-1, keepdim=True) - PIVOT_TIE).byte().argmax(-1)


def _pivot_signs(vectors: Float64[Tensor, "graphs n k"]) -> Float64[Tensor, "graphs k"]:
    pivot = first_largest(vectors.abs().transpose(1, 2))
    return vectors.gather(1, pivot[:, None])[:, 0].sign()


def _ranks(positions: Int[Tensor, " k"], first: Int[Tensor, "graphs k"], n: int, ends: Ends) -> Int[Tensor, "graphs k"]:
    """Which canonical vector of its eigenspace each wanted position takes."""
    from_high = positions >= n - ends.high
    taken_low = (ends.low - first).clamp(min=0)
    high = positions - first.clamp(min=n - ends.high) + taken_low
    return torch.where(from_high, high, positions - first)
