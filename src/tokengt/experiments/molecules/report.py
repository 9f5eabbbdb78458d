"""What the trainings came to: ``found.json`` first, then the table and the picture from it.

``found.json`` keeps the systems and seeds of earlier calls, so that a table can grow by one of them at a time. What is
told of a system besides its errors, such as its speed, is that of its first seed: further ones may have been trained
beside fewer others.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokengt.experiments.molecules.datasets import Benchmark
from tokengt.experiments.molecules.picture import plot_learning
from tokengt.experiments.molecules.plan import Job, Plan
from tokengt.experiments.molecules.reading import FOUND, read_json
from tokengt.experiments.molecules.systems import SYSTEMS, TableSystem
from tokengt.experiments.tables import (
    TableRow,
    device_name,
    distinct,
    markdown,
    mean_and_std,
    source_commit,
    write_json,
    write_rows,
)
from tokengt.files import write_whole
from tokengt.training.results import read_summary

TABLE, PICTURE = "table.md", "curves.png"
_NAMES = {"mae": "MAE", "rmse": "RMSE", "average_precision": "AP"}


def write_table(plan: Plan, failed: Mapping[str, str], out: Path) -> list[TableRow]:
    """Write ``out``/table.json and, for this data set, found.json, table.md and curves.png."""
    home, benchmark = plan.home, plan.benchmark
    new = {name: _entry(plan, system, failed.get(name)) for name, system in plan.lines.items()}
    found = {**read_json(home / FOUND, {}), **new}
    write_json(home / FOUND, found)
    rows = [row for name, entry in found.items() for row in _rows(benchmark, name, entry)]
    before = [TableRow(**row) for row in read_json(out / "table.json", [])]
    write_rows(out / "table.json", [row for row in before if row.dataset != benchmark.name] + rows)
    write_whole(home / TABLE, table_markdown(benchmark, found, plan.higher_is_better).encode())
    told = {name: entry for name, entry in found.items() if entry["curve"]}
    if told:
        plot_learning(told, benchmark, home / PICTURE)
    return rows


def _entry(plan: Plan, system: TableSystem, failed: str | None) -> dict[str, Any]:
    """All that is told of one system: what was told before stays, and the seeds that are new are added."""
    told = plan.told.get(system.name)
    entry = dict(told.entry) if told is not None else _first(plan, system)
    entry |= {"label": system.label, "failed": failed}
    known = entry["seeds"]
    jobs = [plan.decided(Job(system, None, True, seed)) for seed in range(1, plan.config.seeds) if seed not in known]
    later = [job for job in jobs if job is not None and plan.found(job) is not None]
    if not later:
        return entry
    entry["seeds"] = [*known, *(job.seed for job in later)]
    entry["values"] = {
        name: [*values, *(_value(plan, job, name) for job in later)] for name, values in entry["values"].items()
    }
    entry["validation"] = [*entry["validation"], *(plan.validated(job) for job in later)]
    return {**entry, "later": _later(plan, entry.get("later"))}


def _first(plan: Plan, system: TableSystem) -> dict[str, Any]:
    """What the first seed came to; without a result where it came to nothing."""
    job = plan.decided(Job(system, None, True))
    found = None if job is None else plan.found(job)
    done = [] if job is None or found is None else [(job, found)]
    recipe = done[0][0].recipe if done else None
    if done and system.start is not None:
        before = plan.decided(Job(plan.lines[system.start], None, True))
        recipe = None if before is None else before.recipe
    return {
        "label": system.label,
        "seeds": [job.seed for job, _ in done],
        "values": {name: [_value(plan, job, name) for job, _ in done] for name in plan.benchmark.metrics},
        "validation": [plan.validated(job) for job, _ in done],
        "recipe": None if recipe is None else {"name": recipe.name, "rate": recipe.rate},
        "screened": plan.screened(system),
        "minutes": plan.config.minutes,
        "settings": plan.settings_told(system),
        "at_once": plan.config.at_once,
        "curve": _curve(plan, *done[0]) if done else [],
        "failed": None,
        "device": device_name(plan.cells.device),
        "commit": source_commit(),
        **{
            name: getattr(done[0][1], name) if done else None
            for name in ("parameters", "graphs_per_s", "memory_gib", "epochs")
        },
    }


def _later(plan: Plan, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Where the seeds after the first were trained, those of earlier calls included; beside how many others at most."""
    earlier = before or {"commit": None, "device": None, "at_once": 0}
    return {
        "commit": distinct([earlier["commit"], source_commit()]),
        "device": distinct([earlier["device"], device_name(plan.cells.device)]),
        "at_once": max(earlier["at_once"], plan.config.at_once),
    }


def _value(plan: Plan, job: Job, metric: str) -> float | None:
    """Of the part that is told: one look at the test part, or the validation part where the test part is hidden."""
    if plan.benchmark.split == "valid":
        return plan.validated(job)
    return (read_summary(plan.folder(job)).test or {}).get(metric)


def _curve(plan: Plan, job: Job, found: Any) -> list[list[float]]:
    """[minute, validation metric] after every epoch, epochs taken to be equally long."""
    values = plan.curve(job)
    each = (found.seconds or 60 * plan.minutes(job)) / 60 / max(len(values), 1)
    return [[round(each * epoch, 4), value] for epoch, value in enumerate(values, 1) if value is not None]


