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
_FIRST_PIECES = 2
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


class _Path:
    """Values and slopes at points of the path, each looked at once."""

    def __init__(self, subject: Subject, output: int) -> None:
        self.subject, self.output = subject, output
        self.values: dict[float, float] = {}
        self.slopes: dict[float, NDArray[np.float64]] = {}
        self.parts: tuple[str, ...] = ()

    def look(self, times: list[float]) -> None:
        new = [time for time in dict.fromkeys(times) if time not in self.values]
        if not new:
            return
        found = self.subject.slopes(torch.tensor(new, dtype=torch.float64), self.output)
        self.parts = tuple(found.by_part)
        stacked = [slopes.double().cpu().numpy() for slopes in found.by_part.values()]
        slopes = np.stack(stacked, 1) if stacked else np.zeros((len(new), 0, len(self.subject.tokens)))
        for place, time in enumerate(new):
            self.values[time], self.slopes[time] = float(found.values[place]), slopes[place]

    def integral(self, piece: tuple[float, float]) -> NDArray[np.float64]:
        """[parts, tokens] over one piece."""
        slopes = np.stack([self.slopes[time] for time in points_of(piece)])
        found: NDArray[np.float64] = (piece[1] - piece[0]) * np.tensordot(_WEIGHTS, slopes, 1)
        return found

    def missing(self, piece: tuple[float, float]) -> float:
        return abs(float(self.integral(piece).sum()) - (self.values[piece[1]] - self.values[piece[0]]))


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
    path = _Path(subject, output)
    pieces = [(place / _FIRST_PIECES, (place + 1) / _FIRST_PIECES) for place in range(_FIRST_PIECES)]
    while True:
        path.look([time for piece in pieces for time in points_of(piece)])
        moved = max(path.values.values()) - min(path.values.values())
        size = max(map(abs, path.values.values()))
        allowed = max(tolerance * moved, _ROUNDING * size)
        missing = {piece: path.missing(piece) for piece in pieces}
        total = sum(missing.values())
        if not total > allowed or len(path.values) >= most:
            break
        # Every piece may miss its part of the whole; the worst one is always cut.
        worst = max(missing, key=lambda piece: missing[piece])
        cut = [piece for piece in pieces if missing[piece] > allowed * (piece[1] - piece[0]) or piece == worst]
        pieces = [half for piece in pieces for half in (halves(piece) if piece in cut else [piece])]
    scores = sum((path.integral(piece) for piece in pieces), start=np.zeros_like(path.slopes[0.0]))
    by_part = dict(zip(path.parts, scores, strict=True))
    return Integrated(by_part, path.values[0.0], path.values[1.0], total, allowed, len(path.values))


def points_of(piece: tuple[float, float]) -> list[float]:
    """The points of the rule on a piece; its ends and its middle are the very numbers that its halves have."""
    start, end = piece
    middle = (start + end) / 2
    return [start, start + _POINTS[1] * (end - start), middle, start + _POINTS[3] * (end - start), end]


def halves(piece: tuple[float, float]) -> list[tuple[float, float]]:
    middle = (piece[0] + piece[1]) / 2
    return [(piece[0], middle), (middle, piece[1])]
