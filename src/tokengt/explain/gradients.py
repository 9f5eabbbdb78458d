r"""Integrated gradients, each piece of the path checked.

The score of token v is the integral over the path from the baseline (t = 0) to the graph (t = 1),

    s_v = \int_0^1 <d f / d z_v (z(t)), z_v - z_{0,v}> dt,    sum_v s_v = f(graph) - f(baseline),

where the sum is *completeness* (Sundararajan et al. 2017). The integral is a sum of Gauss-Lobatto rules on pieces of
the path. On every piece the sum over tokens must be the difference of f at its two ends, which is known exactly; a
piece where it is not is cut in two, until what is missing in total is within the tolerance or too many points were
asked for. Rules of five points have both ends and the middle among them, so that cutting a piece costs six points.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tokengt.explain.subject import Subject

# Points of the five-point Gauss-Lobatto rule on [0, 1], and their weights.
_POINTS = (0.0, 0.5 - 0.5 * (3 / 7) ** 0.5, 0.5, 0.5 + 0.5 * (3 / 7) ** 0.5, 1.0)
_WEIGHTS = np.array([1 / 20, 49 / 180, 16 / 45, 49 / 180, 1 / 20])
# A difference of outputs below this share of their size is rounding of float32.
_ROUNDING = 1e-5


@dataclass(frozen=True, eq=False)
class Integrated:
    """Integrated gradients of one output.

    Args:
        by_part: [tokens] scores by the part of a token that they are due to.
        start: f at the baseline.
        end: f at the graph.
        missing: the sum over pieces of what they miss; the gap of the total is at most this.
        tolerance: what it was to be within.
        points: how many points of the path were looked at.
    """

    by_part: dict[str, NDArray[np.float64]]
    start: float
    end: float
    missing: float
    tolerance: float
    points: int


class _Stage:
    """Values and slopes at points of one stage of the path, each looked at once."""

    def __init__(self, subject: Subject, output: int, stage: int) -> None:
        self.subject, self.output, self.stage = subject, output, stage
        self.values: dict[float, float] = {}
        self.slopes: dict[float, NDArray[np.float64]] = {}
        self.parts: tuple[str, ...] = ()

    def look(self, times: list[float]) -> None:
        new = [time for time in dict.fromkeys(times) if time not in self.values]
        if not new:
            return
        found = self.subject.slopes(torch.tensor(new, dtype=torch.float64), self.output, self.stage)
        self.parts = tuple(found.by_part)
        stacked = [slopes.double().cpu().numpy() for slopes in found.by_part.values()]
        slopes = np.stack(stacked, 1) if stacked else np.zeros((len(new), 0, len(self.subject.tokens)))
        for place, time in enumerate(new):
            self.values[time], self.slopes[time] = float(found.values[place]), slopes[place]


@dataclass(frozen=True, eq=False)
class _Piece:
    """A piece of a stage, from one of its points to another."""

    stage: _Stage
    start: float
    end: float

    def points(self) -> list[float]:
        """The points of the rule; the ends and the middle are the very numbers that the halves have."""
        length = self.end - self.start
        return [self.start, self.start + _POINTS[1] * length, self.middle, self.start + _POINTS[3] * length, self.end]

    @property
    def middle(self) -> float:
        return (self.start + self.end) / 2

    def halves(self) -> "list[_Piece]":
        return [_Piece(self.stage, self.start, self.middle), _Piece(self.stage, self.middle, self.end)]

    def integral(self) -> NDArray[np.float64]:
        """[parts, tokens] over this piece."""
        slopes = np.stack([self.stage.slopes[time] for time in self.points()])
        found: NDArray[np.float64] = (self.end - self.start) * np.tensordot(_WEIGHTS, slopes, 1)
        return found

    def missing(self) -> float:
        """How far the sum over tokens is from the difference of f at the two ends."""
        return abs(float(self.integral().sum()) - (self.stage.values[self.end] - self.stage.values[self.start]))


def integrated_gradients(subject: Subject, output: int, tolerance: float = 0.01, most: int = 256) -> Integrated:
    """Integrated gradients of one output.

    Args:
        subject: what is explained.
        output: which of its outputs.
        tolerance: how much may be missing, as a share of how far the output moves along the path.
        most: no piece is cut once this many points were looked at.

    Raises:
        ValueError: one sentence: the model has no path.
    """
    stages = [_Stage(subject, output, place) for place in range(subject.stages)]
    pieces = [_Piece(stage, 0.0, 1.0) for stage in stages]
    while True:
        for stage in stages:
            stage.look([time for piece in pieces if piece.stage is stage for time in piece.points()])
        values = [value for stage in stages for value in stage.values.values()]
        allowed = max(tolerance * (max(values) - min(values)), _ROUNDING * max(map(abs, values)))
        missing = [piece.missing() for piece in pieces]
        if not sum(missing) > allowed or len(values) >= most:
            break
        # Every piece may miss its part of the whole; the worst one is always cut.
        part = [allowed * (piece.end - piece.start) / len(stages) for piece in pieces]
        cut = [lack > own or lack == max(missing) for lack, own in zip(missing, part, strict=True)]
        pieces = [new for piece, yes in zip(pieces, cut, strict=True) for new in (piece.halves() if yes else [piece])]
    by_part: dict[str, NDArray[np.float64]] = {}
    for piece in pieces:
        for name, scores in zip(piece.stage.parts, piece.integral(), strict=True):
            by_part[name] = by_part.get(name, np.zeros_like(scores)) + scores
    ends = stages[0].values[0.0], stages[-1].values[1.0]
    return Integrated(by_part, *ends, sum(missing), allowed, len(values))
