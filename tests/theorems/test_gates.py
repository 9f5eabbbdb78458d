"""The MLPs that the proofs leave to universal approximation, written down: exact, or within a stated bound."""

import math

import pytest
import torch
import torch.nn.functional as F

from tokengt.block import EncoderConfig, Mlp
from tokengt.theory.construction.gates import (
    RELU_SCALE,
    Activation,
    activation_map,
    apply_activation,
    class_gate,
    gated,
    gelu_to_relu,
    identity_map,
    lipschitz,
    mapped,
    pour_units,
)
from tokengt.theory.construction.layout import Layout
from tokengt.theory.scoring import TypeKind

BOTH: tuple[Activation, ...] = ("relu", "gelu")
GRID = torch.linspace(-12, 12, 24_001, dtype=torch.float64)


@pytest.mark.parametrize("activation", BOTH)
def test_a_value_passes_through(activation: Activation) -> None:
    z = torch.cat([GRID, torch.tensor([-1e6, 1e-300, 1e6], dtype=torch.float64)])
    assert torch.allclose(identity_map()(z, activation), z, rtol=4e-16, atol=0)
    assert torch.equal(activation_map(activation, activation)(z, activation), apply_activation(z, activation))


def test_relu_by_gelu() -> None:
    """Off by 0.17 / c at worst, at c z = 0.75: both numbers to the last digit they are known to."""
    scalar = activation_map("relu", "gelu")
    assert gelu_to_relu() == pytest.approx(float((F.gelu(GRID) - F.relu(GRID)).abs().max()), rel=1e-5)
    assert scalar.error == pytest.approx(0.16997120747990369 / RELU_SCALE, rel=1e-12)
    near = GRID / RELU_SCALE
    errors = (scalar(near, "gelu") - F.relu(near)).abs()
    assert 0.999 * scalar.error < float(errors.max()) <= scalar.error * (1 + 1e-9)
    assert float((scalar(GRID, "gelu") - F.relu(GRID)).abs().max()) <= scalar.error + 12 * 2**-52


@pytest.mark.parametrize("pieces", [8, 31, 128, 1000])
def test_gelu_by_relu_costs_what_it_says(pieces: int) -> None:
    scalar = activation_map("gelu", "relu", pieces)
    step = 12 / pieces
    assert scalar.error == pytest.approx(step**2 / 8 * math.sqrt(2 / math.pi) + 6 * math.erfc(6 / math.sqrt(2)) / 2)
    error = float((scalar(GRID, "relu") - F.gelu(GRID)).abs().max())
    assert scalar.error / 3 < error <= scalar.error
    assert len(scalar.inner) == pieces + 1
    far = torch.tensor([-1e9, -7.0, 7.0, 1e9], dtype=torch.float64)
    assert torch.allclose(scalar(far, "relu"), F.relu(far), rtol=1e-12, atol=1e-12)


def test_gelu_by_relu_needs_pieces() -> None:
    with pytest.raises(ValueError, match="pieces is 1"):
        activation_map("gelu", "relu", 1)


def test_largest_slopes() -> None:
    slope = torch.gradient(F.gelu(GRID), spacing=(GRID,))[0].abs().max()
    assert lipschitz("gelu") == pytest.approx(float(slope), rel=1e-6)
    assert lipschitz("relu") == 1.0


@pytest.mark.parametrize("kind", ["circle", "one_hot"])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_a_gate_is_open_for_its_class_alone(order: int, kind: TypeKind) -> None:
    layout = Layout(order, 2, 3, kind)
    tokens = torch.randn(layout.num_classes, layout.dim, dtype=torch.float64)
    tokens[:, layout.type_id] = layout.identifiers
    for gamma in range(layout.num_classes):
        gate = class_gate(layout, gamma)
        values = tokens @ gate.weight + gate.bias
        assert values[gamma] == pytest.approx(0.0, abs=1e-15 if kind == "circle" else 0.0)
        others = torch.arange(layout.num_classes) != gamma
        assert bool((values[others] <= -1 + 1e-12).all())


@pytest.mark.parametrize("kind", ["circle", "one_hot"])
@pytest.mark.parametrize("given", BOTH)
@pytest.mark.parametrize("wanted", ["relu", "gelu", "identity"])
def test_gated_units_in_the_production_mlp(kind: TypeKind, given: Activation, wanted: str) -> None:
    """Tokens of class 2 get f(z + offset) within the stated error, all others zero, up to the bound on |z|."""
    layout, bound, gamma = Layout(3, 2, 3, kind), 50.0, 2
    scalar = identity_map() if wanted == "identity" else activation_map(wanted, given)  # type: ignore[arg-type]
    eye = torch.eye(layout.dim, dtype=torch.float64)
    source, target = eye[layout.sums(gamma)], eye[layout.features].T
    offset = torch.tensor([1.5, -0.5], dtype=torch.float64)
    reach = torch.full((2,), bound + 1.5, dtype=torch.float64)
    units = gated(scalar, source, offset, target, class_gate(layout, gamma), reach, given)
    mlp = Mlp(layout.dim, EncoderConfig(activation=given, mlp_dim=len(units) + 3)).double()
    pour_units(mlp, units)
    tokens = torch.zeros(5, 200, layout.dim, dtype=torch.float64)
    tokens[..., layout.sums(gamma)] = bound * (2 * torch.rand(5, 200, 2, dtype=torch.float64) - 1)
    tokens[:, 0, layout.sums(gamma)] = bound
    tokens[:, 1, layout.sums(gamma)] = -bound
    tokens[..., layout.type_id] = layout.identifiers[:, None]
    output = mlp(tokens.flatten(0, 1)).view_as(tokens)
    z = tokens[gamma][:, layout.sums(gamma)] + offset
    expected = z if wanted == "identity" else apply_activation(z, wanted)  # type: ignore[arg-type]
    assert torch.allclose(output[gamma][:, layout.features], expected, rtol=0, atol=scalar.error + 1e-12)
    assert float(output[gamma][:, layout.width :].abs().max()) == 0
    others = torch.tensor([0, 1, 3, 4])
    assert float(output[others].abs().max()) == 0


@pytest.mark.parametrize("strength", [1e2, 1e9, 1e15])
def test_one_hot_gates_cost_no_precision_however_strong(strength: float) -> None:
    """The class's own gate is zero without cancellation, so a far too large bound on |X| does no harm."""
    layout = Layout(2, 1, 2, "one_hot")
    eye = torch.eye(layout.dim, dtype=torch.float64)
    reach = torch.full((1,), strength, dtype=torch.float64)
    units = gated(
        identity_map(), eye[layout.sums(1)], torch.zeros(1, dtype=torch.float64), eye[layout.features].T,
        class_gate(layout, 1), reach, "gelu",
    )  # fmt: skip
    token = torch.zeros(layout.dim, dtype=torch.float64)
    token[layout.type_id], token[layout.sums(1)] = layout.identifiers[1], math.pi
    assert float(units.down[0] @ F.gelu(units.up @ token + units.bias)) == pytest.approx(math.pi, rel=1e-15)


def test_clearing_channels() -> None:
    layout = Layout(1, 2, 2, "one_hot")
    eye = torch.eye(layout.dim, dtype=torch.float64)[layout.features]
    units = mapped(identity_map(), eye, eye.T, -1.0)
    token = torch.randn(layout.dim, dtype=torch.float64)
    left = token + units.down @ F.relu(units.up @ token + units.bias)
    assert left[:2].tolist() == [0, 0]
    assert torch.equal(left[2:], token[2:])
