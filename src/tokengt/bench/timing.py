"""Interleaved rounds: what disturbs one system disturbs the other, and the median forgives it."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from tokengt.bench.counting import wait

# A round of one system: how many graphs and tokens it worked on.
Round = Callable[[], tuple[int, int]]


@dataclass(frozen=True)
class Timing:
    """Seconds, graphs and tokens of every round, and the GPU's memory at its fullest (None on a CPU)."""

    seconds: tuple[float, ...]
    graphs: tuple[int, ...]
    tokens: tuple[int, ...]
    memory_gib: float | None

    def at_least(self, peak: int) -> "Timing":
        """The same, the memory at its fullest being no less than these bytes."""
        return self if self.memory_gib is None else replace(self, memory_gib=max(self.memory_gib, peak / 2**30))

    @property
    def graphs_per_s(self) -> float:
        return statistics.median(g / s for g, s in zip(self.graphs, self.seconds, strict=True))

    @property
    def tokens_per_s(self) -> float:
        return statistics.median(t / s for t, s in zip(self.tokens, self.seconds, strict=True))


def interleaved(
    rounds: Mapping[str, Round], repeats: int, device: torch.device, held: Mapping[str, int]
) -> dict[str, Timing]:
    """Every round ``repeats`` times, in turns, each from an idle device to an idle device.

    ``held``: bytes of the device that each keeps between rounds, which are not charged to the others.
    """
    taken: dict[str, list[tuple[float, int, int, int]]] = {name: [] for name in rounds}
    for _ in range(repeats):
        for name, call in rounds.items():
            taken[name].append(_timed(call, device))
    return {
        name: _timing(rounds_taken, device, sum(held.values()) - held[name]) for name, rounds_taken in taken.items()
    }


def allocated(device: torch.device) -> int:
    """Bytes in tensors on a GPU; 0 on a CPU."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def reset_peak(device: torch.device) -> None:
    """Forget how full a GPU was."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int:
    """Bytes in tensors on a GPU when there were most; 0 on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def _timed(call: Round, device: torch.device) -> tuple[float, int, int, int]:
    wait(device)
    reset_peak(device)
    start = time.perf_counter()
    graphs, tokens = call()
    wait(device)
    seconds = time.perf_counter() - start
    return seconds, graphs, tokens, peak_bytes(device)


def _timing(found: Sequence[tuple[float, int, int, int]], device: torch.device, others: int) -> Timing:
    seconds, graphs, tokens, peaks = zip(*found, strict=True)
    return Timing(seconds, graphs, tokens, (max(peaks) - others) / 2**30 if device.type == "cuda" else None)


def median_ratio(slow: Timing, fast: Timing) -> float:
    """How many times faster, round by round: neighbours in time are compared with each other."""
    pairs = zip(_seconds_a_graph(slow), _seconds_a_graph(fast), strict=True)
    return statistics.median(a / b for a, b in pairs)


def _seconds_a_graph(timing: Timing) -> list[float]:
    return [s / g for s, g in zip(timing.seconds, timing.graphs, strict=True)]
