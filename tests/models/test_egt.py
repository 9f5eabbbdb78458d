"""EGT: its equations on one graph, one layer by hand, and its edge channels."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.effects import set_all
from tests.graphs import CATEGORIES, EDGE_WIDTH, graphs, odd_graphs
from tests.models import plain
from tokengt import FeatureSpec, Graph, GraphBatch
from tokengt.models.egt import Egt, EgtConfig
from tokengt.models.pairs import Pairs


def model_of(**options: Any) -> Egt:
    torch.manual_seed(0)
    features = {
        "node_features": FeatureSpec(categories=CATEGORIES),
        "edge_features": FeatureSpec(width=EDGE_WIDTH),
    }
    size = {"dim": 6, "num_layers": 3, "num_heads": 2, "edge_dim": 4, "virtual_nodes": 2, "max_distance": 2}
    model = plain.shaken(EgtConfig(**features | size | options).build())
    assert isinstance(model, Egt)
    return model


def channels_at_start(model: Egt, graph: Graph, i: int, j: int, hops: list[list[int]]) -> Tensor:
    """e_ij of two tokens; virtual nodes come first."""
    virtual, channels = model.config.virtual_nodes, model.channels
    if i < virtual and j < virtual:
        return (channels.virtual[i] + channels.virtual[j]) / 2
    if i < virtual or j < virtual:
        return channels.virtual[min(i, j)]
    i, j = i - virtual, j - virtual
    near = 0 <= hops[i][j] <= model.config.max_distance
    e = channels.distance.weight[hops[i][j] if near else model.config.max_distance + 1]
    for edge in plain.edges_between(graph, i, j):
        added = plain.features_of(channels.edge_encoder, graph.edge_features, edge)
        assert added is not None
        e = e + added
    return e


def by_equations(model: Egt, graph: Graph) -> Tensor:
    """The output for one graph, pair by pair and head by head."""
    config, hops = model.config, plain.distances(graph)
    heads, virtual = config.num_heads, config.virtual_nodes
    h: list[Any] = list(model.virtual_nodes)
    h += [plain.features_of(model.node_encoder.features, graph.node_features, i) for i in range(graph.num_nodes)]
    tokens = range(len(h))
    e = [[channels_at_start(model, graph, i, j, hops) for j in tokens] for i in tokens]
    for layer in model.layers:
        q, k, v = zip(*(plain.linear(layer.qkv, plain.norm(layer.norm, x)).chunk(3) for x in h), strict=True)
        bias = [[plain.linear(layer.bias, plain.norm(layer.pair_norm, e[i][j])) for j in tokens] for i in tokens]
        gate = [[plain.linear(layer.gate, plain.norm(layer.pair_norm, e[i][j])) for j in tokens] for i in tokens]
        scores = [[[torch.zeros(())] * heads for _ in tokens] for _ in tokens]
        for i in tokens:
            heard = []
            for head in range(heads):
                qi = plain.of_head(q[i], head, heads)
                for j in tokens:
                    product = qi @ plain.of_head(k[j], head, heads) / len(qi) ** 0.5
                    scores[i][j][head] = product.clamp(-5, 5) + bias[i][j][head]
                opened = [1 / (1 + torch.exp(-gate[i][j][head])) for j in tokens]
                shares = plain.softmax([scores[i][j][head] for j in tokens])
                total = sum(s * g * plain.of_head(x, head, heads) for s, g, x in zip(shares, opened, v, strict=True))
                heard.append(total if i < virtual else total * torch.log(1 + sum(opened)))
            h[i] = h[i] + plain.linear(layer.out, torch.cat(heard))
            inner = plain.elu(plain.linear(layer.mlp[1][0], plain.norm(layer.mlp[0], h[i])))
            h[i] = h[i] + plain.linear(layer.mlp[1][2], inner)
        if layer is model.layers[-1]:
            assert layer.pair_out is None
            break
        for i in tokens:
            for j in tokens:
                e[i][j] = e[i][j] + plain.linear(layer.pair_out, torch.stack(scores[i][j]))
                inner = plain.elu(plain.linear(layer.pair_mlp[1][0], plain.norm(layer.pair_mlp[0], e[i][j])))
                e[i][j] = e[i][j] + plain.linear(layer.pair_mlp[1][2], inner)
    x = torch.cat([plain.norm(model.norm, h[i]) for i in range(virtual)])
    x = plain.elu(plain.linear(model.head[0], x))
    return plain.linear(model.head[4], plain.elu(plain.linear(model.head[2], x)))


@settings(max_examples=8, deadline=None)
@given(st.lists(graphs(max_nodes=5, max_edges=8), min_size=1, max_size=3))
def test_it_is_its_equations_on_any_graphs(members: list[Graph]) -> None:
    model = model_of()
    with torch.no_grad():
        together = model(GraphBatch.collate(members))
        alone = torch.stack([by_equations(model, graph) for graph in members])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-9)


def test_it_is_its_equations_on_odd_graphs() -> None:
    """One node, no edges, self-loops, repeated edges, two components, distances beyond the table."""
    model = model_of(virtual_nodes=1)
    members = odd_graphs()[:5]
    with torch.no_grad():
        alone = torch.stack([by_equations(model, graph) for graph in members])
        torch.testing.assert_close(model(GraphBatch.collate(members)), alone, rtol=0, atol=1e-9)


def test_the_edge_channel_of_a_bond_by_hand() -> None:
    """Two joined nodes and a virtual one: start, then e + H with all weights at zero but those that are set."""
    graph = Graph(torch.zeros(2, 1), torch.tensor([[0, 0], [1, 1]]), torch.tensor([[3.0], [4.0]], dtype=torch.float64))
    config = EgtConfig(
        dim=2, num_layers=2, num_heads=1, edge_dim=1, max_distance=1, dropout=0.0, attention_dropout=0.0,
        node_features=FeatureSpec(width=1), edge_features=FeatureSpec(width=1),
    )  # fmt: skip
    model = config.build().double().eval()
    set_all(model, 0.0)
    with torch.no_grad():
        model.channels.distance.weight.copy_(torch.tensor([[0.1], [0.2], [0.3]]))  # 0 steps, 1 step, no path.
        model.channels.edge_encoder.linear.weight.fill_(1.0)  # type: ignore[union-attr]
        model.channels.virtual.fill_(50.0)
        layer = model.layers[0]
        layer.bias.bias.fill_(2.0)  # E_ij = 2, whatever e_ij is.
        layer.pair_out.weight.fill_(0.5)  # e <- e + 0.5 H, and H = 0 + E.
    batch = GraphBatch.collate([graph])
    pairs = Pairs(batch, virtual=1)
    start = model.channels(batch, pairs)
    # Two edges from 0 to 1 add up; back from 1 to 0 there is no path.
    expected = [[50.0, 50.0, 50.0], [50.0, 0.1, 0.2 + 3 + 4], [50.0, 0.3, 0.1]]
    torch.testing.assert_close(start.view(3, 3), torch.tensor(expected, dtype=torch.float64))
    _, after = layer(torch.zeros(3, 2, dtype=torch.float64), start, pairs)
    torch.testing.assert_close(after, start + 1.0)


def test_gates_scale_what_a_node_hears_by_how_many_it_hears() -> None:
    """With all gates at one half and equal scores, n tokens: s * 1/2 * mean of v, s = ln(1 + n / 2); virtual: s = 1."""
    config = EgtConfig(dim=2, num_layers=1, num_heads=1, edge_dim=1, dropout=0.0, attention_dropout=0.0)
    layer = config.build().double().eval().layers[0]
    set_all(layer, 0.0)
    batch = GraphBatch.collate([Graph(num_nodes=3), Graph(num_nodes=1)])
    pairs = Pairs(batch, virtual=1)
    values = torch.randn(6, 2, dtype=torch.float64)
    qkv = torch.cat([torch.zeros(6, 4, dtype=torch.float64), values], 1)
    zeros = torch.zeros(pairs.segments.total, 1, dtype=torch.float64)
    heard, _ = layer._attended(qkv, zeros, zeros, pairs)
    for first, count in ((0, 4), (4, 2)):
        mean = values[first : first + count].mean(0) / 2
        torch.testing.assert_close(heard[first], mean)
        for row in range(first + 1, first + count):
            torch.testing.assert_close(heard[row], mean * torch.log(torch.tensor(1 + count / 2, dtype=torch.float64)))
