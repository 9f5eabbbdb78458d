"""What the kept cells of a folder come to: numbers, comparisons and ranks, before anybody writes them down."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tokengt.experiments.admet.endpoints import ENDPOINTS, PUBLISHED, Endpoint
from tokengt.experiments.admet.plan import SYSTEMS, TOKENGT, Plan, predictions_of, read_cell
from tokengt.experiments.admet.reading import EndpointData
from tokengt.experiments.admet.run import cells_of
from tokengt.experiments.admet.statistics import EndpointScores, mean_ranks, often_measured, scored, wins
from tokengt.training.metrics import Array


@dataclass(frozen=True, eq=False)
class Results:
    """All that the cells of a folder say.

    Args:
        datas: the endpoints that have cells, in their order.
        systems: the systems that have cells, ours first.
        cells: ``cells[endpoint][system][seed]`` is what a cell found, without its predictions.
        predictions: those, alike.
        scores: the statistics of each endpoint.
        leaks: ``leaks[corpus][endpoint]``: how much of the test part stands in other data.
        notes: what else a reader should know.
    """

    datas: Mapping[str, EndpointData]
    systems: tuple[str, ...]
    cells: Mapping[str, Mapping[str, Mapping[int, Mapping[str, Any]]]]
    predictions: Mapping[str, Mapping[str, Mapping[int, Array]]]
    scores: Mapping[str, EndpointScores]
    leaks: Mapping[str, Mapping[str, Mapping[str, Any]]]
    notes: tuple[str, ...]

    @property
    def reference(self) -> str:
        """The system that the others are compared with: tokengt, if it is there."""
        return TOKENGT if TOKENGT in self.systems else self.systems[0]

    def means(self, published: bool) -> dict[Endpoint, dict[str, float]]:
        """The mean of every system on every endpoint; with the published numbers of MiniMol."""
        found = {}
        for name, scores in self.scores.items():
            endpoint = ENDPOINTS[name]
            own = {system: score.mean for system, score in scores.systems.items()}
            found[endpoint] = {**own, **({PUBLISHED: endpoint.minimol} if published else {})}
        return found

    def ranks(self, published: bool) -> tuple[dict[str, float], int]:
        """Mean ranks over the endpoints on which all ranked systems have a number, and how many those are.

        Ranked are those with a number on at least half of the endpoints.
        """
        means = self.means(published)
        names = often_measured(means, (*self.systems, *((PUBLISHED,) if published else ())))
        return mean_ranks(means, names)

    def wins(self, first: str, second: str) -> dict[str, int]:
        return wins(self.scores, first, second)

    def unseen(self, name: str, system: str) -> tuple[float, int] | None:
        """The mean over seeds on the test rows whose parents no weights saw, and how many those are.

        None where nothing is known of what the weights saw, or where all rows, or none, are left.
        """
        corpora = [found[name] for corpus, found in self.leaks.items() if corpus != "train_val" and name in found]
        labels = test_labels(self.datas[name])
        seen = {int(place) for told in corpora for place in told["rows"].split()}
        rows = np.array([place for place in range(len(labels)) if place not in seen], dtype=np.int64)
        if not corpora or not len(rows) or not seen:
            return None
        told = self.predictions[name][system].values()
        value = float(np.mean([ENDPOINTS[name].measure(each[rows], labels[rows]) for each in told]))
        return (value, len(rows)) if math.isfinite(value) else None


def test_labels(data: EndpointData) -> Array:
    return np.asarray(data.labels[data.test])


def results_of(
    plan: Plan,
    leaks: Mapping[str, Mapping[str, Mapping[str, Any]]],
    notes: Sequence[str],
    draws: int,
) -> Results:
    """Read all cells of the plan's folder, whichever call made them, and work out what they say.

    Raises:
        ValueError: there is none, or one was made with other data.
    """
    kept = cells_of(plan.home)
    names = [name for name in ENDPOINTS if name in kept]
    if not names:
        raise ValueError(f"{plan.home} holds no finished cell; there is nothing to tell")
    datas = {name: plan.data(name) for name in names}
    cells: dict[str, dict[str, dict[int, dict[str, Any]]]] = {}
    predictions: dict[str, dict[str, dict[int, Array]]] = {}
    for name in names:
        for system, files in kept[name].items():
            found = {int(file.stem.removeprefix("seed-")): _found(file, datas[name]) for file in files}
            cells.setdefault(name, {})[system] = found
            told = {seed: predictions_of(cell.pop("predictions")) for seed, cell in found.items()}
            predictions.setdefault(name, {})[system] = told
    there = {system for each in cells.values() for system in each}
    systems = tuple(name for name in SYSTEMS if name in there) + tuple(sorted(there - set(SYSTEMS)))
    scores = {name: scored(ENDPOINTS[name], test_labels(datas[name]), predictions[name], draws) for name in names}
    return Results(datas, systems, cells, predictions, scores, leaks, tuple(notes))


def _found(file: Path, data: EndpointData) -> dict[str, Any]:
    content = read_cell(file)
    if content["settings"]["data"] != data.checksum:
        raise ValueError(f"{file} was made with other data; remove it or choose another folder")
    return dict(content["found"])
