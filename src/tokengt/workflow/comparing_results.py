"""What a comparison found: every system with its mean, its spread and its difference to another one."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tokengt.training.metrics import headline, to_numpy
from tokengt.training.tables import mean_and_std
from tokengt.training.tasks import Task
from tokengt.workflow.comparing_cells import Cell, Cells, Found, System, Truth
from tokengt.workflow.comparing_statistics import (
    Array,
    Interval,
    best_of,
    bootstrap,
    percentile_interval,
    t_interval,
    verdict,
)


@dataclass(frozen=True)
class Repeats:
    """How often every system is trained, and on what."""

    kind: Literal["folds", "seeds"]
    cells: tuple[Cell, ...]

    def __str__(self) -> str:
        count = len(self.cells)
        return f"{count} {self.kind if count > 1 else self.kind[:-1]}"


@dataclass(frozen=True)
class SystemResult:
    """One line of the table.

    Args:
        name: of the system.
        cells: what was found, by the name of the cell.
        mean: of the metric over the cells that have one; None where the system failed or none has.
        std: the sample's standard deviation; None for one cell.
        interval: of the mean; of one training over its test rows.
        difference: to the reference, paired; None for the reference itself and where there is no interval.
        failed: why it has no result.
    """

    name: str
    cells: Mapping[str, Found]
    mean: float | None = None
    std: float | None = None
    interval: Interval | None = None
    difference: Interval | None = None
    failed: str | None = None

    @property
    def values(self) -> list[float]:
        return [found.value for found in self.cells.values() if found.value is not None]

    def average(self, name: str) -> float | None:
        """The mean of a field of :class:`Found` over the cells that know it."""
        known = [getattr(found, name) for found in self.cells.values() if getattr(found, name) is not None]
        return sum(known) / len(known) if known else None


@dataclass(frozen=True)
class Comparison:
    """All systems on one data set.

    Args:
        systems: in the order of the request, floors last.
        task: what was learned.
        data: the name of the data.
        split: how it was split, in words.
        repeats: folds or seeds.
        shared_split: whether all trainings had the same split.
        overlap: test rows divided by training rows, where every training had a split of its own; else 0.
        reference: the system that differences are taken to; None where no system has a result.
        verdict: who has won, or why nobody has.
        notes: what else a reader should know.
        device: where it ran.
        budget: minutes of training for each system.
    """

    systems: tuple[SystemResult, ...]
    task: Task
    data: str
    split: str
    repeats: str
    shared_split: bool
    overlap: float
    reference: str | None
    verdict: str
    notes: tuple[str, ...]
    device: str
    budget: float | None = None

    def __getitem__(self, name: str) -> SystemResult:
        return next(system for system in self.systems if system.name == name)


def concluded(
    cells: Cells,
    systems: Sequence[System],
    repeats: Repeats,
    truths: Mapping[Cell, Truth],
    found: Mapping[tuple[str, Cell], Found],
    failed: Mapping[str, str],
    reference: str | None,
    *,
    notes: tuple[str, ...],
    device: str,
    budget: float | None,
) -> Comparison:
    """The statistics of what was found. A system that failed in one cell has no mean: it would be of other parts."""
    first = truths[repeats.cells[0]]
    task, spec = first.task, first.member.spec
    whole = [system for system in systems if system.name not in failed]
    values = {
        system.name: np.array(
            [math.nan if (one := found[system.name, cell].value) is None else one for cell in repeats.cells]
        )
        for system in whole
    }
    shared = len({truth.member.spec.split_sha256 for truth in truths.values()}) == 1
    overlap = 0.0 if shared else sum(truth.overlap for truth in truths.values()) / len(truths)
    draws = _draws(cells, whole, repeats.cells[0], first) if len(repeats.cells) == 1 else {}
    means = {name: float(np.mean(known)) for name, each in values.items() if len(known := each[np.isfinite(each)])}
    best = best_of(means, task.higher_is_better)

    def difference(name: str, other: str) -> Interval | None:
        apart = values[name] - values[other]
        known = apart[np.isfinite(apart)].tolist()
        if draws:
            return percentile_interval(known[0], draws[name] - draws[other]) if known else None
        return t_interval(known, overlap)

    chosen = reference if reference in means else best
    rows = []
    for system in systems:
        name = system.name
        mine = {cell.name: found[name, cell] for cell in repeats.cells if (name, cell) in found}
        if name not in means:
            rows.append(SystemResult(name, mine, failed=failed.get(name, f"{task.metric} is not defined")))
            continue
        known = values[name][np.isfinite(values[name])].tolist()
        mean, std = mean_and_std(known)
        own = percentile_interval(mean, draws[name]) if draws else t_interval(known, overlap)
        apart = None if chosen is None or name == chosen else difference(name, chosen)
        rows.append(SystemResult(name, mine, mean, std, own, apart))
    to_best = {name: difference(name, best) for name in means if best is not None and name != best}
    return Comparison(
        tuple(rows),
        task,
        spec.source.name,
        _plain_split(spec.split, repeats, shared),
        str(repeats),
        shared,
        overlap,
        chosen,
        verdict(best, to_best),
        (*notes, *_missing(values), *_other_reference(reference, chosen)),
        device,
        budget,
    )


def _draws(cells: Cells, systems: Sequence[System], cell: Cell, truth: Truth) -> dict[str, Array]:
    """The metric of every system on test rows that are drawn again."""
    labels, task = to_numpy(truth.labels), truth.task
    tables = [cells.predictions(system, cell, task) for system in systems]
    measures = [lambda rows, table=table: headline(task, table[rows], labels[rows]) for table in tables]
    drawn = bootstrap(measures, truth.groups, seed=cell.seed)
    return {system.name: drawn[:, place] for place, system in enumerate(systems)}


def _plain_split(split: str, repeats: Repeats, shared: bool) -> str:
    """How the data was split, without the number of the first seed or fold where each has its own."""
    if repeats.kind == "folds":
        return split.removeprefix("fold 0 of ")
    first, last = repeats.cells[0].seed, repeats.cells[-1].seed
    return split if shared else split.replace(f"seed {first}", f"seeds {first} to {last}")


def _missing(values: Mapping[str, Array]) -> list[str]:
    """A sentence where the metric is not defined for some test parts, such as those with one class only."""
    counts = {int(np.isnan(each).sum()) for each in values.values()} - {0}
    return [f"the metric is not defined on {max(counts)} of the test parts, which are left out"] if counts else []


def _other_reference(asked: str | None, chosen: str | None) -> list[str]:
    return [f"{asked} has no result: differences are taken to {chosen}"] if asked not in (None, chosen) else []
