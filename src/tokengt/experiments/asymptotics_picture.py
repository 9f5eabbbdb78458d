"""The picture of costs: time and memory of one graph in a training step, by its size."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokengt.experiments.strokes import strokes
from tokengt.training.plots import draw_figure

_PANELS = (
    ("seconds", "time_exponent", 1000.0, "time of a training step, ms per graph"),
    ("memory_gib", "memory_exponent", 1024.0, "memory of a training step, MiB per graph"),
)
# Inches: legends stand beside their panels.
SIZE = (8.6 * len(_PANELS), 5.2)


def plot_costs(lines: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Write :func:`draw_costs` as a PNG. The same numbers give the same bytes."""
    draw_figure(file, SIZE, lambda figure: draw_costs(figure, lines))


def draw_costs(figure: Any, lines: Sequence[Mapping[str, Any]]) -> None:
    """One line per system; a cross where it ran out of memory or failed."""
    drawn = strokes([(line["system"], line["asymptotics"]) for line in lines])
    for axes, (field, power, scale, label) in zip(figure.subplots(1, len(_PANELS)), _PANELS, strict=True):
        for line, stroke in zip(lines, drawn, strict=True):
            _draw(axes, line, field, power, scale, stroke)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("nodes of a graph")
        axes.set_ylabel(label)
        axes.grid(linewidth=0.4, alpha=0.5)
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=8)


def _draw(axes: Any, line: Mapping[str, Any], field: str, power: str, scale: float, stroke: Mapping[str, Any]) -> None:
    points = [(point["nodes"], scale * point[field] / point["graphs"]) for point in line["points"] if point[field]]
    if not points:
        return
    grows = "" if line[power] is None else f": n^{line[power]:.2f}"
    axes.plot(*zip(*points, strict=True), marker=".", **{**stroke, "label": line["system"] + grows})
    if line["points"][-1]["failed"] is not None:
        axes.plot(*points[-1], "x", color=stroke["color"], markersize=9)
