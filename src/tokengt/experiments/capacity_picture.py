"""The picture of capacity: how wrong the worst head is as graphs grow, for each width of identifiers."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokengt.experiments.capacity import predicted_nodes
from tokengt.files import write_whole

_DPI = 150


def plot_capacity(found: Sequence[Mapping[str, Any]], edges: int, file: Path) -> None:
    """:func:`draw_capacity` as a file."""
    content = io.BytesIO()
    draw_capacity(found, edges).savefig(content, format="png", dpi=_DPI, metadata={"Software": None})
    write_whole(file, content.getvalue())


def draw_capacity(found: Sequence[Mapping[str, Any]], edges: int) -> Any:
    """One line per d_p, and a dotted one at the size that it is expected to hold, where that was measured."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"text.parse_math": False, "axes.spines.top": False, "axes.spines.right": False})
        figure = Figure(figsize=(7.6, 4.2), layout="constrained")
        axes = figure.subplots()
        sizes = sorted({cell["nodes"] for cell in found})
        for place, dim in enumerate(dict.fromkeys(cell["dim"] for cell in found)):
            mine = [cell for cell in found if cell["dim"] == dim]
            for kind, style in (("sparse", "-"), ("dense", "--")):
                errors = [sum(cell[kind]) / len(cell[kind]) for cell in mine]
                label = f"d_p = {dim}" + (", dense heads" if kind == "dense" else ", sparse heads")
                axes.plot([cell["nodes"] for cell in mine], errors, style, marker=".", color=f"C{place}", label=label)
            expected = predicted_nodes(dim, edges)
            if sizes[0] <= expected <= sizes[-1]:
                told = f"d_p = {dim}, expected to hold"
                axes.axvline(expected, color=f"C{place}", linestyle=":", linewidth=1, label=told)
        axes.set_xscale("log")
        # Powers of ten would be written as formulas, which are switched off.
        axes.xaxis.set_major_locator(FixedLocator(sizes))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:,.0f}"))
        axes.set_ylim(-0.03, 1.03)
        axes.set_xlabel("nodes of a graph")
        axes.set_ylabel("error of the worst head at its best sharpness")
        axes.grid(linewidth=0.4, alpha=0.5)
        figure.legend(loc="outside right upper", frameon=False, fontsize=7)
    return figure
