"""The picture of capacity: how wrong the worst head is as graphs grow, for each width of identifiers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokengt.experiments.capacity import KINDS, predicted_nodes
from tokengt.training.plots import draw_figure

_LINES = {"sparse": "-", "dense": "--"}


def plot_capacity(found: Sequence[Mapping[str, Any]], edges: int, file: Path) -> None:
    """Write :func:`draw_capacity` as a PNG. The same numbers give the same bytes."""
    draw_figure(file, (7.6, 4.2), lambda figure: draw_capacity(figure, found, edges))


def draw_capacity(figure: Any, found: Sequence[Mapping[str, Any]], edges: int) -> None:
    """One line per d_p and kind of head, and a dotted one at the size that d_p is expected to hold."""
    axes, sizes = figure.subplots(), [cell["nodes"] for cell in found]
    axes.set_xscale("log")
    axes.set_xlim(min(sizes) / 1.5, max(sizes) * 1.5)
    for place, dim in enumerate(dict.fromkeys(cell["dim"] for cell in found)):
        mine = [cell for cell in found if cell["dim"] == dim]
        for kind in KINDS:
            errors = [sum(cell[kind]) / len(cell[kind]) for cell in mine]
            where, label = [cell["nodes"] for cell in mine], f"d_p = {dim}, {kind} heads"
            axes.plot(where, errors, _LINES[kind], marker=".", color=f"C{place}", label=label)
        expected = predicted_nodes(dim, edges)
        if min(sizes) <= expected <= max(sizes):
            axes.axvline(expected, color=f"C{place}", linestyle=":", linewidth=1, label=f"exp({dim} / 8) tokens")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel("nodes of a graph")
    axes.set_ylabel("error of the worst head at its best sharpness")
    axes.grid(linewidth=0.4, alpha=0.5)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
