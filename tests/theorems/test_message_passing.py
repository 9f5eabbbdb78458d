"""Corollary 2: message passing as a 2-IGN, and as a Transformer."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokengt.ragged import Segments
from tokengt.theory.construction import (
    MessagePassingLayer,
    compile_ign,
    graph_tensor,
    message_passing_ign,
    pass_messages,
    tensor_graph,
)
from tokengt.theory.construction.gates import Activation, apply_activation
from tokengt.theory.construction.measure import message_passing_agreement, random_message_layer, random_tensor
from tokengt.theory.ign import IGNConfig, InputDomain, InvariantGraphNetwork
from tokengt.theory.lift import lift_ign
from tokengt.theory.tuples import Tuples

BOTH: tuple[Activation, ...] = ("relu", "gelu")


def run(ign: InvariantGraphNetwork, x: torch.Tensor) -> torch.Tensor:
    return ign(x.flatten(0, 1), Tuples.dense(Segments.uniform(1, len(x)), 2))[0]


def test_a_path_by_hand() -> None:
    """0 - 1 - 2 with 1, 2, 3: h' = relu(h + 10 (sum of neighbours) - 25) = [0, 17, 0], and then [145, 0, 145]."""
    adjacency = torch.tensor([[0, 1, 0], [1, 0, 1], [0, 1, 0]], dtype=torch.bool)
    features = torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64)
    one, ten = torch.ones(1, 1, dtype=torch.float64), torch.full((1, 1), 10.0, dtype=torch.float64)
    layer = MessagePassingLayer.linear(one, ten, torch.tensor([-25.0], dtype=torch.float64))
    assert pass_messages([layer], features, adjacency, "relu").flatten().tolist() == [0, 17, 0]
    x = graph_tensor(features, adjacency)
    for layers, total in (([layer], 17.0), ([layer, layer], 2 * (170.0 - 25.0))):
        ign = message_passing_ign(layers, 3, 3.0)
        assert run(ign, x).tolist() == pytest.approx([total], rel=1e-12)
        output = compile_ign(ign, 3, 400.0, 3.0)(tensor_graph(x))
        assert output.flatten().tolist() == pytest.approx([total], rel=1e-10)


@given(
    nodes=st.integers(1, 6),
    widths=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    activation=st.sampled_from(BOTH),
    seed=st.integers(0, 1000),
)
@settings(max_examples=20)
def test_linear_messages(nodes: int, widths: list[int], activation: Activation, seed: int) -> None:
    """h_i' = sigma(h_i W_self + sum_j A_ij h_j W_msg + b), in matrices, for any stack on any directed graph."""
    generator = torch.Generator().manual_seed(seed)
    features = random_tensor(nodes, 1, widths[0], 2.0, generator)
    adjacency = torch.rand(nodes, nodes, generator=generator) < 0.5
    a = adjacency.double() * (1 - torch.eye(nodes, dtype=torch.float64))
    layers, h = [], features
    for before, after in pairwise(widths):
        own, message = (torch.randn(before, after, generator=generator, dtype=torch.float64) for _ in range(2))
        bias = torch.randn(after, generator=generator, dtype=torch.float64)
        layers.append(MessagePassingLayer.linear(own, message, bias))
        h = apply_activation(h @ own + a @ h @ message + bias, activation)
    assert torch.allclose(pass_messages(layers, features, adjacency, activation), h, rtol=1e-10, atol=1e-10)
    ign = message_passing_ign(layers, nodes, 2.0, activation)
    scale = max(1.0, float(h.abs().max()))
    assert float((run(ign, graph_tensor(features, adjacency)) - h.sum(0)).abs().max()) < 1e-10 * scale


@pytest.mark.parametrize("activation", BOTH)
@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_messages_of_both_ends_and_edge_features(nodes: int, activation: Activation) -> None:
    """A message for every edge, one by one, as Gilmer et al. write it."""
    generator = torch.Generator().manual_seed(nodes)
    layers = [random_message_layer(2, 3, generator), random_message_layer(3, 2, generator)]
    features, edges = random_tensor(nodes, 1, 2, 1.0, generator), random_tensor(nodes, 2, 1, 1.0, generator)
    adjacency = torch.rand(nodes, nodes, generator=generator) < 0.5
    h = features
    for layer in layers:
        new = []
        for i in range(nodes):
            total = torch.zeros(layer.send.shape[1], dtype=torch.float64)
            for j in range(nodes):
                if adjacency[i, j] and i != j:
                    z = h[i] @ layer.receive + h[j] @ layer.send + edges[i, j] @ layer.edge + layer.message_bias
                    total = total + apply_activation(z, activation)
            new.append(apply_activation(h[i] @ layer.own + total @ layer.message + layer.bias, activation))
        h = torch.stack(new)
    assert torch.allclose(pass_messages(layers, features, adjacency, activation, edges), h, atol=1e-12)
    output = run(message_passing_ign(layers, nodes, 1.0, activation), graph_tensor(features, adjacency, edges))
    assert torch.allclose(output, h.sum(0), atol=1e-11)


