import math

import pytest
import torch
from hypothesis import given

from tests.graphs import graphs, hypergraph, odd_graphs, random_graph
from tokengt import Graph, GraphBatch, IdentifierConfig
from tokengt.draws import GeneratorDraws
from tokengt.identifiers import graph_keys, identify, orthogonal_random_features
from tokengt.ragged import Segments
from tokengt.testing import permute_graph

KINDS = ["orf", "laplacian", "near_orthonormal", "random", "orf_first_order", "random_first_order"]


def nodes_of(batch: GraphBatch, config: IdentifierConfig, **options: object) -> torch.Tensor:
    found = identify(batch, config, **options)  # type: ignore[arg-type]
    assert found is not None
    return found.nodes


@given(graphs(max_nodes=12))
def test_orf_rows_are_orthonormal_when_they_fit(graph: Graph) -> None:
    ids = nodes_of(GraphBatch.collate([graph]), IdentifierConfig("orf", 12), training=True)
    eye = torch.eye(graph.num_nodes, dtype=torch.float64)
    assert (ids @ ids.T - eye).abs().max() < 1e-12
    single = ids.float()
    assert (single @ single.T - eye).abs().max() < 2e-6
    assert (ids[:, graph.num_nodes :] == 0).all()


def test_orf_rows_are_unit_and_nearly_orthogonal_when_they_do_not_fit() -> None:
    ids = nodes_of(GraphBatch.collate([random_graph(50, 0)]), IdentifierConfig("orf", 16))
    assert torch.allclose(ids.norm(dim=1), torch.ones(50, dtype=torch.float64))
    gram = (ids @ ids.T).fill_diagonal_(0)
    assert gram.abs().mean() < 1.5 / math.sqrt(16)


def test_orf_is_haar() -> None:
    """Moments of Haar orthogonal matrices: E q = 0, E q^2 = 1/n, E q^4 = 3/(n(n+2)), rows and columns alike, and
    E (Q_00 Q_11 Q_01 Q_10) = -1/((n-1) n (n+2)). A QR without sign fix has E Q_00 = -0.29 at n = 8."""
    n, count = 8, 40_000
    rows = Segments.uniform(count, n)
    draws = GeneratorDraws(torch.Generator().manual_seed(1), torch.device("cpu"))
    q = orthogonal_random_features(rows, n, draws).view(count, n, n)
    error = 5 / math.sqrt(count)
    assert q.mean(0).abs().max() < error * n**-0.5
    assert ((q**2).mean(0) - 1 / n).abs().max() < error * math.sqrt(2) / n
    assert abs(float((q**4).mean()) - 3 / (n * (n + 2))) < 2e-4
    cross = (q[:, 0, 0] * q[:, 1, 1] * q[:, 0, 1] * q[:, 1, 0]).mean()
    assert abs(float(cross) + 1 / ((n - 1) * n * (n + 2))) < 2e-4


def test_truncated_orf_is_a_channel_sample_of_haar() -> None:
    """d of n channels, before rows are normalised, have E q^2 = 1/n; after, unit rows: E q^2 = 1/d."""
    count, n, d = 20_000, 6, 3
    draws = GeneratorDraws(torch.Generator().manual_seed(2), torch.device("cpu"))
    q = orthogonal_random_features(Segments.uniform(count, n), d, draws).view(count, n, d)
    assert q.mean(0).abs().max() < 0.02
    assert ((q**2).mean(0) - 1 / d).abs().max() < 0.01


def test_near_orthonormal_signs() -> None:
    ids = nodes_of(GraphBatch.collate([random_graph(400, 0)]), IdentifierConfig("near_orthonormal", 64))
    assert torch.equal(ids.abs(), torch.full_like(ids, 1 / 8))
    assert abs(float(ids.sign().mean())) < 0.03
    gram = (ids @ ids.T).fill_diagonal_(0)
    assert abs(float(gram.std()) - 1 / 8) < 0.01


def test_random_rows_are_unit_gaussians() -> None:
    ids = nodes_of(GraphBatch.collate([random_graph(2000, 0)]), IdentifierConfig("random", 10))
    assert torch.allclose(ids.norm(dim=1), torch.ones(2000, dtype=torch.float64))
    assert abs(float(ids.mean())) < 0.01


def test_first_order_ids_are_one_a_token() -> None:
    batch = GraphBatch.collate([random_graph(3, 5), hyper_with_edges()])
    for kind in ("orf_first_order", "random_first_order"):
        found = identify(batch, IdentifierConfig(kind, 20))
        assert found is not None
        assert found.edges is not None
        assert found.hyperedges is not None
        assert (found.nodes.shape[0], found.edges.shape[0], found.hyperedges.shape[0]) == (5, 6, 1)
    found = identify(batch, IdentifierConfig("orf_first_order", 20))
    assert found is not None
    assert found.edges is not None
    tokens = torch.cat([found.nodes[:3], found.edges[:5]])
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
    config = IdentifierConfig(kind, 7)  # type: ignore[arg-type]
    together = nodes_of(GraphBatch.collate(members), config)
    alone = torch.cat([nodes_of(GraphBatch.collate([g]), config) for g in members])
    assert torch.allclose(together, alone, atol=1e-12)
    assert torch.allclose(together, nodes_of(GraphBatch.collate(members), config), atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_draws_and_generators(kind: str) -> None:
    batch, config = GraphBatch.collate(odd_graphs()), IdentifierConfig(kind, 7)  # type: ignore[arg-type]
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
    config = IdentifierConfig("laplacian", 6, dropout=0.25)
    plain = nodes_of(batch, config)
    moved = nodes_of(batch, config, training=True)
    kept = (moved.view(200, 9, 6).abs().sum(1) > 0).double()
    assert abs(float(kept.mean()) - 0.75) < 0.05
    ratio = (moved * plain).view(200, 9, 6).sum(1) * 0.75
    assert torch.allclose(ratio.abs(), kept, atol=1e-9)
    assert abs(float((ratio > 0).double().sum() / kept.sum()) - 0.5) < 0.05


def test_none_gives_nothing() -> None:
    assert identify(GraphBatch.collate([random_graph(3, 2)]), IdentifierConfig("none")) is None


def test_hundred_thousand_nodes() -> None:
    big = Graph(edge_index=torch.randint(0, 100_000, (2, 100_000)), num_nodes=100_000)
    for kind in ("orf", "near_orthonormal", "random"):
        ids = nodes_of(GraphBatch.collate([big]), IdentifierConfig(kind, 16))  # type: ignore[arg-type]
        assert torch.allclose(ids.norm(dim=1), torch.ones(100_000, dtype=torch.float64))


def test_hypergraph_ids() -> None:
    ids = nodes_of(GraphBatch.collate([hypergraph()]), IdentifierConfig("laplacian", 6))
    assert (ids.T @ ids - torch.eye(6, dtype=torch.float64)).abs().max() < 1e-10


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"dim": 0}, "at least 1"), ({"dropout": 1.0}, "below 1")],
)
def test_bad_config(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        IdentifierConfig(**options)  # type: ignore[arg-type]
