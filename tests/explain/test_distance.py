"""Attention distance: hand-worked graphs with attention set by hand, and one graph at a time by its definition."""

import itertools
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.effects import set_all
from tests.graphs import EDGE_WIDTH, graphs, hypergraph, odd_graphs, random_graph, small_model, tokens_config
from tokengt import (
    EluConfig,
    EncoderConfig,
    FavorConfig,
    Graph,
    HeadConfig,
    NoIds,
    TokenGT,
    TokenGTConfig,
    TokensConfig,
)
from tokengt.batch import GraphBatch
from tokengt.explain import distance as room
from tokengt.explain import walking
from tokengt.explain.distance import attention_distance, graph_distances, mean_distance
from tokengt.presets import PRESETS


def path(nodes: int) -> Graph:
    """0 - 1 - 2 ..., each edge listed in both directions."""
    there = torch.stack([torch.arange(nodes - 1), torch.arange(1, nodes)])
    return Graph(num_nodes=nodes, edge_index=torch.cat([there, there.flip(0)], 1))


def uniform_model(layers: int = 2, heads: int = 3, incidence: Any = "never", **tokens: object) -> TokenGT:
    """All weights are 0, so that every token attends to all alike."""
    encoder = EncoderConfig(num_layers=layers, num_heads=heads, incidence=incidence)
    config = TokenGTConfig(12, TokensConfig(**tokens), NoIds(), encoder, HeadConfig())  # type: ignore[arg-type]
    model = TokenGT(config).eval()
    set_all(model, 0.0)
    return model


def test_uniform_attention_on_a_path() -> None:
    """Nodes 0, 1, 2 and one token per edge, a = {0, 1}, b = {1, 2}. Distances to 0, 1, 2, a, b are from 0: 0 1 2 0 1,
    from 1: 1 0 1 0 0, from 2: 2 1 0 1 0, from a: 0 0 1 0 0, from b: 1 0 0 0 0; the means 4/5, 2/5, 4/5, 1/5, 1/5, and
    12/25 over all. The [graph] and [null] tokens are attended to as well, and count nothing."""
    for specials in ({"graph_token": True}, {"graph_token": True, "null_token": True}):
        found = attention_distance(uniform_model(layout="undirected", **specials), path(3))
        assert found.shape == (2, 3)
        np.testing.assert_allclose(found, 12 / 25, rtol=1e-6)


def test_tokens_of_a_masked_layer_attend_to_none_at_a_distance() -> None:
    """Tokens with a node in common are 0 hops apart. The second layer is as above; sizes differ, so some are padded."""
    found = graph_distances(
        uniform_model(layout="undirected", incidence="alternate"), GraphBatch.collate([path(3), path(40), path(38)])
    ).hops
    np.testing.assert_allclose(found[:, 0], 0, atol=1e-12)
    np.testing.assert_allclose(found[0, 1], 12 / 25, rtol=1e-6)
    assert (found[1:, 1] > 5).all()


def test_two_tokens_per_bond_count_twice() -> None:
    """As above with a and b doubled: (1 + 1 + 2) + ... = 0 1 2 0 0 1 1 = 5/7, 2/7, 5/7, and four times 1/7."""
    found = attention_distance(uniform_model(layout="directed"), path(3))
    np.testing.assert_allclose(found, (5 + 2 + 5 + 4) / 49, rtol=1e-6)


def test_graphs_count_alike_whatever_their_size() -> None:
    """One atom has distance 0; the mean is over graphs and not over tokens. No graph has none."""
    model = uniform_model(layout="undirected")
    both = graph_distances(model, [path(3), Graph(num_nodes=1)])
    np.testing.assert_allclose(both.hops[:, 0, 0], [12 / 25, 0], rtol=1e-6)
    np.testing.assert_allclose(both.mean, 6 / 25, rtol=1e-6)
    none = graph_distances(model, GraphBatch.collate([path(3)]).select(torch.tensor([], dtype=torch.int64)))
    assert (none.hops.shape, none.pairs) == ((0, 2, 3), 0)
    assert np.isnan(none.mean).all()


