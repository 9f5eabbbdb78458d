"""GIN, GCN and GAT: a round of messages and the virtual node by hand, and files that older versions wrote."""

import gc
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.effects import kept_bytes
from tests.graphs import random_graph
from tests.training.stores import graph_store, molecule_store, ring
from tokengt import FeatureSpec, Graph, GraphBatch
from tokengt.config import to_dict
from tokengt.data.store import Store
from tokengt.kernels import support
from tokengt.models.kinds import load_model
from tokengt.models.message_passing import model as model_module
from tokengt.models.message_passing import rounds
from tokengt.models.message_passing.model import GatConfig, GcnConfig, GinConfig, MessagePassing, MessagePassingConfig
from tokengt.models.message_passing.rounds import GcnRound, GinRound, Joined, gat_round, without_features
from tokengt.models.message_passing.virtual_node import VirtualNode
from tokengt.presets import PRESETS, message_passing
from tokengt.ragged import Segments
from tokengt.testing import assert_permutation_equivariant

FIXTURE = Path(__file__).parents[1] / "fixtures" / "gin"
KINDS = [GinConfig, GcnConfig, GatConfig]


def wide(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_a_gin_of_an_older_version_is_read_and_predicts_as_it_did() -> None:
    """Saved by the version that had GIN in a file of its own."""
    model = load_model(FIXTURE)
    assert isinstance(model.config, GinConfig)
    assert (model.config.mlp_dim, model.config.pooling) == (None, "mean")
    expected = torch.tensor(json.loads((FIXTURE / "expected.json").read_text()))
    torch.testing.assert_close(model(molecule_store(5).graphs), expected, rtol=1e-5, atol=1e-6)
    written = json.loads((FIXTURE / "config.json").read_text())["model"]
    assert to_dict(model.config) == json.loads(json.dumps(written)) | {
        name: {**spec, "categories": tuple(spec["categories"])} for name, spec in written.items() if "features" in name
    }


def test_the_preset_for_laptops_is_the_one_there_was() -> None:
    assert PRESETS["gin-vn"]() == message_passing("gin", virtual_node=True)
    assert set(to_dict(PRESETS["gin"]())) == {
        *("kind", "dim", "num_layers", "virtual_node", "dropout", "level", "out_dim"),
        *("node_features", "edge_features", "graph_features"),
    }


def test_one_round_of_a_gin_by_hand() -> None:
    """h_v = MLP((1 + eps) h_v + sum of ReLU(h_u + e_uv)) on a ring of three nodes, edges without features."""
    store = graph_store([ring(3)], "node")
    model: Any = GinConfig(dim=4, num_layers=1).fit(store, 1).build().double().eval()
    layer = model.layers[0]
    states = wide([1.0, -1.0, 2.0, 0.0], [0.5, 0.5, -3.0, 1.0], [2.0, 0.0, 0.0, -1.0])
    sums = torch.stack([states[[1, 2]].relu().sum(0), states[[0, 2]].relu().sum(0), states[[0, 1]].relu().sum(0)])
    expected = layer.norm(layer.conv.nn(states + sums))
    joined = Joined(store.graphs.edge_index, 3)
    assert torch.allclose(layer(states, store.graphs, joined), expected, atol=1e-12)


def test_one_round_of_a_gcn_by_hand() -> None:
    """0 -> 1 twice and 2 -> 1: degrees 1, 4, 1, so messages are worth 1/2 and a node itself 1, 1/4, 1."""
    layer = GcnRound(1).double()
    with torch.no_grad():
        layer.linear.weight.fill_(2.0)
        layer.linear.bias.fill_(1.0)
        layer.root.fill_(0.5)
    index = torch.tensor([[0, 0, 2], [1, 1, 1]])
    # W h + b is 3, -1, 21; the second edge cancels its message, and ReLU the second node's own.
    out = layer(wide([1.0], [-1.0], [10.0]), index, wide([10.0], [-5.0], [0.5]))
    torch.testing.assert_close(out, wide([3.5], [(13 + 0 + 21.5) / 2], [21.5]))


def test_what_follows_from_the_edges_of_a_batch_is_worked_out_once() -> None:
    """Also where a prediction asks for it before a training step does; another batch has its own."""
    store = graph_store([ring(3), ring(4)], "node")
    batch, other = store.graphs, store.graphs.select([1])
    assert Joined.of(batch) is Joined.of(batch.select([0, 1]))
    assert Joined.of(batch) is not Joined.of(other)
    held = len(rounds._JOINED)
    Joined.of(graph_store([ring(5)], "node").graphs)
    gc.collect()
    assert len(rounds._JOINED) <= held, "a batch that is gone takes what was kept of it along"
    model: Any = GcnConfig(dim=4, num_layers=2, dropout=0.0).fit(store, 1).build().eval()
    fresh: Any = GcnConfig(dim=4, num_layers=2, dropout=0.0).fit(store, 1).build().eval()
    fresh.load_state_dict(model.state_dict())
    with torch.inference_mode():
        shown = model(other)
    model(other).sum().backward()
    fresh(graph_store([ring(4)], "node").graphs).sum().backward()
    torch.testing.assert_close(model(other), shown)
    for own, expected in zip(model.parameters(), fresh.parameters(), strict=True):
        torch.testing.assert_close(own.grad, expected.grad)


@pytest.mark.parametrize("make", [lambda: GinRound(3, 5), lambda: GcnRound(3)], ids=["gin", "gcn"])
@pytest.mark.parametrize("edges", [0, 1, 12])
def test_edges_without_features_are_summed_as_edges_of_zeros_are(make: Any, edges: int) -> None:
    """Self-loops and repeated edges included; values and gradients."""
    layer = make().double().eval()
    index = torch.randint(0, 5, (2, edges), generator=torch.Generator().manual_seed(edges))
    states = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    short = layer.without_features(states, Joined(index, 5))
    long = layer(states, index, torch.zeros(edges, 3, dtype=torch.float64))
    torch.testing.assert_close(short, long)
    slope = torch.randn_like(long)
    of_short, of_long = (
        torch.autograd.grad(out, [states, *layer.parameters()], slope, allow_unused=True) for out in (short, long)
    )
    torch.testing.assert_close(of_short, of_long)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_step_keeps_is_near_its_estimate(kind: type[MessagePassingConfig]) -> None:
    store = graph_store([random_graph(600, 4000, 1)], "node")
    store = replace(store, graphs=replace(store.graphs, edge_features=None))
    model = kind(dim=32, num_layers=3, dropout=0.5).fit(store, 2).build().train()
    estimate = model.config.step_bytes(store.graphs, torch.tensor([0]), 4)
    kept = kept_bytes(model, lambda: model(store.graphs))
    assert 0.6 < kept / estimate < 1.5, f"kept {kept:,}, estimated {estimate:,}"


def test_a_gat_computes_its_rounds_again_with_the_same_gradients() -> None:
    store = graph_store([random_graph(30, 90, 1)], "node")
    kept, again = (_built(GatConfig(dim=8, num_layers=2, dropout=0.3), store) for _ in range(2))
    assert again.set_recompute(True)
    for model in (kept, again):
        torch.manual_seed(3)
        model(store.graphs).square().sum().backward()
    for one, other in zip(kept.parameters(), again.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        assert one.grad is None or torch.equal(one.grad, other.grad)
    assert all(torch.equal(a, b) for a, b in zip(kept.buffers(), again.buffers(), strict=True))
    assert not _built(GinConfig(dim=8, num_layers=2), store).set_recompute(True)


def _built(config: MessagePassingConfig, store: Store) -> MessagePassing:
    torch.manual_seed(1)
    return config.fit(store, 2).build().train()


def test_one_round_of_a_gat_by_hand() -> None:
    """0 -> 2 and 1 -> 2; 2 also hears itself, along the mean of the two edges."""
    conv: Any = gat_round(2, 1).double().eval()
    states, edges = wide([1.0, -2.0], [0.5, 3.0], [-1.0, 1.0]), wide([0.3, 0.1], [-2.0, 4.0])
    out = conv(states, torch.tensor([[0, 1], [2, 2]]), edges)
    left, right = (linear.weight @ states.T + linear.bias[:, None] for linear in (conv.lin_l, conv.lin_r))
    heard = torch.stack([edges[0], edges[1], edges.mean(0)])
    raw = torch.nn.functional.leaky_relu(left.T + right[:, 2] + heard, 0.2) @ conv.att.flatten()
    expected = (raw.softmax(0)[:, None] * left.T).sum(0) + conv.bias
    torch.testing.assert_close(out[2], expected)
    # A node that no edge leads to hears itself alone.
    torch.testing.assert_close(out[0], left[:, 0] + conv.bias)
    assert sum(parameter.numel() for parameter in conv.parameters()) == 2 * (4 + 2) + 2 + 2


def test_the_weights_of_a_gat_have_the_names_that_files_have() -> None:
    """PyG's, as every version has written them."""
    conv = gat_round(6, 2)
    shapes = {name: tuple(tensor.shape) for name, tensor in conv.state_dict().items()}
    maps = {f"lin_{side}.{name}": shape for side in "lr" for name, shape in (("weight", (6, 6)), ("bias", (6,)))}
    assert shapes == {"att": (1, 2, 3), "bias": (6,), **maps}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gat_without_kernels_is_that_of_pyg(dtype: torch.dtype) -> None:
    """On a CPU edges without features take PyG's way, bit by bit: loops and repeated edges as PyG has them."""
    index = torch.tensor([[0, 0, 1, 2, 2, 3], [1, 1, 1, 0, 2, 0]])
    batch = GraphBatch.collate([Graph(None, index, num_nodes=5)])
    model: Any = GatConfig(dim=6, num_layers=1, num_heads=2, level="node").build().to(dtype).eval()
    layer, states = model.layers[0], torch.randn(5, 6, dtype=dtype)
    assert without_features(layer.conv, states) is None
    expected = layer.norm(layer.conv(states, index))
    assert torch.equal(layer(states, batch, Joined(index, 5)), expected)


def test_a_gat_that_somebody_looks_into_takes_pygs_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks of edges and hooks would never be asked by the kernels; nor do they know of other settings of the layer."""
    monkeypatch.setattr(support, "edges_work", lambda *sizes: True)
    states = torch.randn(3, 6)

    def plain() -> Any:
        conv: Any = gat_round(6, 2)
        assert without_features(conv, states) is not None
        return conv

    conv = plain()
    conv.explain = True
    assert without_features(conv, states) is None
    conv = plain()
    handle = conv.register_forward_hook(lambda *_: None)
    assert without_features(conv, states) is None
    handle.remove()
    assert without_features(conv, states) is not None
    for name, value in (("negative_slope", 0.1), ("dropout", 0.5)):
        conv = plain()
        setattr(conv, name, value)
        assert without_features(conv, states) is None


def test_memory_of_a_gat_counts_edges_where_no_kernels_are_to_be_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = GraphBatch.collate([Graph(None, torch.zeros(2, 1000, dtype=torch.int64), num_nodes=3)])
    place = torch.tensor([0])
    monkeypatch.setattr(model_module, "installed", lambda: True)
    needs = []
    for there, features in ((False, FeatureSpec()), (True, FeatureSpec()), (True, FeatureSpec(width=1))):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        needs.append(GatConfig(dim=8, num_layers=2, edge_features=features).step_bytes(batch, place, 4))
    assert needs[0] == needs[2] > 2 * 1000 * 8 * 4
    assert needs[1] < 2 * 1000 * 8


@pytest.mark.parametrize("recompute", [False, True])
def test_a_gat_asks_for_kernels_at_the_sizes_it_has(recompute: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the type that products have, and only where no edge has features; nothing is then computed again."""
    asked: list[tuple[Any, ...]] = []
    calls: list[tuple[int, ...]] = []

    def attend(left: Tensor, right: Tensor, att: Tensor, orders: Any) -> Tensor:
        calls.append((*left.shape, *right.shape, *att.shape, orders.rows))
        return left * 2 + right * 0

    monkeypatch.setattr(support, "edges_work", lambda *sizes: asked.append(sizes) or True)
    monkeypatch.setattr(rounds, "edge_attention", attend)
    batch = GraphBatch.collate([Graph(None, torch.tensor([[0, 1], [1, 2]]), num_nodes=3)])
    model: Any = GatConfig(dim=6, num_layers=1, num_heads=2, level="node", dropout=0.0).build().train()
    model.set_recompute(recompute)
    layer, joined, cpu = model.layers[0], Joined(batch.edge_index, 3), torch.device("cpu")
    states = torch.randn(3, 6, requires_grad=True)
    out = layer(states, batch, joined)
    expected = layer.norm(2 * layer.conv.lin_l(states) + layer.conv.bias)
    torch.testing.assert_close(out, expected)
    out.sum().backward()
    assert calls == [(3, 2, 3, 3, 2, 3, 2, 3, 3)]
    with torch.autocast("cpu", torch.bfloat16):
        assert without_features(layer.conv, states) is not None
    assert asked == [(cpu, torch.float32, 2, 3), (cpu, torch.bfloat16, 2, 3)]
    assert without_features(layer.conv.double(), states.double()) is None
    with_features = GatConfig(dim=6, num_layers=1, edge_features=FeatureSpec(width=1), level="node").build()
    edges = replace(batch, edge_features=torch.ones(2, 1))
    assert with_features(edges).isfinite().all()
    assert len(calls) == 1


def test_the_virtual_node_by_hand() -> None:
    """s <- ReLU(norm(W2 ReLU(norm(W1 (s + sum of h) + b1)) + b2)) with norms that have seen nothing yet."""
    virtual: Any = VirtualNode(1, 2, 0.0).double().eval()
    with torch.no_grad():
        for norm in (virtual.mlp[1], virtual.mlp[4]):
            norm.module.eps = 0.0
        virtual.mlp[0].weight.copy_(wide([1.0], [-1.0]))
        virtual.mlp[0].bias.copy_(torch.tensor([1.0, 0.0]))
        virtual.mlp[3].weight.copy_(wide([2.0, 3.0]))
        virtual.mlp[3].bias.fill_(0.5)
    nodes = Segments.from_lengths(torch.tensor([2, 0, 1]))
    # Sums with what was said last: 1 + 2 + 4 = 7, 0 - 5 = -5, and -3 + 3 = 0.
    out = virtual(wide([2.0], [4.0], [-3.0]), wide([1.0], [-5.0], [3.0]), nodes)
    torch.testing.assert_close(out, wide([2 * 8 + 0.5], [3 * 5 + 0.5], [2 * 1 + 0.5]))


@pytest.mark.parametrize("kind", KINDS)
def test_the_virtual_node_speaks_to_nodes_that_no_edge_joins(kind: type[MessagePassingConfig]) -> None:
    """Two nodes without an edge: only a virtual node lets one change what the other becomes."""
    apart = [random_graph(2, 0, seed) for seed in range(4)]
    store = graph_store(apart, "node")
    for virtual_node in (False, True):
        torch.manual_seed(1)
        model = kind(dim=8, num_layers=3, virtual_node=virtual_node).fit(store, 1).build().double().eval()
        first, second = (store.graphs.select([place]) for place in (0, 1))
        features = torch.cat([first.node_features[:1], second.node_features[1:]])  # type: ignore[index]
        changed = replace(first, node_features=features)
        assert torch.equal(model(first)[0], model(changed)[0]) != virtual_node


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_with_a_single_node_has_a_gradient(kind: type[MessagePassingConfig]) -> None:
    """Batch norm has no variance of one row: a last batch that is one atom must not end the training."""
    store = graph_store([random_graph(1, 0), random_graph(1, 0, 1)])
    model = kind(dim=8, num_layers=2, virtual_node=True).fit(store, 1).build().train()
    model(store.graphs.select([0])).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_nodes_move_with_the_nodes(kind: type[MessagePassingConfig]) -> None:
    store = graph_store([random_graph(8, 14, seed) for seed in range(3)], "node")
    model = kind(dim=16, num_layers=2).fit(store, 2).build().double().eval()
    assert_permutation_equivariant(model, random_graph(7, 12, 5))


def test_messages_follow_an_edge_from_its_first_node_to_its_second() -> None:
    graph = Graph(torch.randn(2, 1), torch.tensor([[0], [1]]))
    for kind in KINDS:
        model = kind(dim=8, num_layers=1, level="node", node_features=FeatureSpec(width=1)).build().eval()
        assert isinstance(model, MessagePassing)
        batch = GraphBatch.collate([graph])
        features = graph.node_features.clone().requires_grad_()  # type: ignore[union-attr]
        out = model(replace(batch, node_features=features))
        assert [bool(torch.autograd.grad(out[v], features, retain_graph=True)[0][1 - v].abs() > 0) for v in (0, 1)] == [
            False,
            True,
        ]
