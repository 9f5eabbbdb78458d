"""How far the predictions of a test part were to be trusted: the numbers of the card, and their picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from tokengt.training.conformal import IntervalReport
from tokengt.training.plots import GREY, TITLES, draw_figure
from tokengt.training.probabilities import Curve, ProbabilityReport
from tokengt.training.tasks import Task

# Intervals of the test part are told at this level, and drawn at all of these.
LEVEL = 0.9
LEVELS = tuple(place / 20 for place in range(2, 20))
_MOST_DOTS = 3000


@dataclass(frozen=True, eq=False)
class Reliability:
    """What was found on the test part; None and empty where the run has no calibration of the kind.

    Args:
        intervals: coverage, width and rank correlation at :data:`LEVEL`.
        held: the share of labels inside the intervals of every one of :data:`LEVELS`.
        half: half of each row's interval at :data:`LEVEL`, over the deviation of the training labels; all targets.
        errors: the absolute errors of the same rows, in the same unit.
        chances: the calibration error of probabilities.
        curves: probabilities against what happened, without calibration and with it.
    """

    intervals: IntervalReport | None = None
    held: tuple[float, ...] = ()
    half: Float[ndarray, " labels"] | None = None
    errors: Float[ndarray, " labels"] | None = None
    chances: ProbabilityReport | None = None
    curves: tuple[Curve, Curve] | None = None


def plot_calibration(task: Task, found: Reliability, file: Path) -> None:
    """``calibration.png``: whether intervals hold what they promise, or probabilities what they say."""
    if found.intervals is not None:
        draw_figure(file, (9.5, 4.3), lambda figure: _draw_intervals(figure, task, found))
    elif found.curves is not None:
        draw_figure(file, (5.2, 4.6), lambda figure: _draw_chances(figure, task, found))


def _draw_intervals(figure: Any, task: Task, found: Reliability) -> None:
    assert found.intervals is not None
    assert found.half is not None
    assert found.errors is not None
    left, right = figure.subplots(1, 2)
    left.plot([0, 1], [0, 1], color=GREY, linewidth=1)
    left.plot(LEVELS, found.held, marker="o", markersize=3, color="C0")
    left.set(xlabel="promised", ylabel="held", xlim=(0, 1), ylim=(0, 1), title="Share of labels inside the intervals")
    left.set_aspect("equal")
    # The same dots for the same run: evenly taken, where there are very many.
    step = -(-len(found.half) // _MOST_DOTS)
    half, errors = found.half[::step], found.errors[::step]
    top = float(np.quantile(np.concatenate([half, errors]), 0.995)) * 1.05 if len(half) else 1.0
    right.fill_between([0, top], [0, top], color="C0", alpha=0.08, linewidth=0)
    right.scatter(half, np.minimum(errors, top), s=8, alpha=0.5, linewidths=0, color="C0")
    right.set(
        xlabel=f"half of the {found.intervals.level:.0%} interval",
        ylabel="absolute error",
        xlim=(0, top),
        ylim=(0, top),
        title=f"Rank correlation {found.intervals.rank_correlation:.2f}",
    )
    right.set_aspect("equal")
    unit = "unit: deviation of the training labels"
    figure.suptitle(f"Intervals of {_named(task.names)}, test part ({unit}; inside: below the line)", fontsize=11)


def _draw_chances(figure: Any, task: Task, found: Reliability) -> None:
    assert found.curves is not None
    assert found.chances is not None
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1)
    labels = (("as the model says", GREY, found.chances.before), ("calibrated", "C0", found.chances.error))
    for curve, (label, colour, error) in zip(found.curves, labels, strict=True):
        axes.plot(curve.told, curve.seen, marker="o", markersize=4, color=colour, label=f"{label}: off by {error:.3f}")
    kind = "positives" if task.classes is None else f"right answers ({TITLES['accuracy']})"
    axes.set(xlabel="probability", ylabel=f"share of {kind}", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    axes.set_title(f"Probabilities of {_named(task.names)}, test part", fontsize=11)
    axes.legend(loc="upper left")


def _named(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
