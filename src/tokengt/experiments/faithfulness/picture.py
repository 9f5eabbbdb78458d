"""The picture of faithfulness: one group of bars per task, one bar per method."""

import io
from collections.abc import Sequence
from pathlib import Path

from tokengt.experiments.tables import TableRow
from tokengt.files import write_whole

_DPI = 150


def plot_faithfulness(rows: Sequence[TableRow], file: Path) -> None:
    """Draw the rows of the table. The same numbers give the same bytes."""
    import matplotlib
    from matplotlib.figure import Figure

    tasks, systems = (list(dict.fromkeys(getattr(row, name) for row in rows)) for name in ("dataset", "system"))
    mean = {(row.dataset, row.system): row.mean for row in rows}
    spread = {(row.dataset, row.system): row.std or 0.0 for row in rows}
    content = io.BytesIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
        figure = Figure(figsize=(2.6 * len(tasks) + 1.4, 3.8), layout="constrained")
        axes, width = figure.subplots(), 0.84 / len(systems)
        for place, system in enumerate(systems):
            left = [task - 0.42 + (place + 0.5) * width for task in range(len(tasks))]
            heights = [mean[task, system] for task in tasks]
            axes.bar(left, heights, width * 0.92, yerr=[spread[task, system] for task in tasks], label=system)
        axes.axhline(0.5, color="0.4", linewidth=0.8, linestyle="--")
        axes.set_xticks(range(len(tasks)), tasks)
        axes.set_ylabel("AUC of true atoms")
        axes.set_ylim(0, 1.02)
        figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
        figure.savefig(content, format="png", dpi=_DPI, metadata={"Software": None})
    write_whole(file, content.getvalue())
