"""Equivariance profiles: heads that are a basis tensor by construction, rows worked out by hand, the definition."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.explain.test_distance import path, uniform_model
from tests.graphs import EDGE_WIDTH, graphs, hypergraph, odd_graphs, random_graph, small_model, tokens_config
from tokengt import EluConfig, EncoderConfig, FavorConfig, Graph, NoIds, TokenGT, TokenGTConfig, TokensConfig
from tokengt.batch import GraphBatch
from tokengt.explain import equivariance_profile, graph_profiles, mean_profile
from tokengt.explain.patterns import column_places, pattern_columns
from tokengt.explain.profile import row_shares
from tokengt.presets import PRESETS
from tokengt.theory import IGNConfig, InvariantGraphNetwork, compile_ign, tensor_graph
from tokengt.theory.partitions import pattern_of, patterns


def plain(graph: Graph) -> Graph:
    """Both directions share a token, and therefore features."""
    return Graph(graph.node_features, graph.edge_index, torch.ones(graph.num_edges, EDGE_WIDTH))


@pytest.mark.parametrize(("order", "nodes"), [(1, 4), (2, 5), (2, 2), (3, 3)])
def test_heads_of_a_compiled_network_land_on_their_own_pattern(order: int, nodes: int) -> None:
    """Theorem 2's heads are basis tensors. A pattern of more nodes than there are has no row to be measured on."""
    dims = (1, 1) if order == 3 else (2, 3, 2)
    network = InvariantGraphNetwork(IGNConfig(order=order, dims=dims, out_dim=1, mlp_dims=()))
    model = compile_ign(network, nodes, 2000.0, input_bound=3.0)
    profile = equivariance_profile(model, tensor_graph(torch.randn(*[nodes] * order, dims[0]).double()))
    every = patterns(2 * order)
    assert profile.on_rows.shape == (len(dims) - 1, len(every), len(every))
    possible = [place for place, pattern in enumerate(every) if max(pattern) < nodes]
    for layer in profile.on_rows:
        own = np.diag(layer)
        assert (own[possible] > 0.999).all()
        assert np.isnan(own).sum() == len(every) - len(possible)
    np.testing.assert_allclose(profile.shares.sum(-1), 1, rtol=1e-12)


def test_a_random_model_lands_on_no_pattern() -> None:
    """The test above can fail: heads that were not made for it have a smaller share on most patterns."""
    model = small_model(tokens=tokens_config(graph_token=True))
    assert np.nanmean(equivariance_profile(model, plain(random_graph(6, 20))).on_rows) < 0.5


def test_even_attention_on_a_path() -> None:
    """Nodes 0, 1, 2, edges a = {0, 1}, b = {1, 2} and [graph]: six keys of 1/6 each, so that the share of a class is
    the number of its keys over six. Nodes: itself 1; its edges 1, 2, 1; other nodes 2; other edges 1, 0, 1. Edges: its
    nodes 2, other nodes 1, itself 1, edges at its nodes 1, other edges 0."""
    profile = equivariance_profile(uniform_model(layout="undirected"), path(3))
    assert profile.names == (
        *("node: itself", "node: its edges", "node: other nodes", "node: other edges"),
        *("edge: its nodes", "edge: itself", "edge: edges at its nodes", "edge: other nodes", "edge: other edges"),
        *("[graph]", "left over"),
    )
    wanted = np.array([3 * 1, 4, 3 * 2, 2, 2 * 2, 2 * 1, 2 * 1, 2 * 1, 0, 5, 0]) / (5 * 6)
    np.testing.assert_allclose(profile.shares, np.broadcast_to(wanted, (2, 3, 11)), atol=1e-7)
    np.testing.assert_allclose(profile.mass, profile.shares, atol=1e-7)
    on_rows = [1 / 6, 4 / 18, 2 / 6, 1 / 6, 2 / 6, 1 / 6, 1 / 6, 1 / 6, np.nan]
    np.testing.assert_allclose(profile.on_rows[1, 2], on_rows, rtol=1e-6)
    np.testing.assert_allclose(profile.rows, np.array([3, 3, 3, 2, 2, 2, 2, 2, 0]) / 5)
    np.testing.assert_allclose(profile.read_shares[0, 0], np.array([3, 2, 1, 0]) / 6, atol=1e-7)
    roles = profile.by_role()
    assert set(roles) == {"self", "neighbour", "global", "[graph]", "left over"}
    np.testing.assert_allclose(roles["neighbour"], 10 / 30, rtol=1e-6)


