"""Which trainings the table is made of; each is a cell, run once and kept.

A system is trained on a graph with each of its candidate models on the split and seed of run 0, for all epochs. The one
with the best validation metric is then trained for the other runs; only its test metrics are told. Training is that of
the paper's appendix: Adam, a rate of 1e-3 that does not change, 300 epochs of one step on the whole graph, the weights
of the best validation epoch tested. The appendix does not say how classes are weighed: where the split tests as many
nodes of each class, all systems are trained with classes that count alike.
"""

import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from tokengt.config import to_dict
from tokengt.data.catalogue import DATASETS
from tokengt.data.named import named_store
from tokengt.data.splitting import make_splits
from tokengt.data.store import Store
from tokengt.experiments.cells import kept_cell
from tokengt.experiments.nodes.datasets import PAPER, NodeGraph, graphs_named
from tokengt.experiments.nodes.systems import TABLE, NodeSystem, systems_named
from tokengt.experiments.tables import device_name, source_commit
from tokengt.models.contract import ModelConfig
from tokengt.training.config import TrainingConfig
from tokengt.training.loop import Trainer
from tokengt.training.memory import TooLarge, refuse_too_large
from tokengt.training.metrics import metrics
from tokengt.training.parts import cut
from tokengt.training.processes import Device, DeviceConfig, make_fabric
from tokengt.training.resolve import fit_task, shown_targets
from tokengt.workflow.peaks import peak_memory

Search = Literal["none", "small"]


