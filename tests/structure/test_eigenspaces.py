from collections.abc import Callable

import numpy as np
import pytest
import scipy.linalg
import torch

from tests.structure.graph_families import plain_laplacian, thousand_graphs
from tokengt.structure.eigenspaces import Ends, canonical_columns, eigenspace_extents, first_largest, pivoted_basis

Solver = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

SOLVERS: dict[str, Solver] = {
    **{d: lambda m, d=d: scipy.linalg.eigh(m, driver=d) for d in ("ev", "evd", "evr", "evx")},
    "numpy": np.linalg.eigh,
}


def canonical(values: np.ndarray, vectors: np.ndarray, ends: Ends) -> np.ndarray:
    group = torch.from_numpy(values)[None], torch.from_numpy(vectors)[None]
    return canonical_columns([group], [ends])[0][1][0].numpy()


@pytest.fixture(scope="module")
def solved() -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(Laplacian, eigenvalues, eigenvectors) of the thousand graphs by torch."""
    laplacians = [plain_laplacian(g) for g in thousand_graphs()]
    return [(m, *(t.numpy() for t in torch.linalg.eigh(torch.from_numpy(m)))) for m in laplacians]


@pytest.mark.parametrize("both_ends", [False, True])
def test_the_same_basis_from_every_solver(
    solved: list[tuple[np.ndarray, np.ndarray, np.ndarray]], both_ends: bool
) -> None:
    for place, (matrix, values, vectors) in enumerate(solved):
        ends = Ends.of(len(matrix), 7, both_ends)
        expected = canonical(values, vectors, ends)
        # Two solvers per graph, in turn, keep the test short; every solver still sees over 400 graphs.
        for name in (list(SOLVERS) * 2)[place % len(SOLVERS) :][:2]:
            other = canonical(*map(np.ascontiguousarray, SOLVERS[name](matrix)), ends)
            np.testing.assert_allclose(other, expected, atol=1e-6, err_msg=f"graph {place}, {name}")


@pytest.mark.slow
def test_the_same_basis_from_any_rotation(solved: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> None:
    rng = np.random.default_rng(0)
    for place, (_, values, vectors) in enumerate(solved):
        n = len(values)
        turned = vectors.copy()
        for space in np.split(np.arange(n), np.flatnonzero(np.diff(values) >= 1e-6) + 1):
            rotation, _ = np.linalg.qr(rng.standard_normal((len(space), len(space))))
            turned[:, space] = vectors[:, space] @ rotation * rng.choice([-1.0, 1.0], len(space))
        ends = Ends(n, 0)
        np.testing.assert_allclose(
            canonical(values, turned, ends), canonical(values, vectors, ends), atol=1e-6, err_msg=f"graph {place}"
        )


def test_extents_chain_small_gaps() -> None:
    values = torch.tensor([[0.0, 0.5, 0.5 + 9e-7, 0.5 + 1.8e-6, 1.0], [0.0, 2e-6, 4e-6, 1.0, 1.0]]).double()
    first, size = eigenspace_extents(values)
    assert first.tolist() == [[0, 1, 1, 1, 4], [0, 1, 2, 3, 3]]
    assert size.tolist() == [[1, 3, 3, 3, 1], [1, 1, 1, 2, 2]]


def test_ties_go_to_the_lowest_index() -> None:
    norms = torch.tensor([[0.5, 0.70005, 0.7001], [0.5, 0.6999, 0.7001]]).double()
    assert first_largest(norms).tolist() == [1, 2]


def test_pivots_by_hand() -> None:
    # The plane spanned by (1, 1, 0)/sqrt 2 and e_2: node 2 has norm 1, nodes 0 and 1 tie after it.
    half = 0.5**0.5
    plane = torch.tensor([[half, 0], [half, 0], [0, -1.0]]).double()
    turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]]).double()
    for basis in (plane, plane @ turn):
        vectors = pivoted_basis(basis[None], 2)[0]
        np.testing.assert_allclose(vectors, [[0, 0, 1], [half, half, 0]], atol=1e-12)


def test_high_cut_takes_the_first_vectors_of_its_eigenspace() -> None:
    values = torch.tensor([[0.0, 1.0, 1.0, 1.0]]).double()
    (chosen,) = canonical_columns([(values, torch.eye(4).double()[None])], [Ends(1, 2)])
    assert chosen[0].tolist() == [[0, 1, 1]]
    assert chosen[1][0].T.tolist() == torch.eye(4)[:3].tolist()
