"""Order-k TokenGT end to end: node classification on real hypergraphs, beside an MLP and a clique-expansion GCN.

Hyperedges of up to three nodes become ordered triples, larger ones pooled tokens; a hyperedge's features are the mean
of its members'. Splits are random, 50% training, 25% validation, 25% test of the nodes. All systems share width,
dropout and early stopping by validation accuracy, and see features scaled to rows that sum to one.
"""

import time
from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from tokengt.config import to_dict
from tokengt.data.hypergraphs import LabelledHypergraph, read_hypergraph
from tokengt.data.public import public_data
from tokengt.data.splits import Split
from tokengt.experiments.cells import Say, kept_cell, silent
from tokengt.experiments.hypergraph_systems import (
    HypergraphConfig,
    System,
    Trained,
    hypergraph_store,
    model_config,
    recipe,
    split_nodes,
)
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
from tokengt.training.loop import Trainer
from tokengt.training.parts import cut
from tokengt.training.processes import DeviceConfig, make_fabric
from tokengt.training.resolve import fit_task, shown_targets


def run_hypergraphs(
    config: HypergraphConfig, out: Path, device: torch.device | str = "cpu", progress: Say | None = None
) -> list[TableRow]:
    """Run the cells that are not finished; then write ``out``/table.json and table.md of all of them."""
    say, place, commit = progress or silent, torch.device(device), source_commit()
    read = cache(lambda name: read_hypergraph(public_data("hypergraphs") / f"{name}.npz"))
    cells: list[dict[str, Any]] = []
    for name, system, seed in product(config.datasets, config.systems, config.seeds):

        def run(name: str = name, system: System = system, seed: int = seed) -> dict[str, Any]:
            return {**run_cell(read(name), system, seed, config, place), "commit": commit}

        cell = kept_cell(out / "cells" / f"{name}-{system}-{seed}.json", cell_settings(system, config), run)
        cells.append({"dataset": name, "system": system, "seed": seed, **cell})
        say(f"{name} {system} seed {seed}: test accuracy {cell['test']:.4f}, {cell['seconds']:.0f} s")
    rows = table_rows(cells)
    write_rows(out / "table.json", rows)
    write_whole(out / "table.md", table_markdown(rows).encode())
    return rows


def cell_settings(system: System, config: HypergraphConfig) -> dict[str, Any]:
    """All that a cell depends on beside its data and its seed: the model and how it is trained."""
    if system == "majority":
        return {}
    return {"model": to_dict(model_config(system, config)), "training": to_dict(recipe(system, config))}


def run_cell(
    data: LabelledHypergraph, system: System, seed: int, config: HypergraphConfig, device: torch.device
) -> dict[str, Any]:
    """Train one system on one split and measure it."""
    if system == "majority":
        return majority(data, seed)
    return train_cell(data, system, seed, config, device)


def majority(data: LabelledHypergraph, seed: int) -> dict[str, Any]:
    """The class that most training nodes have, for every node."""
    split = split_nodes(data.num_nodes, seed)
    most = torch.bincount(data.labels[split.train]).argmax()
    return {**accuracies(data.labels == most, split), "epochs": 0, "parameters": 1, "seconds": 0.0, "device": "cpu"}


def train_cell(
    data: LabelledHypergraph, system: Trained, seed: int, config: HypergraphConfig, device: torch.device
) -> dict[str, Any]:
    """Train a model by the training loop; the weights that were best on the validation nodes are measured."""
    store, split, training = hypergraph_store(data, system), split_nodes(data.num_nodes, seed), recipe(system, config)
    task = fit_task("multiclass", store, shown_targets(store, split, by_row=True))
    described = model_config(system, config).fit(store, task.out_dim)
    # The facts that the model needs of its graph (such as eigenvectors) are computed once, because every step sees the
    # same graph.
    store = store.with_facts(described.facts(), progress=False)
    torch.manual_seed(seed)
    model = described.build()
    parts = cut(store.graphs, store.targets, "node", split, by_row=True, costs=model.costs(store.graphs))
    fabric = make_fabric(DeviceConfig("cuda" if device.type == "cuda" else "cpu"), training.precision)
    trainer = Trainer(fabric, model, parts, task, training, seed=seed)
    started = time.perf_counter()
    epochs = trainer.run().epoch
    seconds = time.perf_counter() - started
    # Every part holds the whole graph, so the outputs for the test part are those of all nodes.
    chosen = trainer.outputs(parts.test).argmax(1)
    return {
        **accuracies(chosen == data.labels, split),
        "epochs": epochs,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seconds": seconds,
        "device": device_name(device),
    }


def accuracies(right: Bool[Tensor, " nodes"], split: Split) -> dict[str, float]:
    """The share of right nodes of every part."""
    return {name: float(right[places].double().mean()) for name, places in split.parts().items()}


def table_rows(cells: Sequence[dict[str, Any]]) -> list[TableRow]:
    """One row per data set and system: test accuracy over seeds. An epoch is one graph."""
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
    """Test accuracy in percent: one line per data set, one column per system."""
    systems, datasets = (list(dict.fromkeys(getattr(row, name) for row in rows)) for name in ("system", "dataset"))
    row_of = {(row.dataset, row.system): row for row in rows}
    lines = [[dataset, *(_percent(row_of.get((dataset, system))) for system in systems)] for dataset in datasets]
    return markdown(["test accuracy, %", *systems], lines)


def _percent(row: TableRow | None) -> str:
    if row is None:
        return ""
    deviation = "" if row.std is None else f" ± {100 * row.std:.1f}"
    return f"{100 * row.mean:.1f}{deviation}"
