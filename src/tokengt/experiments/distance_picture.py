"""The picture of attention distances: one column per run, one row per part, one dot per head."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tokengt.training.plots import draw_figure

_IDENTIFIERS = {"laplacian": "Lap", "orf": "ORF", "none": "no identifiers"}
_PARTS = {"valid": "validation part", "train": "training part"}


def plot_distances(cells: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw ``cells``, each with ``run``, ``part``, ``identifiers``, ``graphs`` and ``hops[layer][head]``.

    All panels share their axes. The same numbers give the same bytes.
    """
    from matplotlib.ticker import MaxNLocator

    runs, parts = (list(dict.fromkeys(cell[name] for cell in cells)) for name in ("run", "part"))

    def draw(figure: Any) -> None:
        grid = figure.subplots(len(parts), len(runs), squeeze=False, sharex=True, sharey=True)
        for cell in cells:
            axes = grid[parts.index(cell["part"]), runs.index(cell["run"])]
            _panel(axes, np.array(cell["hops"]))
            kind = _IDENTIFIERS.get(cell["identifiers"], cell["identifiers"])
            axes.set_title(f"{cell['run']} ({kind})\n{_PARTS[cell['part']]}, {cell['graphs']:,} graphs")
        for axes in grid[-1]:
            axes.set_xlabel("layer")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        for axes in grid[:, 0]:
            axes.set_ylabel("attention distance, hops")
            axes.set_ylim(bottom=0)
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=9)

    draw_figure(file, (max(4.2, 3.4 * len(runs)), 0.6 + 2.9 * len(parts)), draw)


def _panel(axes: Any, hops: Any) -> None:
    layers = np.arange(1, len(hops) + 1)
    axes.plot(layers, hops.mean(1), color="C1", linewidth=1.2, label="mean over heads")
    axes.scatter(
        np.repeat(layers, hops.shape[1]), hops.flatten(), s=14, alpha=0.7, color="C0", linewidths=0, label="one head"
    )
    axes.grid(axis="y", linewidth=0.4, alpha=0.5)
