import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.structure.graph_families import (
    cycle,
    graph_of,
    path,
    plain_laplacian,
    random_graph,
    star,
    thousand_graphs,
    union,
)
from tokengt.batch import GraphBatch
from tokengt.graph import Graph
from tokengt.structure.adjacency import adjacency_pairs
from tokengt.structure.dense import eigh_by_size
from tokengt.structure.laplacian import laplacian_eigenvectors, spectrum_with_limit


def spectrum_of(graph: Graph, count: int, which: str = "lowest") -> tuple[np.ndarray, np.ndarray]:
    spectrum = laplacian_eigenvectors(GraphBatch.collate([graph]), count, which)
    return spectrum.values[0].numpy(), spectrum.vectors.numpy()


def laplacian_of(graph: Graph) -> np.ndarray:
    """Delta back from all its eigenpairs."""
    values, vectors = spectrum_of(graph, graph.num_nodes)
    return vectors * values @ vectors.T


@pytest.mark.parametrize("n", [2, 3, 5, 12, 40])
def test_chain_graph_gives_cosines(n: int) -> None:
    values, vectors = spectrum_of(path(n), n)
    k, i = np.meshgrid(np.arange(n), np.arange(n))
    degree = np.where((i == 0) | (i == n - 1), 1.0, 2.0)
    waves = np.sqrt(degree) * np.cos(np.pi * k * i / (n - 1))
    waves /= np.linalg.norm(waves, axis=0)
    np.testing.assert_allclose(values, 1 - np.cos(np.pi * np.arange(n) / (n - 1)), atol=1e-12)
    # The canonical sign: positive at the first node within 1e-4 of the largest entry.
    pivot = np.argmax(np.abs(waves) >= np.abs(waves).max(0) - 1e-4, axis=0)
    np.testing.assert_allclose(vectors, waves * np.sign(waves[pivot, np.arange(n)]), atol=1e-10)


def test_triangle_by_hand() -> None:
    values, vectors = spectrum_of(cycle(3), 3)
    np.testing.assert_allclose(values, [0, 1.5, 1.5], atol=1e-12)
    # Projector of 3/2 is I - J/3: its first column is (2, -1, -1)/3, what is left of its second (0, 1, -1)/2.
    expected = np.array([[1, 1, 1], [2, -1, -1], [0, 1, -1]]).T / np.sqrt([3, 6, 2])
    np.testing.assert_allclose(vectors, expected, atol=1e-12)


def test_directed_repeated_and_reverse_edges_count_once() -> None:
    expected = plain_laplacian(path(3))
    for edges in ([(0, 1), (2, 1)], [(1, 0), (0, 1), (1, 2)], [(0, 1)] * 3 + [(1, 2)]):
        np.testing.assert_allclose(laplacian_of(graph_of(edges, 3)), expected, atol=1e-12)


def test_self_loop_sets_the_diagonal_and_counts_once() -> None:
    # Degrees 2 and 1: Delta = [[1 - 1/2, -1/sqrt 2], [-1/sqrt 2, 1]].
    half = np.sqrt(0.5)
    expected = [[0.5, -half], [-half, 1.0]]
    np.testing.assert_allclose(laplacian_of(graph_of([(0, 0), (0, 1), (0, 0)], 2)), expected, atol=1e-12)
    np.testing.assert_allclose(laplacian_of(graph_of([(0, 0)], 1)), [[0.0]], atol=1e-12)


def test_hyperedges_and_tuples_are_cliques_without_a_diagonal() -> None:
    expected = laplacian_of(graph_of([(0, 1), (0, 2), (1, 2), (2, 3)], 5))
    sets = Graph.from_hyperedges([[0, 1, 2], [3, 2], [4]], num_nodes=5)
    np.testing.assert_allclose(laplacian_of(sets), expected, atol=1e-12)
    tuples = Graph(edge_index=torch.tensor([[2, 3, 4], [0, 2, 4], [1, 2, 4]]), num_nodes=5)
    np.testing.assert_allclose(laplacian_of(tuples), expected, atol=1e-12)
    both = Graph(
        edge_index=torch.tensor([[0, 2], [1, 3]]),
        num_nodes=5,
        hyperedge_nodes=torch.tensor([1, 0, 2]),
        hyperedge_offsets=torch.tensor([0, 3]),
    )
    np.testing.assert_allclose(laplacian_of(both), expected, atol=1e-12)


def test_hyperedge_pairs_are_all_pairs_of_each_set() -> None:
    first = Graph.from_hyperedges([[0, 1, 2], [2, 3]], num_nodes=4)
    second = Graph.from_hyperedges([[1], [0, 2]], num_nodes=3)
    pairs = adjacency_pairs(GraphBatch.collate([first, second])).T.tolist()
    assert sorted(map(tuple, pairs)) == [(0, 1), (0, 2), (1, 2), (2, 3), (4, 6)]


