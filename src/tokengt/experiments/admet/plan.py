"""What is run: which systems on which endpoints with which seeds, and where each result is kept.

``OUT/cells/ENDPOINT/SYSTEM/seed-N.json`` is one cell: a system trained once. It holds the settings that it was made
with, its predictions of the test part and the metric. Work that is not finished lies in ``OUT/work``.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tokengt.config import near
from tokengt.experiments.admet.endpoints import ENDPOINTS, Endpoint, endpoints_named
from tokengt.experiments.admet.reading import EndpointData, data_folder, read_endpoint
from tokengt.experiments.tables import source_commit
from tokengt.files import checksum
from tokengt.models.pretrained import CONFIG
from tokengt.presets import PRESETS
from tokengt.training.metrics import Array
from tokengt.training.processes import Device
from tokengt.training.request import TrainRequest

CELLS, WORK = "cells", "work"
TOKENGT, START = "tokengt", "tokengt-start"
FOREST, BOOSTING = "random-forest", "gradient-boosting"
CHEMPROP, CHEMELEON = "chemprop", "chemeleon"
# All systems that have a name of their own; a preset of ``tokengt train`` is one too.
SYSTEMS: Mapping[str, str] = {
    TOKENGT: "tokengt (default)",
    START: "tokengt (--start)",
    FOREST: "random forest",
    BOOSTING: "gradient boosting",
    CHEMPROP: "chemprop",
    CHEMELEON: "chemprop + CheMeleon",
}
TREES = (FOREST, BOOSTING)
OUTSIDE = (CHEMPROP, CHEMELEON)


@dataclass(frozen=True)
class AdmetConfig:
    """What is asked for.

    Args:
        endpoints: names, or beginnings of names.
        systems: names of :data:`SYSTEMS`, or presets of ``tokengt train``; none for all that can be run.
        seeds: trainings of each system on each endpoint.
        at_once: endpoints and systems side by side.
        device: auto, cpu or cuda.
        data: the folder of the endpoints; None for ``admet`` of TOKENGT_DATA.
        chemprop: the Python of an environment that has chemprop; None to leave it out.
        chemeleon: the folder that holds ``chemeleon_mp.pt``; None to leave it out.
        start: a saved model or run that the system ``tokengt-start`` begins with; None to leave it out.
        settings: of the trainings of tokengt and of presets, as ``--set`` gives them.
    """

    endpoints: tuple[str, ...] = tuple(ENDPOINTS)
    systems: tuple[str, ...] = ()
    seeds: int = 5
    at_once: int = 1
    device: Device = "auto"
    data: str | None = None
    chemprop: str | None = None
    chemeleon: str | None = None
    start: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        endpoints_named(self.endpoints)
        for name in self.systems:
            if name not in SYSTEMS and name not in PRESETS:
                known = (*SYSTEMS, *PRESETS)
                raise ValueError(f"system {name!r} is unknown{near(name, known)}; expected some of {', '.join(known)}")
        for name in ("seeds", "at_once"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")
        if self.chemprop is not None and not os.access(self.chemprop, os.X_OK):
            raise ValueError(f"chemprop is {self.chemprop}; expected the Python of an environment that has chemprop")
        if self.chemeleon is not None and not self.chemeleon_file.is_file():
            raise ValueError(f"{self.chemeleon} holds no {self.chemeleon_file.name}; expected the weights of CheMeleon")
        if self.start is not None and not (Path(self.start) / CONFIG).is_file():
            raise ValueError(f"start is {self.start}, which holds no {CONFIG}; expected a run or a saved model")
        TrainRequest(settings=dict(self.settings))  # It refuses settings that no training has.

    @property
    def chemeleon_file(self) -> Path:
        assert self.chemeleon is not None
        return Path(self.chemeleon) / "chemeleon_mp.pt"

    @property
    def wanted(self) -> tuple[str, ...]:
        """The systems to run: those that are asked for, or all that have a name, less :attr:`left_out`."""
        asked = self.systems or tuple(name for name in SYSTEMS if name != START or self.start is not None)
        return tuple(name for name in dict.fromkeys(asked) if name not in self.left_out)

    @property
    def left_out(self) -> dict[str, str]:
        """Why a system that is asked for is not run."""
        asked = self.systems or tuple(SYSTEMS)
        reasons: dict[str, str] = {}
        if self.chemprop is None:
            what = "it runs in an environment of its own: give its Python by --chemprop PATH"
            reasons |= {CHEMPROP: what, CHEMELEON: what}
        elif self.chemeleon is None:
            reasons[CHEMELEON] = "it begins with weights that are not here: give the folder of chemeleon_mp.pt by " + (
                "--chemeleon FOLDER"
            )
        if self.start is None and START in self.systems:
            reasons[START] = "it begins with a model of yours: give it by --start MODEL"
        return {name: reason for name, reason in reasons.items() if name in asked}


def label_of(system: str) -> str:
    return SYSTEMS.get(system, f"preset {system}")


@dataclass(frozen=True)
class Job:
    """A system on an endpoint, with all its seeds."""

    endpoint: str
    system: str

    @property
    def name(self) -> str:
        return f"{self.endpoint}/{self.system}"


class Plan:
    """All that is to be done, in the folder ``home``."""

    def __init__(self, config: AdmetConfig, home: Path) -> None:
        self.config, self.home = config, home
        self.folder = data_folder(None if config.data is None else Path(config.data))
        self.endpoints: list[Endpoint] = endpoints_named(config.endpoints)

    def data(self, name: str) -> EndpointData:
        return read_endpoint(ENDPOINTS[name], self.folder)

    def jobs(self) -> list[Job]:
        """One endpoint after the other, so that whoever stops early has whole rows of the table."""
        return [Job(each.name, system) for each in self.endpoints for system in self.config.wanted]

    def file(self, job: Job, seed: int) -> Path:
        return self.home / CELLS / job.endpoint / job.system / f"seed-{seed}.json"

    def work(self, job: Job, seed: int) -> Path:
        """The folder for what is not finished, and what the systems of an endpoint share."""
        return self.home / WORK / job.endpoint / job.system / f"seed-{seed}"

    def asked(self, job: Job, seed: int, data_checksum: str) -> dict[str, Any]:
        """What a result depends on; a cell that was made with anything else is refused."""
        asked: dict[str, Any] = {
            "endpoint": job.endpoint,
            "system": job.system,
            "seed": seed,
            "data": data_checksum,
        }
        if job.system in TREES and ENDPOINTS[job.endpoint].skewed:
            # Cells of trees that learned such labels as they are do not count.
            return {**asked, "logarithms": True}
        if job.system in TREES or job.system in OUTSIDE:
            return asked
        start = None
        if job.system == START:
            assert self.config.start is not None
            start = checksum((Path(self.config.start) / CONFIG).read_bytes())
        return {**asked, "settings": dict(sorted(self.config.settings.items())), "start": start}


def cell_of(data: EndpointData, predicted: Array, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a cell keeps: the metric on the test part, and what it is made of, to seven digits.

    Raises:
        ValueError: a prediction is missing or no number.
    """
    if len(predicted) != len(data.test) or not np.isfinite(predicted).all():
        missing = len(data.test) - int(np.isfinite(predicted).sum())
        raise ValueError(f"{missing} of {len(data.test)} test rows have no finite prediction; expected one for each")
    written = " ".join(f"{value:.7g}" for value in predicted.tolist())
    value = data.endpoint.measure(predictions_of(written), data.labels[data.test])
    return {"value": value, **facts, "commit": source_commit(), "predictions": written}


def predictions_of(written: str) -> Array:
    """[test rows]: as a cell keeps them."""
    return np.array([float(word) for word in written.split()])


def read_cell(file: Path) -> dict[str, Any]:
    """The settings and the result of a finished cell.

    Raises:
        ValueError: the file is none.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        _ = content["settings"]["data"], content["found"]["value"], content["found"]["predictions"]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{file} is no result of this benchmark; remove it or choose another folder") from error
    return dict(content)
