"""The table: test metrics over runs beside the paper's, as JSON first and Markdown from it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokengt.experiments.nodes.datasets import TUNED, TUNED_SPLIT
from tokengt.experiments.nodes.plan import Pair, Plan
from tokengt.experiments.tables import TableRow, distinct, markdown, mean_and_std, write_json, write_rows
from tokengt.files import write_whole


def write_table(plan: Plan, failed: Mapping[str, str], out: Path) -> list[TableRow]:
    """``table.json`` with one row per system and graph, ``table.md``, and ``found.json`` with every run."""
    ordered = plan.ordered()
    found = {pair.name: gathered(plan, pair, failed.get(pair.name)) for pair in ordered}
    rows = [row for pair in ordered if (row := _row(pair, found[pair.name])) is not None]
    write_json(out / "found.json", found)
    write_rows(out / "table.json", rows)
    write_whole(out / "table.md", table_markdown(ordered, found, plan).encode())
    return rows


def gathered(plan: Plan, pair: Pair, failed: str | None) -> dict[str, Any]:
    """All that was found of a system on a graph: its chosen model, its runs, what was searched, why it has none."""
    searched = {name: plan.found(pair, name, 0) for name in plan.candidates(pair)}
    best = plan.chosen(pair)
    runs = [] if best is None else [plan.found(pair, best, run) for run in range(plan.config.runs)]
    refused = [cell["refused"] for cell in searched.values() if cell is not None and "refused" in cell]
    return {
        "chosen": best,
        "searched": {name: None if cell is None else cell.get("valid") for name, cell in searched.items()},
        "runs": [cell for cell in runs if cell is not None and "test" in cell],
        "refused": refused[-1] if refused and best is None else None,
        "failed": failed,
    }


def _row(pair: Pair, found: Mapping[str, Any]) -> TableRow | None:
    runs = found["runs"]
    if not runs:
        return None
    mean, std = mean_and_std([run["test"] for run in runs])
    seconds, epochs = sum(run["seconds"] for run in runs), sum(run["epochs"] for run in runs)
    memory = [run["memory_gib"] for run in runs if run["memory_gib"] is not None]
    paper = pair.system.paper.get(pair.graph.name)
    return TableRow(
        experiment="nodes",
        system=pair.system.label,
        dataset=pair.graph.name,
        split=pair.graph.split_name,
        metric=pair.graph.metric,
        mean=mean,
        std=std,
        runs=len(runs),
        parameters=runs[0]["parameters"],
        graphs_per_s=epochs / seconds if seconds else None,
        device=distinct([run["device"] for run in runs]) or "",
        commit=distinct([run["commit"] for run in runs]),
        paper=None if paper is None else paper[0],
        memory_gib=max(memory) if memory else None,
        asymptotics=pair.system.asymptotics,
    )


def table_markdown(pairs: Sequence[Pair], found: Mapping[str, Mapping[str, Any]], plan: Plan) -> str:
    """One line per system and one column per graph, the paper's line below each; then what was refused or failed."""
    graphs = list(dict.fromkeys(pair.graph for pair in pairs))
    lines = []
    for system in dict.fromkeys(pair.system for pair in pairs):
        mine = [found[Pair(graph, system).name] for graph in graphs]
        lines.append([system.label, *(_cell(each, plan.config.runs) for each in mine)])
        if any(graph.name in system.paper for graph in graphs):
            lines.append(["&nbsp;&nbsp;paper", *(_pair(system.paper.get(graph.name)) for graph in graphs)])
    if any(graph.name in TUNED for graph in graphs):
        tuned = [f"{TUNED[graph.name]:.3f}" if graph.name in TUNED else "" for graph in graphs]
        lines.append([TUNED_SPLIT, *tuned])
    head = ["", *(graph.label + (" (ROC-AUC)" if graph.metric == "roc_auc" else "") for graph in graphs)]
    problems = [
        f"- {pair.system.label}, {pair.graph.label}: {why}"
        for pair in pairs
        if (why := found[pair.name]["failed"] or found[pair.name]["refused"])
    ]
    return "\n".join([_heading(plan, found), "", markdown(head, lines), *problems, *([""] if problems else [])])


def _heading(plan: Plan, found: Mapping[str, Mapping[str, Any]]) -> str:
    config = plan.config
    devices = distinct([run["device"] for each in found.values() for run in each["runs"]]) or "nothing yet"
    wide = f", all models {config.width} wide" if config.width else ""
    alike = [graph.label for graph in config.graphs if graph.balanced]
    weighed = f" All systems are trained with classes that count alike on {', '.join(alike)}." if alike else ""
    return (
        f"Nodes of one graph: test metric at the best validation epoch, mean and deviation over {config.runs} runs, "
        f"each with its own split; Adam, {config.learning_rate:g}, {config.epochs} epochs{wide}; search: "
        f"{config.search}; on {devices}.{weighed}"
    )


def _cell(found: Mapping[str, Any], wanted: int) -> str:
    """Mean and deviation, with the number of runs where some are still to be made."""
    runs = [run["test"] for run in found["runs"]]
    if not runs:
        return "failed" if found["failed"] else "refused" if found["refused"] else ""
    mean, std = mean_and_std(runs)
    return _pair((mean, std)) + (f" ({len(runs)})" if len(runs) < wanted else "")


def _pair(numbers: tuple[float, float | None] | None) -> str:
    if numbers is None:
        return ""
    mean, std = numbers
    return f"{mean:.3f}" + ("" if std is None else f" ± {std:.3f}")