def _rows(benchmark: Benchmark, name: str, entry: Mapping[str, Any]) -> list[TableRow]:
    rows = []
    for metric in benchmark.metrics:
        values = _known(entry, metric)
        if not values:
            continue
        mean, std = mean_and_std(values)
        system, later = SYSTEMS.get(name), entry.get("later", {})
        rows.append(
            TableRow(
                experiment="molecules",
                system=entry["label"],
                dataset=benchmark.name,
                split=benchmark.split,
                metric=metric + (f" ({benchmark.unit})" if benchmark.unit else ""),
                mean=mean,
                std=std,
                runs=len(values),
                parameters=None if entry["parameters"] is None else round(entry["parameters"]),
                graphs_per_s=entry["graphs_per_s"],
                device=distinct([entry["device"], later.get("device")]) or "",
                commit=distinct([entry["commit"], later.get("commit")]),
                # The paper has PCQM4Mv2 alone, and its error there says nothing about another data set.
                paper=system.paper if system is not None and benchmark.size == "paper" else None,
                memory_gib=entry["memory_gib"],
                asymptotics=system.asymptotics if system is not None else None,
            )
        )
    return rows


def _known(entry: Mapping[str, Any], metric: str) -> list[float]:
    return [value for value in entry["values"].get(metric, []) if value is not None and math.isfinite(value)]


def table_markdown(benchmark: Benchmark, found: Mapping[str, Mapping[str, Any]], higher_is_better: bool) -> str:
    """The best system first, those without a result last, beside the paper's numbers."""

    def place(name: str) -> tuple[bool, float]:
        values = _known(found[name], benchmark.metrics[0])
        mean = sum(values) / len(values) if values else 0.0
        return not values, -mean if higher_is_better else mean

    unit = f", {benchmark.unit}" if benchmark.unit else ""
    header = ["system", *(f"{benchmark.split} {_NAMES.get(name, name)}{unit}" for name in benchmark.metrics)]
    header += ["runs", "parameters", "graphs/s", "memory, GiB", "asymptotics", "recipe: rate", "epochs"]
    header += ["paper: parameters", "paper: PCQM4Mv2 valid MAE, eV"]
    names = sorted(found, key=place)
    table = markdown(header, [_line(benchmark, name, found[name]) for name in names])
    problems = [f"- {found[name]['label']}: {found[name]['failed']}" for name in names if found[name]["failed"]]
    return "\n".join([_heading(benchmark, found), "", table, *problems, *([""] if problems else [])])


def _heading(benchmark: Benchmark, found: Mapping[str, Mapping[str, Any]]) -> str:
    minutes = ", ".join(f"{value:g}" for value in sorted({entry["minutes"] for entry in found.values()}))
    at_once = ", ".join(str(value) for value in sorted({entry["at_once"] for entry in found.values()}))
    devices = ", ".join(sorted({entry["device"] for entry in found.values()}))
    return (
        f"{benchmark.name}, {benchmark.split} part: {minutes} minutes of training for each system by the clock, its "
        f"screenings included, {at_once} at once on {devices} (speeds are those side by side)"
        f"{_not_by_the_clock(found)}{_of_further_seeds(found)}; recipes were chosen on the validation part; deviations "
        "are over seeds."
    )


def _not_by_the_clock(found: Mapping[str, Mapping[str, Any]]) -> str:
    """The systems that were asked for a number of epochs instead of minutes."""
    asked = {entry["label"]: entry.get("settings") or {} for entry in found.values()}
    labels = [name for name, settings in asked.items() if float(settings.get("training.minutes", 1)) == 0]
    return f"; {', '.join(labels)} by a number of epochs and not by the clock" if labels else ""


def _of_further_seeds(found: Mapping[str, Mapping[str, Any]]) -> str:
    """How the seeds after the first were trained: an entry of several without "later" is older than repeated epochs."""
    several = [entry for entry in found.values() if len(entry["seeds"]) > 1]
    old = [entry["label"] for entry in several if "later" not in entry]
    said = "; further seeds have the recipe and the epochs of the first one" if len(several) > len(old) else ""
    return said + (f"; further seeds of {', '.join(old)} have its minutes by the clock too" if old else "")


def _line(benchmark: Benchmark, name: str, entry: Mapping[str, Any]) -> list[str]:
    system, values = SYSTEMS.get(name), _known(entry, benchmark.metrics[0])
    ours = [
        entry["label"],
        *(_number(_known(entry, metric)) for metric in benchmark.metrics),
        str(len(values)),
        f"{entry['parameters'] / 1e6:.2f}M" if entry["parameters"] else "",
        f"{entry['graphs_per_s']:,.0f}" if entry["graphs_per_s"] else "",
        f"{entry['memory_gib']:.2f}" if entry["memory_gib"] else "",
        system.asymptotics if system is not None else "",
        _recipe(entry["recipe"]),
        f"{entry['epochs']:.0f}" if entry["epochs"] else "",
    ]
    if system is None:
        return [*ours, "", ""]
    count, error = system.paper_parameters, system.paper
    return [*ours, "" if count is None else f"{count}M", "" if error is None else f"{error:.4f}"]


def _recipe(recipe: Mapping[str, Any] | None) -> str:
    """By its rate; that of the system's authors by its name too."""
    if recipe is None:
        return ""
    return f"own: {recipe['rate']:g}" if recipe["name"] == "own" else f"{recipe['rate']:g}"


def _number(values: Sequence[float]) -> str:
    if not values:
        return "failed"
    mean, std = mean_and_std(values)
    return f"{mean:.4f}" + ("" if std is None else f" ± {std:.4f}")
