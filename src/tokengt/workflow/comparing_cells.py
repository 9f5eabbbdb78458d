"""Cells of a comparison: one system, trained once. Each is kept, so that a stopped comparison goes on where it was.

``cells/SYSTEM/CELL`` is a run folder like every other, and ``cells/SYSTEM/CELL.json`` beside it says what was asked for
and, once it is finished, what was found.
"""

import csv
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from tokengt.config import from_dict, to_dict
from tokengt.data.manifest import GRAPHS
from tokengt.data.splitting import SplitRequest
from tokengt.data.store import Store
from tokengt.files import write_whole
from tokengt.models.own import as_model, copy_of
from tokengt.training import outputs
from tokengt.training.checkpoint import read_newest
from tokengt.training.floor import Floor, linear_floor
from tokengt.training.forest import forest_floor
from tokengt.training.metrics import headline
from tokengt.training.request import DEFAULT_PRESET, TrainRequest
from tokengt.training.resolve import Member, resolve
from tokengt.training.results import PREDICTIONS, predictions_table, read_summary
from tokengt.training.tables import write_json
from tokengt.training.tasks import Task
from tokengt.workflow.fitting import timed_request
from tokengt.workflow.peaks import peak_memory

FloorKind = Literal["labels", "linear", "forest"]
Array = NDArray[np.float64]


class LeftOut(Exception):
    """A floor that this data, or this machine, cannot have."""


@dataclass(frozen=True)
class Cell:
    """One repetition: a seed, or a fold of the splits of a seed."""

    seed: int
    fold: int | None = None

    @property
    def name(self) -> str:
        return f"seed-{self.seed}" if self.fold is None else f"fold-{self.fold}"

    def split(self, wanted: SplitRequest) -> SplitRequest:
        return replace(wanted, seed=self.seed, fold=self.fold)


@dataclass(frozen=True, eq=False)
class System:
    """What is compared: a preset, a module, or a floor, which is no model at all.

    ``settings`` are those of its trainings. With ``start`` and ``attention`` it goes on with a trained run in place of
    a preset, with another kind of attention.
    """

    name: str
    preset: str | None = None
    module: nn.Module | None = None
    floor: FloorKind | None = None
    settings: Mapping[str, Any] | None = None
    start: Path | None = None
    attention: str | None = None

    @property
    def asked(self) -> dict[str, Any]:
        """What its results depend on, as JSON has it."""
        own = None if self.module is None else to_dict(as_model(self.module).config)
        settings = {name: str(value) for name, value in sorted((self.settings or {}).items())}
        asked = {"preset": self.preset, "module": own, "floor": self.floor, "settings": settings}
        # By the run's name among the cells: the folder of all of them may be moved.
        begun = None if self.start is None else "/".join(self.start.parts[-3:])
        return {**asked, "start": begun, "attention": self.attention}

    def request(self, common: TrainRequest, cell: Cell) -> TrainRequest:
        """The request that ``tokengt train`` would make of it, but for the linear floor, which stands beside all cells.

        A module begins with weights drawn by the seed.
        """
        module = None if self.module is None else copy_of(as_model(self.module), cell.seed)
        return replace(
            common,
            preset=self.preset or "auto",
            model=module,
            start=self.start,
            attention=self.attention,
            settings=self.settings or {},
            split=cell.split(common.split),
            seed=cell.seed,
            resume=True,
            quiet=True,
            floor=False,
        )


@dataclass(frozen=True)
class Found:
    """What a cell came to.

    ``value`` is the metric of the test part, None where it is not defined; ``seconds`` those of the
    training loop, validation included.
    """

    value: float | None
    seconds: float | None
    parameters: int | None = None
    epochs: int | None = None
    planned_epochs: int | None = None
    graphs_per_s: float | None = None
    memory_gib: float | None = None


@dataclass(frozen=True, eq=False)
class Truth:
    """What all systems of a cell share: its split and its task, with the labels of the test rows."""

    member: Member

    @property
    def task(self) -> Task:
        return self.member.spec.task

    @property
    def labels(self) -> Float[Tensor, "test targets"]:
        return self.member.store.targets[self.member.test_rows]

    @property
    def overlap(self) -> float:
        """Test rows divided by training rows."""
        return len(self.member.split.test) / len(self.member.split.train)

    @property
    def groups(self) -> NDArray[np.int64]:
        """The graph of every test row; where the rows of one graph were split, every row by itself."""
        rows = self.member.test_rows
        if self.member.by_row:
            return np.arange(len(rows))
        segments = self.member.store.graphs.level_rows(self.member.spec.level)
        return np.asarray(torch.searchsorted(segments.host, rows, right=True))


def truth_of(store: Store, common: TrainRequest, cell: Cell, folder: Path) -> Truth:
    """The split, the task and the labels of a cell: the same for any model."""
    training = {name: value for name, value in common.settings.items() if name.startswith("training.")}
    request = System("", DEFAULT_PRESET, settings=training).request(common, cell)
    (member,) = resolve(request, store, None, folder, lambda sentence: None)
    return Truth(member)


