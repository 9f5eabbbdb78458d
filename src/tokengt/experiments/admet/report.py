"""The benchmark for people and programs: JSON first; Markdown and pictures are made of the same numbers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tokengt.experiments.admet.endpoints import ENDPOINTS, PUBLISHED, SHORT
from tokengt.experiments.admet.leak_cells import WITHIN
from tokengt.experiments.admet.leaks import BINS
from tokengt.experiments.admet.picture import draw_endpoints, draw_neighbours
from tokengt.experiments.admet.plan import label_of
from tokengt.experiments.admet.results import Results
from tokengt.experiments.admet.statistics import SystemScore
from tokengt.experiments.tables import TableRow, distinct, markdown, write_json, write_rows
from tokengt.files import write_whole

TABLE, ROWS, DETAILS = "table.md", "table.json", "admet.json"
PICTURE, NEIGHBOURS = "endpoints.png", "neighbours.png"
_HEADING = """# ADMET: {endpoints} of TDC's 22 endpoints, official test parts

Each number is the mean over seeds ± the deviation over seeds, with the number of seeds where it is not {seeds}; in
brackets its 95% interval over test rows drawn again. Every seed keeps an eighth of train_val for choosing, by whole
scaffolds; the test part was predicted once. "MiniMol" and "board" are published numbers, which nobody ran here: as
MiniMol's authors report it (June 2024), and the best of the leaderboard at that time.
"""
_PAIRED = """
## Paired differences to {reference}

How far {reference} is ahead (below zero: behind), in the unit of the metric, with the 95% interval over seeds and test
rows, both drawn again. **Bold**: the interval does not hold zero.
"""
_WINS = """
## Wins

Endpoints on which the system of the row is ahead of / level with / behind that of the column. Ahead and behind are
counted only where the paired interval does not hold zero.
"""
_LEAKS = """
## Leaks

