"""A few eigenpairs at one end of a large sparse matrix, multiplicities included.

A Krylov method sees one copy of a repeated eigenvalue and finds the others, if at all, through rounding. Eigenpairs
are therefore found in rounds. Each round searches outside of all vectors that were found before, and the search ends
when a round brings nothing below or inside the eigenspace at the cut, that is, the eigenspace of the last wanted one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from tokengt.structure.dense import one_thread
from tokengt.structure.eigenspaces import EIGENVALUE_GAP

Array = np.ndarray
Operator = Callable[[Array], Array]
Outcome = Literal["converged", "drowned", "stuck"]

# The first round looks for this many eigenpairs beyond those that are wanted, the second for this many, and each later
# round for twice as many as the one before.
_EXTRA = 8
_ROUNDS = 4
# Further rounds, which only take a dominant eigenvector out of the way.
_DEFLATIONS = 3
# After this many restarts a search counts as stuck.
_RESTARTS = 200
# Relative residual of an eigenpair: with eigenspaces 1e-6 apart, vectors are then good to 1e-6.
_TOLERANCE = 1e-12
# A new vector of which less than this share is left after orthogonalisation adds nothing to the basis.
_BREAKDOWN = 1e-13
# Rounding error, relative to the operator's largest eigenvalue: no residual gets below it.
_ROUNDING = 1e-14
# A shift to just outside of the spectrum. It is small because long paths have eigenvalues within 1e-9 of each other.
_SHIFT = 1e-8
# The work of a factorisation, as the sum of squared bandwidths: up to the first bound it is done at once, up to the
# second one only when Lanczos without it fails.
_CHEAP_FACTOR = 2e9
_AFFORDABLE_FACTOR = 1e11


@dataclass(frozen=True, eq=False)
class Eigenpairs:
    """Ascending eigenpairs; ``whole`` says whether the eigenspace at the cut was computed whole."""

    values: Float64[Array, " k"]
    vectors: Float64[Array, "n k"]
    whole: bool


def lowest_eigenpairs(matrix: Any, wanted: int, known: Float64[Array, "n k"]) -> Eigenpairs:
    """At least the ``wanted`` lowest eigenpairs of a sparse symmetric matrix with spectrum in [0, 2].

    ``known`` are eigenvectors found already (at the other end); they are part of the answer.
    """
    start = Eigenpairs(*_rayleigh_ritz(matrix, known), whole=False)
    for operator in _operators(matrix):
        eigenpairs, converged = _search(matrix, operator, wanted, start)
        if converged:
            break
    return eigenpairs


def _search(matrix: Any, operator: Operator, wanted: int, found: Eigenpairs) -> tuple[Eigenpairs, bool]:
    """Rounds of Lanczos with ``operator``; also says whether it converged."""
    turn = 0
    for _ in range(_ROUNDS + _DEFLATIONS):
        looked_for = _EXTRA << (turn - 1) if turn else wanted + _EXTRA
        if found.vectors.shape[1] + 2 * looked_for >= matrix.shape[0]:
            values, vectors = np.linalg.eigh(matrix.toarray())
            return Eigenpairs(values, vectors, whole=True), True
        with one_thread():
            new, outcome = _largest(operator, found.vectors, looked_for)
        frontier = _rayleigh_ritz(matrix, new)[0].min(initial=np.inf)
        values, vectors = _rayleigh_ritz(matrix, np.concatenate([found.vectors, new], 1))
        # The first round may have missed copies of an eigenvalue; only a second one, outside of its vectors, can tell.
        whole = turn > 0 and outcome == "converged" and _cut_is_below(values, wanted, frontier)
        found = Eigenpairs(values, vectors, whole)
        if whole or outcome == "stuck" or turn == _ROUNDS:
            return found, outcome != "stuck"
        turn += outcome == "converged"
    return found, True


def _cut_is_below(values: Float64[Array, " k"], wanted: int, frontier: float) -> bool:
    """Whether the eigenspace of the last wanted eigenvalue ends before the first one of the latest round."""
    apart = np.flatnonzero(np.diff(values[wanted - 1 :]) >= EIGENVALUE_GAP)
    return len(apart) > 0 and bool(values[wanted - 1 + apart[0]] <= frontier - EIGENVALUE_GAP)


def _operators(matrix: Any) -> list[Operator]:
    """Operators whose largest eigenvalues are the matrix's lowest, in the order to try them.

    Multiplication by ``2 I - B`` needs no memory; ``(B + eps I)^{-1}`` separates the crowded low end of paths
    and grids, which are cheap to factor.
    """
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    order = reverse_cuthill_mckee(matrix, symmetric_mode=True)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    entries = matrix.tocoo()
    reach = np.zeros(len(order))
    np.maximum.at(reach, place[entries.row], place[entries.row] - place[entries.col])
    work = float(np.square(reach).sum())

    def multiply(x: Array) -> Array:
        return np.asarray(2.0 * x - matrix @ x)

    if work > _AFFORDABLE_FACTOR:
        return [multiply]
    return [_Inverse(matrix)] if work <= _CHEAP_FACTOR else [multiply, _Inverse(matrix)]


class _Inverse:
    """Multiplication by ``(B + eps I)^{-1}``; factors on first use."""

    def __init__(self, matrix: Any) -> None:
        self._matrix = matrix
        self._factor: Any = None

    def __call__(self, x: Array) -> Array:
        if self._factor is None:
            from scipy.sparse import identity
            from scipy.sparse.linalg import splu

            shifted = (self._matrix + _SHIFT * identity(len(x))).tocsc()
            self._factor = splu(
                shifted, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}
            )
        return np.asarray(self._factor.solve(x))


def _largest(operator: Operator, found: Float64[Array, "n k"], count: int) -> tuple[Float64[Array, "n new"], Outcome]:
    """Eigenvectors of the operator's largest eigenvalues outside ``found``, and how the search ended.

    "drowned" means that the largest converged and are returned, but the rest lie below their rounding error (an inverse
    has the eigenvalue 1e8 for a zero of the matrix): search again outside of those. "stuck" means slow convergence.

    Thick-restart Lanczos with full reorthogonalisation: the Krylov basis Q (rows) starts behind ``found``, and
    ``H = Q T Q^T`` is filled row by row. When the basis is full, its best half is kept and grown again.
    """
    n, skipped = found.shape
    size = min(n - skipped, max(3 * count, 48))
    rng = np.random.default_rng(0)
    basis = torch.empty(skipped + size + 1, n, dtype=torch.float64)
    basis[:skipped] = torch.from_numpy(found).T
    projected = torch.zeros(size, size, dtype=torch.float64)
    _append(basis, skipped, torch.from_numpy(rng.standard_normal(n)), rng)
    restarted = 0
    for _ in range(_RESTARTS):
        for step in range(restarted, size):
            image = torch.from_numpy(operator(basis[skipped + step].numpy()))
            row, coupling = _append(basis, skipped + step + 1, image, rng)
            projected[step, : step + 1] = projected[: step + 1, step] = row[skipped:]
        values, rotation = torch.linalg.eigh(projected)
        residual = coupling * rotation[-1].abs()
        converged = residual <= _TOLERANCE * values.abs()
        if bool((converged | (residual <= _ROUNDING * values.abs().max()))[-count:].all()):
            break
        restarted = (count + size) // 2
        basis[skipped : skipped + restarted] = rotation[:, -restarted:].T @ basis[skipped:-1]
        basis[skipped + restarted] = basis[-1]
        projected.zero_()[:restarted, :restarted] = values[-restarted:].diag()
    else:
        return (basis[skipped:-1].T @ rotation[:, -count:]).numpy(), "stuck"
    sound = int(converged[-count:].flip(0).cumprod(0).sum())
    vectors = basis[skipped:-1].T @ rotation[:, -max(sound, 1) :]
    return vectors.numpy(), "converged" if sound == count else "drowned"


def _append(
    basis: Float64[Tensor, "rows n"], place: int, vector: Float64[Tensor, " n"], rng: np.random.Generator
) -> tuple[Float64[Tensor, " place"], float]:
    """Makes ``vector`` orthogonal to the rows before ``place`` and stores it; returns its coordinates and its rest.

    If nothing is left, the rows span an invariant space, and the search goes on from a fresh vector, which is
    how further copies of a repeated eigenvalue are found. The fresh vectors are the same in every run.
    """
    before = basis[:place]
    scale = float(vector.norm())
    first = before @ vector
    vector = torch.addmv(vector, before.T, first, alpha=-1)
    second = before @ vector
    vector = torch.addmv(vector, before.T, second, alpha=-1)
    rest = float(vector.norm())
    if rest > _BREAKDOWN * scale:
        basis[place] = vector / rest
        return first + second, rest
    vector = torch.from_numpy(rng.standard_normal(len(vector)))
    for _ in range(2):
        vector = torch.addmv(vector, before.T, before @ vector, alpha=-1)
    basis[place] = vector / vector.norm()
    return first + second, 0.0


def _rayleigh_ritz(matrix: Any, vectors: Float64[Array, "n k"]) -> tuple[Float64[Array, " k"], Float64[Array, "n k"]]:
    """The matrix's eigenpairs inside the span of ``vectors``."""
    if vectors.shape[1] == 0:
        return np.zeros(0), vectors
    basis, _ = torch.linalg.qr(torch.from_numpy(vectors))
    values, rotation = torch.linalg.eigh(basis.T @ torch.from_numpy(matrix @ basis.numpy()))
    return values.numpy(), (basis @ rotation).numpy()
