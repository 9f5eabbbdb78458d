import math
from dataclasses import fields
from typing import get_args

import pytest
import torch
from hypothesis import given

from tests.graphs import graphs, hypergraph, odd_graphs, random_graph
from tokengt import (
    FirstOrderOrfIds,
    Graph,
    GraphBatch,
    IdentifierConfig,
    LaplacianIds,
    NearOrthonormalIds,
    NoIds,
    OrfIds,
    RandomIds,
)
from tokengt.config import kinds_of
from tokengt.draws import GeneratorDraws
from tokengt.models.tokengt.identifiers import (
    IdentifierKind,
    graph_keys,
    identifiers_of_kind,
    identify,
)
from tokengt.models.tokengt.orthogonal import _by_reflections, haar_columns, orthogonal_random_features
from tokengt.ragged import Segments
from tokengt.testing import permute_graph

KINDS = ["orf", "laplacian", "near_orthonormal", "random", "orf_first_order", "random_first_order"]


def nodes_of(batch: GraphBatch, config: IdentifierConfig, **options: object) -> torch.Tensor:
    ids = identify(batch, config, **options)  # type: ignore[arg-type]
    assert ids is not None
    return ids.nodes


@given(graphs(max_nodes=12))
def test_orf_rows_are_orthonormal_when_they_fit(graph: Graph) -> None:
    ids = nodes_of(GraphBatch.collate([graph]), OrfIds(12), training=True)
    eye = torch.eye(graph.num_nodes, dtype=torch.float64)
    assert (ids @ ids.T - eye).abs().max() < 1e-12
    single = ids.float()
    assert (single @ single.T - eye).abs().max() < 2e-6
    assert (ids[:, graph.num_nodes :] == 0).all()


def test_orf_rows_are_unit_and_nearly_orthogonal_when_they_do_not_fit() -> None:
    ids = nodes_of(GraphBatch.collate([random_graph(50, 0)]), OrfIds(16))
    assert torch.allclose(ids.norm(dim=1), torch.ones(50, dtype=torch.float64))
    gram = (ids @ ids.T).fill_diagonal_(0)
    assert gram.abs().mean() < 1.5 / math.sqrt(16)


def fresh(rows: Segments, dim: int, way: str, seed: int = 1) -> torch.Tensor:
    """ORF from a generator: by QR, as a CPU has them, or by reflections, as a GPU has them."""
    draws = GeneratorDraws(torch.Generator().manual_seed(seed), torch.device("cpu"))
    if way == "qr":
        return orthogonal_random_features(rows, dim, draws)
    out = torch.zeros(rows.total, dim, dtype=torch.float64)
    _by_reflections(draws.normal(rows, dim, columns=min(dim, rows.max_length)), rows, out)
    return out


@pytest.mark.parametrize("way", ["qr", "reflections"])
def test_orf_is_haar(way: str) -> None:
    """Moments of Haar orthogonal matrices: E q = 0, E q^2 = 1/n, E q^4 = 3/(n(n+2)), rows and columns alike,
    E (Q_00 Q_11 Q_01 Q_10) = -1/((n-1) n (n+2)), E (Q_00^2 Q_11^2) = (n+1)/((n-1) n (n+2)), E tr Q = 0, E (tr Q)^2 = 1,
    and both determinants equally often. A QR without sign fix has E Q_00 = -0.29 at n = 8."""
    n, count = 8, 40_000
    q = fresh(Segments.uniform(count, n), n, way).view(count, n, n)
    error = 5 / math.sqrt(count)
    assert q.mean(0).abs().max() < error * n**-0.5
    assert ((q**2).mean(0) - 1 / n).abs().max() < error * math.sqrt(2) / n
    # q^4 has a standard deviation of 0.08 here, its mean over an entry's 40,000 draws one of 4e-4.
    assert ((q**4).mean(0) - 3 / (n * (n + 2))).abs().max() < 2e-3
    assert abs(float((q**4).mean()) - 3 / (n * (n + 2))) < 2e-4
    for i, j in ((0, 1), (0, 7), (6, 7), (3, 4)):
        cross = (q[:, i, i] * q[:, j, j] * q[:, i, j] * q[:, j, i]).mean()
        assert abs(float(cross) + 1 / ((n - 1) * n * (n + 2))) < 3e-4
        squares = (q[:, i, i].square() * q[:, j, j].square()).mean()
        assert abs(float(squares) - (n + 1) / ((n - 1) * n * (n + 2))) < 8e-4
    trace = q.diagonal(dim1=1, dim2=2).sum(1)
    assert abs(float(trace.mean())) < error
    assert abs(float(trace.square().mean()) - 1) < error * math.sqrt(2)
    assert abs(float(torch.linalg.det(q).mean())) < error


