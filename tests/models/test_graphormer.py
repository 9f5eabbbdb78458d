"""Graphormer: its equations on one graph, its bias by hand, and what it tells apart."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.graphs import CATEGORIES, EDGE_WIDTH, graphs, odd_graphs
from tests.models import plain
from tokengt import FeatureSpec, Graph, GraphBatch
from tokengt.models.graphormer import Graphormer, GraphormerConfig
from tokengt.models.pairs import Pairs


def model_of(**options: Any) -> Graphormer:
    torch.manual_seed(0)
    features = {
        "node_features": FeatureSpec(categories=CATEGORIES),
        "edge_features": FeatureSpec(width=EDGE_WIDTH),
    }
    size = {"dim": 6, "num_layers": 2, "num_heads": 2, "max_degree": 3, "max_distance": 3, "path_edges": 2}
    model = plain.shaken(GraphormerConfig(**features | size | options).build())
    assert isinstance(model, Graphormer)
    return model


def bias_of(model: Graphormer, graph: Graph, hops: list[list[int]], i: int, j: int) -> Tensor:
    """b[dist(i, j)] + c_ij, one number per head."""
    config = model.config
    near = 0 <= hops[i][j] <= config.max_distance
    bias = model.bias.distance.weight[hops[i][j] if near else config.max_distance + 1]
    paths = plain.shortest_paths(graph, hops, i, j) if near else []
    count = min(hops[i][j], config.path_edges) if near else 0
    for step in range(count):
        assert model.bias.steps is not None
        edges = {path[step] for path in paths}
        embedded = [plain.features_of(model.bias.edge_encoder, graph.edge_features, edge) for edge in sorted(edges)]
        mean = torch.stack([x for x in embedded if x is not None]).mean(0)
        bias = bias + mean @ model.bias.steps[step] / count
    return bias


def by_equations(model: Graphormer, graph: Graph) -> Tensor:
    """The output for one graph, node by node and head by head."""
    config, hops = model.config, plain.distances(graph)
    heads, ends = config.num_heads, graph.edge_index.tolist()
    states = [model.virtual_node[0]]
    for i in range(graph.num_nodes):
        x = plain.features_of(model.node_encoder.features, graph.node_features, i)
        incoming, outgoing = (min(ends[end].count(i), config.max_degree) for end in (1, 0))
        states.append(x + model.in_degree.weight[incoming] + model.out_degree.weight[outgoing])
    count = len(states)
    virtual = model.bias.distance.weight[config.max_distance + 2]
    bias = [
        [bias_of(model, graph, hops, i - 1, j - 1) if i and j else virtual for j in range(count)] for i in range(count)
    ]
    for block in model.blocks:
        normed = [plain.norm(block.attention_norm, x) for x in states]
        q, k, v = zip(*(plain.linear(block.qkv, x).chunk(3) for x in normed), strict=True)
        for i in range(count):
            heard = []
            for h in range(heads):
                qi = plain.of_head(q[i], h, heads)
                scores = [qi @ plain.of_head(k[j], h, heads) / len(qi) ** 0.5 + bias[i][j][h] for j in range(count)]
                weights = plain.softmax(scores)
                heard.append(sum(w * plain.of_head(v[j], h, heads) for j, w in enumerate(weights)))
            states[i] = states[i] + plain.linear(block.out, torch.cat(heard))
        hidden = [plain.gelu(plain.linear(block.mlp[0], plain.norm(block.mlp_norm, x))) for x in states]
        states = [x + plain.linear(block.mlp[2], y) for x, y in zip(states, hidden, strict=True)]
    return plain.linear(model.head, plain.norm(model.norm, states[0]))


@settings(max_examples=12, deadline=None)
@given(st.lists(graphs(max_nodes=6, max_edges=9), min_size=1, max_size=3))
def test_it_is_its_equations_on_any_graphs(members: list[Graph]) -> None:
    model = model_of()
    with torch.no_grad():
        together = model(GraphBatch.collate(members))
        alone = torch.stack([by_equations(model, graph) for graph in members])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-9)


def test_it_is_its_equations_on_odd_graphs() -> None:
    """One node, no edges, self-loops, repeated edges, two components, distances beyond the table."""
    model = model_of()
    members = odd_graphs()[:6]
    with torch.no_grad():
        alone = torch.stack([by_equations(model, graph) for graph in members])
        torch.testing.assert_close(model(GraphBatch.collate(members)), alone, rtol=0, atol=1e-9)


def test_the_bias_of_a_path_by_hand() -> None:
    """0 - 1 - 2 and 3 alone, edges with one number each: distances 0, 1, 2, none, and means along the path."""
    index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    edges = torch.tensor([[10.0], [20.0], [30.0], [40.0]], dtype=torch.float64)
    graph = Graph(torch.zeros(4, 1), index, edges)
    config = GraphormerConfig(
        dim=2,
        num_heads=1,
        max_distance=4,
        path_edges=5,
        edge_features=FeatureSpec(width=1),
        node_features=FeatureSpec(width=1),
    )
    model = config.build().double()
    with torch.no_grad():
        # b is 100, 101, ... for distances 0, 1, ...; 105 for no path and 106 for the virtual node.
        model.bias.distance.weight.copy_(100.0 + torch.arange(7.0)[:, None])
        model.bias.edge_encoder.linear.weight.fill_(1.0)  # type: ignore[union-attr]
        model.bias.steps.copy_(torch.tensor([1.0, 0.1, 0.0, 0.0, 0.0]).view(5, 1, 1))  # type: ignore[union-attr]
    batch = GraphBatch.collate([graph])
    bias = model.bias(batch, Pairs(batch, virtual=1)).view(5, 5)
    expected = [
        [106.0, 106.0, 106.0, 106.0, 106.0],
        [106.0, 100.0, 101 + 10.0, 102 + (10 + 3.0) / 2, 105.0],
        [106.0, 101 + 20.0, 100.0, 101 + 30.0, 105.0],
        [106.0, 102 + (40 + 2.0) / 2, 101 + 40.0, 100.0, 105.0],
        [106.0, 105.0, 105.0, 105.0, 100.0],
    ]
    torch.testing.assert_close(bias, torch.tensor(expected, dtype=torch.float64))


def test_two_shortest_paths_count_half_each() -> None:
    """A square 0 - 1 - 2, 0 - 3 - 2: the first edge from 0 to 2 is (0, 1) or (0, 3)."""
    index = torch.tensor([[0, 1, 0, 3], [1, 2, 3, 2]])
    graph = Graph(torch.zeros(4, 1), index, torch.tensor([[1.0], [2.0], [5.0], [8.0]], dtype=torch.float64))
    model = GraphormerConfig(
        dim=2, num_heads=1, edge_features=FeatureSpec(width=1), node_features=FeatureSpec(width=1)
    ).build()
    model = model.double()
    with torch.no_grad():
        model.bias.distance.weight.zero_()
        model.bias.edge_encoder.linear.weight.fill_(1.0)  # type: ignore[union-attr]
        model.bias.steps.copy_(torch.tensor([1.0, 10.0, 0.0, 0.0, 0.0]).view(5, 1, 1))  # type: ignore[union-attr]
    batch = GraphBatch.collate([graph])
    bias = model.bias(batch, Pairs(batch, virtual=1)).view(5, 5)
    assert bias[1, 3].item() == pytest.approx(((1 + 5) / 2 + 10 * (2 + 8) / 2) / 2)
    assert bias[3, 1].item() == 0


def test_what_it_knows_of_distances_tells_a_ring_from_two() -> None:
    """One ring of six nodes and two of three look alike to message passing, whatever its depth."""

    def rings(*sizes: int) -> Graph:
        edges, start = [], 0
        for size in sizes:
            edges += [(start + k, start + (k + 1) % size) for k in range(size)]
            start += size
        ahead = torch.tensor(edges).T
        return Graph(torch.ones(start, 1), torch.cat([ahead, ahead.flip(0)], 1))

    model = plain.shaken(GraphormerConfig(dim=8, num_layers=2, num_heads=2, node_features=FeatureSpec(width=1)).build())
    with torch.no_grad():
        one, two = model(GraphBatch.collate([rings(6), rings(3, 3)]))
    assert (one - two).abs().max() > 1e-6
