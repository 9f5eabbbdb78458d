"""Who is ahead, and how sure that is: intervals over test rows and seeds, ranks, and wins that an interval allows.

Test rows are drawn again with replacement, the same rows for all systems and seeds. The interval of a system lies
between the percentiles of its mean over seeds. Two systems are compared on the seeds that both have, which share their
rows for choosing: the seeds are drawn again too, and the difference is taken seed by seed and row by row before the
mean, so that what makes a seed or a row hard goes away. A win is a difference whose interval does not hold zero.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokengt.experiments.admet.endpoints import Endpoint
from tokengt.training.metrics import Array
from tokengt.training.tables import mean_and_std
from tokengt.workflow.comparing_statistics import DRAWS, Interval, bootstrap, percentile_interval

# Predictions of the test part by seed.
Predictions = Mapping[int, Array]


@dataclass(frozen=True)
class SystemScore:
    """A system on an endpoint: its metric by seed, the mean and deviation over seeds, the interval of the test set."""

    values: Mapping[int, float]
    mean: float
    std: float | None
    interval: Interval | None


@dataclass(frozen=True)
class Difference:
    """How far the first of two systems is ahead of the second, in the metric; below zero it is behind."""

    interval: Interval
    seeds: int

    @property
    def verdict(self) -> str:
        """ahead, behind or level: level where the interval holds zero."""
        return "level" if self.interval.holds_zero else "ahead" if self.interval.low > 0 else "behind"


@dataclass(frozen=True)
class EndpointScores:
    """All systems on one endpoint, and every ordered pair of them."""

    systems: Mapping[str, SystemScore]
    differences: Mapping[tuple[str, str], Difference]


def scored(
    endpoint: Endpoint, labels: Array, systems: Mapping[str, Predictions], draws: int = DRAWS, seed: int = 0
) -> EndpointScores:
    """The statistics of one endpoint."""
    cells = [(system, each) for system, predictions in systems.items() for each in predictions]
    measures = [
        lambda rows, told=systems[system][each]: endpoint.measure(told[rows], labels[rows]) for system, each in cells
    ]
    drawn = bootstrap(measures, np.arange(len(labels)), draws, seed)
    columns = {cell: drawn[:, place] for place, cell in enumerate(cells)}
    values = {cell: endpoint.measure(systems[cell[0]][cell[1]], labels) for cell in cells}
    scores = {
        system: _score({each: values[system, each] for each in told}, [columns[system, each] for each in told])
        for system, told in systems.items()
    }
    sign = 1.0 if endpoint.higher_is_better else -1.0
    found = {}
    for first in systems:
        for second in systems:
            common = [each for each in systems[first] if each in systems[second]]
            if first == second or not common:
                continue
            apart = [sign * (values[first, each] - values[second, each]) for each in common]
            table = np.stack([sign * (columns[first, each] - columns[second, each]) for each in common], 1)
            interval = percentile_interval(float(np.mean(apart)), over_seeds(table, seed))
            if interval is not None:
                found[first, second] = Difference(interval, len(common))
    return EndpointScores(scores, found)


def over_seeds(table: NDArray[np.float64], seed: int) -> Array:
    """[draws]: the mean over columns that are drawn again with replacement in every row; [draws, seeds] in."""
    draws, count = table.shape
    chosen = np.random.default_rng([seed, count]).integers(count, size=(draws, count))
    return np.asarray(np.take_along_axis(table, chosen, 1).mean(1))


def _score(values: Mapping[int, float], columns: Sequence[Array]) -> SystemScore:
    known = [value for value in values.values() if math.isfinite(value)]
    mean, std = mean_and_std(known) if known else (math.nan, None)
    return SystemScore(dict(values), mean, std, percentile_interval(mean, np.mean(columns, 0)))


def ranks(endpoint: Endpoint, means: Mapping[str, float]) -> dict[str, float]:
    """The place of each system from 1, the best; equal means share the mean of their places."""
    from scipy.stats import rankdata

    values = np.array([-mean if endpoint.higher_is_better else mean for mean in means.values()])
    return dict(zip(means, rankdata(values).tolist(), strict=True))


def often_measured(means: Mapping[Endpoint, Mapping[str, float]], systems: Sequence[str]) -> list[str]:
    """The systems with a number on at least half of the endpoints: one that has few would leave few to rank on."""
    counts = {system: sum(math.isfinite(known.get(system, math.nan)) for known in means.values()) for system in systems}
    return [system for system in systems if 2 * counts[system] >= len(means)]


def mean_ranks(means: Mapping[Endpoint, Mapping[str, float]], systems: Sequence[str]) -> tuple[dict[str, float], int]:
    """The mean place of each system over the endpoints on which all of them have a number, and how many those are."""
    whole = {
        endpoint: {system: known[system] for system in systems}
        for endpoint, known in means.items()
        if all(math.isfinite(known.get(system, math.nan)) for system in systems)
    }
    places = [ranks(endpoint, known) for endpoint, known in whole.items()]
    if not places:
        return {}, 0
    return {system: float(np.mean([each[system] for each in places])) for system in systems}, len(places)


def wins(scores: Mapping[str, EndpointScores], first: str, second: str) -> dict[str, int]:
    """On how many endpoints the first system is ahead of the second, level with it or behind it."""
    verdicts = [
        found.differences[first, second].verdict for found in scores.values() if (first, second) in found.differences
    ]
    return {verdict: verdicts.count(verdict) for verdict in ("ahead", "level", "behind")}
