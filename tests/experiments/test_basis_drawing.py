"""Identifiers drawn for many graphs at once have the production ones' distribution."""

import math
from dataclasses import replace

import pytest
import torch

from tests.experiments.small_basis import SMALL
from tokengt import LaplacianIds, NoIds, OrfIds
from tokengt.data.synthetic import complete_graphs
from tokengt.experiments.basis.drawing import FreshIdentifiers, evaluation_identifiers, orthonormal_rows
from tokengt.experiments.basis.graphs import basis_graphs
from tokengt.models.tokengt.identifiers import identifiers_of_kind, identify

GRAPHS = basis_graphs(SMALL, "sparse", 0).train


def source(kind: str, dim: int, *, sign_flip: bool = True) -> FreshIdentifiers:
    config = identifiers_of_kind(kind, dim)  # type: ignore[arg-type]
    config = replace(config, sign_flip=sign_flip) if isinstance(config, LaplacianIds) else config
    return FreshIdentifiers.of(GRAPHS, config, torch.Generator().manual_seed(0))


def test_gram_schmidt_is_the_q_factor_of_the_transpose() -> None:
    gaussian = torch.randn(50, 6, 6, dtype=torch.float64)
    q, r = torch.linalg.qr(gaussian.mT)
    expected = (q * r.diagonal(dim1=1, dim2=2).sign()[:, None]).mT
    torch.testing.assert_close(orthonormal_rows(gaussian), expected)


def test_gram_schmidt_is_orthonormal_in_float32_when_rows_nearly_agree() -> None:
    rows = torch.ones(20, 5, 8) + 1e-3 * torch.randn(20, 5, 8)
    out = orthonormal_rows(rows)
    torch.testing.assert_close(out @ out.mT, torch.eye(5).expand(20, 5, 5), atol=2e-6, rtol=0)
    assert torch.equal(orthonormal_rows(torch.zeros(2, 3, 4)), torch.zeros(2, 3, 4))


def test_orf_is_haar_for_every_size() -> None:
    graphs = torch.arange(len(GRAPHS)).repeat(200)
    ids = source("orf", 7).draw(graphs)
    assert ids is not None
    for size in (4, 5):
        mine = ids[GRAPHS.nodes.host_lengths[graphs] == size]
        own = mine[:, :size, :size]
        torch.testing.assert_close(own @ own.mT, torch.eye(size).expand(len(own), -1, -1), atol=2e-6, rtol=0)
        assert not mine[:, :, size:].any()
        # First and second moments of Haar entries: 0 and 1/n; bare QR would have a mean of its own.
        deviation = 1 / math.sqrt(size * len(own))
        assert own.mean(0).abs().max() < 5 * deviation
        torch.testing.assert_close(own.square().mean(0), torch.full((size, size), 1 / size), atol=0.01, rtol=0)


def test_a_repeated_graph_draws_anew() -> None:
    ids = source("orf", 7).draw(torch.tensor([3, 3]))
    assert ids is not None
    assert not torch.allclose(ids[0], ids[1])


def test_random_rows_have_unit_length() -> None:
    ids = source("random", 6).draw(torch.arange(8))
    assert ids is not None
    torch.testing.assert_close(ids.norm(dim=2), torch.ones(8, 5))


def test_laplacian_vectors_flip_whole_columns_or_not_at_all() -> None:
    chosen = torch.arange(len(GRAPHS))
    plain = evaluation_identifiers(GRAPHS, LaplacianIds(20), 0)
    assert plain is not None
    still = source("laplacian", 20, sign_flip=False).draw(chosen)
    assert still is not None
    assert torch.equal(still, plain)
    flipped = source("laplacian", 20).draw(chosen)
    assert flipped is not None
    assert torch.equal(flipped.abs(), plain.abs())
    agree = (flipped == plain).all(1)
    assert torch.equal(agree | (flipped == -plain).all(1), torch.ones_like(agree))
    assert 0.3 < agree[plain.any(1)].float().mean() < 0.7


def test_first_order_rows_are_orthonormal_and_each_graphs_own() -> None:
    tokens = int((GRAPHS.nodes.host_lengths + GRAPHS.edges.host_lengths).max())
    ids = source("orf_first_order", 32).draw(torch.tensor([0, 1]))
    assert ids is not None
    assert ids.shape == (2, tokens, 32)
    torch.testing.assert_close(ids @ ids.mT, torch.eye(tokens).expand(2, -1, -1), atol=1e-5, rtol=0)
    assert not torch.equal(ids[0], ids[1])
    random = source("random_first_order", 32).draw(torch.tensor([0]))
    assert random is not None
    assert random.shape == (1, tokens, 32)


def test_no_identifiers_draw_nothing() -> None:
    assert source("none", 1).draw(torch.tensor([0])) is None
    assert evaluation_identifiers(GRAPHS, NoIds(), 0) is None


def test_too_many_nodes_for_orthonormal_rows_are_named() -> None:
    with pytest.raises(ValueError, match="a graph has 5 nodes"):
        source("orf", 4)


def test_evaluation_identifiers_are_the_production_ones() -> None:
    config = OrfIds(6)
    ids = evaluation_identifiers(GRAPHS, config, 9)
    expected = identify(GRAPHS, config, generator=torch.Generator().manual_seed(9))
    assert ids is not None
    assert expected is not None
    first = int(GRAPHS.nodes.host_lengths[0])
    assert torch.equal(ids[0, :first], expected.nodes[:first].float())
    again = evaluation_identifiers(GRAPHS, config, 9)
    assert again is not None
    assert torch.equal(ids, again)


def test_complete_graphs_of_one_size_have_identifiers_of_their_own() -> None:
    """By their keys they are one graph, and a test set would be a handful of draws."""
    pair = complete_graphs(GRAPHS.select([0, 0]))
    ids = evaluation_identifiers(pair, OrfIds(6), 0)
    assert ids is not None
    assert not torch.equal(ids[0], ids[1])


def test_dense_input_keeps_the_eigenvectors_of_the_graph() -> None:
    sparse = basis_graphs(SMALL, "sparse", 0)
    graphs = basis_graphs(SMALL, "dense", 0)
    config = LaplacianIds(20)
    ids = evaluation_identifiers(graphs.train, config, 0)
    assert ids is not None
    assert graphs.train.num_edges == 64 * 12
    # A complete graph's eigenvectors would be the same for all 64.
    assert len(torch.unique(ids.flatten(1).round(decimals=4), dim=0)) > 5
    assert sparse.statistics["edges"] < 20
