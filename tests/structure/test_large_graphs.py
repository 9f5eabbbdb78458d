import numpy as np
import pytest
import torch

from tests.structure.graph_families import complete, cycle, grid, hypercube, path, random_graph, relabelled, star, union
from tokengt.batch import GraphBatch
from tokengt.graph import Graph
from tokengt.structure import components, lanczos
from tokengt.structure.components import _sparse_laplacian
from tokengt.structure.laplacian import LaplacianSpectrum, Which, laplacian_eigenvectors, spectrum_with_limit

SMALL = {
    "path": path(60),
    "cycle": cycle(64),
    "star": star(50),
    "complete": complete(45),
    "hypercube": hypercube(6),
    "grid": grid(8, 8),
    "random": random_graph(80, 3, 0),
    "sparse random": random_graph(90, 1.5, 1),
    "cycles": union(cycle(40), cycle(40), cycle(40)),
    "many parts": relabelled(union(*[path(n) for n in (1, 1, 2, 2, 5, 9, 40)], star(41), cycle(40)), 3),
    "isolated": Graph(num_nodes=50),
}


def residual(graph: Graph, spectrum: LaplacianSpectrum) -> float:
    """The largest of |Delta v - lambda v| and of |V^T V - I|."""
    vectors, values = spectrum.vectors.numpy(), spectrum.values[0].numpy()
    delta = _sparse_laplacian(graph.edge_index, graph.num_nodes)
    gram = vectors.T @ vectors - np.eye(vectors.shape[1])
    return max(float(np.abs(delta @ vectors - vectors * values).max()), float(np.abs(gram).max()))


@pytest.mark.parametrize("which", ["lowest", "both_ends"])
@pytest.mark.parametrize("name", SMALL)
def test_sparse_path_agrees_with_dense(name: str, which: Which) -> None:
    batch = GraphBatch.collate([SMALL[name]])
    for count in (1, 5, 8):
        dense = spectrum_with_limit(batch, count, which, dense_limit=1000)
        sparse = spectrum_with_limit(batch, count, which, dense_limit=8)
        np.testing.assert_allclose(sparse.values, dense.values, atol=1e-10)
        np.testing.assert_allclose(sparse.vectors, dense.vectors, atol=1e-6)


@pytest.mark.parametrize("factor", [0.0, float("inf")])
def test_multiplication_and_factorisation_agree(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanczos, "_CHEAP_FACTOR", factor)
    for graph in (random_graph(150, 4, 2), hypercube(7), union(cycle(70), cycle(70))):
        batch = GraphBatch.collate([graph])
        for which in ("lowest", "both_ends"):
            dense = spectrum_with_limit(batch, 6, which, dense_limit=1000)
            sparse = spectrum_with_limit(batch, 6, which, dense_limit=8)
            np.testing.assert_allclose(sparse.vectors, dense.vectors, atol=1e-6)


def test_large_and_small_graphs_share_a_batch() -> None:
    batch = GraphBatch.collate([path(5), random_graph(60, 4, 0), star(4)])
    dense, mixed = (spectrum_with_limit(batch, 6, "lowest", limit) for limit in (1000, 8))
    np.testing.assert_allclose(mixed.vectors, dense.vectors, atol=1e-6)
    np.testing.assert_allclose(mixed.values, dense.values, atol=1e-10)


def test_lanczos_falls_back_to_factorisation(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = path(600)
    batch = GraphBatch.collate([graph])
    dense = laplacian_eigenvectors(batch, 4)
    monkeypatch.setattr(lanczos, "_CHEAP_FACTOR", 0.0)
    monkeypatch.setattr(lanczos, "_RESTARTS", 3)
    sparse = spectrum_with_limit(batch, 4, "lowest", dense_limit=8)
    np.testing.assert_allclose(sparse.vectors, dense.vectors, atol=1e-6)


def test_lanczos_that_does_not_converge_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanczos, "_AFFORDABLE_FACTOR", 0.0)
    monkeypatch.setattr(lanczos, "_RESTARTS", 2)
    monkeypatch.setattr(components, "_DENSE_FALLBACK", 0)
    batch = GraphBatch.collate([path(600)])
    with pytest.warns(UserWarning, match=r"ended with a residual of 0\.0\d+.*another machine may return others"):
        spectrum = spectrum_with_limit(batch, 4, "lowest", dense_limit=8)
    np.testing.assert_allclose(spectrum.vectors.T @ spectrum.vectors, np.eye(4), atol=1e-9)


