"""Which trainings the table is made of, and what each of them is asked for.

Every system has the same minutes of training. Each of its recipes is screened for a share of them, and the one with the
best validation metric is trained anew for the rest, once per seed; the test part is looked at only then. A system that
goes on with another one's run is fine-tuned for as long as the others were screened, so that it has the same minutes in
all.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from tokengt.config import near
from tokengt.data.splitting import GIVEN, SplitRequest
from tokengt.data.store import Store
from tokengt.experiments.molecules.datasets import BENCHMARKS, Benchmark
from tokengt.experiments.molecules.systems import TABLE, Recipe, TableSystem, systems_named
from tokengt.training.processes import Device, DeviceConfig
from tokengt.training.request import TrainRequest
from tokengt.training.results import METRICS as CURVE
from tokengt.training.tasks import METRICS
from tokengt.workflow.comparing import settings_by_system
from tokengt.workflow.comparing_cells import Cell, Cells, Found, System

CELLS = "cells"
# No system here trains faster, in graphs per second. A run does not know at first how many epochs fit into its time,
# and begins as if it were as fast as this.
_FASTEST = 100_000


@dataclass(frozen=True)
class MoleculesConfig:
    """What is run.

    Args:
        dataset: a name in :data:`~tokengt.experiments.molecules.datasets.BENCHMARKS`.
        systems: names of systems or presets.
        seeds: trainings of each system with its chosen recipe.
        minutes: of training for each system, by the clock, with one seed.
        screen: the share of them that each recipe is screened for.
        at_once: trainings side by side.
        data: a store that was prepared from the data set; None for the data set by its name.
        device: auto, cpu or cuda.
        settings: of all trainings, or of one system's as in ``gin:model.dim``: the last word.
    """

    dataset: str
    systems: tuple[str, ...] = TABLE
    seeds: int = 1
    minutes: float = 10.0
    screen: float = 0.1
    at_once: int = 1
    data: str | None = None
    device: Device = "auto"
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.dataset not in BENCHMARKS:
            raise ValueError(
                f"dataset is {self.dataset!r}{near(self.dataset, BENCHMARKS)}; expected one of {', '.join(BENCHMARKS)}"
            )
        for name in ("seeds", "at_once"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")
        if not 0 < self.minutes < math.inf:
            raise ValueError(f"minutes is {self.minutes}; expected a number above 0")
        most = max((len(system.recipes.get(self.benchmark.size, ())) for system in self.lines), default=1)
        if not 0 < self.screen < 1 / max(most, 1):
            raise ValueError(f"screen is {self.screen}; expected above 0 and below 1/{most}: the rest is for training")
        _ = self.settings_of

    @property
    def benchmark(self) -> Benchmark:
        return BENCHMARKS[self.dataset]

    @property
    def lines(self) -> list[TableSystem]:
        return systems_named(self.systems)

    @property
    def settings_of(self) -> dict[str, dict[str, Any]]:
        return settings_by_system(self.settings, [system.name for system in self.lines])


@dataclass(frozen=True, eq=False)
class Job:
    """One training: a system by one of its recipes.

    ``chosen``: the training that is told in the table, and no screening. Its recipe is None until it is decided, and
    for a system that goes on with another one's run.
    """

    system: TableSystem
    recipe: Recipe | None
    chosen: bool
    seed: int = 0

    @property
    def stage(self) -> str:
        if self.chosen:
            return "chosen"
        assert self.recipe is not None
        return f"screen-{self.recipe.name}"

    @property
    def name(self) -> str:
        return f"{self.system.name}/{self.stage}/{self.cell.name}"

    @property
    def cell(self) -> Cell:
        return Cell(self.seed)


class Plan:
    """The trainings of one table, in the folder ``home``."""

    def __init__(self, config: MoleculesConfig, home: Path, store: Store) -> None:
        self.config, self.home, self.store, self.benchmark = config, home, store, config.benchmark
        self.lines = {system.name: system for system in config.lines}
        common = TrainRequest(split=SplitRequest(GIVEN), where=DeviceConfig(config.device), quiet=True)
        self.cells = Cells(home / CELLS, store, common, torch.device(common.where.resolved))
        metric = self.benchmark.metrics[0]
        self.higher_is_better = next(names[metric] for names in METRICS.values() if metric in names)

    def recipes(self, system: TableSystem) -> tuple[Recipe, ...]:
        return system.recipes.get(self.benchmark.size, ())

    def screens(self, system: TableSystem) -> list[Job]:
        """Its screenings; none where there is nothing to choose."""
        recipes = self.recipes(system)
        return [Job(system, recipe, False) for recipe in recipes] if len(recipes) > 1 else []

    def minutes(self, job: Job) -> float:
        """Of one training."""
        each = self.config.minutes * self.config.screen
        if job.system.start is not None:
            return each * len(self.screens(self.lines[job.system.start]))
        return each if not job.chosen else self.config.minutes - each * len(self.screens(job.system))

    def jobs(self) -> list[Job]:
        """All trainings: first the screenings, then one seed of all systems after another."""
        screens = [job for system in self.lines.values() for job in self.screens(system)]
        seeds = range(self.config.seeds)
        return screens + [Job(system, None, True, seed) for seed in seeds for system in self.lines.values()]

    def needs(self, job: Job) -> set[str]:
        """Names of the trainings that have to end first."""
        if job.system.start is not None:
            return {Job(self.lines[job.system.start], None, True, job.seed).name}
        return {screen.name for screen in self.screens(job.system)} if job.chosen else set()

    def screened(self, system: TableSystem) -> dict[str, float]:
        """The validation metric of every recipe whose screening came to one, by its name."""
        values = {job: self.validated(job) for job in self.screens(system) if self.found(job) is not None}
        return {job.recipe.name: value for job, value in values.items() if value is not None and job.recipe}

    def decided(self, job: Job) -> Job | None:
        """The same training with its recipe, once all that it needs has ended; None where that came to nothing."""
        system = job.system
        if system.start is not None:
            before = self.decided(Job(self.lines[system.start], None, True, job.seed))
            return job if before is not None and self.found(before) is not None else None
        if not job.chosen:
            return job
        recipes = {recipe.name: recipe for recipe in self.recipes(system)}
        if len(recipes) == 1:
            return replace(job, recipe=next(iter(recipes.values())))
        values = self.screened(system)
        if not values:
            return None
        best = (max if self.higher_is_better else min)(values, key=lambda name: values[name])
        return replace(job, recipe=recipes[best])

    def folder(self, job: Job) -> Path:
        """The run folder."""
        return self.home / CELLS / job.name

    def asked(self, job: Job) -> System:
        """The system as the harness of ``tokengt compare`` trains it."""
        system, minutes = job.system, self.minutes(job)
        assert self.store.split is not None
        graphs = int((self.store.split == 0).sum())
        settings: dict[str, Any] = {
            **self.benchmark.settings(),
            "training.minutes": minutes,
            "training.epochs": max(1, math.ceil(60 * minutes * _FASTEST / max(graphs, 1))),
        }
        own = self.config.settings_of[system.name]
        if system.start is not None:
            # Its model is that of the run that it goes on with.
            settings |= {path: value for path, value in own.items() if path.startswith("training.")}
            start = self.folder(Job(self.lines[system.start], None, True, job.seed))
            return System(f"{system.name}/{job.stage}", settings=settings, start=start, attention=system.attention)
        assert job.recipe is not None
        settings |= system.settings_of(self.benchmark.size)
        settings |= {f"training.{name}": value for name, value in job.recipe.settings.items()}
        return System(f"{system.name}/{job.stage}", system.preset_of(self.benchmark.size), settings={**settings, **own})

    def found(self, job: Job) -> Found | None:
        """What a finished training came to.

        Raises:
            ValueError: it was begun with other data or settings.
        """
        return self.cells.check(self.asked(job), job.cell)

    def train(self, job: Job) -> Found:
        """Train, or go on with what was begun."""
        return self.found(job) or self.cells.run(self.asked(job), job.cell, _no_truth)

    def curve(self, job: Job) -> list[float | None]:
        """The first metric on the validation part after every epoch; None where it is not defined."""
        lines = (self.folder(job) / CURVE).read_text(encoding="utf-8").splitlines()
        records = [json.loads(line).get("valid", {}) for line in lines]
        return [record.get(self.benchmark.metrics[0]) for record in records]

    def validated(self, job: Job) -> float | None:
        """The best of :meth:`curve`: the epoch whose weights are kept."""
        known = [value for value in self.curve(job) if value is not None]
        return (max if self.higher_is_better else min)(known) if known else None


def _no_truth() -> Any:
    raise AssertionError("only floors ask for the labels of the test part")