def test_clique_expansion_that_is_too_large_names_the_culprit() -> None:
    small = Graph.from_hyperedges([[0, 1]], num_nodes=6)
    large = Graph.from_hyperedges([[0, 1], [0, 1, 2, 3, 4]], num_nodes=6)
    with pytest.raises(ValueError, match=r"graph 1, hyperedge 1 .*12 pairs.*identifiers"):
        adjacency_pairs(GraphBatch.collate([small, large]), max_pairs=10)
    tuples = Graph(edge_index=torch.zeros(3, 4, dtype=torch.int64), num_nodes=1)
    with pytest.raises(ValueError, match=r"graph 0: its 4 3-tuples.*identifiers"):
        adjacency_pairs(GraphBatch.collate([tuples]), max_pairs=10)


def test_one_node_and_no_edges() -> None:
    values, vectors = spectrum_of(Graph(num_nodes=1), 3)
    assert (values.tolist(), vectors.tolist()) == ([1, 0, 0], [[1, 0, 0]])
    values, vectors = spectrum_of(Graph(num_nodes=4), 3)
    np.testing.assert_array_equal(values, [1, 1, 1])
    np.testing.assert_array_equal(vectors, np.eye(4)[:, :3])


def test_disconnected_graph_has_one_null_vector_a_component() -> None:
    values, vectors = spectrum_of(union(path(2), star(4), Graph(num_nodes=1)), 7)
    np.testing.assert_allclose(values, [0, 0, 1, 1, 1, 2, 2], atol=1e-12)
    half, sixth = np.sqrt(0.5), np.sqrt(1 / 6)
    # Largest entry of the two null projectors' diagonals is 1/2 at node 0, then at the star's centre.
    np.testing.assert_allclose(vectors[:, 0], [half, half, 0, 0, 0, 0, 0], atol=1e-12)
    np.testing.assert_allclose(vectors[:, 1], [0, 0, half, sixth, sixth, sixth, 0], atol=1e-12)
    np.testing.assert_allclose(vectors[:, 2], [0, 0, 0, 0, 0, 0, 1], atol=1e-12)


def test_both_ends_are_the_lowest_and_the_highest() -> None:
    every = np.linalg.eigvalsh(plain_laplacian(path(9)))
    values, vectors = spectrum_of(path(9), 5, "both_ends")
    np.testing.assert_allclose(values, np.concatenate([every[:2], every[-3:]]), atol=1e-12)
    np.testing.assert_allclose(vectors, spectrum_of(path(9), 9)[1][:, [0, 1, 6, 7, 8]], atol=1e-12)
    # Both cuts fall into the one eigenspace: the high end takes the vectors after the low end's.
    np.testing.assert_array_equal(spectrum_of(Graph(num_nodes=9), 5, "both_ends")[1], np.eye(9)[:, :5])
    # With n <= count there is no cut: everything ascends.
    np.testing.assert_allclose(spectrum_of(path(4), 6, "both_ends")[0], [0, 0.5, 1.5, 2, 0, 0], atol=1e-12)


def test_thousand_graphs_against_scipy() -> None:
    graphs = thousand_graphs()
    assert len(graphs) == 1040
    batch = GraphBatch.collate(graphs)
    spectrum = laplacian_eigenvectors(batch, 32)
    for place, (graph, rows) in enumerate(
        zip(graphs, spectrum.vectors.split(batch.nodes.lengths.tolist()), strict=True)
    ):
        n, delta = graph.num_nodes, plain_laplacian(graph)
        values, vectors = spectrum.values[place].numpy(), rows.numpy()
        assert spectrum.counts[place] == n
        assert not values[n:].any()
        assert not vectors[:, n:].any()
        values, vectors = values[:n], vectors[:, :n]
        expected, basis = scipy.linalg.eigh(delta)
        np.testing.assert_allclose(values, expected, atol=1e-10)
        np.testing.assert_allclose(delta @ vectors, vectors * values, atol=1e-5)
        np.testing.assert_allclose(vectors.T @ vectors, np.eye(n), atol=1e-9)
        for space in np.split(np.arange(n), np.flatnonzero(np.diff(expected) >= 1e-6) + 1):
            ours, scipys = vectors[:, space], basis[:, space]
            np.testing.assert_allclose(ours @ ours.T, scipys @ scipys.T, atol=1e-7)


@pytest.mark.parametrize("which", ["lowest", "both_ends"])
def test_a_batch_equals_its_graphs_one_at_a_time(which: str) -> None:
    graphs = thousand_graphs()[::13]
    batch = GraphBatch.collate(graphs)
    spectrum = laplacian_eigenvectors(batch, 6, which)
    for place, graph in enumerate(graphs):
        start, stop = batch.nodes.host[place : place + 2].tolist()
        values, vectors = spectrum_of(graph, 6, which)
        np.testing.assert_allclose(spectrum.values[place], values, atol=1e-12)
        np.testing.assert_allclose(spectrum.vectors[start:stop], vectors, atol=1e-9)


