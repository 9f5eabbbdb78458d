"""Train a small model on each task, and see which methods find its true atoms."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tokengt.config import to_dict
from tokengt.data.store import Store
from tokengt.experiments.cells import Say, kept_cell, silent
from tokengt.experiments.faithfulness.measuring import SYSTEMS, measured
from tokengt.experiments.faithfulness.picture import plot_faithfulness
from tokengt.experiments.faithfulness.tasks import TASKS, Labelled, TaskName, generate
from tokengt.experiments.tables import TableRow, distinct, markdown, mean_and_std, source_commit, write_json, write_rows
from tokengt.files import write_whole
from tokengt.workflow.fitting import TrainOptions, train

TABLE = "table.json"
PICTURE = "faithfulness.png"
# Test graphs come from another seed than those that a model was trained on.
_TEST_SEED = 1_000_000


@dataclass(frozen=True)
class FaithfulnessConfig:
    """What is trained and measured.

    Args:
        tasks: which of the three.
        seeds: each is a training on graphs of its own.
        graphs: to train on, a tenth of them for choosing the best epoch.
        test: graphs that attributions are measured on.
        epochs: of training.
        dim: width of the model.
        layers: its depth.
        heads: heads of each layer.
        walks: steps of random walks that tokens are told of; without them (0) the model learns the size of a ring from
            eigenvectors, which are of the whole graph.
    """

    tasks: tuple[TaskName, ...] = TASKS
    seeds: tuple[int, ...] = (0, 1, 2)
    graphs: int = 4000
    test: int = 150
    epochs: int = 40
    dim: int = 64
    layers: int = 4
    heads: int = 4
    walks: int = 8

    def settings(self) -> dict[str, Any]:
        """Of the preset small, without its regularisers: graphs are made up, so that there are as many as one likes."""
        return {
            "model.dim": self.dim,
            "model.encoder.num_layers": self.layers,
            "model.encoder.num_heads": self.heads,
            "model.encoder.mlp_dim": 2 * self.dim,
            "model.encoder.mlp_dropout": 0.0,
            "model.encoder.drop_path": 0.0,
            "model.identifiers.dropout": 0.0,
            "model.structure.walks": self.walks,
            "training.epochs": self.epochs,
            "training.batch_size": 64,
        }


def run_faithfulness(config: FaithfulnessConfig, out: Path, progress: Say | None = None) -> list[TableRow]:
    """Train and measure what is not done yet; then write ``out``/table.json, table.md, cells and faithfulness.png.

    The runs lie in ``out``/runs, where ``tokengt explain`` finds them.
    """
    say, commit, cells = progress or silent, source_commit(), []
    for task in config.tasks:
        for seed in config.seeds:

            def cell(task: TaskName = task, seed: int = seed) -> dict[str, Any]:
                return {**run_cell(config, task, seed, out / "runs"), "commit": commit}

            file = out / "cells" / f"{task}-{seed}.json"
            made_with = {name: value for name, value in to_dict(config).items() if name not in ("tasks", "seeds")}
            cells.append({"task": task, "seed": seed, **kept_cell(file, made_with, cell)})
            last = cells[-1]
            shown = ", ".join(f"{name} {last['auc'][name]:.3f}" for name in SYSTEMS)
            say(f"{task} seed {seed}: rmse {last['rmse']:.3f}, AUC {shown}; {last['seconds']:.0f} s")
    rows = table_rows(cells)
    write_rows(out / TABLE, rows)
    write_json(out / "cells.json", cells)
    write_whole(out / "table.md", table_markdown(cells).encode())
    plot_faithfulness(rows, out / PICTURE)
    return rows


def run_cell(config: FaithfulnessConfig, task: TaskName, seed: int, runs: Path) -> dict[str, Any]:
    """Train one model and measure every method on new graphs."""
    began = time.perf_counter()
    store = store_of(generate(task, config.graphs, seed))
    run = train(
        store,
        runs / f"{task}-{seed}",
        preset="small",
        settings=config.settings(),
        seed=seed,
        device="cpu",
        resume=True,
        options=TrainOptions(quiet=True),
    )
    test = generate(task, config.test, _TEST_SEED + seed)
    errors = run.predict(test.graphs).mean - test.counts.numpy()
    return {
        "auc": measured(run, test, seed),
        "rmse": float(np.sqrt(np.mean(errors**2))),
        "parameters": sum(parameter.numel() for parameter in run.members[0].model.parameters()),
        "seconds": time.perf_counter() - began,
    }


def store_of(data: Labelled) -> Store:
    return Store.from_memory(data.graphs, data.counts, target_names=("motifs",), task="regression")


def table_rows(cells: Sequence[dict[str, Any]]) -> list[TableRow]:
    """One row per task and method: the mean AUC over seeds."""
    rows = []
    for task in dict.fromkeys(cell["task"] for cell in cells):
        mine = [cell for cell in cells if cell["task"] == task]
        for system in SYSTEMS:
            mean, std = mean_and_std([cell["auc"][system] for cell in mine])
            rows.append(
                TableRow(
                    experiment="faithfulness",
                    system=system,
                    dataset=task,
                    split="new graphs",
                    metric="AUC of true atoms",
                    mean=mean,
                    std=std,
                    runs=len(mine),
                    parameters=mine[0]["parameters"],
                    graphs_per_s=None,
                    device="cpu",
                    commit=distinct([cell["commit"] for cell in mine]),
                    paper=None,
                )
            )
    return rows


def table_markdown(cells: Sequence[dict[str, Any]]) -> str:
    """One line per method, one column per task; and how well the models predict."""
    tasks = list(dict.fromkeys(cell["task"] for cell in cells))

    def shown(values: Sequence[float]) -> str:
        mean, std = mean_and_std(values)
        return f"{mean:.3f}" if std is None else f"{mean:.3f} ± {std:.3f}"

    of_task = {task: [cell for cell in cells if cell["task"] == task] for task in tasks}
    lines = [[name, *(shown([cell["auc"][name] for cell in of_task[task]]) for task in tasks)] for name in SYSTEMS]
    errors = ["RMSE of the predicted number", *(shown([cell["rmse"] for cell in of_task[task]]) for task in tasks)]
    return markdown(["AUC of true atoms", *tasks], [*lines, errors])
