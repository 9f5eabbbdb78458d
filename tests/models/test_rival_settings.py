"""Every setting of GPS, Graphormer, EGT and GRPE does what its description says, each changed by itself."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.effects import Effects, assert_dropped, set_all
from tests.graphs import random_graph
from tests.structure import graph_families
from tokengt import FeatureSpec, Graph, GraphBatch
from tokengt.models.common import GraphModelConfig
from tokengt.models.egt import EgtConfig
from tokengt.models.gps import GpsConfig
from tokengt.models.graphormer import GraphormerConfig
from tokengt.models.grpe import GrpeConfig
from tokengt.models.pairs import Pairs
from tokengt.structure.facts import WalkReturns

PAIRS = [GraphormerConfig, EgtConfig, GrpeConfig]
ALL = [GpsConfig, *PAIRS]
effects = Effects(*ALL)
of_pairs = pytest.mark.parametrize("kind", PAIRS)
of_all = pytest.mark.parametrize("kind", ALL)
Kind = type[GraphModelConfig]


def both_ways(graph: Graph) -> Graph:
    return Graph(num_nodes=graph.num_nodes, edge_index=torch.cat([graph.edge_index, graph.edge_index.flip(0)], 1))


def path(length: int) -> Graph:
    return both_ways(graph_families.path(length))


def star(size: int) -> Graph:
    return both_ways(graph_families.star(size))


def test_every_setting_here_has_a_test_of_its_effect() -> None:
    assert effects.missing == []


def model_of(kind: Kind, **options: Any) -> Any:
    torch.manual_seed(0)
    calm = {"dropout": 0.0, "attention_dropout": 0.0}
    model = kind(**{"dim": 8, "num_layers": 2, "num_heads": 2, **calm, **options}).build().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def indices_of(table: nn.Module, run: Any) -> list[int]:
    """Which rows of a table are looked up while ``run`` runs, each once."""
    seen: list[Tensor] = []
    handle = table.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].flatten()))
    run()
    handle.remove()
    return sorted(set(torch.cat(seen).tolist()))


@effects.of(ALL, "dim", "level", "out_dim")
@of_all
def test_states_have_the_width_and_rows_the_level_of_the_config(kind: Kind) -> None:
    batch = GraphBatch.collate([path(3), path(5)])
    for dim in (8, 12):
        for level, count in (("graph", 2), ("node", 8), ("edge", 12)):
            model = model_of(kind, dim=dim, level=level, out_dim=3)
            nodes, read = model.states(batch)
            graphs = read()
            assert (nodes.shape, graphs.shape) == ((8, dim), (2, dim))
            ends = nodes[batch.edge_index].transpose(0, 1).flatten(1)
            out = model(batch)
            torch.testing.assert_close(out, model.head({"graph": graphs, "node": nodes, "edge": ends}[level]))
            assert out.shape == (count, 3)
            assert torch.equal(model.embed(batch), graphs)


@effects.of(ALL, "symmetric")
@of_all
def test_a_pair_and_its_reverse_score_alike_unless_links_have_a_direction(kind: Kind) -> None:
    pairs = GraphBatch.collate([path(4)]).with_own_links([torch.tensor([[0, 1], [1, 0]])])
    for symmetric in (True, False):
        scores = model_of(kind, level="link", symmetric=symmetric)(pairs)
        assert scores.shape == (2, 1)
        assert torch.allclose(scores[0], scores[1]) == symmetric


@effects.of(ALL, "num_layers")
@of_all
def test_there_are_as_many_layers_as_are_asked_for_and_each_changes_the_states(kind: Kind) -> None:
    for count in (1, 3):
        model = model_of(kind, num_layers=count)
        changed: list[bool] = []
        for layer in model.pieces():

            def hook(_: nn.Module, inputs: Any, output: Any, to: list[bool] = changed) -> None:
                after = output if isinstance(output, Tensor) else output[0]
                to.append(not torch.allclose(inputs[0], after))

            layer.register_forward_hook(hook)
        model([path(4)])
        assert changed == [True] * count


@effects.of(ALL, "node_features", "edge_features", "graph_features")
@of_all
def test_features_are_read_that_a_model_is_told_of(kind: Kind) -> None:
    graph = replace(random_graph(4, 6, 1), graph_features=torch.randn(1, 5))
    specs = {
        "node_features": FeatureSpec(categories=(4, 3)),
        "edge_features": FeatureSpec(width=3),
        "graph_features": FeatureSpec(width=5),
    }
    model = model_of(kind, **specs)
    out = model(graph)
    for name in specs:
        features = getattr(graph, name)
        other = (features + 1) % 3 if name == "node_features" else features + 1
        assert not torch.allclose(model(replace(graph, **{name: other})), out, atol=1e-6)
        with pytest.raises(ValueError, match=f"{name} is .*this model expects 7 floats"):
            model_of(kind, **{**specs, name: FeatureSpec(width=7)})(graph)
    graphs = model.states(GraphBatch.collate([graph]))[1]()
    assert graph.graph_features is not None
    read = graphs + graph.graph_features.double() @ model.graph_encoder.linear.weight.T
    torch.testing.assert_close(out, model.head(read))
    # Without features nodes are alike but for where they are.
    ends = model_of(kind, level="node")(path(3))
    torch.testing.assert_close(ends[0], ends[2])
    assert not torch.allclose(ends[0], ends[1], atol=1e-6)


def branches(model: Any) -> list[nn.Linear]:
    """The last linear maps of what the first layer adds to nodes: attention, and the MLP."""
    layer = model.pieces()[0]
    mlp = layer.mlp[1] if isinstance(model.config, EgtConfig) else layer.mlp
    return [layer.out, mlp[2]]


@effects.of(PAIRS, "dropout")
@of_pairs
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_what_attention_and_mlp_add_is_dropped_at_its_rate(kind: Kind, rate: float) -> None:
    """With all weights zero but one bias, a branch adds ones to states of zeros."""
    for branch in (0, 1):
        model = model_of(kind, dim=40, num_layers=1, dropout=rate)
        set_all(model, 0.0)
        nn.init.ones_(branches(model)[branch].bias)
        layer, added = model.pieces()[0], []
        layer.register_forward_hook(lambda _, __, out, to=added: to.append(out if isinstance(out, Tensor) else out[0]))
        model.train()([Graph(num_nodes=9) for _ in range(10)])
        assert_dropped(added[0], torch.ones_like(added[0]), rate)
        model.eval()([Graph(num_nodes=9)])
        assert (added[1] == 1).all()


@effects.of(EgtConfig, "dropout")
def test_what_is_added_to_edge_channels_is_dropped_too() -> None:
    model = model_of(EgtConfig, dropout=0.3)
    set_all(model, 0.0)
    nn.init.ones_(model.layers[0].pair_out.bias)
    added: list[Tensor] = []
    model.layers[0].register_forward_hook(lambda _, __, out: added.append(out[1]))
    model.train()([Graph(num_nodes=9) for _ in range(10)])
    assert_dropped(added[0], torch.ones_like(added[0]), 0.3)


@effects.of(PAIRS, "attention_dropout")
@of_pairs
def test_attention_weights_are_dropped_at_their_rate(kind: Kind) -> None:
    """All weights alike and all values one: what is left of an output is the share of weights that were kept."""
    tokens, rate = 10, 0.4
    model = model_of(kind, dim=8, num_heads=8, num_layers=1, attention_dropout=rate)
    set_all(model, 0.0)
    layer = model.pieces()[0]
    nn.init.ones_(layer.qkv.bias[16:])
    heard: list[Tensor] = []
    layer.out.register_forward_hook(lambda _, inputs, __: heard.append(inputs[0]))
    graphs = [Graph(num_nodes=tokens - 1) for _ in range(40)]
    model.eval()(graphs)
    model.train()(graphs)
    kept = heard[1] / heard[0] * tokens * (1 - rate)
    torch.testing.assert_close(kept, kept.round())
    assert abs(kept.mean().item() / tokens - (1 - rate)) < 5 * math.sqrt(rate * (1 - rate) / (kept.numel() * tokens))
    assert kept.min() < kept.max()


@effects.of(GpsConfig, "dropout", "attention_dropout")
def test_a_gps_drops_what_is_added_and_attention_weights() -> None:
    """PyG's layer does it; with one of the two rates, outputs in training differ from those at evaluation."""
    for name in ("dropout", "attention_dropout"):
        model = model_of(GpsConfig, **{name: 0.4})
        layer = model.layers[0]
        rates = {"dropout": (layer.dropout, layer.mlp[2].p, layer.mlp[4].p), "attention_dropout": (layer.attn.dropout,)}
        assert all(rate == (0.4 if name == key else 0.0) for key, group in rates.items() for rate in group)
        graphs = [path(6), star(5)]
        model.train()
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        assert not torch.allclose(model(graphs), model(graphs))
        torch.testing.assert_close(model.eval()(graphs), model(graphs))