def test_unreachable_pairs_are_left_out_and_counted() -> None:
    """Two paths 0 - 1 and 2 - 3 in one graph: 6 tokens, 36 pairs, 18 of them across. Within a path the distances are
    0 1 0, 1 0 0, 0 0 0: 2/9."""
    graph = Graph(num_nodes=4, edge_index=torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]]))
    found = graph_distances(uniform_model(layout="undirected"), graph)
    assert (found.pairs, found.unreachable) == (36, 18)
    np.testing.assert_allclose(found.mean, 2 / 9, rtol=1e-6)
    joined = graph_distances(uniform_model(layout="undirected"), [path(3), graph])
    assert (joined.pairs, joined.unreachable) == (36 + 25, 18)


def test_a_step_follows_an_edge_as_it_is_listed() -> None:
    """0 -> 1 alone: from 0 to 1 is one step, from 1 to 0 there is no path; the edge touches both."""
    graph = Graph(num_nodes=2, edge_index=torch.tensor([[0], [1]]))
    found = graph_distances(uniform_model(), graph)
    assert (found.pairs, found.unreachable) == (9, 1)
    # Rows: 0 1 0 of three, - 0 0 of two, 0 0 0.
    np.testing.assert_allclose(found.mean, (1 / 3 + 0 + 0) / 3, rtol=1e-6)


def test_attention_that_was_set_by_hand() -> None:
    """A special token and a path of three nodes: row 0 looks at 2 alone, row 1 half at itself and half at the special
    token, row 2 a quarter at 0 and three quarters at 1."""
    weights = torch.tensor([[0.5, 0, 0, 0.5], [0, 0, 0, 1], [0.5, 0, 0.5, 0], [0, 0.25, 0.75, 0]])[None, None]
    none = room.NONE
    distance = torch.tensor([[none] * 4, [none, 0, 1, 2], [none, 1, 0, 1], [none, 2, 1, 0]]).short()[None]
    torch.testing.assert_close(mean_distance(weights, distance), torch.tensor([[(2 + 0 + 1.25) / 3]]).double())


def test_a_row_that_looks_at_removed_tokens_only_says_nothing() -> None:
    weights = torch.tensor([[1.0, 0, 0], [0, 1, 0], [1, 0, 0]])[None, None]
    distance = torch.tensor([[-1, -1, -1], [-1, 0, 1], [-1, 1, 0]]).short()[None]
    assert mean_distance(weights, distance).tolist() == [[0.0]]
    assert bool(torch.isnan(mean_distance(weights, torch.full_like(distance, -1))).all())


def by_definition(model: TokenGT, graph: Graph) -> tuple[np.ndarray, int]:
    """One graph, one token at a time, from the maps that the model writes out; and how many pairs were left out."""
    tokens = model.encode(graph)
    steps = [[breadth_first(graph, i).get(j) for j in range(graph.num_nodes)] for i in range(graph.num_nodes)]
    real = [place for place, ends in enumerate(tokens.endpoints.tolist()) if ends[0] >= 0]
    between, lost = {}, 0
    for i, j in itertools.product(real, repeat=2):
        ends = itertools.product(tokens.endpoints[i].tolist(), tokens.endpoints[j].tolist())
        known = [hops for u, v in ends if (hops := steps[u][v]) is not None]
        lost += not known
        between[i, j] = min(known) if known else None
    out = []
    for maps in model.attention_maps(graph):
        for head in maps[0].double().tolist():
            means = []
            for i in real:
                kept = [(head[i][j], between[i, j]) for j in real if between[i, j] is not None]
                means.append(sum(a * d for a, d in kept) / sum(a for a, _ in kept))  # type: ignore[operator]
            out.append(sum(means) / len(means))
    return np.array(out).reshape(len(model.encoder.blocks), -1), lost