@pytest.mark.parametrize("way", ["qr", "reflections"])
def test_truncated_orf_is_a_channel_sample_of_haar(way: str) -> None:
    """d of n channels, before rows are normalised, have E q^2 = 1/n; after, unit rows: E q^2 = 1/d."""
    count, n, d = 20_000, 6, 3
    q = fresh(Segments.uniform(count, n), d, way).view(count, n, d)
    assert q.mean(0).abs().max() < 0.02
    assert ((q**2).mean(0) - 1 / d).abs().max() < 0.01


@pytest.mark.parametrize("dim", [1, 5, 16, 24, 40])
def test_reflections_of_many_sizes(dim: int) -> None:
    """Sizes around those that share a batch, empty graphs and single nodes: orthonormal, or unit rows; exact zeros."""
    lengths = [0, 1, 16, 17, 5, 0, 33, 2, 15, 40, 1, 32]
    ids = fresh(Segments.from_lengths(torch.tensor(lengths)), dim, "reflections")
    for length, part in zip(lengths, ids.split(lengths), strict=True):
        assert torch.allclose(part.norm(dim=1), torch.ones(length, dtype=torch.float64), atol=1e-12)
        assert (part[:, length:] == 0).all()
        if length <= dim:
            assert torch.allclose(part @ part.T, torch.eye(length, dtype=torch.float64), atol=1e-12)


def test_columns_are_orthonormal_before_rows_are_normalised() -> None:
    """In float32 too; a column of a graph too small for it is zero."""
    for dtype, bound in ((torch.float64, 1e-13), (torch.float32, 5e-6)):
        q = haar_columns(torch.randn(50, 60, 20, dtype=dtype))
        assert (q.mT @ q - torch.eye(20, dtype=dtype)).abs().max() < bound
    short = torch.randn(1, 6, 6, dtype=torch.float64)
    short[:, 4:] = 0
    q = haar_columns(short)[0]
    assert (q[4:] == 0).all()
    assert (q[:, 4:] == 0).all()
    assert torch.allclose(q, torch.nn.functional.pad(haar_columns(short[:, :4, :4])[0], (0, 2, 0, 2)), atol=1e-14)


def test_reflections_by_hand() -> None:
    """x_1 = (3, 4): v = (8, 4), H = [[-3, -4], [-4, 3]] / 5; x_2 = (-2): H_2 = diag(1, -1); signs -1 and 1."""
    q = haar_columns(torch.tensor([[[3.0, 9.0], [4.0, -2.0]]], dtype=torch.float64))[0]
    by_hand = torch.tensor([[0.6, 0.8], [0.8, -0.6]], dtype=torch.float64)
    assert torch.allclose(q, by_hand, atol=1e-15)


def test_near_orthonormal_signs() -> None:
    ids = nodes_of(GraphBatch.collate([random_graph(400, 0)]), NearOrthonormalIds(64))
    assert torch.equal(ids.abs(), torch.full_like(ids, 1 / 8))
    assert abs(float(ids.sign().mean())) < 0.03
    gram = (ids @ ids.T).fill_diagonal_(0)
    assert abs(float(gram.std()) - 1 / 8) < 0.01


