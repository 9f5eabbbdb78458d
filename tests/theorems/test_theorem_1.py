"""Theorem 1: one production block is a given L_{k->k}."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.theorems.curves import assert_falls_as_the_gap
from tokengt.theory.construction import compile_layer, encode_tensor, gates, layer_bound, logit_gap, tensor_graph
from tokengt.theory.construction.gates import Activation
from tokengt.theory.construction.layout import Layout
from tokengt.theory.construction.measure import (
    layer_agreement,
    orthonormal_ids,
    random_tensor,
    randomise,
    silenced_agreement,
)
from tokengt.theory.ign import EquivariantLinear
from tokengt.theory.partitions import patterns
from tokengt.theory.scoring import TypeKind

BOTH: tuple[Activation, ...] = ("relu", "gelu")


@pytest.mark.parametrize("activation", BOTH)
@pytest.mark.parametrize("seed", range(10))
def test_ten_random_layers_of_four_channels(seed: int, activation: Activation) -> None:
    agreement = layer_agreement(2, 6, 200.0, activation=activation, seed=seed)
    assert agreement.error < 1e-10
    assert agreement.scale > 10
    assert agreement.holds


@given(
    order=st.integers(1, 3),
    nodes=st.integers(1, 4),
    wider=st.integers(0, 3),
    activation=st.sampled_from(BOTH),
    kind=st.sampled_from(("one_hot", "circle")),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25)
def test_any_layer_of_any_order_and_size(
    order: int, nodes: int, wider: int, activation: Activation, kind: TypeKind, seed: int
) -> None:
    """Patterns empty at small n, one node, wide identifiers, inputs of size 30: within 1e-10 of their size."""
    agreement = layer_agreement(
        order, nodes, 600.0, channels=2, id_dim=nodes + wider, activation=activation, types=kind,
        input_bound=30.0, seed=seed,
    )  # fmt: skip
    assert agreement.relative < 1e-10
    assert agreement.holds


def test_sets_by_hand() -> None:
    """L_{1->1}(X) = I X w_1 + (1 1^T - I) X w_2 + 1 b^T (Eq. 4), from 2 channels to 3."""
    layer = EquivariantLinear(1, 1, 2, 3).double()
    randomise(layer, torch.Generator().manual_seed(0))
    x = torch.tensor([[1.0, -2.0], [0.5, 4.0], [-3.0, 0.0]], dtype=torch.float64)
    (w_1, w_2), b = layer.weight.detach(), layer.bias.detach()[0]
    expected = x @ w_1 + (x.sum(0) - x) @ w_2 + b
    model = compile_layer(layer, 3, 200.0, 4.0)
    assert torch.allclose(encode_tensor(model, x)[:, :3], expected, atol=1e-12)
    assert torch.allclose(model(tensor_graph(x)), expected.sum(0, keepdim=True), atol=1e-12)


@pytest.mark.parametrize("activation", BOTH)
def test_transposition_by_hand(activation: Activation) -> None:
    """w_mu = 1 for (i, j; j, i) and (i, i; i, i) alone, bias 10 on the diagonal: X^T + 10 I."""
    layer = EquivariantLinear(2, 2, 1, 1).double()
    layer.weight.zero_()
    layer.weight[[patterns(4).index(mu) for mu in ((0, 0, 0, 0), (0, 1, 1, 0))]] = 1.0
    layer.bias.copy_(torch.tensor([[10.0], [0.0]]))
    x = torch.arange(16, dtype=torch.float64).view(4, 4, 1)
    output = encode_tensor(compile_layer(layer, 4, 300.0, 15.0, activation=activation), x)[..., 0]
    assert torch.allclose(output, x[..., 0].T + 10 * torch.eye(4), atol=1e-11)


@pytest.mark.parametrize("activation", BOTH)
def test_identifiers_are_kept_and_the_sums_cleared(activation: Activation) -> None:
    """Eq. 39: the block changes the first d channels and nothing else, so that another block can follow."""
    generator = torch.Generator().manual_seed(0)
    layer = EquivariantLinear(2, 2, 3, 3).double()
    randomise(layer, generator)
    x, ids = random_tensor(4, 2, 3, 1.0, generator), orthonormal_ids(4, 5, generator)
    layout = Layout(2, 3, 5, "one_hot")
    output = encode_tensor(compile_layer(layer, 4, 200.0, 1.0, id_dim=5, activation=activation), x, ids)
    for place in range(2):
        kept = ids[:, None] if place == 0 else ids[None]
        assert torch.equal(output[..., layout.node_id(place)], kept.expand(4, 4, 5))
    types = torch.eye(2, dtype=torch.float64)[(~torch.eye(4, dtype=torch.bool)).long()]
    assert torch.equal(output[..., layout.type_id], types)
    assert float(output[..., layout.input_dim :].abs().max()) < 1e-13


@pytest.mark.parametrize(("order", "nodes"), [(2, 4), (3, 3)])
@pytest.mark.parametrize("activation", BOTH)
@pytest.mark.parametrize("kind", ["one_hot", "circle"])
def test_empty_rows_are_silenced(order: int, nodes: int, activation: Activation, kind: TypeKind) -> None:
    agreement = silenced_agreement(order, nodes, activation=activation, types=kind)
    assert agreement.scale > 1, "there was something to silence"
    assert agreement.holds
    assert agreement.error < 1e-14


@pytest.mark.parametrize("activation", BOTH)
@pytest.mark.parametrize("kind", ["one_hot", "circle"])
def test_open_gates_silence_nothing(activation: Activation, kind: TypeKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """What other classes' heads bring is left in the token, as much of it as the activation passes."""
    monkeypatch.setattr(gates, "gate_strength", lambda scalar, bound, _: torch.zeros(len(scalar.inner), len(bound)))
    agreement = silenced_agreement(2, 4, activation=activation, types=kind)
    assert agreement.error > 0.1 * agreement.scale
    assert not agreement.holds