@pytest.mark.parametrize("activation", BOTH)
@pytest.mark.parametrize("nodes", [1, 3, 6])
def test_the_transformer_passes_the_messages(nodes: int, activation: Activation) -> None:
    agreement = message_passing_agreement(nodes, 400.0, activation=activation, seed=nodes)
    assert agreement.relative < 1e-10
    assert agreement.holds


def loud_layer(*, send: float = 0.0, edge: float = 0.0) -> MessagePassingLayer:
    """One channel each: h_i' = sigma(sum_j sigma(send h_j + edge e_ij)), and nothing else."""
    one, none = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    return MessagePassingLayer(0 * one, send * one, edge * one, none, one, 0 * one, none)


@pytest.mark.parametrize("activation", BOTH)
@pytest.mark.parametrize(
    ("first", "state"),
    [
        pytest.param(loud_layer(edge=1000.0), 7000.0, id="messages of edge features alone"),
        pytest.param(loud_layer(send=100.0), 700.0, id="n - 1 messages make up a state"),
    ],
)
def test_gates_hold_against_the_loudest_state(first: MessagePassingLayer, state: float, activation: Activation) -> None:
    """Node 0 hears seven others, all inputs at their bound; then nobody hears node 0, loud as it is.

    The second layer's gates are made for what the first can give. Made for less, they would let node 0's messages
    pass to all others, where there is no edge.
    """
    nodes = 8
    features, edges = (torch.ones(*shape, 1, dtype=torch.float64) for shape in ([nodes], [nodes, nodes]))
    adjacency = torch.zeros(nodes, nodes, dtype=torch.bool)
    adjacency[0] = True
    layers = [first, loud_layer(send=1.0)]
    after_one = pass_messages(layers[:1], features, adjacency, activation, edges)
    assert float(after_one[0]) == pytest.approx(state)
    wanted = pass_messages(layers, features, adjacency, activation, edges).sum(0)
    output = run(message_passing_ign(layers, nodes, 1.0, activation), graph_tensor(features, adjacency, edges))
    assert torch.allclose(output, wanted, rtol=1e-12, atol=1e-9)


def test_the_bound_on_features_is_that_of_the_input() -> None:
    """A network made for |h| <= 1 is wrong beyond: neither it nor what is compiled from it takes more."""
    layers = [random_message_layer(2, 2, torch.Generator().manual_seed(0))]
    features, adjacency = torch.full((3, 2), 4.0, dtype=torch.float64), torch.ones(3, 3, dtype=torch.bool)
    ign = message_passing_ign(layers, 3, 1.0)
    with pytest.raises(
        ValueError, match=r"an input of size 4; .* at most 3 nodes and \|X\| up to 1, and is wrong beyond"
    ):
        run(ign, graph_tensor(features, adjacency, torch.zeros(3, 3, 1, dtype=torch.float64)))
    for network in (ign, lift_ign(ign)):
        with pytest.raises(ValueError, match="num_nodes is 3 and input_bound 4; the network was made for at most 3"):
            compile_ign(network, 3, 400.0, 4.0)
        with pytest.raises(ValueError, match="num_nodes is 4 and input_bound 1; the network was made for at most 3"):
            compile_ign(network, 4, 400.0, 1.0)
    domain = compile_ign(ign, 3, 400.0).config.domain
    assert domain is not None
    assert domain.input_bound == 1.0
    # The tensor holds A_ij = 1, so that no network of messages is made for less.
    assert message_passing_ign(layers, 3, 0.5).domain == InputDomain(3, 1.0)
    with pytest.raises(ValueError, match="input_bound is missing"):
        compile_ign(InvariantGraphNetwork(IGNConfig()), 3, 400.0)


def test_self_loops_and_features_of_absent_edges_are_ignored() -> None:
    generator = torch.Generator().manual_seed(0)
    layers = [random_message_layer(2, 2, generator)]
    features, edges = random_tensor(3, 1, 2, 1.0, generator), random_tensor(3, 2, 1, 1.0, generator)
    adjacency = torch.tensor([[0, 1, 0], [0, 0, 0], [1, 0, 0]], dtype=torch.bool)
    loops = adjacency | torch.eye(3, dtype=torch.bool)
    assert torch.equal(graph_tensor(features, adjacency, edges), graph_tensor(features, loops, edges))
    other = torch.where(adjacency[..., None], edges, torch.ones_like(edges))
    assert torch.equal(graph_tensor(features, adjacency, edges), graph_tensor(features, adjacency, other))
    plain, looped = (pass_messages(layers, features, a, "relu", edges) for a in (adjacency, loops))
    assert torch.equal(plain, looped)


def test_layers_that_do_not_fit() -> None:
    generator = torch.Generator().manual_seed(0)
    with pytest.raises(ValueError, match="at least one layer"):
        message_passing_ign([], 3, 1.0)
    with pytest.raises(ValueError, match="layer 1 takes 2 node and 1 edge channels; the one before gives 3 and 1"):
        message_passing_ign([random_message_layer(2, 3, generator), random_message_layer(2, 2, generator)], 3, 1.0)