@effects.of(ALL, "num_heads")
@of_all
def test_heads_attend_by_themselves(kind: Kind) -> None:
    """The same weights mean another model with another number of heads; and heads share the width."""
    one, two = (model_of(kind, num_heads=heads) for heads in (1, 2))
    graphs = [random_graph(5, 8, 3), random_graph(4, 5, 4)]
    graphs = [Graph(num_nodes=graph.num_nodes, edge_index=graph.edge_index) for graph in graphs]
    same = {name: tensor for name, tensor in one.state_dict().items() if two.state_dict()[name].shape == tensor.shape}
    two.load_state_dict({**two.state_dict(), **same})
    assert not torch.allclose(one(graphs), two(graphs), atol=1e-9)
    assert one.config.meanings() != two.config.meanings()
    with pytest.raises(ValueError, match="dim 8 is no multiple of num_heads 3"):
        model_of(kind, num_heads=3)


@effects.of([GraphormerConfig, GrpeConfig], "mlp_dim")
@pytest.mark.parametrize("kind", [GraphormerConfig, GrpeConfig])
def test_the_mlps_have_the_hidden_width_that_they_are_told(kind: Kind) -> None:
    for mlp_dim, hidden in ((None, 8), (5, 5)):
        assert [block.mlp[0].out_features for block in model_of(kind, mlp_dim=mlp_dim).blocks] == [hidden, hidden]


