"""The picture of faithfulness: one panel per kind of AUC, one group of bars per task, one bar per method."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokengt.experiments.tables import TableRow
from tokengt.training.plots import draw_figure

SIZE = (9.0, 6.4)
# Methods that look at a trained model, and, in greys, what they are compared with.
_COLOURS = ("#4c78a8", "#85b0d5", "#c3dbee", "#f58518", "#54a24b", "#b279a2", "#6b6b6b", "#a8a8a8", "#d6d6d6")
# The AUC that is asked for.
_WANTED = 0.9


def plot_faithfulness(rows: Sequence[TableRow], file: Path) -> None:
    """Draw the rows of the table. The same numbers give the same bytes."""
    draw_figure(file, SIZE, lambda figure: draw_faithfulness(figure, rows))


def draw_faithfulness(figure: Any, rows: Sequence[TableRow]) -> None:
    metrics = list(dict.fromkeys(row.metric for row in rows))
    grid = figure.subplots(len(metrics), 1, squeeze=False)[:, 0]
    for axes, metric in zip(grid, metrics, strict=True):
        _bars(axes, [row for row in rows if row.metric == metric])
        axes.set_title(metric, loc="left")
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)


def _bars(axes: Any, rows: Sequence[TableRow]) -> None:
    """One group of bars per task."""
    tasks, systems = (list(dict.fromkeys(getattr(row, name) for row in rows)) for name in ("dataset", "system"))
    width = 0.84 / len(systems)
    for place, system in enumerate(systems):
        own = [row for row in rows if row.system == system]
        left = [tasks.index(row.dataset) - 0.42 + (place + 0.5) * width for row in own]
        heights, spread = [row.mean for row in own], [row.std or 0.0 for row in own]
        # One training has no deviation, and then no error bars.
        error = spread if any(spread) else None
        axes.bar(left, heights, width * 0.92, yerr=error, label=system, color=_COLOURS[place % len(_COLOURS)])
    for height, style in ((0.5, "--"), (_WANTED, ":")):
        axes.axhline(height, color="0.4", linewidth=0.8, linestyle=style)
    axes.set_xticks(range(len(tasks)), tasks)
    axes.set_ylabel("AUC")
    axes.set_ylim(0, 1.05)