def test_directions_count_apart_where_tokens_have_one() -> None:
    """0 -> 1 and 1 -> 0: each edge has its reverse; at order 2 there are 15 patterns, nine without directions."""
    profile = equivariance_profile(uniform_model(), path(2))
    share = dict(zip(profile.names, profile.shares[0, 0], strict=True))
    assert len(profile.names) == 15 + 2
    assert share["edge: its reverse"] == pytest.approx(2 / (4 * 5))
    assert share["edge: its source"] == share["edge: its target"] == pytest.approx(2 / (4 * 5))
    assert share["node: edges out of it"] == share["node: edges into it"] == pytest.approx(2 / (4 * 5))
    assert len(pattern_columns(2, directed=False)) == 9


def test_a_row_by_hand() -> None:
    """Weights 1/2, 1/4, 1/4, 0 with classes {0}, {1, 2}, {3}: |a|^2 = 3/8, of which 1/4 and 2/16 lie in classes."""
    weights = torch.tensor([[0.5, 0.25, 0.25, 0.0]])
    shares, mass, counts = row_shares(weights, torch.tensor([[0, 1, 1, 2]]), 4)
    torch.testing.assert_close(shares[0], torch.tensor([2 / 3, 1 / 3, 0, 0, 0]).double())
    torch.testing.assert_close(mass[0], torch.tensor([0.5, 0.5, 0, 0]).double())
    assert counts[0].tolist() == [1, 2, 1, 0]
    # Not even within a class: (1, 0) on two keys is (1/2, 1/2) and as much left over.
    shares, mass, _ = row_shares(torch.tensor([[1.0, 0.0]]), torch.tensor([[0, 0]]), 1)
    torch.testing.assert_close(shares[0], torch.tensor([0.5, 0.5]).double())
    assert mass.tolist() == [[1.0]]
    # What counts nowhere (the last column) is no part of the row.
    shares, _, _ = row_shares(torch.tensor([[0.5, 0.5]]), torch.tensor([[0, 1]]), 1)
    assert shares.tolist() == [[1.0, 0.0]]


def by_definition(model: TokenGT, graph: Graph, directed: bool) -> tuple[np.ndarray, np.ndarray]:
    """Shares and mass, one query and one class at a time, from the maps that the model writes out."""
    ends = model.encode(graph).endpoints.tolist()
    specials = [place for place, nodes in enumerate(ends) if nodes[0] < 0]
    places = column_places(2, directed)
    columns = max(places) + 1 + len(specials)
    found = []
    for maps, which in itertools.product(model.attention_maps(graph), (0, 1)):
        for head in maps[0].double().numpy():
            rows = []
            for i in [place for place in range(len(ends)) if place not in specials]:
                classes: dict[int, list[float]] = {}
                for j in range(len(ends)):
                    pattern = patterns(4).index(pattern_of([*ends[i], *ends[j]])) if j not in specials else 0
                    column = places[pattern] if j not in specials else max(places) + 1 + j
                    classes.setdefault(column, []).append(head[i, j])
                row = np.zeros(columns + 1)
                for column, weights in classes.items():
                    row[column] = sum(weights) if which else sum(weights) ** 2 / len(weights) / (head[i] ** 2).sum()
                row[-1] = 0 if which else 1 - row.sum()
                rows.append(row)
            found.append(np.mean(rows, 0))
    together = np.array(found).reshape(len(model.encoder.blocks), 2, -1, columns + 1)
    return together[:, 0], together[:, 1]