@effects.of(EgtConfig, "mlp_ratio", "edge_dim", "virtual_nodes")
def test_an_egt_has_the_widths_and_virtual_nodes_that_it_is_told() -> None:
    for ratio, edge_dim, virtual in ((1, 8, 1), (3, 6, 2)):
        model = model_of(EgtConfig, mlp_ratio=ratio, edge_dim=edge_dim, virtual_nodes=virtual)
        first = model.layers[0]
        assert (first.mlp[1][0].out_features, first.pair_mlp[1][0].out_features) == (8 * ratio, edge_dim * ratio)
        batch = GraphBatch.collate([path(3), path(5)])
        channels = model.channels(batch, Pairs(batch, virtual))
        assert channels.shape == ((3 + virtual) ** 2 + (5 + virtual) ** 2, edge_dim)
        assert model.embed(batch).shape == (2, virtual * 8) == (2, model.embedding_width)


@effects.of(GraphormerConfig, "max_degree")
def test_degrees_above_the_largest_share_a_row() -> None:
    """A star's middle has five neighbours, its points have one."""
    for most, seen in ((3, [1, 3]), (4, [1, 4]), (9, [1, 5])):
        model = model_of(GraphormerConfig, max_degree=most)
        for table in (model.in_degree, model.out_degree):
            assert indices_of(table, lambda model=model: model([star(6)])) == seen


