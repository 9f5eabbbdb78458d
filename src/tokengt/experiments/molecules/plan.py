"""Which trainings the table is made of, and what each of them is asked for.

The first seed of every system has the same minutes of training. Each of its recipes is screened for a share of them,
and the one with the best validation metric is trained anew for the rest; the test part is looked at only then. A system
that goes on with another one's run is fine-tuned for as long as the others were screened, so that it has the same
minutes in all.

Further seeds repeat what the first one came to, and not the clock: its recipe, for exactly as many epochs. So it does
not matter what else the machine does meanwhile, or whether it is another one. What the first one came to stands in its
run folder, or else in the ``found.json`` of an earlier call. A system that goes on with another one's run goes on with
the run of the same seed.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from tokengt.config import near
from tokengt.data.splitting import GIVEN, SplitRequest
from tokengt.data.store import Store
from tokengt.experiments.molecules.datasets import BENCHMARKS, Benchmark
from tokengt.experiments.molecules.reading import FOUND, Told, read_told
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
NO_FIRST = "seeds after the first are not trained without its result, whose recipe and epochs they repeat"


class Missing(Exception):
    """What a training needs is not there; one sentence says what."""


@dataclass(frozen=True)
class MoleculesConfig:
    """What is run.

    Args:
        dataset: a name in :data:`~tokengt.experiments.molecules.datasets.BENCHMARKS`.
        systems: names of systems or presets.
        seeds: trainings of each system with its chosen recipe; those after the first repeat its epochs.
        minutes: of training for each system, by the clock, in its first seed.
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
    for a system that goes on with another one's run. ``epochs``: of the first seed, for one that repeats it, once they
    are decided; None for one that is trained by the clock.
    """

    system: TableSystem
    recipe: Recipe | None
    chosen: bool
    seed: int = 0
    epochs: int | None = None

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
        self.told = read_told(home, self.lines)
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
        """Of one training; of a seed after the first about as many, since its epochs are those of the first."""
        each = self.config.minutes * self.config.screen
        if job.system.start is not None:
            return each * len(self.screens(self.lines[job.system.start]))
        return each if not job.chosen else self.config.minutes - each * len(self.screens(job.system))

    def jobs(self) -> list[Job]:
        """All trainings: first the screenings, then one seed of all systems after another."""
        screens = [job for system in self.lines.values() for job in self.screens(system)]
        seeds = range(self.config.seeds)
        chosen = [Job(system, None, True, seed) for seed in seeds for system in self.lines.values()]
        return [job for job in screens + chosen if job.name not in self.only_told]

    @cached_property
    def only_told(self) -> frozenset[str]:
        """Names of the trainings that are left out because ``found.json`` tells what they came to.

        A first seed is trained by nobody again, nor are its recipes screened. A later one is, where its run folder is
        not here and a system goes on with it.

        Raises:
            ValueError: a first seed had other minutes or settings.
        """
        names: set[str] = set()
        for name, told in self.told.items():
            system = self.lines[name]
            first = Job(system, None, True)
            if not self._is_finished(first):
                self._check_asked(system, told)
                names |= {first.name, *(screen.name for screen in self.screens(system))}
            later = [Job(system, None, True, seed) for seed in told.seeds[1:]]
            names |= {job.name for job in later if not self._is_begun_with(job)}
        return frozenset(names)

    def _is_finished(self, job: Job) -> bool:
        decided = self.decided(job)
        return decided is not None and self.found(decided) is not None

    def _is_begun_with(self, job: Job) -> bool:
        """Whether a system whose same seed is not told goes on with this run."""
        after = [system.name for system in self.lines.values() if system.start == job.system.name]
        return any(job.seed not in self._told_seeds(name) for name in after)

    def _told_seeds(self, name: str) -> tuple[int, ...]:
        return self.told[name].seeds if name in self.told else ()

    def settings_told(self, system: TableSystem) -> dict[str, str]:
        """What was asked of a system beside its recipe, as found.json keeps it."""
        return {path: str(value) for path, value in sorted(self.config.settings_of[system.name].items())}

    def _check_asked(self, system: TableSystem, told: Told) -> None:
        settings = told.entry.get("settings")
        # Older files do not tell settings.
        if settings is not None and settings != self.settings_told(system):
            raise ValueError(
                f"{self.home / FOUND} tells {system.name} with {_listed(settings)}, and "
                f"{_listed(self.settings_told(system))} are asked for; ask for the same, or choose another folder"
            )
        if told.minutes != self.config.minutes:
            raise ValueError(
                f"{self.home / FOUND} tells {system.name} with {told.minutes:g} minutes, and {self.config.minutes:g} "
                "are asked for; ask for the same, or choose another folder"
            )

    def needs(self, job: Job) -> set[str]:
        """Names of the trainings that have to end first."""
        needed: list[Job] = []
        if job.chosen and job.seed:
            needed.append(Job(job.system, None, True))
        elif job.chosen and job.system.start is None:
            needed += self.screens(job.system)
        if job.system.start is not None:
            needed.append(Job(self.lines[job.system.start], None, True, job.seed))
        return {each.name for each in needed} - self.only_told

    def screened(self, system: TableSystem) -> dict[str, float]:
        """The validation metric of every recipe whose screening came to one, by its name."""
        values = {job: self.validated(job) for job in self.screens(system) if self.found(job) is not None}
        return {job.recipe.name: value for job, value in values.items() if value is not None and job.recipe}

    def decided(self, job: Job) -> Job | None:
        """:meth:`ready`, or None where something is missing."""
        try:
            return self.ready(job)
        except Missing:
            return None

    def ready(self, job: Job) -> Job:
        """The same training with its recipe and its epochs, once all that it needs has ended.

        Raises:
            Missing: that came to nothing.
        """
        if job.seed:
            job = self._repeating(job)
        elif job.chosen and job.system.start is None:
            job = replace(job, recipe=self._best(job.system))
        if job.system.start is not None and self.found(job) is None:
            self._check_start(self.lines[job.system.start], job.seed)
        return job

    def _best(self, system: TableSystem) -> Recipe:
        """The only recipe, or the one with the best screening."""
        recipes = {recipe.name: recipe for recipe in self.recipes(system)}
        if len(recipes) == 1:
            return next(iter(recipes.values()))
        values = self.screened(system)
        if not values:
            raise Missing("none of its recipes has a validation metric")
        return recipes[(max if self.higher_is_better else min)(values, key=lambda name: values[name])]

    def _repeating(self, job: Job) -> Job:
        """With the recipe and the epochs of the first seed: from its run folder, or else as they were told."""
        first = self.decided(Job(job.system, None, True))
        found = None if first is None else self.found(first)
        if first is not None and found is not None:
            assert found.epochs
            return replace(job, recipe=first.recipe, epochs=found.epochs)
        told = self.told.get(job.system.name)
        if told is None:
            raise Missing(NO_FIRST)
        if told.epochs is None:
            raise Missing(f"{FOUND} does not tell the epochs of its first seed, which further seeds repeat")
        if job.system.start is not None:
            return replace(job, epochs=told.epochs)
        recipes = {recipe.name: recipe for recipe in self.recipes(job.system)}
        if told.recipe not in recipes:
            raise Missing(
                f"its first seed has the recipe {told.recipe!r} in {FOUND}, and there is none of this name any more; "
                f"there are {', '.join(recipes)}"
            )
        return replace(job, recipe=recipes[told.recipe], epochs=told.epochs)

    def _check_start(self, system: TableSystem, seed: int) -> None:
        if self._is_finished(Job(system, None, True, seed)):
            return
        if seed in self._told_seeds(system.name):
            raise Missing(f"{system.name}, which it goes on with, has no run folder of seed {seed} here")
        raise Missing(f"{system.name}, which it goes on with, has no result")

    def folder(self, job: Job) -> Path:
        """The run folder."""
        return self.home / CELLS / job.name

    def asked(self, job: Job) -> System:
        """The system as the harness of ``tokengt compare`` trains it."""
        system, name = job.system, f"{job.system.name}/{job.stage}"
        settings = {**self.benchmark.settings(), **self._by_the_clock(job)}
        own = self.config.settings_of[system.name]
        if system.start is not None:
            # Its model is that of the run that it goes on with.
            settings |= {path: value for path, value in own.items() if path.startswith("training.")}
            start = self.folder(Job(self.lines[system.start], None, True, job.seed))
            return System(name, settings={**settings, **_by_epochs(job)}, start=start, attention=system.attention)
        assert job.recipe is not None
        settings |= system.settings_of(self.benchmark.size)
        settings |= {f"training.{path}": value for path, value in job.recipe.settings.items()}
        return System(name, system.preset_of(self.benchmark.size), settings={**settings, **own, **_by_epochs(job)})

    def _by_the_clock(self, job: Job) -> dict[str, Any]:
        minutes = self.minutes(job)
        assert self.store.split is not None
        graphs = int((self.store.split == 0).sum())
        most = max(1, math.ceil(60 * minutes * _FASTEST / max(graphs, 1)))
        return {"training.minutes": minutes, "training.epochs": most}

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


def _by_epochs(job: Job) -> dict[str, Any]:
    """Settings that make a seed after the first as long as the first, whatever limited that one."""
    if job.epochs is None:
        return {}
    return {"training.epochs": job.epochs, "training.minutes": 0.0, "training.patience": 0}


def _listed(settings: Mapping[str, str]) -> str:
    return " ".join(f"{path}={value}" for path, value in settings.items()) or "no settings"


def _no_truth() -> Any:
    raise AssertionError("only floors ask for the labels of the test part")