@pytest.mark.parametrize("count", [1, 4, 16, 40])
def test_filling_graphs_up_to_one_size_changes_nothing(count: int) -> None:
    # As on a GPU; among them graphs without edges, of exactly the sizes they are filled up to, and larger ones.
    odd = [graph_of([], 1), graph_of([], 5), path(16), cycle(17), star(31), path(32), cycle(40)]
    batch = GraphBatch.collate([*odd, *thousand_graphs()[::9]])
    plain, filled = (spectrum_with_limit(batch, count, "lowest", 1000, filled=filled) for filled in (False, True))
    np.testing.assert_allclose(filled.values, plain.values, atol=1e-12)
    np.testing.assert_allclose(filled.vectors, plain.vectors, atol=1e-9)
    assert filled.counts.equal(plain.counts)


def test_filled_graphs_are_solved_in_a_few_calls() -> None:
    batch = GraphBatch.collate([path(n) for n in (3, 40, 16, 17, 30)])
    (groups,) = eigh_by_size(adjacency_pairs(batch), batch.nodes, torch.arange(5), filled=True)
    assert [(group.members.tolist(), group.values.shape[1]) for group in groups] == [
        ([0, 2], 16),
        ([3, 4], 32),
        ([1], 40),
    ]
    assert groups[0].values[0, 3:].min() > 2
    cut = eigh_by_size(adjacency_pairs(batch), batch.nodes, torch.arange(5), max_entries=300, filled=True)
    alone = [group for chunk in cut for group in chunk]
    assert [group.members.tolist() for group in alone] == [[0], [2], [3], [4], [1]]
    np.testing.assert_allclose(alone[1].values[0], groups[0].values[1], atol=1e-12)


def test_chunks_change_nothing() -> None:
    batch = GraphBatch.collate([random_graph(3 + s % 5, 3, s) for s in range(40)])
    pairs, chosen = adjacency_pairs(batch), torch.arange(1, 39)
    (whole,) = eigh_by_size(pairs, batch.nodes, chosen)
    chunks = list(eigh_by_size(pairs, batch.nodes, chosen, max_entries=60))
    assert len(chunks) > 10
    assert [len(g.members) for g in whole] == [7, 8, 8, 8, 7]
    values_of = {int(m): v for chunk in chunks for g in chunk for m, v in zip(g.members, g.values, strict=True)}
    assert sorted(values_of) == chosen.tolist()
    for group in whole:
        for member, values in zip(group.members.tolist(), group.values, strict=True):
            np.testing.assert_allclose(values_of[member], values, atol=1e-12)


def test_threads_are_left_as_they_were() -> None:
    before = torch.get_num_threads()
    laplacian_eigenvectors(GraphBatch.collate(thousand_graphs()[:400]), 8)
    assert torch.get_num_threads() == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("which", ["lowest", "both_ends"])
def test_gpu_agrees_with_cpu(which: str) -> None:
    batch = GraphBatch.collate([*thousand_graphs(), random_graph(90, 4, 0), random_graph(1200, 6, 1)])
    on_cpu, on_gpu = (laplacian_eigenvectors(b, 8, which) for b in (batch, batch.to("cuda")))
    assert on_gpu.vectors.is_cuda
    np.testing.assert_allclose(on_gpu.vectors.cpu(), on_cpu.vectors, atol=1e-6)
    np.testing.assert_allclose(on_gpu.values.cpu(), on_cpu.values, atol=1e-9)
    assert on_gpu.counts.tolist() == on_cpu.counts.tolist()


def test_bad_arguments_are_named() -> None:
    batch = GraphBatch.collate([path(3)])
    with pytest.raises(ValueError, match="count is 0"):
        laplacian_eigenvectors(batch, 0)


@given(
    st.integers(1, 12).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=30))
    )
)
@settings(max_examples=60, deadline=None)
def test_any_graph_satisfies_the_eigen_equation(drawn: tuple[int, list[tuple[int, int]]]) -> None:
    graph = graph_of(drawn[1], drawn[0])
    np.testing.assert_allclose(laplacian_of(graph), plain_laplacian(graph), atol=1e-9)
    values, vectors = spectrum_of(graph, graph.num_nodes)
    assert (np.diff(values) >= -1e-12).all()
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(len(values)), atol=1e-9)
    reversed_edges = graph_of([(v, u) for u, v in drawn[1][::-1]], drawn[0])
    np.testing.assert_allclose(spectrum_of(reversed_edges, graph.num_nodes)[1], vectors, atol=1e-9)