def test_random_rows_are_unit_gaussians() -> None:
    ids = nodes_of(GraphBatch.collate([random_graph(2000, 0)]), RandomIds(10))
    assert torch.allclose(ids.norm(dim=1), torch.ones(2000, dtype=torch.float64))
    assert abs(float(ids.mean())) < 0.01


def test_first_order_ids_are_one_per_token() -> None:
    batch = GraphBatch.collate([random_graph(3, 5), hyper_with_edges()])
    for kind in ("orf_first_order", "random_first_order"):
        ids = identify(batch, identifiers_of_kind(kind, 20))
        assert ids is not None
        assert ids.edges is not None
        assert ids.hyperedges is not None
        assert (ids.nodes.shape[0], ids.edges.shape[0], ids.hyperedges.shape[0]) == (5, 6, 1)
    ids = identify(batch, FirstOrderOrfIds(20))
    assert ids is not None
    assert ids.edges is not None
    tokens = torch.cat([ids.nodes[:3], ids.edges[:5]])
    assert (tokens @ tokens.T - torch.eye(8, dtype=torch.float64)).abs().max() < 1e-12


def hyper_with_edges() -> Graph:
    base = random_graph(2, 1)
    return Graph(
        base.node_features,
        base.edge_index,
        base.edge_features,
        hyperedge_nodes=torch.tensor([0, 1]),
        hyperedge_offsets=torch.tensor([0, 2]),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_ids_do_not_know_their_neighbours(kind: str) -> None:
    members = odd_graphs()
    config = identifiers_of_kind(kind, 7)  # type: ignore[arg-type]
    together = nodes_of(GraphBatch.collate(members), config)
    alone = torch.cat([nodes_of(GraphBatch.collate([g]), config) for g in members])
    assert torch.allclose(together, alone, atol=1e-12)
    assert torch.allclose(together, nodes_of(GraphBatch.collate(members), config), atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_draws_and_generators(kind: str) -> None:
    batch, config = GraphBatch.collate(odd_graphs()), identifiers_of_kind(kind, 7)  # type: ignore[arg-type]
    first, second = (nodes_of(batch, config, draw=draw) for draw in (1, 2))
    assert not torch.allclose(first, second)
    one, two, other = (
        nodes_of(batch, config, training=True, generator=torch.Generator().manual_seed(s)) for s in (3, 3, 4)
    )
    assert torch.equal(one, two)
    assert not torch.allclose(one, other)


@given(graphs())
def test_keys_ignore_the_order_edges_are_listed_in(graph: Graph) -> None:
    moved = permute_graph(graph, torch.arange(graph.num_nodes), torch.randperm(graph.num_edges))
    assert torch.equal(graph_keys(GraphBatch.collate([graph])), graph_keys(GraphBatch.collate([moved])))


def test_keys_tell_graphs_apart() -> None:
    pair = torch.tensor([[0], [1]])
    different = [
        Graph(num_nodes=3),
        Graph(num_nodes=4),
        Graph(edge_index=pair, num_nodes=3),
        Graph(edge_index=pair.flip(0), num_nodes=3),
        Graph(edge_index=pair.repeat(1, 2), num_nodes=3),
        Graph(edge_index=torch.tensor([[0], [2]]), num_nodes=3),
        Graph.from_hyperedges([[0, 1]], num_nodes=3),
        Graph.from_hyperedges([[0], [1]], num_nodes=3),
        Graph.from_hyperedges([[0, 1, 2]], num_nodes=3),
    ]
    keys = graph_keys(GraphBatch.collate(different))
    assert len(set(keys.tolist())) == len(different)
    twice = Graph.from_hyperedges([[1, 0]], num_nodes=3)
    assert graph_keys(GraphBatch.collate([twice]))[0] == keys[6]


def test_laplacian_training_flips_and_drops_whole_eigenvectors() -> None:
    batch = GraphBatch.collate([random_graph(9, 40, seed) for seed in range(200)])
    config = LaplacianIds(6, dropout=0.25)
    plain = nodes_of(batch, config)
    moved = nodes_of(batch, config, training=True)
    kept = (moved.view(200, 9, 6).abs().sum(1) > 0).double()
    assert abs(float(kept.mean()) - 0.75) < 0.05
    ratio = (moved * plain).view(200, 9, 6).sum(1) * 0.75
    assert torch.allclose(ratio.abs(), kept, atol=1e-9)
    assert abs(float((ratio > 0).double().sum() / kept.sum()) - 0.5) < 0.05


@given(graphs(max_nodes=12))
def test_laplacian_rows_can_be_of_unit_length_in_the_mean(graph: Graph) -> None:
    """Columns of length 1 times sqrt(n / d_p); where the basis is complete, rows have length 1 as they are."""
    columns = nodes_of(GraphBatch.collate([graph]), LaplacianIds(4))
    rows = nodes_of(GraphBatch.collate([graph]), LaplacianIds(4, unit="rows"))
    assert torch.allclose(rows, columns * math.sqrt(max(1.0, graph.num_nodes / 4)))
    whole = nodes_of(GraphBatch.collate([graph]), LaplacianIds(max(1, graph.num_nodes), unit="rows"))
    assert torch.allclose(whole.norm(dim=1), torch.ones(graph.num_nodes, dtype=whole.dtype))
    nine = nodes_of(GraphBatch.collate([random_graph(9, 12)]), LaplacianIds(4, unit="rows"))
    assert float(nine.square().sum(1).mean()) == pytest.approx(1.0)


def test_none_gives_nothing() -> None:
    assert identify(GraphBatch.collate([random_graph(3, 2)]), NoIds()) is None


def test_hundred_thousand_nodes() -> None:
    big = Graph(edge_index=torch.randint(0, 100_000, (2, 100_000)), num_nodes=100_000)
    for kind in ("orf", "near_orthonormal", "random"):
        ids = nodes_of(GraphBatch.collate([big]), identifiers_of_kind(kind, 16))  # type: ignore[arg-type]
        assert torch.allclose(ids.norm(dim=1), torch.ones(100_000, dtype=torch.float64))


def test_hypergraph_ids() -> None:
    ids = nodes_of(GraphBatch.collate([hypergraph()]), LaplacianIds(6))
    assert (ids.T @ ids - torch.eye(6, dtype=torch.float64)).abs().max() < 1e-10


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"dim": 0}, "at least 1"), ({"dropout": 1.0}, "below 1")],
)
def test_bad_config(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        LaplacianIds(**options)  # type: ignore[arg-type]


def test_a_kind_has_only_the_fields_that_do_something() -> None:
    """One class per kind: a user cannot set Laplacian fields of random identifiers and believe that they act."""
    for kind, cls in kinds_of(IdentifierConfig).items():
        names = [each.name for each in fields(cls)]
        expected = {"laplacian": ["kind", "dim", "which", "sign_flip", "dropout", "unit"], "none": ["kind"]}
        assert names == expected.get(kind, ["kind", "dim"])
        assert identifiers_of_kind(kind, 5).kind == kind  # type: ignore[arg-type]
    assert set(kinds_of(IdentifierConfig)) == set(get_args(IdentifierKind))
    with pytest.raises(TypeError, match="kind"):
        OrfIds(kind="laplacian")  # type: ignore[call-arg]


def test_every_kind_refuses_to_have_no_columns() -> None:
    for kind, cls in kinds_of(IdentifierConfig).items():
        if kind != "none":
            with pytest.raises(ValueError, match="identifier dim is 0; expected at least 1"):
                cls(0)
    assert NoIds().dim == 0
