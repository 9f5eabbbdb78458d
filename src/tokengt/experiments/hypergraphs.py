"""Order-k TokenGT end to end: node classification on real hypergraphs, beside an MLP and a clique-expansion GCN.

Hyperedges of up to three nodes become ordered triples, larger ones pooled tokens; a hyperedge's features are the mean
of its members'. Splits are random, 50% training, 25% validation, 25% test of the nodes. All systems share width,
dropout and early stopping by validation accuracy, and see features scaled to rows that sum to one.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import torch

from tokengt.data.hypergraphs import LabelledHypergraph, read_hypergraph
from tokengt.data.public import public_data
from tokengt.data.splits import PARTS
from tokengt.experiments.cells import Say, kept_cell, silent
from tokengt.experiments.hypergraph_systems import HypergraphConfig, System, build, split_nodes, train
from tokengt.experiments.tables import (
    TableRow,
    device_name,
    distinct,
    markdown,
    mean_and_std,
    source_commit,
    write_rows,
)
from tokengt.files import write_whole

# What to run, not how: a cell does not depend on it.
_CHOICES = ("datasets", "systems", "seeds")


def run_hypergraphs(
    config: HypergraphConfig, out: Path, device: torch.device | str = "cpu", progress: Say | None = None
) -> list[TableRow]:
    """Run the cells that are not finished; then write ``out``/table.json and table.md of all of them."""
    say, place, commit = progress or silent, torch.device(device), source_commit()
    read = cache(lambda name: read_hypergraph(public_data("hypergraphs") / f"{name}.npz"))
    settings = {field: value for field, value in asdict(config).items() if field not in _CHOICES}
    cells: list[dict[str, Any]] = []
    for name, system, seed in product(config.datasets, config.systems, config.seeds):

        def run(name: str = name, system: System = system, seed: int = seed) -> dict[str, Any]:
            return {**run_cell(read(name), system, seed, config, place), "commit": commit}

        found = kept_cell(out / "cells" / f"{name}-{system}-{seed}.json", settings, run)
        cells.append({"dataset": name, "system": system, "seed": seed, **found})
        say(f"{name} {system} seed {seed}: test accuracy {found['test']:.4f}, {found['seconds']:.0f} s")
    rows = table_rows(cells)
    write_rows(out / "table.json", rows)
    write_whole(out / "table.md", table_markdown(rows).encode())
    return rows


def run_cell(
    data: LabelledHypergraph, system: System, seed: int, config: HypergraphConfig, device: torch.device
) -> dict[str, Any]:
    """Train one system on one split and measure it."""
    parts = split_nodes(data.num_nodes, seed)
    labels = data.labels.to(device)
    if system == "majority":
        most = int(torch.bincount(data.labels[parts[0]]).argmax())
        right = [float((data.labels[part] == most).double().mean()) for part in parts]
        return {**dict(zip(PARTS, right, strict=True)), "epochs": 0, "parameters": 1, "seconds": 0.0, "device": "cpu"}
    torch.manual_seed(seed)
    model, predict = build(data, system, config, device)
    rate, decay = (
        (config.learning_rate, config.weight_decay)
        if system.startswith("tokengt")
        else (config.baseline_learning_rate, config.baseline_weight_decay)
    )
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay)
    started = time.perf_counter()
    best, epochs = train(model, predict, labels, [part.to(device) for part in parts], optimiser, config)
    return {
        **dict(zip(PARTS, best, strict=True)),
        "epochs": epochs,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seconds": time.perf_counter() - started,
        "device": device_name(device),
    }


def table_rows(cells: Sequence[dict[str, Any]]) -> list[TableRow]:
    """One row a data set and system: test accuracy over seeds. An epoch is one graph."""
    rows = []
    for dataset, system in dict.fromkeys((cell["dataset"], cell["system"]) for cell in cells):
        mine = [cell for cell in cells if (cell["dataset"], cell["system"]) == (dataset, system)]
        mean, std = mean_and_std([cell["test"] for cell in mine])
        seconds, epochs = sum(cell["seconds"] for cell in mine), sum(cell["epochs"] for cell in mine)
        rows.append(
            TableRow(
                experiment="hypergraphs",
                system=system,
                dataset=dataset,
                split="random 50/25/25",
                metric="accuracy",
                mean=mean,
                std=std,
                runs=len(mine),
                parameters=mine[0]["parameters"],
                graphs_per_s=epochs / seconds if seconds else None,
                device=distinct([cell["device"] for cell in mine]) or "",
                commit=distinct([cell["commit"] for cell in mine]),
                paper=None,
            )
        )
    return rows


def table_markdown(rows: Sequence[TableRow]) -> str:
    """Test accuracy in percent: a line a data set, a column a system."""
    systems, datasets = (list(dict.fromkeys(getattr(row, name) for row in rows)) for name in ("system", "dataset"))
    known = {(row.dataset, row.system): row for row in rows}
    lines = [[dataset, *(_percent(known.get((dataset, system))) for system in systems)] for dataset in datasets]
    return markdown(["test accuracy, %", *systems], lines)


def _percent(row: TableRow | None) -> str:
    if row is None:
        return ""
    spread = "" if row.std is None else f" ± {100 * row.std:.1f}"
    return f"{100 * row.mean:.1f}{spread}"
