"""The benchmark as pictures: every system on every endpoint with its interval; how near test molecules are."""

from pathlib import Path
from typing import Any

import numpy as np

from tokengt.experiments.admet.endpoints import ENDPOINTS, SHORT
from tokengt.experiments.admet.leak_cells import WITHIN
from tokengt.experiments.admet.leaks import BINS
from tokengt.experiments.admet.plan import label_of
from tokengt.experiments.admet.results import Results
from tokengt.training.plots import GREY, draw_figure

_COLUMNS = 4


def draw_endpoints(results: Results, file: Path) -> None:
    """One panel for each endpoint: means with intervals over the test rows, a dot per seed, MiniMol as a line."""
    names = list(results.scores)
    rows = -(-len(names) // _COLUMNS)
    height = 0.28 * len(results.systems) + 0.95

    def draw(figure: Any) -> None:
        panels = figure.subplots(rows, min(_COLUMNS, len(names)), squeeze=False).ravel()
        for panel in panels[len(names) :]:
            panel.set_axis_off()
        for place, (name, panel) in enumerate(zip(names, panels, strict=False)):
            _panel(panel, results, name, labelled=place % _COLUMNS == 0)
        figure.suptitle(
            "Official test parts: mean over seeds, 95% interval over test rows, a dot for each seed; "
            "dashed: MiniMol as published",
            fontsize=9,
        )

    draw_figure(file, (2.1 + 2.6 * min(_COLUMNS, len(names)), rows * height + 0.5), draw)


def _panel(panel: Any, results: Results, name: str, labelled: bool) -> None:
    from matplotlib import colormaps

    colours = colormaps["tab10"].colors  # type: ignore[attr-defined]
    endpoint = ENDPOINTS[name]
    places = range(len(results.systems))
    for place, system in enumerate(results.systems):
        score = results.scores[name].systems.get(system)
        if score is None:
            continue
        colour = colours[place % len(colours)]
        if score.interval is not None:
            panel.plot([score.interval.low, score.interval.high], [place, place], color=colour, linewidth=1.6)
        # Below the line of the mean, or they would be hidden by it.
        seeds = list(score.values.values())
        panel.plot(seeds, [place + 0.25] * len(seeds), ".", color=colour, markersize=3)
        panel.plot([score.mean], [place], "o", color=colour, markersize=5)
    panel.axvline(endpoint.minimol, color=GREY, linestyle="--", linewidth=1)
    panel.set_ylim(len(results.systems) - 0.5, -0.5)
    panel.set_yticks(list(places), list(map(label_of, results.systems)) if labelled else [""] * len(results.systems))
    panel.locator_params(axis="x", nbins=5)
    panel.tick_params(labelsize=7)
    better = "more" if endpoint.higher_is_better else "less"
    panel.set_title(f"{name.replace('_carbonmangels', '')}\n{SHORT[endpoint.metric]}, {better} is better", fontsize=7.5)


def draw_neighbours(results: Results, file: Path) -> None:
    """For each endpoint the shares of test molecules by similarity to the nearest one in other data."""
    names = list(results.scores)
    told = {
        corpus: [found.get(name) for name in names]
        for corpus, found in results.leaks.items()
        if any(name in found and found[name]["neighbours"] is not None for name in names)
    }

    def draw(figure: Any) -> None:
        from matplotlib import colormaps

        shades = colormaps["viridis"](np.linspace(0.95, 0.1, len(BINS)))
        panels = figure.subplots(1, max(len(told), 1), sharey=True, squeeze=False).ravel()
        for panel, (corpus, found) in zip(panels, told.items(), strict=False):
            ends = np.zeros(len(names))
            for place, label in enumerate(BINS):
                shares = np.array([_share(each, place) for each in found])
                panel.barh(range(len(names)), shares, left=ends, color=shades[place], label=label)
                ends += shares
            panel.set_xlim(0, 100)
            panel.set_ylim(len(names) - 0.5, -0.5)
            panel.set_yticks(range(len(names)), names, fontsize=7)
            panel.set_xlabel("% of the test molecules")
            panel.set_title("train_val" if corpus == WITHIN else f"what {corpus} was trained on", fontsize=9)
        handles, labels = panels[0].get_legend_handles_labels()
        title = "Tanimoto similarity to the nearest"
        figure.legend(handles, labels, loc="outside lower center", ncols=len(BINS), frameon=False, title=title)

    draw_figure(file, (4.0 + 3.4 * max(len(told), 1), 0.24 * len(names) + 1.6), draw)


def _share(told: Any, place: int) -> float:
    return 0.0 if told is None or told["neighbours"] is None else 100 * told["neighbours"][place] / max(told["test"], 1)