@dataclass(frozen=True)
class NodesConfig:
    """What is run.

    Args:
        datasets: names of graphs, "paper" for its six, "heterophilous" for the five others.
        systems: names in :data:`~tokengt.experiments.nodes.systems.SYSTEMS`.
        runs: trainings of each system with its chosen model, each with its own split.
        search: "small" tries the candidates of each system, "none" takes the first.
        epochs: steps of each training.
        learning_rate: of Adam.
        width: when above 0, all models are this wide: for a try on a CPU.
        at_once: systems that are trained side by side.
        memory: GiB that a training may take, 24 on the paper's card; 0 for what the device has.
        device: auto, cpu or cuda.
    """

    datasets: tuple[str, ...] = PAPER
    systems: tuple[str, ...] = TABLE
    runs: int = 7
    search: Search = "small"
    epochs: int = 300
    learning_rate: float = 1e-3
    width: int = 0
    at_once: int = 1
    memory: float = 0.0
    device: Device = "auto"

    def __post_init__(self) -> None:
        for name in ("runs", "epochs", "at_once"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")
        for name in ("width", "memory"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 0 or more")
        if self.search not in get_args(Search):
            raise ValueError(f"search is {self.search!r}; expected one of {', '.join(get_args(Search))}")
        for graph in self.graphs:
            if graph.most_runs is not None and self.runs > graph.most_runs:
                raise ValueError(f"runs is {self.runs}, and {graph.name} has {graph.most_runs} splits of its own")
        _ = self.lines

    @property
    def graphs(self) -> list[NodeGraph]:
        return graphs_named(self.datasets)

    @property
    def lines(self) -> list[NodeSystem]:
        return systems_named(self.systems)

    def training(self, graph: NodeGraph) -> TrainingConfig:
        """Adam on the whole graph at one rate; the same for every system of a graph."""
        return TrainingConfig(
            epochs=self.epochs,
            batch_size=1,
            learning_rate=self.learning_rate,
            weight_decay=0.0,
            warmup=0.0,
            schedule="constant",
            clip=0.0,
            metric=graph.metric,
            balance=graph.balanced,
            memory=self.memory,
        )


@dataclass(frozen=True, eq=False)
class Pair:
    """One system on one graph."""

    graph: NodeGraph
    system: NodeSystem

    @property
    def name(self) -> str:
        return f"{self.graph.name}/{self.system.name}"


class Plan:
    """The trainings of one table, in the folder ``home``."""

    def __init__(self, config: NodesConfig, home: Path) -> None:
        self.config, self.home = config, home

    def ordered(self) -> list[Pair]:
        """Every system on every graph, as they were asked for."""
        return [Pair(graph, system) for graph in self.config.graphs for system in self.config.lines]

    def pairs(self) -> list[Pair]:
        """The same, those that take longest first: so that no late one is waited for alone."""
        order = {name: place for place, name in enumerate(_LONGEST)}
        return sorted(self.ordered(), key=lambda pair: order.get(pair.graph.name, len(order)))

    def candidates(self, pair: Pair) -> dict[str, ModelConfig]:
        return pair.system.searched(self.config.search, self.config.width)

    def asks_for_facts(self, pair: Pair) -> bool:
        """Whether some model of a system needs to know more of a graph than what its file says."""
        return any(model.facts() for model in self.candidates(pair).values())

    def file(self, pair: Pair, candidate: str, run: int) -> Path:
        return self.home / "cells" / pair.name / candidate / f"run-{run}.json"

    def settings(self, pair: Pair, model: ModelConfig) -> dict[str, Any]:
        """All that a cell depends on beside its graph and its run."""
        training = to_dict(self.config.training(pair.graph))
        # How much memory there is decides whether a training runs, and not what comes out of it.
        training.pop("memory", None)
        return {"model": to_dict(model), "training": training}

    def found(self, pair: Pair, candidate: str, run: int) -> dict[str, Any] | None:
        """What a finished cell came to; None where it is still to be run.

        Raises:
            ValueError: it was made with other settings.
        """
        file, settings = self.file(pair, candidate, run), self.settings(pair, self.candidates(pair)[candidate])
        return kept_cell(file, settings, _never) if file.exists() else None

    def chosen(self, pair: Pair) -> str | None:
        """The candidate with the best validation metric in run 0; None where none has one yet."""
        found = {name: self.found(pair, name, 0) for name in self.candidates(pair)}
        values = {name: cell["valid"] for name, cell in found.items() if cell is not None and "valid" in cell}
        return max(values, key=lambda name: values[name]) if values else None

    def is_begun(self, pair: Pair) -> bool:
        """Whether some training of a system on a graph came to something."""
        return any(self.found(pair, name, 0) is not None for name in self.candidates(pair))

    def is_finished(self, pair: Pair) -> bool:
        """Whether nothing of a system on a graph is left to run."""
        searched = [self.found(pair, name, 0) for name in self.candidates(pair)]
        if any(cell is None for cell in searched):
            return False
        best = self.chosen(pair)
        return best is None or all(self.found(pair, best, run) is not None for run in range(self.config.runs))

    def work(self, pair: Pair) -> None:
        """Run all cells of a system on a graph that are not finished."""
        graph = OpenGraph(pair.graph)
        for name, model in self.candidates(pair).items():
            self._cell(graph, pair, name, model, 0)
        best = self.chosen(pair)
        if best is None:
            return
        for run in range(1, self.config.runs):
            self._cell(graph, pair, best, self.candidates(pair)[best], run)

    def _cell(self, graph: "OpenGraph", pair: Pair, name: str, model: ModelConfig, run: int) -> None:
        kept_cell(
            self.file(pair, name, run),
            self.settings(pair, model),
            lambda: graph.trained(model, self.config.training(pair.graph), run, self.config.device),
        )

    def facts(self, graph: NodeGraph) -> None:
        """What the models need to know of a graph, worked out once for all processes and kept with its store."""
        opened = OpenGraph(graph)
        for system in self.config.lines:
            for model in self.candidates(Pair(graph, system)).values():
                config = self.config.training(graph)
                opened.with_facts(model, config, torch.device(DeviceConfig(self.config.device).resolved))


# Graphs by how long a training takes on them.
_LONGEST = (
    *("coauthor-physics", "tolokers", "amazon-computers", "crocodile", "amazon-photo", "coauthor-cs"),
    *("squirrel-filtered", "minesweeper", "actor", "chameleon", "chameleon-filtered"),
)


def _never() -> dict[str, Any]:
    raise AssertionError("the cell is there")


class OpenGraph:
    """A graph at hand: read once for all trainings of a process."""

    def __init__(self, graph: NodeGraph) -> None:
        self.graph = graph

    @cached_property
    def store(self) -> Store:
        return named_store(DATASETS[self.graph.name], progress=False)

    def with_facts(self, model: ModelConfig, training: TrainingConfig, device: torch.device) -> Store | None:
        """The store with what this model asks for; None for a model that does not fit, of which nothing is asked."""
        fitted = model.fit(self.store, 2)
        try:
            refuse_too_large(fitted, self.store.graphs, [torch.zeros(1, dtype=torch.int64)], training, device)
        except TooLarge:
            return None
        return self.store.with_facts(fitted.facts(), progress=False)

    def trained(self, model: ModelConfig, training: TrainingConfig, run: int, device: Device) -> dict[str, Any]:
        """One training and what it came to; where it does not fit, the sentence that says so."""
        fabric = make_fabric(DeviceConfig(device), training.precision)
        try:
            with peak_memory(fabric.device) as peak:
                found = self._trained(fabric, model, training, run)
        except (TooLarge, torch.OutOfMemoryError) as error:
            return {
                "refused": str(error).splitlines()[0],
                "device": device_name(fabric.device),
                "commit": source_commit(),
            }
        return {**found, "memory_gib": peak.gib, "device": device_name(fabric.device), "commit": source_commit()}

    def _trained(self, fabric: Any, model: ModelConfig, training: TrainingConfig, run: int) -> dict[str, Any]:
        (split,), _ = make_splits(self.store, self.graph.split(run))
        shown = shown_targets(self.store, split, by_row=True)
        task = replace(fit_task(None, self.store, shown), metric=self.graph.metric)
        if training.balance:
            task = replace(task, class_weights=task.balanced(shown))
        fitted = model.fit(self.store, task.out_dim)
        refuse_too_large(fitted, self.store.graphs, [torch.zeros(1, dtype=torch.int64)], training, fabric.device)
        store = self.store.with_facts(fitted.facts(), progress=False)
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            torch.manual_seed(run)
            built = fitted.build()
        parts = cut(store.graphs, store.targets, "node", split, by_row=True, costs=built.costs(store.graphs))
        trainer = Trainer(fabric, built, parts, task, training, seed=run)
        began = time.perf_counter()
        state = trainer.run()
        seconds = time.perf_counter() - began
        # Every part holds the whole graph, so the outputs for the test part are those of all nodes.
        predictions = task.predictions(trainer.outputs(parts.test))
        values = {
            name: metrics(task, predictions[places], store.targets[places])[self.graph.metric]
            for name, places in split.parts().items()
        }
        return {
            **values,
            "epochs": state.epoch,
            "best_epoch": state.best_epoch,
            "parameters": sum(parameter.numel() for parameter in built.parameters()),
            "seconds": seconds,
            "tokens": int(parts.costs[0]),
        }