@given(st.lists(graphs(6, 10), min_size=1, max_size=3), st.booleans(), st.booleans())
def test_equals_the_definition_on_odd_graphs(batch: list[Graph], directed: bool, elu: bool) -> None:
    """No edges, one node, self-loops and repeated edges: every row sums to 1, whatever classes it has."""
    encoder = EncoderConfig(num_layers=2, num_heads=2, attention=EluConfig()) if elu else None
    tokens = tokens_config(layout="directed" if directed else "undirected", null_token=True)
    model = small_model(tokens=tokens, encoder=encoder, dtype=torch.float64)
    batch = [plain(graph) for graph in batch]
    found = graph_profiles(model, batch)
    for place, graph in enumerate(batch):
        shares, mass = by_definition(model, graph, directed)
        np.testing.assert_allclose(found.shares[place], shares, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(found.mass[place], mass, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found.shares.sum(-1), 1, rtol=1e-12)
    np.testing.assert_allclose(found.mass.sum(-1), 1, rtol=1e-12)
    np.testing.assert_allclose(found.read_shares.sum(-1), 1, rtol=1e-12)


def test_graphs_count_alike_in_whichever_batch_they_are() -> None:
    """The mean over a batch is the mean over its graphs, alone or in pieces; no graph has no profile."""
    model, batch = small_model(dtype=torch.float64), [plain(graph) for graph in odd_graphs()]
    whole = equivariance_profile(model, batch)
    pieces = mean_profile([graph_profiles(model, batch[:3]), graph_profiles(model, batch[3:])])
    alone = [equivariance_profile(model, graph) for graph in batch]
    for name in ("shares", "mass", "rows", "read_shares", "on_rows"):
        np.testing.assert_allclose(getattr(pieces, name), getattr(whole, name), rtol=1e-9)
        if name != "on_rows":
            np.testing.assert_allclose(np.mean([getattr(each, name) for each in alone], 0), getattr(whole, name))
    assert whole.graphs == len(batch)
    none = equivariance_profile(model, GraphBatch.collate(batch).select(torch.tensor([], dtype=torch.int64)))
    assert none.graphs == 0
    assert np.isnan(none.shares).all()


def test_the_order_of_nodes_and_edges_does_not_matter() -> None:
    """The profile is one of the graph: invariant for a model that is."""
    model, graph = small_model(ids=NoIds(), dtype=torch.float64), plain(random_graph(7, 12))
    order, edges = torch.randperm(7), torch.randperm(12)
    place = torch.empty_like(order)
    place[order] = torch.arange(7)
    assert graph.node_features is not None
    other = Graph(graph.node_features[order], place[graph.edge_index][:, edges], torch.ones(12, EDGE_WIDTH))
    np.testing.assert_allclose(
        equivariance_profile(model, graph).shares, equivariance_profile(model, other).shares, rtol=1e-9
    )


def test_masked_layers_have_no_global_share() -> None:
    profile = equivariance_profile(uniform_model(incidence="alternate", layout="undirected"), path(5))
    np.testing.assert_allclose(profile.by_role()["global"][0], 0, atol=1e-12)
    assert (profile.by_role()["global"][1] > 0.3).all()


def test_what_has_no_profile_says_why() -> None:
    model = small_model(encoder=EncoderConfig(num_layers=1, num_heads=3, attention=FavorConfig()))
    with pytest.raises(ValueError, match=r"FAVOR\+ attends through random features"):
        equivariance_profile(model, random_graph(4, 5))
    with pytest.raises(ValueError, match="GIN has no attention maps"):
        equivariance_profile(PRESETS["gin"]().build(), random_graph(4, 5))
    hyper = hypergraph()
    tokens = TokensConfig.for_batch(hyper)
    with pytest.raises(ValueError, match="4 hyperedges"):
        equivariance_profile(TokenGT(TokenGTConfig(12, tokens, NoIds(), EncoderConfig(1, 2))), hyper)


def test_names_of_patterns_are_told_apart() -> None:
    def names(order: int, directed: bool) -> Sequence[str]:
        return [column.name for column in pattern_columns(order, directed)]

    for order, directed, count in ((1, True, 2), (2, True, 15), (2, False, 9), (3, True, 203)):
        assert len(set(names(order, directed))) == count