@pytest.mark.parametrize(("order", "nodes", "kind"), [(1, 5, "one_hot"), (2, 4, "circle"), (3, 3, "one_hot")])
def test_errors_fall_geometrically_until_float64_ends_it(order: int, nodes: int, kind: TypeKind) -> None:
    assert_falls_as_the_gap(
        lambda sharpness: layer_agreement(order, nodes, sharpness, channels=2, types=kind).error,
        lambda sharpness: logit_gap(order, nodes, sharpness, kind),
        floor=1e-10,
    )


@pytest.mark.parametrize("sharpness", [0.1, 10.0, 50.0, 100.0, 1e4])
def test_the_bound_holds_at_any_sharpness(sharpness: float) -> None:
    for order, nodes in ((1, 4), (2, 3), (3, 2)):
        assert layer_agreement(order, nodes, sharpness, channels=2, seed=1).holds


def test_the_bound_is_a_formula() -> None:
    """L_{1->1}, one channel, weights 2 and 3, |X| <= 5, n = 4: 2 e^-gap (3 * 2 + 1 * 3) * 5, and rounding."""
    layer = EquivariantLinear(1, 1, 1, 1).double()
    layer.weight.copy_(torch.tensor([2.0, -3.0]).view(2, 1, 1))
    gap = logit_gap(1, 4, 30.0, "one_hot")
    expected = 2 * torch.exp(torch.tensor(-gap)) * (3 * 2 + 1 * 3) * 5
    assert layer_bound(layer, 4, 30.0, 5.0) == pytest.approx(float(expected), rel=1e-3)


def test_identifiers_may_be_any_orthonormal_ones() -> None:
    generator = torch.Generator().manual_seed(3)
    layer = EquivariantLinear(2, 2, 2, 2).double()
    randomise(layer, generator)
    x = random_tensor(4, 2, 2, 1.0, generator)
    model = compile_layer(layer, 4, 500.0, 1.0, id_dim=6)
    own = encode_tensor(model, x)
    for node_ids in (torch.eye(6, dtype=torch.float64)[1:5], -torch.eye(6, dtype=torch.float64)[:4].flip(0)):
        assert torch.allclose(encode_tensor(model, x, node_ids)[..., :2], own[..., :2], atol=1e-10)


def test_what_cannot_be_compiled_is_refused() -> None:
    layer = EquivariantLinear(2, 2, 1, 1)
    for arguments, sentence in (
        ((EquivariantLinear(2, 1, 1, 1), 3, 100.0, 1.0), "from order 2 to 1"),
        ((layer, 0, 100.0, 1.0), "num_nodes is 0"),
        ((layer, 3, 0.0, 1.0), "sharpness is 0"),
        ((layer, 3, 100.0, -1.0), "input_bound -1"),
    ):
        with pytest.raises(ValueError, match=sentence):
            compile_layer(*arguments)
    with pytest.raises(ValueError, match="need id_dim >= n"):
        compile_layer(layer, 5, 100.0, 1.0, id_dim=4)


def test_tensors_that_are_no_tensors() -> None:
    for shape in ((3,), (3, 4, 1)):
        with pytest.raises(ValueError, match=r"expected \[n, \.\.\., n, channels\]"):
            tensor_graph(torch.zeros(shape))