@dataclass(frozen=True, eq=False)
class Cells:
    """All cells of a comparison.

    Args:
        folder: ``cells``.
        store: the data.
        common: what all trainings are asked for.
        device: where they run.
    """

    folder: Path
    store: Store
    common: TrainRequest
    device: torch.device

    def home(self, system: System, cell: Cell) -> Path:
        return self.folder / system.name / cell.name

    def asked(self, system: System, cell: Cell) -> dict[str, Any]:
        manifest = self.store.manifest
        return {
            "data": manifest.source.sha256 or self.store.data_checksum(),
            "graphs": manifest.files.get(GRAPHS) or self.store.data_checksum(),
            "targets": list(manifest.target_names),
            "descriptors": list(manifest.descriptors),
            "task": self.common.recipe.task,
            "split": str(cell.split(self.common.split).for_store(self.store)),
            "seed": cell.seed,
            **system.asked,
        }

    def check(self, system: System, cell: Cell) -> Found | None:
        """What was found before; None where the cell is not finished.

        Raises:
            ValueError: the cell was begun with other data or settings, or its file is not as it was written.
        """
        file = _file(self.home(system, cell))
        if not file.exists():
            return None
        try:
            content = json.loads(file.read_text())
            before, found = dict(content["asked"]), content["found"]
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{file} is no cell of a comparison; remove it or choose another folder") from error
        asked = json.loads(json.dumps(self.asked(system, cell)))
        changed = [name for name in asked if asked[name] != before.get(name)]
        if changed:
            first = changed[0]
            raise ValueError(
                f"{file} was begun with other settings: {first} was {before.get(first)} and is {asked[first]}; choose "
                "another folder"
            )
        return None if found is None else from_dict(Found, found, str(file))

    def run(self, system: System, cell: Cell, truth: Callable[[], Truth]) -> Found:
        """Train, or go on with what was begun; then write down what was found."""
        home = self.home(system, cell)
        asked = self.asked(system, cell)
        write_json(_file(home), {"asked": asked, "found": None})
        found = self._trained(system, cell) if system.floor is None else self._fitted(system, cell, truth())
        write_json(_file(home), {"asked": asked, "found": asdict(found)})
        return found

    def predictions(self, system: System, cell: Cell, task: Task) -> Array:
        """[test rows, out]: numbers or probabilities, as a cell wrote them down."""
        return read_predictions(self.home(system, cell) / PREDICTIONS, task)

    def _trained(self, system: System, cell: Cell) -> Found:
        home = self.home(system, cell)
        before = _steps(home)
        with peak_memory(self.device) as peak:
            predictor, spent = timed_request(self.store, home, system.request(self.common, cell))
            (member,) = predictor.members
            parameters = sum(each.numel() for each in member.model.parameters())
        steps, summary, spec = _steps(home), read_summary(home), predictor.spec
        # A cell that goes on after a kill is told as long as it would have taken without one.
        share = 1 - before / steps if steps else 0.0
        seconds = spent / share if share > 0 else None
        with (home / "split.csv").open(encoding="utf-8", newline="") as rows:
            seen = sum(row["part"] == "train" for row in csv.DictReader(rows)) * (summary.epochs or 0)
        return Found(
            (summary.test or {}).get(spec.task.metric),
            seconds,
            parameters,
            summary.epochs,
            spec.training.epochs,
            seen / seconds if seconds and spec.level == "graph" else None,
            peak.gib,
        )

    def _fitted(self, system: System, cell: Cell, truth: Truth) -> Found:
        member, began = truth.member, time.monotonic()
        predicted = _floor(system.floor, member)
        seconds = time.monotonic() - began
        table = torch.full((len(member.store.targets), truth.task.width), torch.nan, dtype=torch.float64)
        table[member.test_rows] = predicted
        text = predictions_table(member.spec, member.store, member.test_rows, table[member.test_rows])
        write_whole(self.home(system, cell) / PREDICTIONS, text)
        value = headline(truth.task, predicted, truth.labels)
        return Found(None if value != value else value, seconds)


def _floor(kind: FloorKind | None, member: Member) -> Float[Tensor, "test out"]:
    """What a floor predicts for the test rows.

    Raises:
        LeftOut: one sentence says why there is none.
    """
    spec = member.spec
    if kind == "labels":
        return spec.task.floor(member.train_targets, len(member.test_rows)).double()
    fit: Callable[..., Floor | None] = linear_floor if kind == "linear" else forest_floor
    try:
        found = None if member.by_row else fit(member.store, member.split, spec.task, spec.seed)
    except ImportError as error:
        raise LeftOut(str(error)) from error
    if found is None:
        raise LeftOut("it reads fingerprints of molecules, with one row of labels each")
    return found.predictions.double()


def read_predictions(file: Path, task: Task) -> Array:
    """The last columns of ``predictions.csv``; of several classes their probabilities."""
    width = len(outputs.columns(task)) - (0 if task.classes is None else len(task.names))
    with file.open(encoding="utf-8", newline="") as lines:
        rows: Sequence[Sequence[str]] = list(csv.reader(lines))[1:]
    cells = [[float(cell) if cell else np.nan for cell in row[-width:]] for row in rows]
    return np.asarray(cells, dtype=np.float64).reshape(len(rows), width)


def _file(home: Path) -> Path:
    return home.parent / f"{home.name}.json"


def _steps(home: Path) -> int:
    """Training steps that a run's newest checkpoint has behind it."""
    checkpoint, _ = read_newest(home / "checkpoints")
    return 0 if checkpoint is None else int(checkpoint.state["step"])
