"""Every setting of message passing and of the two-layer models does what its description says, each by itself."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.effects import Effects, assert_dropped, set_all
from tokengt import FeatureSpec, Graph, GraphBatch
from tokengt.models.contract import Model
from tokengt.models.message_passing.model import GatConfig, GcnConfig, GinConfig, MessagePassing, MessagePassingConfig
from tokengt.models.two_layers import CliqueGcnConfig, MlpConfig

BASELINES = [MlpConfig, CliqueGcnConfig]
MESSAGES = [GinConfig, GcnConfig, GatConfig]
effects = Effects(*MESSAGES, *BASELINES)
message_passing = pytest.mark.parametrize("kind", MESSAGES)


def test_every_setting_here_has_a_test_of_its_effect() -> None:
    assert effects.missing == []


def passing(kind: type[MessagePassingConfig], **options: Any) -> MessagePassing:
    torch.manual_seed(0)
    return kind(**{"dim": 8, "num_layers": 2, "dropout": 0.0, **options}).build().double()


def path(length: int, width: int = 2) -> Graph:
    ahead = torch.stack([torch.arange(length - 1), torch.arange(1, length)])
    features = torch.randn(length, width, dtype=torch.float64)
    return Graph(features, torch.cat([ahead, ahead.flip(0)], 1))


@effects.of(MESSAGES, "dim", "level", "out_dim")
@message_passing
def test_states_have_the_width_and_rows_the_level_of_the_config(kind: type[MessagePassingConfig]) -> None:
    graphs = [path(3), path(5)]
    for dim in (8, 12):
        for level, count in (("graph", 2), ("node", 8), ("edge", 12)):
            model = passing(kind, dim=dim, level=level, out_dim=3, node_features=FeatureSpec(width=2)).eval()
            assert model.embed(graphs).shape == (2, dim) == (2, model.embedding_width)
            out = model(graphs)
            assert out.shape == (count, 3)
            nodes, _ = model.states(GraphBatch.collate(graphs))
            read = {
                "graph": torch.stack([nodes[:3].mean(0), nodes[3:].mean(0)]),
                "node": nodes,
                "edge": nodes[GraphBatch.collate(graphs).edge_index].transpose(0, 1).flatten(1),
            }[level]
            torch.testing.assert_close(out, read @ model.head.weight.T + model.head.bias)


@effects.of(MESSAGES, "num_layers", "virtual_node")
@message_passing
@pytest.mark.parametrize(("layers", "virtual"), [(1, False), (3, False), (1, True), (2, True)])
def test_a_node_hears_as_far_as_there_are_layers_and_through_a_virtual_node_from_everywhere(
    kind: type[MessagePassingConfig], layers: int, virtual: bool
) -> None:
    """What the first node of a path knows of the others, by the gradient of its output; other graphs never matter."""
    features = FeatureSpec(width=2)
    model = passing(kind, dim=16, num_layers=layers, virtual_node=virtual, level="node", node_features=features).eval()
    batch = GraphBatch.collate([path(7), path(3)])
    assert batch.node_features is not None
    features = batch.node_features.clone().requires_grad_()
    model(replace(batch, node_features=features))[0].sum().backward()
    assert features.grad is not None
    heard = (features.grad.abs().sum(1) > 0).tolist()
    # The virtual node speaks before every layer but the first.
    reach = 7 if virtual and layers > 1 else layers + 1
    assert heard == [place < reach for place in range(7)] + [False] * 3


@effects.of(MESSAGES, "dropout")
@message_passing
@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_numbers_are_dropped_after_every_layer_and_of_what_a_virtual_node_says(
    kind: type[MessagePassingConfig], rate: float
) -> None:
    model = passing(kind, dim=64, dropout=rate, virtual_node=True, node_features=FeatureSpec(width=2)).train()
    before: dict[nn.Module, Tensor] = {}
    after: dict[nn.Module, Tensor] = {}
    for module, inner in (
        *((layer, layer.norm) for layer in model.layers),
        *((node, node.mlp) for node in model.exchanges),
    ):
        assert isinstance(inner, nn.Module)
        inner.register_forward_hook(lambda _, __, out, to=module: before.update({to: out}))
        module.register_forward_hook(lambda module, _, out: after.update({module: out}))
    model([path(9) for _ in range(30)])
    assert len(after) == 3
    for module, out in after.items():
        # The activation comes before the dropout, and the last layer has none.
        plain = before[module] if module is model.layers[-1] else before[module].clamp(min=0)
        alive = plain != 0
        assert (out[~alive] == 0).all()
        if rate:
            assert_dropped(out[alive], plain[alive], rate)
        else:
            assert torch.equal(out, plain)


@effects.of(MESSAGES, "feature_dropout")
@message_passing
def test_float_features_of_nodes_are_dropped_in_training(kind: type[MessagePassingConfig]) -> None:
    for rate in (0.0, 0.4):
        model = passing(kind, dim=64, feature_dropout=rate, node_features=FeatureSpec(width=64))
        nn.init.eye_(model.node_encoder.linear.weight)
        features = torch.rand(500, 64, dtype=torch.float64) + 0.5
        embedded = model.train().node_encoder(features)
        assert torch.equal(embedded, features) if rate == 0 else assert_dropped(embedded, features, rate) is None
        assert torch.equal(model.eval().node_encoder(features), features)


@effects.of(MESSAGES, "mlp_dim")
@message_passing
def test_the_mlps_have_the_hidden_width_that_they_are_told(kind: type[MessagePassingConfig]) -> None:
    for mlp_dim, hidden in ((None, 16), (5, 5)):
        model: Any = passing(kind, mlp_dim=mlp_dim, virtual_node=True)
        assert [layer.mlp[0].out_features for layer in model.exchanges] == [hidden]
        if kind is GinConfig:
            assert [layer.conv.nn[0].out_features for layer in model.layers] == [hidden, hidden]


@effects.of(MESSAGES, "pooling")
@message_passing
def test_a_graph_is_the_mean_or_the_sum_of_its_nodes(kind: type[MessagePassingConfig]) -> None:
    mean, total = (
        passing(kind, pooling=pooling, node_features=FeatureSpec(width=2)).eval() for pooling in ("mean", "sum")
    )
    graphs = [path(3), path(5)]
    torch.testing.assert_close(total.embed(graphs), mean.embed(graphs) * torch.tensor([[3.0], [5.0]]).double())
    assert mean.config.meanings()["pooling"] != total.config.meanings()["pooling"]


@effects.of(GatConfig, "num_heads")
def test_heads_of_a_gat_attend_by_themselves() -> None:
    """Two heads share the width: another attention of the second changes its half of the state alone."""
    states, index = torch.randn(3, 8, dtype=torch.float64), torch.tensor([[0, 1, 2], [1, 2, 1]])
    for heads in (1, 2):
        conv: Any = passing(GatConfig, num_heads=heads).layers[0].conv
        before = conv(states, index, torch.zeros(3, 8, dtype=torch.float64))
        with torch.no_grad():
            conv.att[0, -1] += 1.0
        changed = (conv(states, index, torch.zeros(3, 8, dtype=torch.float64)) != before)[1]
        assert changed.tolist() == [heads == 1] * 4 + [True] * 4
    with pytest.raises(ValueError, match="dim 8 is no multiple of num_heads 3"):
        passing(GatConfig, num_heads=3)
    assert GatConfig(num_heads=2).meanings() != GatConfig().meanings()


@effects.of(MESSAGES, "node_features", "edge_features", "graph_features")
@message_passing
def test_features_are_read_that_a_model_is_told_of(kind: type[MessagePassingConfig]) -> None:
    """Layer by layer; descriptors are added to what the head reads."""
    graph = path(4)
    graph = replace(
        graph,
        edge_features=torch.randint(0, 3, (6, 1)),
        graph_features=torch.randn(1, 5, dtype=torch.float64),
    )
    specs = {
        "node_features": FeatureSpec(width=2),
        "edge_features": FeatureSpec(categories=(3,)),
        "graph_features": FeatureSpec(width=5),
    }
    model: Any = passing(kind, num_layers=1, **specs).eval()
    (layer,) = model.layers
    assert graph.node_features is not None
    assert graph.graph_features is not None
    assert model.node_encoder.linear is not None
    assert model.graph_encoder.linear is not None
    h = graph.node_features @ model.node_encoder.linear.weight.T
    e = layer.edge_encoder.table.weight[graph.edge_features.flatten()]
    states = layer.norm(layer.conv(h, graph.edge_index, e))
    read = states.mean(0, keepdim=True) + graph.graph_features @ model.graph_encoder.linear.weight.T
    torch.testing.assert_close(model(graph), model.head(read))
    for name in specs:
        with pytest.raises(ValueError, match=f"{name} is"):
            passing(kind, num_layers=1, **{**specs, name: FeatureSpec(width=7)})(graph)
    # Without features all nodes begin alike.
    bare = passing(kind, num_layers=1, level="node").eval()
    assert bare.blank is not None
    out = bare(Graph(num_nodes=3, edge_index=torch.tensor([[0, 1], [1, 0]])))
    torch.testing.assert_close(out[0], out[1])


def nodes_alone(count: int = 300) -> Graph:
    """Without edges a GCN is an MLP, whose hidden numbers are seen one by one."""
    return Graph(1 + torch.rand(count, 3))


def baseline(kind: type[MlpConfig] | type[CliqueGcnConfig], **options: Any) -> Model:
    torch.manual_seed(0)
    settings = {"dim": 16, "dropout": 0.0, "node_features": FeatureSpec(width=3), **options}
    model = kind(**settings).build()
    assert isinstance(model.head, nn.Linear)
    return model


@effects.of(BASELINES, "dim", "level", "out_dim", "node_features")
@pytest.mark.parametrize("kind", BASELINES)
def test_a_baseline_has_its_width_level_outputs_and_features(kind: type[MlpConfig] | type[CliqueGcnConfig]) -> None:
    graphs = [nodes_alone(3), nodes_alone(5)]
    batch = GraphBatch.collate(graphs)
    assert batch.node_features is not None
    for dim, width in ((16, 3), (7, 3)):
        for level, out_dim in (("node", 2), ("graph", 1)):
            model: Any = baseline(kind, dim=dim, level=level, out_dim=out_dim).eval()
            hidden = (batch.node_features @ model.node_encoder.linear.weight.T + model.bias).relu()
            assert model.node_encoder.linear.weight.shape == (dim, width)
            means = torch.stack([hidden[:3].mean(0), hidden[3:].mean(0)])
            read = hidden if level == "node" else means
            torch.testing.assert_close(model(batch), read @ model.head.weight.T + model.head.bias)
            assert model(batch).shape == (len(read), out_dim)
            torch.testing.assert_close(model.embed(batch), means)
    with pytest.raises(ValueError, match=r"node_features is .* expects 4 floats"):
        baseline(kind, node_features=FeatureSpec(width=4))(batch)


@effects.of([*MESSAGES, *BASELINES], "symmetric")
@pytest.mark.parametrize("kind", [*MESSAGES, *BASELINES])
def test_a_pair_and_its_reverse_score_alike_unless_links_have_a_direction(kind: Any) -> None:
    graph = path(4)
    pairs = GraphBatch.collate([graph]).with_own_links([torch.tensor([[0, 1], [1, 0]])])
    for symmetric in (True, False):
        options = {"level": "link", "symmetric": symmetric, "node_features": FeatureSpec(width=2)}
        model: Any = (passing if kind in MESSAGES else baseline)(kind, **options).double().eval()
        scores = model(pairs)
        assert scores.shape == (2, 1)
        assert torch.allclose(scores[0], scores[1]) == symmetric
        assert model.head.weight.shape[1] == (2 if symmetric else 3) * model.embedding_width


@effects.of(BASELINES, "dropout", "feature_dropout")
@pytest.mark.parametrize("kind", BASELINES)
def test_a_baseline_drops_hidden_numbers_and_features_at_the_rates_it_is_told(
    kind: type[MlpConfig] | type[CliqueGcnConfig],
) -> None:
    """With the identity for head and w_in, outputs are the hidden numbers, and these the features."""
    graph = nodes_alone()
    assert graph.node_features is not None
    for name in ("dropout", "feature_dropout"):
        for rate in (0.1, 0.5):
            model: Any = baseline(kind, dim=3, level="node", out_dim=3, **{name: rate})
            set_all(model, 0.0)
            nn.init.eye_(model.head.weight)
            nn.init.eye_(model.node_encoder.linear.weight)
            assert_dropped(model.train()(graph), graph.node_features, rate)
            torch.testing.assert_close(model.eval()(graph), graph.node_features)