Of the test molecules: how many stand in the other data themselves, how many as the same parent (the largest fragment,
uncharged, without stereo: other salts and stereoisomers too), and the similarity (Tanimoto, Morgan 2, 2,048 bits) to
the nearest molecule there.
"""


def write_report(results: Results, out: Path) -> None:
    """``table.json``, ``admet.json``, the pictures and, last, ``table.md``."""
    write_rows(out / ROWS, _rows(results))
    write_json(out / DETAILS, details(results))
    draw_endpoints(results, out / PICTURE)
    if results.leaks:
        draw_neighbours(results, out / NEIGHBOURS)
    write_whole(out / TABLE, report(results).encode())


def _rows(results: Results) -> list[TableRow]:
    """The keys that all tables of results have."""
    rows = []
    for name, scores in results.scores.items():
        for system, score in scores.systems.items():
            cells = list(results.cells[name][system].values())
            rows.append(
                TableRow(
                    experiment="admet",
                    system=label_of(system),
                    dataset=name,
                    split="test (official)",
                    metric=ENDPOINTS[name].metric,
                    mean=score.mean,
                    std=score.std,
                    runs=len(score.values),
                    parameters=cells[0].get("parameters"),
                    graphs_per_s=None,
                    device=distinct([cell.get("device") for cell in cells]) or "cpu",
                    commit=distinct([cell["commit"] for cell in cells]),
                    paper=None,
                )
            )
    return rows


def details(results: Results) -> dict[str, Any]:
    """All that was found and concluded."""
    endpoints: dict[str, Any] = {}
    for name, scores in results.scores.items():
        endpoint, data = ENDPOINTS[name], results.datas[name]
        endpoints[name] = {
            "metric": endpoint.metric,
            "higher_is_better": endpoint.higher_is_better,
            "train_val": len(data.train_val),
            "test": len(data.test),
            "unreadable": {"train_val": data.unreadable[0], "test": data.unreadable[1]},
            "published": {"MiniMol": endpoint.minimol, "board": endpoint.board},
            "systems": {
                system: {**_finite(asdict(score)), "cells": results.cells[name][system]}
                for system, score in scores.systems.items()
            },
            "differences": [
                {
                    "first": first,
                    "second": second,
                    "verdict": each.verdict,
                    "seeds": each.seeds,
                    **asdict(each.interval),
                }
                for (first, second), each in scores.differences.items()
            ],
        }
    ranks = {}
    for kind, published in (("measured", False), ("with_published", True)):
        places, count = results.ranks(published)
        ranks[kind] = {"endpoints": count, "mean": places}
    pairs = [(a, b) for a in results.systems for b in results.systems if a != b]
    return {
        "reference": results.reference,
        "endpoints": endpoints,
        "mean_rank": ranks,
        "wins": [{"first": a, "second": b, **results.wins(a, b)} for a, b in pairs],
        "leaks": {"bins": list(BINS), **results.leaks},
        "notes": list(results.notes),
    }


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def report(results: Results) -> str:
    usual = _usual_seeds(results)
    parts = [
        _HEADING.format(endpoints=len(results.scores), seeds=usual),
        _scores(results, usual),
        _ranks(results),
        *([_paired(results), _wins(results)] if len(results.systems) > 1 else []),
        *([_leaks(results)] if results.leaks else []),
    ]
    if results.notes:
        parts.append("\n## Notes\n\n" + "".join(f"- {note}\n" for note in results.notes))
    return "\n".join(parts)


def _usual_seeds(results: Results) -> int:
    return max(len(score.values) for scores in results.scores.values() for score in scores.systems.values())


def _scores(results: Results, usual: int) -> str:
    header = [
        "endpoint",
        "metric",
        "test rows",
        *map(label_of, results.systems),
        "MiniMol (published)",
        "board (published)",
    ]
    lines = []
    for name, scores in results.scores.items():
        endpoint = ENDPOINTS[name]
        means = {system: score.mean for system, score in scores.systems.items() if math.isfinite(score.mean)}
        best = (max if endpoint.higher_is_better else min)(means.values(), default=None)
        cells = []
        for system in results.systems:
            score = scores.systems.get(system)
            text = "" if score is None else _score(score, usual)
            cells.append(f"**{text}**" if score is not None and score.mean == best else text)
        sign = "↑" if endpoint.higher_is_better else "↓"
        count = str(len(results.datas[name].test))
        lines.append(
            [name, f"{SHORT[endpoint.metric]} {sign}", count, *cells, f"{endpoint.minimol:g}", f"{endpoint.board:g}"]
        )
    return (
        markdown(header, lines) + "\nBold: the best mean that was measured here, whether or not an interval says so.\n"
    )


def _score(score: SystemScore, usual: int) -> str:
    if not math.isfinite(score.mean):
        return "not defined"
    text = f"{score.mean:.3f}" + ("" if score.std is None else f" ± {score.std:.3f}")
    if score.interval is not None:
        text += f" [{score.interval.low:.3f}, {score.interval.high:.3f}]"
    return text + (f" ({len(score.values)})" if len(score.values) != usual else "")


def _ranks(results: Results) -> str:
    """Mean ranks, among the systems measured here, and with the published numbers as one more."""
    sections = ["## Mean rank\n"]
    for published in (False, True):
        places, count = results.ranks(published)
        among = "the systems measured here" + (f" and {PUBLISHED}, whose numbers others measured" if published else "")
        if not places:
            sections.append(f"Among {among}: there is no endpoint on which all have a number.\n")
            continue
        order = sorted(places, key=lambda system: places[system])
        told = ", ".join(f"{_label(system)} {places[system]:.2f}" for system in order)
        rest = [label_of(system) for system in results.systems if system not in places]
        few = f" Not ranked, with a number on fewer than half of the endpoints: {', '.join(rest)}." if rest else ""
        sections.append(f"Among {among}, over the {count} endpoints on which all have a number: {told}.{few}\n")
    return "\n".join(sections)


def _label(system: str) -> str:
    return system if system == PUBLISHED else label_of(system)


def _paired(results: Results) -> str:
    reference = results.reference
    others = [system for system in results.systems if system != reference]
    lines = []
    for name, scores in results.scores.items():
        cells = []
        for other in others:
            found = scores.differences.get((reference, other))
            if found is None:
                cells.append("")
                continue
            each = found.interval
            text = f"{each.centre:+.3f} [{each.low:+.3f}, {each.high:+.3f}]"
            seeds = f" ({found.seeds} seed{'s' if found.seeds > 1 else ''})"
            cells.append((text if found.verdict == "level" else f"**{text}**") + seeds)
        if any(cells):
            lines.append([name, SHORT[ENDPOINTS[name].metric], *cells])
    table = markdown(["endpoint", "metric", *(f"to {label_of(other)}" for other in others)], lines)
    return _PAIRED.format(reference=label_of(reference)) + "\n" + table


def _wins(results: Results) -> str:
    def cell(first: str, second: str) -> str:
        return "" if first == second else " / ".join(map(str, results.wins(first, second).values()))

    rows = [[label_of(first), *(cell(first, second) for second in results.systems)] for first in results.systems]
    return _WINS + "\n" + markdown(["", *map(label_of, results.systems)], rows)


def _leaks(results: Results) -> str:
    sections = [_LEAKS]
    for corpus, found in results.leaks.items():
        there = {name: told for name, told in found.items() if name in results.scores}
        if not there:
            continue
        what = "train_val of the same endpoint" if corpus == WITHIN else _trained_on(corpus, there)
        rows = [
            [name, str(told["test"]), _count(told["same"]), _share(told["parent"], told["test"]), *_bins(told)]
            for name, told in there.items()
        ]
        header = ["endpoint", "test rows", "same", "same parent", *BINS]
        sections.append(f"### In {what}\n\n{markdown(header, rows)}")
    sections.append(_unseen(results))
    return "\n".join(sections)


def _trained_on(corpus: str, found: Mapping[str, Any]) -> str:
    return f"{next(iter(found.values()))['molecules']:,} molecules that {corpus} was trained on"


def _count(count: int | None) -> str:
    return "not known" if count is None else str(count)


def _share(count: int, total: int) -> str:
    return f"{count} ({100 * count / total:.0f}%)"


def _bins(told: Mapping[str, Any]) -> Sequence[str]:
    return ["not known"] * len(BINS) if told["neighbours"] is None else list(map(str, told["neighbours"]))


def _unseen(results: Results) -> str:
    """What is left of the numbers without the test molecules that weights saw."""
    lines = []
    for name, scores in results.scores.items():
        left = {system: results.unseen(name, system) for system in scores.systems}
        rows = next((each[1] for each in left.values() if each is not None), None)
        if rows is None:
            continue
        cells = []
        for system in results.systems:
            told = left.get(system)
            cells.append("" if told is None else f"{told[0]:.3f} (all: {scores.systems[system].mean:.3f})")
        lines.append([name, str(rows), *cells])
    if not lines:
        return ""
    table = markdown(["endpoint", "test rows left", *map(label_of, results.systems)], lines)
    return f"### Without the test molecules whose parents the weights saw\n\n{table}"
