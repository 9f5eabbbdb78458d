"""A comparison for people and programs: JSON first; the Markdown table and the picture are made of the same numbers."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from tokengt.config import to_dict
from tokengt.files import write_whole
from tokengt.training.plots import GREY, TITLES, draw_figure
from tokengt.training.results import finite
from tokengt.training.tables import markdown, source_commit, write_json
from tokengt.workflow.comparing_results import Comparison, SystemResult
from tokengt.workflow.comparing_statistics import Interval

TABLE, ROWS, DETAILS, PICTURE = "table.md", "table.json", "comparison.json", "comparison.png"
REPORT_FILES = (TABLE, ROWS, DETAILS, PICTURE)
COST = "## What it cost"


def write_report(folder: Path, comparison: Comparison) -> None:
    """``table.json``, ``comparison.json``, ``comparison.png`` and, last, ``table.md``."""
    write_json(folder / ROWS, rows(comparison, source_commit()))
    write_json(folder / DETAILS, details(comparison))
    _plot(folder / PICTURE, comparison)
    write_whole(folder / TABLE, report(comparison).encode())


def rows(comparison: Comparison, commit: str | None) -> list[dict[str, Any]]:
    """The systems with a result, with the keys that all tables of results have."""
    return [
        {
            "experiment": "compare",
            "system": system.name,
            "dataset": comparison.data,
            "split": f"test ({comparison.split})",
            "metric": comparison.task.metric,
            "mean": system.mean,
            "std": system.std,
            "runs": len(system.values),
            "parameters": _parameters(system),
            "graphs_per_s": system.average("graphs_per_s"),
            "memory_gib": system.average("memory_gib"),
            "asymptotics": None,
            "device": comparison.device,
            "commit": commit,
            "paper": None,
        }
        for system in comparison.systems
        if system.mean is not None
    ]


def details(comparison: Comparison) -> dict[str, Any]:
    """All that was found, and what was concluded from it."""
    return {
        "data": comparison.data,
        "task": to_dict(comparison.task),
        "metric": comparison.task.metric,
        "higher_is_better": comparison.task.higher_is_better,
        "split": comparison.split,
        "repeats": comparison.repeats,
        "interval": how(comparison),
        "overlap": comparison.overlap,
        "reference": comparison.reference,
        "verdict": comparison.verdict,
        "notes": list(comparison.notes),
        "device": comparison.device,
        "budget_minutes": comparison.budget,
        "systems": [finite(asdict(system)) for system in comparison.systems],
    }


def report(comparison: Comparison) -> str:
    """The whole of ``table.md``. All above its last heading is the same whenever the same cells are trained."""
    task = comparison.task
    what = ", ".join(task.names) if len(task.names) <= 3 else f"{task.names[0]} and {len(task.names) - 1} more"
    better = "higher" if task.higher_is_better else "lower"
    lines = [
        f"# Comparison on {comparison.data}",
        "",
        f"{what} ({task.kind}); {_title(comparison)} of the test part, {better} is better; {comparison.repeats}; "
        f"split: {comparison.split}.",
        "",
        _results(comparison),
        comparison.verdict,
        "",
        f"Intervals (95%): {how(comparison)}; * where zero is outside. Each is of one pair by itself: of "
        "twenty pairs that do not differ, one is outside by chance.",
        *(["", *(f"* {note}" for note in comparison.notes)] if comparison.notes else []),
        "",
        COST,
        "",
        _costs(comparison),
        _cost_words(comparison),
        "",
    ]
    return "\n".join(lines)


def how(comparison: Comparison) -> str:
    """Which interval stands in the table."""
    if comparison.repeats.startswith("1 "):
        return "paired bootstrap over the test rows of one training each; another seed may give other numbers"
    if comparison.shared_split:
        return "Student's t on paired differences; all share one split, whose choice of test rows is not in them"
    return (
        "Student's t on paired differences, with the variance corrected for training parts that overlap (Nadeau and "
        f"Bengio 2003, test / train = {comparison.overlap:.3g})"
    )


def _results(comparison: Comparison) -> str:
    to = f"Difference to {comparison.reference} [95% interval]"
    header = ["System", _title(comparison), "Std", to, "Parameters"]
    body = []
    for system in comparison.systems:
        if system.mean is None:
            body.append([system.name, f"failed ({_cell(system.failed or '')})", "", "", ""])
            continue
        std = "" if system.std is None else f"{system.std:.4g}"
        body.append([system.name, f"{system.mean:.4g}", std, _apart(comparison, system), _count(_parameters(system))])
    return markdown(header, body)


def _apart(comparison: Comparison, system: SystemResult) -> str:
    if system.name == comparison.reference:
        return "(reference)"
    if system.difference is None:
        return "no interval"
    return _interval(system.difference)


def _interval(interval: Interval) -> str:
    clear = "" if interval.holds_zero else " *"
    return f"{interval.centre:+.4g} [{interval.low:+.4g}, {interval.high:+.4g}]{clear}"


def _costs(comparison: Comparison) -> str:
    header = ["System", "Epochs", "Seconds per training", "Graphs/s", "Peak memory, GiB"]
    return markdown(
        header,
        [
            [
                system.name,
                _epochs(system),
                _number(system.average("seconds"), ".1f"),
                _number(system.average("graphs_per_s"), ",.0f"),
                _number(system.average("memory_gib"), ".2f"),
            ]
            for system in comparison.systems
            if system.cells
        ],
    )


def _cost_words(comparison: Comparison) -> str:
    on_cpu = comparison.device == "cpu"
    memory = "all memory of the process, the data and PyTorch included" if on_cpu else "that of the GPU"
    what = f"Seconds are of training and validation; memory is {memory}."
    words = f"On {comparison.device}; means over {comparison.repeats}. {what}"
    if comparison.budget is None:
        return words
    return (
        f"{words} Every system had {comparison.budget:g} minutes, shared evenly by its trainings: one with fewer "
        "epochs than planned was ended by them, and would not repeat bit for bit."
    )


def _epochs(system: SystemResult) -> str:
    planned, had = system.average("planned_epochs"), system.average("epochs")
    if had is None or planned is None:
        return ""
    return f"{had:g}" if had == planned else f"{had:.3g} of {planned:g}"


def _plot(file: Path, comparison: Comparison) -> None:
    """Left every training and the mean with its interval, right the paired differences; one line for each system."""
    systems = [system for system in comparison.systems if system.mean is not None]

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        for place, system in enumerate(systems):
            colour = f"C{place % 10}"
            left.plot(system.values, [place] * len(system.values), "o", color=colour, markersize=4, alpha=0.4)
            _dot(left, place, system.mean, _spread(system), colour)
            if system.name == comparison.reference:
                right.plot([0], [place], "D", color=GREY, markersize=6)
            elif system.difference is not None:
                _dot(right, place, system.difference.centre, system.difference, colour)
        right.axvline(0, color=GREY, linewidth=1)
        left.set_yticks(range(len(systems)), [system.name for system in systems])
        left.set_ylim(len(systems) - 0.5, -0.5)
        better = "higher" if comparison.task.higher_is_better else "lower"
        left.set_xlabel(f"{_title(comparison)}{_unit(comparison)}, {better} is better")
        right.set_xlabel(f"difference to {comparison.reference}{_unit(comparison)}")
        several = any(system.std is not None for system in systems)
        left.set_title("each training (pale), mean and std" if several else "test part with its 95% interval")
        right.set_title("paired difference with its 95% interval")
        figure.suptitle(f"{comparison.data}: {comparison.repeats}")

    draw_figure(file, (11.0, 1.6 + 0.42 * max(len(systems), 2)), draw)


def _spread(system: SystemResult) -> Interval | None:
    """The standard deviation around the mean; of one training the interval over its test rows."""
    if system.mean is None or system.std is None:
        return system.interval
    return Interval(system.mean, system.mean - system.std, system.mean + system.std)


def _dot(axes: Any, place: int, centre: float | None, interval: Interval | None, colour: str) -> None:
    if interval is not None:
        axes.plot([interval.low, interval.high], [place, place], "-", color=colour, linewidth=2)
    axes.plot([centre], [place], "o", color=colour, markersize=7)


def _title(comparison: Comparison) -> str:
    return TITLES.get(comparison.task.metric, comparison.task.metric)


def _unit(comparison: Comparison) -> str:
    """Errors of numbers are in the unit of their column; every other metric has none."""
    if comparison.task.metric not in ("rmse", "mae"):
        return ""
    names = comparison.task.names
    return f" (in units of {names[0]})" if len(names) == 1 else " (mean over targets, in their units)"


def _parameters(system: SystemResult) -> int | None:
    known = [found.parameters for found in system.cells.values() if found.parameters is not None]
    return known[0] if known else None


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _number(value: float | None, style: str) -> str:
    return "" if value is None else format(value, style)


def _cell(text: str) -> str:
    """Text that does not end a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")