def breadth_first(graph: Graph, start: int) -> dict[int, int]:
    found, queue = {start: 0}, deque([start])
    while queue:
        u = queue.popleft()
        for a, b in graph.edge_index.T.tolist():
            if a == u and b not in found:
                found[b] = found[u] + 1
                queue.append(b)
    return found


@given(st.lists(graphs(), min_size=1, max_size=4), st.sampled_from(["directed", "undirected"]), st.booleans())
def test_equals_the_definition_on_odd_graphs(batch: list[Graph], layout: str, elu: bool) -> None:
    encoder = EncoderConfig(num_layers=2, num_heads=3, attention=EluConfig()) if elu else None
    tokens = tokens_config(layout=layout, null_token=True)
    model = small_model(tokens=tokens, encoder=encoder, dtype=torch.float64)
    # Both directions share a token, and therefore features.
    batch = [Graph(graph.node_features, graph.edge_index, torch.ones(graph.num_edges, EDGE_WIDTH)) for graph in batch]
    found = graph_distances(model, batch)
    expected = [by_definition(model, graph) for graph in batch]
    np.testing.assert_allclose(found.hops, np.stack([hops for hops, _ in expected]), rtol=1e-9, atol=1e-12)
    assert found.unreachable == sum(lost for _, lost in expected)


def test_pieces_give_what_the_whole_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few weights are written out at once, and in whichever batch a graph is."""
    model, batch = small_model(dtype=torch.float64), odd_graphs() + [random_graph(9, 20, seed) for seed in range(4)]
    whole = graph_distances(model, batch)
    for entries in (1, 700, 3000):
        monkeypatch.setattr(walking, "_AT_ONCE", entries)
        np.testing.assert_allclose(graph_distances(model, batch).hops, whole.hops, rtol=1e-10)
    alone = [graph_distances(model, graph) for graph in batch]
    np.testing.assert_allclose(np.concatenate([each.hops for each in alone]), whole.hops, rtol=1e-9)
    assert whole.pairs == sum(each.pairs for each in alone)


def test_distances_lie_between_zero_and_the_longest_path() -> None:
    found = graph_distances(small_model(tokens=TokensConfig()), [path(n) for n in (1, 2, 7, 30)])
    assert (found.hops >= 0).all()
    for hops, longest in zip(found.hops, (0, 1, 6, 29), strict=True):
        assert (hops <= longest).all()
    assert found.hops[3].min() > 1


def test_training_mode_and_gradients_are_left_as_they_were() -> None:
    model = small_model().train()
    attention_distance(model, random_graph(5, 8))
    assert model.training
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_models_without_maps_say_why() -> None:
    favor = small_model(encoder=EncoderConfig(num_layers=1, num_heads=3, attention=FavorConfig()))
    with pytest.raises(ValueError, match=r"FAVOR\+ attends through random features and computes no attention weights"):
        attention_distance(favor, random_graph(4, 5))
    with pytest.raises(ValueError, match="Linear has no attention maps between tokens of nodes and edges"):
        attention_distance(torch.nn.Linear(2, 2), random_graph(4, 5))
    with pytest.raises(ValueError, match="GIN has no attention maps between tokens"):
        attention_distance(PRESETS["gin"]().build(), random_graph(4, 5))
    hyper = hypergraph()
    model = TokenGT(TokenGTConfig(12, TokensConfig.for_batch(hyper), NoIds(), EncoderConfig(num_layers=1, num_heads=2)))
    with pytest.raises(ValueError, match="the batch has 4 hyperedges"):
        attention_distance(model, hyper)


def test_few_weights_are_written_out_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece is as large as is allowed, or one map of one head, however many layers, heads and graphs there are."""
    most = 0
    real = room.mean_distance

    def watched(weights: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
        nonlocal most
        most = max(most, weights.numel())
        return real(weights, distance)

    monkeypatch.setattr(room, "mean_distance", watched)
    monkeypatch.setattr(walking, "_AT_ONCE", 5000)
    graph_distances(uniform_model(layers=4), [path(n) for n in range(2, 30)])
    assert 5000 // 4 < most <= max(5000, (1 + 29 + 56) ** 2)
