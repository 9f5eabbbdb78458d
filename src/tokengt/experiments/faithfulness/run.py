"""Train a small model on each task, and see which methods find its true atoms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from tokengt.config import to_dict
from tokengt.data.store import Store
from tokengt.experiments.cells import Say, kept_cell, silent
from tokengt.experiments.faithfulness.measuring import AMONG, GRADIENTS, SYSTEMS, measured
from tokengt.experiments.faithfulness.picture import plot_faithfulness
from tokengt.experiments.faithfulness.tasks import TASKS, Labelled, TaskName, generate
from tokengt.experiments.tables import TableRow, distinct, markdown, mean_and_std, source_commit, write_rows
from tokengt.files import write_whole
from tokengt.workflow.fitting import TrainOptions, train

TABLE = "table.json"
PICTURE = "faithfulness.png"
# A model that explains less than this share of the variance of the labels has not learned its task.
LEARNED = 0.9
# Test graphs come from another seed than those that a model was trained on.
_TEST_SEED = 1_000_000


@dataclass(frozen=True)
class FaithfulnessConfig:
    """What is trained and measured.

    Args:
        tasks: which of the three.
        seeds: each is a training on graphs of its own.
        graphs: for a training; a tenth of them chooses the best epoch, and another is held out.
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
    # Seed by seed, so that a command that is stopped has all tasks of its first seeds.
    for seed in config.seeds:
        for task in config.tasks:

            def cell(task: TaskName = task, seed: int = seed) -> dict[str, Any]:
                return {**run_cell(config, task, seed, out / "runs"), "commit": commit}

            file = out / "cells" / f"{task}-{seed}.json"
            made_with = {name: value for name, value in to_dict(config).items() if name not in ("tasks", "seeds")}
            cells.append({"task": task, "seed": seed, **kept_cell(file, made_with, cell)})
            say(told(cells[-1]))
    cells.sort(key=lambda cell: config.tasks.index(cell["task"]))
    rows = table_rows(cells)
    write_rows(out / TABLE, rows)
    write_whole(out / "table.md", table_markdown(cells).encode())
    plot_faithfulness(rows, out / PICTURE)
    return rows


def run_cell(config: FaithfulnessConfig, task: TaskName, seed: int, runs: Path) -> dict[str, Any]:
    """Train one model and measure every method on new graphs."""
    run = train(
        store_of(generate(task, config.graphs, seed)),
        runs / f"{task}-{seed}",
        preset="small",
        settings=config.settings(),
        seed=seed,
        device="cpu",
        resume=True,
        options=TrainOptions(quiet=True),
    )
    test = generate(task, config.test, _TEST_SEED + seed)
    labels = test.counts.numpy()
    squared = float(np.mean((run.predict(test.graphs).mean - labels) ** 2))
    return {
        "auc": measured(run, test, seed),
        "rmse": squared**0.5,
        "r2": 1 - squared / float(labels.var()),
        "parameters": sum(parameter.numel() for parameter in run.members[0].model.parameters()),
    }


def store_of(data: Labelled) -> Store:
    return Store.from_memory(data.graphs, data.counts, target_names=("motifs",), task="regression")


def learned(cell: Mapping[str, Any]) -> bool:
    """Whether the model predicts its task; if not, its attributions have nothing to find."""
    return bool(cell["r2"] >= LEARNED)


def told(cell: Mapping[str, Any]) -> str:
    """One training in one line."""
    found = ", ".join(f"{among} {cell['auc'][among][GRADIENTS]:.3f}" for among in AMONG)
    words = "" if learned(cell) else " (the task was not learned)"
    return f"{cell['task']} seed {cell['seed']}: RMSE {cell['rmse']:.3f}{words}; AUC of {GRADIENTS}: {found}"


def table_rows(cells: Sequence[Mapping[str, Any]]) -> list[TableRow]:
    """One row per task, method and kind of AUC: the mean over seeds."""
    rows = []
    for task, among, system in product(dict.fromkeys(cell["task"] for cell in cells), AMONG, SYSTEMS):
        mine = [cell for cell in cells if cell["task"] == task]
        mean, std = mean_and_std([cell["auc"][among][system] for cell in mine])
        rows.append(
            TableRow(
                experiment="faithfulness",
                system=system,
                dataset=task,
                split="new graphs",
                metric=f"AUC of true atoms, {among}",
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


def table_markdown(cells: Sequence[Mapping[str, Any]]) -> str:
    """One line per method, one column per task and kind of AUC; and how well the models predict."""
    of_task: dict[str, list[Mapping[str, Any]]] = {}
    for cell in cells:
        of_task.setdefault(cell["task"], []).append(cell)

    def shown(values: Sequence[float]) -> str:
        mean, std = mean_and_std(values)
        return f"{mean:.3f}" if std is None else f"{mean:.3f} ± {std:.3f}"

    columns = list(product(AMONG, of_task))
    lines = [
        [name, *(shown([cell["auc"][among][name] for cell in of_task[task]]) for among, task in columns)]
        for name in SYSTEMS
    ]
    names = ["AUC of true atoms", *(f"{task}, {among}" for among, task in columns)]
    errors = [
        [
            task,
            shown([cell["rmse"] for cell in mine]),
            shown([cell["r2"] for cell in mine]),
            f"{sum(map(learned, mine))} of {len(mine)}",
        ]
        for task, mine in of_task.items()
    ]
    told_of = ["Task", "RMSE of the predicted number", "R²", f"models that learned it (R² of {LEARNED} and more)"]
    return markdown(names, lines) + "\n" + markdown(told_of, errors)