@effects.of([GraphormerConfig, EgtConfig], "max_distance")
def test_distances_above_the_largest_are_as_no_path() -> None:
    """A path of five nodes has distances 0 to 4; the row behind the last is for no path, then the virtual node's."""
    for most, seen in ((2, [0, 1, 2, 3]), (9, [0, 1, 2, 3, 4])):
        graphormer, egt = (model_of(kind, max_distance=most) for kind in (GraphormerConfig, EgtConfig))
        assert indices_of(graphormer.bias.distance, lambda model=graphormer: model([path(5)])) == [*seen, most + 2]
        assert indices_of(egt.channels.distance, lambda model=egt: model([path(5)])) == seen
        apart = [Graph(num_nodes=2)]
        assert indices_of(egt.channels.distance, lambda model=egt, graphs=apart: model(graphs)) == [0, most + 1]


@effects.of(GrpeConfig, "max_distance")
def test_a_grpe_tells_far_nodes_from_nodes_without_a_path() -> None:
    for most, far in ((2, [0, 1, 2]), (3, [0, 1, 2, 3]), (9, [0, 1, 2, 3, 4])):
        model = model_of(GrpeConfig, max_distance=most)
        batch = GraphBatch.collate([path(5)])
        kinds = model.relations(batch, Pairs(batch, 1)).kinds
        assert sorted(set(kinds.tolist())) == [*far, most + 2]
        apart = GraphBatch.collate([Graph(num_nodes=2)])
        kinds = model.relations(apart, Pairs(apart, 1)).kinds
        assert sorted(set(kinds.tolist())) == [0, most + 1, most + 2]


@effects.of(GraphormerConfig, "path_edges")
def test_edges_are_read_as_far_along_a_path_as_is_asked_for() -> None:
    """From node 0 to node 4, by the gradient of their bias."""
    ahead = torch.stack([torch.arange(4), torch.arange(1, 5)])
    graph = Graph(edge_index=ahead, edge_features=torch.ones(4, 1, dtype=torch.float64), num_nodes=5)
    for count in (1, 3, 6):
        model = model_of(GraphormerConfig, path_edges=count, edge_features=FeatureSpec(width=1))
        batch = GraphBatch.collate([graph])
        features = torch.ones(4, 1, dtype=torch.float64, requires_grad=True)
        bias = model.bias(replace(batch, edge_features=features), Pairs(batch, 1)).view(6, 6, 2)
        (slope,) = torch.autograd.grad(bias[1, 5].sum(), features)
        assert (slope.flatten() != 0).tolist() == [place < count for place in range(4)]


@effects.of(GraphormerConfig, "mlp_head")
def test_the_head_is_linear_or_the_authors_mlp() -> None:
    assert isinstance(model_of(GraphormerConfig).head, nn.Linear)
    head = model_of(GraphormerConfig, mlp_head=True).head
    assert [type(part) for part in head] == [nn.Linear, nn.GELU, nn.LayerNorm, nn.Linear]


@effects.of(GpsConfig, "walk_steps", "pooling")
def test_a_gps_starts_with_walks_of_its_length_and_pools_as_it_is_told() -> None:
    for steps in (1, 6):
        model = model_of(GpsConfig, walk_steps=steps)
        assert model.config.facts() == (WalkReturns(steps),)
        seen: list[Tensor] = []
        model.walks.register_forward_hook(lambda _, inputs, __, to=seen: to.append(inputs[0]))
        model([path(3)])
        assert seen[0].tolist() == [[0, 0.5] * 3, [0, 1] * 3, [0, 0.5] * 3] if steps == 6 else [[0]] * 3
    mean, total = (model_of(GpsConfig, pooling=pooling) for pooling in ("mean", "sum"))
    graphs = [path(3), path(5)]
    torch.testing.assert_close(total.embed(graphs), mean.embed(graphs) * torch.tensor([[3.0], [5.0]]).double())
    assert mean.config.meanings() != total.config.meanings()
