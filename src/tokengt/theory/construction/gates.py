"""The one-hidden-layer MLPs that the proofs leave to universal approximation, written down instead.

All hidden units compute act(v . token + c). Three facts carry everything: act(z) - act(-z) = z for ReLU and GELU
alike; act(z) = 0 once z is negative enough; and a token's type identifier says its class. So a unit that is pushed
far below zero outside its class, and not at all inside, passes a value for one class and silences it for all others.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from tokengt.block import Mlp
from tokengt.theory.construction.layout import Layout

Activation = Literal["relu", "gelu"]

# GELU(-z) is below 1e-300 in size from this z on.
_GELU_ZERO = 40.0
# ReLU(-z) is zero from z = 0 on; the 1 is a margin against rounding.
_RELU_ZERO = 1.0
# The c of ReLU(z) = GELU(c z) / c, nearly: a power of two, so that scaling by it makes no rounding error.
RELU_SCALE = 2.0**40
# Where GELU is made of ReLUs: beyond +-6 GELU(z) is 0 or z, up to 6e-9.
GELU_RANGE = 6.0


@dataclass(frozen=True, eq=False)
class ScalarMap:
    """f(z) = sum_u outer_u act(inner_u z + shift_u), and ``error``, the largest |f(z) - what it stands for|."""

    inner: Float[Tensor, " units"]
    shift: Float[Tensor, " units"]
    outer: Float[Tensor, " units"]
    error: float

    def __call__(self, z: Float[Tensor, "*shape"], activation: Activation) -> Float[Tensor, "*shape"]:
        hidden = apply_activation(z[..., None] * self.inner + self.shift, activation)
        return hidden @ self.outer


def apply_activation(z: Float[Tensor, "*shape"], activation: Activation) -> Float[Tensor, "*shape"]:
    return F.relu(z) if activation == "relu" else F.gelu(z)


def identity_map() -> ScalarMap:
    """z = act(z) - act(-z), exact for ReLU and GELU."""
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64)
    return ScalarMap(signs, torch.zeros_like(signs), signs, 0.0)


def activation_map(wanted: Activation, given: Activation, pieces: int = 128) -> ScalarMap:
    """sigma in units of the encoder's activation.

    * The same: one unit, exact.
    * ReLU by GELU: GELU(c z) / c, within max_t t Phi(-t) / c = 0.17 / c everywhere. c is 2^40, so this costs 2e-13.
    * GELU by ReLU: linear interpolation at ``pieces`` + 1 equispaced points of [-6, 6], 0 below and z above. With
      h = 12 / pieces it is within h^2 / 8 max|GELU''| + 6 Phi(-6) everywhere, max|GELU''| = sqrt(2 / pi). One unit
      per point and class is needed: this costs width.
    """
    one = torch.ones(1, dtype=torch.float64)
    if wanted == given:
        return ScalarMap(one, torch.zeros_like(one), one, 0.0)
    if given == "gelu":
        return ScalarMap(RELU_SCALE * one, torch.zeros_like(one), one / RELU_SCALE, gelu_to_relu() / RELU_SCALE)
    if pieces < 2:
        raise ValueError(f"pieces is {pieces}; expected at least 2")
    points = torch.linspace(-GELU_RANGE, GELU_RANGE, pieces + 1, dtype=torch.float64)
    values = F.gelu(points)
    # Beyond the last points the map is 0 and z as ReLU is, so that its error does not grow there.
    values[0], values[-1] = 0.0, GELU_RANGE
    slopes = F.pad(values.diff() / points.diff(), (1, 0))
    slopes = torch.cat([slopes, torch.ones_like(one)])
    step = 2 * GELU_RANGE / pieces
    error = step**2 / 8 * math.sqrt(2 / math.pi) + GELU_RANGE * _normal_tail(GELU_RANGE)
    return ScalarMap(torch.ones_like(points), -points, slopes.diff(), error)


def lipschitz(activation: Activation) -> float:
    """The largest slope: 1 for ReLU; for GELU at z = sqrt(2), where GELU'' = (2 - z^2) phi(z) is zero: 1.13."""
    if activation == "relu":
        return 1.0
    z = math.sqrt(2)
    return 1 - _normal_tail(z) + z * math.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)


@cache
def gelu_to_relu() -> float:
    """max_t |GELU(t) - ReLU(t)| = max_t t Phi(-t), at the one t > 0 with Phi(-t) = t phi(t)."""
    low, high = 0.0, 2.0
    while (middle := (low + high) / 2) not in (low, high):
        density = math.exp(-(middle**2) / 2) / math.sqrt(2 * math.pi)
        low, high = (middle, high) if _normal_tail(middle) > middle * density else (low, middle)
    return low * _normal_tail(low)


def _normal_tail(t: float) -> float:
    """Phi(-t)."""
    return math.erfc(t / math.sqrt(2)) / 2


@dataclass(frozen=True, eq=False)
class Gate:
    """A linear function of the token, g = weight . token + bias: 0 in one class, at most -1 in every other."""

    weight: Float[Tensor, " dim"]
    bias: float


def class_gate(layout: Layout, gamma: int) -> Gate:
    """g = (<E, E^gamma> - 1) / epsilon; for one-hot types minus the sum of all other entries, which is the same.

    The second form is 0 without rounding in its own class, however strong the gate.
    """
    weight = torch.zeros(layout.dim, dtype=torch.float64)
    if layout.types == "one_hot":
        weight[layout.type_id] = -1.0
        weight[layout.type_id.start + gamma] = 0.0
        return Gate(weight, 0.0)
    weight[layout.type_id] = layout.identifiers[gamma] / layout.margin
    return Gate(weight, -1 / layout.margin)


@dataclass(frozen=True, eq=False)
class Units:
    """Hidden units of an MLP: down act(up token + bias)."""

    up: Float[Tensor, "units dim"]
    bias: Float[Tensor, " units"]
    down: Float[Tensor, "dim units"]

    def __len__(self) -> int:
        return len(self.bias)

    @staticmethod
    def join(parts: "list[Units]") -> "Units":
        return Units(
            torch.cat([part.up for part in parts]),
            torch.cat([part.bias for part in parts]),
            torch.cat([part.down for part in parts], 1),
        )


def mapped(
    scalar: ScalarMap, source: Float[Tensor, "channels dim"], target: Float[Tensor, "dim channels"], scale: float = 1.0
) -> Units:
    """Units that add scale f(z_c) along ``target[:, c]``, z_c = source_c . token."""
    up = (scalar.inner[:, None, None] * source).flatten(0, 1)
    bias = scalar.shift.repeat_interleave(len(source))
    down = torch.cat([scale * weight * target for weight in scalar.outer.tolist()], 1)
    return Units(up, bias, down)


def gated(
    scalar: ScalarMap,
    source: Float[Tensor, "channels dim"],
    offset: Float[Tensor, " channels"],
    target: Float[Tensor, "dim channels"],
    gate: Gate,
    bound: Float[Tensor, " channels"],
    activation: Activation,
) -> Units:
    """Units that add f(z_c) along ``target[:, c]``, z_c = source_c . token + offset_c, for tokens of the gate's class.

    For all others they are silent, as |z_c| <= ``bound[c]`` on every token: see :func:`gate_strength`.
    """
    strength = gate_strength(scalar, bound, activation)
    plain = mapped(scalar, source, target)
    shifted = plain.bias + (scalar.inner[:, None] * offset + gate.bias * strength).flatten()
    return Units(plain.up + strength.flatten()[:, None] * gate.weight, shifted, plain.down)


def gate_strength(
    scalar: ScalarMap, bound: Float[Tensor, " channels"], activation: Activation
) -> Float[Tensor, "units channels"]:
    """2 (|inner| bound + |shift|) + margin: times g <= -1 it takes inner z + shift below -margin, with room to spare.

    The margin is where the activation is zero: 40 for GELU; for ReLU 1, against rounding.
    """
    size = scalar.inner.abs()[:, None] * bound + scalar.shift.abs()[:, None]
    return 2 * size + (_GELU_ZERO if activation == "gelu" else _RELU_ZERO)


@torch.no_grad()
def pour_units(mlp: Mlp, units: Units) -> None:
    """Write the units into the production MLP; the hidden units it has beyond them stay silent."""
    for parameter in mlp.parameters():
        parameter.zero_()
    count = len(units)
    mlp.up.weight[:count] = units.up
    mlp.up.bias[:count] = units.bias
    mlp.down.weight[:, :count] = units.down