@pytest.mark.parametrize("which", ["lowest", "both_ends"])
def test_isolated_nodes_give_unit_vectors(which: Which) -> None:
    spectrum = laplacian_eigenvectors(GraphBatch.collate([Graph(num_nodes=100_000)]), 16, which)
    assert torch.equal(spectrum.vectors[:16], torch.eye(16, dtype=torch.float64))
    assert not spectrum.vectors[16:].any()
    assert spectrum.values.tolist() == [[1.0] * 16]


def test_long_chain_gives_cosines() -> None:
    n = 2001
    spectrum = laplacian_eigenvectors(GraphBatch.collate([path(n)]), 10)
    k, i = np.meshgrid(np.arange(10), np.arange(n))
    waves = np.where((i == 0) | (i == n - 1), 1.0, np.sqrt(2.0)) * np.cos(np.pi * k * i / (n - 1))
    waves /= np.linalg.norm(waves, axis=0)
    overlap = np.abs((waves * spectrum.vectors.numpy()).sum(0))
    np.testing.assert_allclose(overlap, 1.0, atol=1e-6)
    np.testing.assert_allclose(spectrum.values[0], 1 - np.cos(np.pi * np.arange(10) / (n - 1)), atol=1e-10)


@pytest.mark.parametrize("which", ["lowest", "both_ends"])
def test_large_sparse_random_graph(which: Which) -> None:
    graph = random_graph(20_000, 8, 0)
    spectrum = laplacian_eigenvectors(GraphBatch.collate([graph]), 16, which)
    assert residual(graph, spectrum) < 1e-8
    assert spectrum.values[0, 0].abs() < 1e-10
    assert (spectrum.values.diff() >= -1e-10).all()


def test_large_torus_has_its_repeated_eigenvalues() -> None:
    side = 40
    place = torch.arange(side * side).view(side, side)
    index = torch.cat([torch.stack([place, place.roll(1, axis)]).flatten(1) for axis in (0, 1)], 1)
    graph = Graph(edge_index=index, num_nodes=side * side)
    waves = np.cos(2 * np.pi * np.arange(side) / side)
    expected = np.sort(1 - (waves[:, None] + waves[None]) / 2, axis=None)
    # Multiplicities 1, 4, 4, 4: the cut at 10 falls inside the third of them.
    spectrum = laplacian_eigenvectors(GraphBatch.collate([graph]), 10)
    np.testing.assert_allclose(spectrum.values[0], expected[:10], atol=1e-10)
    assert residual(graph, spectrum) < 1e-8


def test_a_large_eigenspace_of_a_moderate_graph_is_computed_whole() -> None:
    batch = GraphBatch.collate([star(1100)])
    dense, sparse = (spectrum_with_limit(batch, 6, "lowest", limit) for limit in (5000, 1000))
    np.testing.assert_allclose(sparse.vectors, dense.vectors, atol=1e-8)


def test_an_eigenspace_too_large_to_compute_whole_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "_DENSE_FALLBACK", 0)
    graph = star(3000)
    with pytest.warns(UserWarning, match=r"graph 0 \(3000 nodes\).*too many eigenvalues") as caught:
        spectrum = laplacian_eigenvectors(GraphBatch.collate([graph]), 6)
    assert len(caught) == 1
    np.testing.assert_allclose(spectrum.values[0], [0, 1, 1, 1, 1, 1], atol=1e-10)
    assert residual(graph, spectrum) < 1e-8


@pytest.mark.parametrize("which", ["lowest", "both_ends"])
def test_a_zero_eigenvalue_does_not_drown_the_others(which: Which) -> None:
    """The inverse has the eigenvalue 1e8 for it: the rest would never seem converged, and nobody would be told why."""
    for graph in (random_graph(1200, 6, 1), grid(40, 30)):
        batch = GraphBatch.collate([graph])
        dense, sparse = (spectrum_with_limit(batch, 16, which, limit) for limit in (5000, 1000))
        np.testing.assert_allclose(sparse.values, dense.values, atol=1e-12)
        np.testing.assert_allclose(sparse.vectors, dense.vectors, atol=1e-8)
