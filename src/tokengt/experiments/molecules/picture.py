"""Learning curves: the validation error of every system by the minute of its training."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokengt.experiments.molecules.datasets import Benchmark
from tokengt.experiments.molecules.systems import SYSTEMS
from tokengt.experiments.strokes import strokes
from tokengt.training.plots import draw_figure

_LONG = {"mae": "validation MAE", "average_precision": "validation average precision"}
# Of the figure, in inches.
SIZE = (9.0, 5.2)


def plot_learning(found: Mapping[str, Mapping[str, Any]], benchmark: Benchmark, file: Path) -> None:
    """Write :func:`draw_learning` to a file. The same numbers give the same bytes."""
    draw_figure(file, SIZE, lambda figure: draw_learning(figure, found, benchmark))


def draw_learning(figure: Any, found: Mapping[str, Mapping[str, Any]], benchmark: Benchmark) -> None:
    """Draw ``found[system]["curve"]``, each a list of [minute, value]."""
    metric, axes = benchmark.metrics[0], figure.subplots()
    lines = [(entry["label"], _asymptotics(name)) for name, entry in found.items()]
    for entry, stroke in zip(found.values(), strokes(lines), strict=True):
        minutes, values = zip(*entry["curve"], strict=True)
        axes.plot(minutes, values, marker="." if len(minutes) < 3 else None, **stroke)
    axes.set_xlabel("minutes of training (with the chosen recipe, first seed)")
    axes.set_ylabel(_LONG.get(metric, metric) + (f", {benchmark.unit}" if benchmark.unit else ""))
    axes.set_title(benchmark.name)
    if metric != "average_precision":
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.tick_params(axis="y", which="minor", labelsize=7)
    axes.grid(linewidth=0.4, alpha=0.5)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)


def _asymptotics(name: str) -> str:
    return SYSTEMS[name].asymptotics if name in SYSTEMS else ""
