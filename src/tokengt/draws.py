"""Random numbers from a generator, or from a key: the same key gives the same numbers anywhere.

A *draw* is one set of random numbers. A keyed draw is a hash of the key and of the place inside a segment, and of
nothing else, so what one graph draws never depends on its neighbours in a batch, on the batch's size or on the device.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokengt.ragged import Segments

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15, the step of splitmix64, as a signed 64-bit integer
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB

_MASK = 2**64 - 1


def mix(x: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """The splitmix64 finaliser: a bijection of 64-bit integers whose outputs pass for random."""
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def chain(columns: Int[Tensor, "order rows"]) -> Int[Tensor, " rows"]:
    """One hash per column, which depends on the order of the column's entries."""
    state = torch.zeros_like(columns[0])
    for row in columns:
        state = mix(state + row + 1)
    return state


def chain_of(*numbers: int) -> int:
    """:func:`chain` of a single column, without torch: as a signed 64-bit integer."""
    state = 0
    for number in numbers:
        state = _mixed((state + number + 1) & _MASK)
    return state - 2**64 if state >> 63 else state


def _mixed(x: int) -> int:
    """:func:`mix` of one unsigned 64-bit integer."""
    x = ((x ^ (x >> 30)) * _MIX_1) & _MASK
    x = ((x ^ (x >> 27)) * _MIX_2) & _MASK
    return x ^ (x >> 31)


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the generators that code on ``device`` draws from.

    ``torch.manual_seed`` reaches for every kind of accelerator, and where there is none it writes down where it was
    called from, in case one is found later. That takes a millisecond, a step of a small model on a CPU fifty.
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def _shift(x: Tensor, bits: int) -> Tensor:
    """A logical right shift (torch's is arithmetic)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


@dataclass(frozen=True, eq=False)
class KeyedDraws:
    """Draws that are a function of ``keys[segment]`` and the place in the segment."""

    keys: Int[Tensor, " segments"]

    def normal(self, segments: Segments, width: int, columns: int | None = None) -> Float[Tensor, "rows columns"]:
        """Independent standard normals (Box-Muller), float64: the first ``columns`` of the ``width`` in each row."""
        first, second = (self._uniform(segments, width, columns or width, stream) for stream in (0, 1))
        return (-2 * first.log()).sqrt() * (2 * math.pi * second).cos()

    def _uniform(self, segments: Segments, width: int, columns: int, stream: int) -> Float[Tensor, "rows columns"]:
        column = torch.arange(columns, device=self.keys.device)
        place = (segments.positions[:, None] * width + column) * 2 + stream
        bits = mix(mix(place * _GOLDEN + 1) + self.keys.index_select(0, segments.ids)[:, None])
        # A float64 has 53 significant bits; half a step is added so that log() never sees zero.
        return (_shift(bits, 11).double() + 0.5) * 2.0**-53


@dataclass(frozen=True, eq=False)
class GeneratorDraws:
    """Draws from a torch generator (None for torch's global one)."""

    generator: torch.Generator | None
    device: torch.device

    def normal(self, segments: Segments, width: int, columns: int | None = None) -> Float[Tensor, "rows columns"]:
        """Independent standard normals, float64: the first ``columns`` of the ``width`` in each row."""
        # A generator only draws on its own device, which need not be the data's.
        source = self.device if self.generator is None else self.generator.device
        shape = (segments.total, columns or width)
        return torch.randn(shape, generator=self.generator, device=source, dtype=torch.float64).to(self.device)


Draws = KeyedDraws | GeneratorDraws
