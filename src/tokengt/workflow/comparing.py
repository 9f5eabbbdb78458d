"""Compare models on one's own data: the same splits, the same loop, the same floors, and honest differences."""

import gc
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tokengt.config import near
from tokengt.data.manifest import Recipe, TaskKind
from tokengt.data.progress import say
from tokengt.data.splitting import SplitRequest
from tokengt.data.store import Store
from tokengt.files import folder_lock, remove_empty
from tokengt.presets import PRESETS
from tokengt.training.processes import Device, DeviceConfig
from tokengt.training.request import MOST_MODELS, TrainRequest
from tokengt.training.run import STORE
from tokengt.training.tables import device_name
from tokengt.workflow.comparing_cells import Cell, Cells, FloorKind, Found, LeftOut, System, Truth, truth_of
from tokengt.workflow.comparing_report import REPORT_FILES, write_report
from tokengt.workflow.comparing_results import Comparison, Repeats, concluded
from tokengt.workflow.fitting import TrainOptions, with_files
from tokengt.workflow.inputs import check_files, check_wishes, open_data

CELLS = "cells"
_DEFAULT = TrainOptions()
_PLAIN = re.compile(r"[A-Za-z0-9][\w.-]*")
# Systems that learn nothing from the shape of a graph, or read it through fingerprints alone.
FLOORS: Mapping[str, FloorKind] = {
    "training-labels": "labels",
    "linear-fingerprints": "linear",
    "random-forest": "forest",
}

Presets = str | Sequence[str | nn.Module] | Mapping[str, str | nn.Module]


def compare(
    data: Any,
    out: str | Path,
    presets: Presets,
    *,
    valid: str | Path | None = None,
    test: str | Path | None = None,
    smiles: str | None = None,
    target: str | Sequence[str] = (),
    task: TaskKind | None = None,
    split: str = "auto",
    folds: int = 0,
    seeds: int | None = None,
    budget: float | None = None,
    reference: str | None = None,
    floors: bool = True,
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    device: Device = "auto",
    options: TrainOptions = _DEFAULT,
) -> Comparison:
    """Train every system on the same splits and write tables and a picture of how they compare to the folder ``out``.

    The same call goes on where a stopped one was: every training is a run folder under ``out/cells``. A system that
    fails costs its own results alone.

    Args:
        data: whatever :func:`tokengt.train` takes.
        out: the folder to make, or to go on in. More presets and more seeds can be added to it later.
        presets: names that ``tokengt presets`` lists, in one text with commas or in a list, which may hold modules of
            your own as well, each called by the name of its class; or a mapping from names of your own choice.
        valid, test, smiles, target, task, split: as in :func:`tokengt.train`.
        folds: cross-validate, 3 or more; 0 for ``seeds``.
        seeds: trainings of each system (3 by itself). Each seed has a split of its own, unless the data gives one.
        budget: minutes of training for each system, shared evenly by its trainings: ``training.minutes`` of each.
        reference: the system that differences are taken to; by itself the one with the best mean.
        floors: also what the training labels alone predict, and for molecules a linear model and a random forest on
            fingerprints.
        settings: as in :func:`tokengt.train`, for all systems; ``NAME:training.learning_rate`` is for one of them.
        seed: the first one.
        device: auto, cpu or cuda.
        options: the rest. Its folds, ensemble, devices and strategy do not apply.

    Raises:
        ValueError: one sentence about what is wrong with the request or the data.
    """
    systems = _systems(presets, dict(settings or {}), floors)
    repeats = _repeats(folds, seeds, seed)
    _check_reference(reference, systems)
    for name, given in (
        ("folds", options.folds),
        ("ensemble", options.ensemble not in (None, 1)),
        ("devices", options.devices - 1),
    ):
        if given:
            raise ValueError(f"options.{name} does not apply to a comparison; expected it as it is by itself")
    minutes = _share(budget, len(repeats.cells))
    systems = [_within(system, minutes) for system in systems]
    common = TrainRequest(
        recipe=Recipe(
            smiles=smiles,
            targets=(target,) if isinstance(target, str) else tuple(target),
            descriptors=options.descriptors,
            task=task,
            level=options.level,
            policy=options.policy,
        ),
        split=SplitRequest(split, seed, options.fractions, folds),
        settings={name: value for name, value in (settings or {}).items() if name.startswith("training.")},
        seed=seed,
        where=DeviceConfig(device),
        workers=options.workers,
        max_rejected=options.max_rejected,
        quiet=options.quiet,
    )
    for system in systems:
        if system.floor is None:
            _checked(system, common, repeats.cells[0])
    data = with_files(data, valid, test, common.split)
    check_wishes(data, common.recipe, common.split)
    return _compared(data, Path(out), systems, repeats, common, reference, budget)


def _compared(
    data: Any,
    out: Path,
    systems: list[System],
    repeats: Repeats,
    common: TrainRequest,
    reference: str | None,
    budget: float | None,
) -> Comparison:
    _refuse_other_files(out)
    with folder_lock(out, lambda: _refuse_taken(out)) as made:
        try:
            recipe = replace(common.recipe, split=common.split.column)
            store = open_data(
                data,
                recipe,
                out / STORE,
                workers=common.workers,
                quiet=common.quiet,
                max_rejected=common.max_rejected,
            )
            check_files(data, store)
            where = torch.device(common.where.resolved)
            cells = Cells(out / CELLS, store, common, where)
            truths = _Truths(store, common, cells.folder)
            _check_test(truths.of(repeats.cells[0]))
            found, failed, left_out = _run(cells, systems, repeats, truths, shown=not common.quiet)
            kept = [system for system in systems if system.name not in left_out]
            comparison = concluded(
                cells,
                kept,
                repeats,
                {cell: truths.of(cell) for cell in repeats.cells},
                found,
                failed,
                reference,
                notes=tuple(f"{name} is left out: {why}" for name, why in left_out.items()),
                device=device_name(where),
                budget=budget,
            )
            write_report(out, comparison)
        finally:
            remove_empty(*reversed(made))
    return comparison


class _Truths:
    """The labels of every cell, resolved when they are first asked for."""

    def __init__(self, store: Store, common: TrainRequest, folder: Path) -> None:
        self._store, self._common, self._folder = store, common, folder
        self._known: dict[Cell, Truth] = {}

    def of(self, cell: Cell) -> Truth:
        if cell not in self._known:
            self._known[cell] = truth_of(self._store, self._common, cell, self._folder)
        return self._known[cell]


def _run(
    cells: Cells, systems: list[System], repeats: Repeats, truths: _Truths, shown: bool
) -> tuple[dict[tuple[str, Cell], Found], dict[str, str], dict[str, str]]:
    """What was found in every cell, and a sentence for every system that failed and every floor that there is none of.

    One repetition of all systems comes before the next one: whoever stops early can compare what is there.
    """
    order = [(system, cell) for cell in repeats.cells for system in systems]
    # Whatever was begun otherwise is refused before anything is trained.
    found = {(system.name, cell): cells.check(system, cell) for system, cell in order}
    clock = _Clock()
    failed: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for place, (system, cell) in enumerate(order):
        if found[system.name, cell] is not None or system.name in left_out:
            continue
        try:
            one = cells.run(system, cell, lambda cell=cell: truths.of(cell))  # type: ignore[misc]
        except OSError:
            raise  # A full disk is no fault of one system.
        except LeftOut as reason:
            left_out[system.name] = str(reason)
            continue
        except Exception as error:  # Whatever a model, which may be a stranger's, can raise.
            failed.setdefault(system.name, f"{cell.name}: {sentence_of(error)}")
            gc.collect()
            if cells.device.type == "cuda":
                torch.cuda.empty_cache()
            said = f"failed: {sentence_of(error)}"
        else:
            found[system.name, cell] = one
            said = "no number" if one.value is None else f"{truths.of(cell).task.metric} {one.value:.4g}"
        to_come = [(later.name, at) for later, at in order[place + 1 :] if later.name not in left_out]
        rest = [name for name, at in to_come if found[name, at] is None]
        total = sum(each.name not in left_out for each, _ in order)
        say(f"{system.name}, {cell.name}: {said}; {clock.tick(system.name, rest, total)}", shown)
    return {key: each for key, each in found.items() if each is not None}, failed, left_out


class _Clock:
    """How long the cells to come will take: as long as those of the same system, or else as the mean of all."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._took: dict[str, list[float]] = {}

    def tick(self, system: str, rest: Sequence[str], total: int) -> str:
        """What is done of all cells, after one of ``system``; those in ``rest`` are still to come."""
        now = time.monotonic()
        self._took.setdefault(system, []).append(now - self._last)
        self._last = now
        return f"{total - len(rest)} of {total} cells" + self._left(rest)

    def _left(self, rest: Sequence[str]) -> str:
        if not rest:
            return ""
        means = {name: sum(times) / len(times) for name, times in self._took.items()}
        usual = sum(means.values()) / len(means)
        return f", about {sum(means.get(name, usual) for name in rest):,.0f} s left"


def sentence_of(error: Exception) -> str:
    """The first line of an error; its type too, where it was not written for people."""
    text = next(iter(str(error).splitlines()), "")
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in text:
        return "out of memory"
    return text if isinstance(error, ValueError | ImportError) and text else f"{type(error).__name__}: {text}"


def _systems(presets: Presets, settings: dict[str, Any], floors: bool) -> list[System]:
    """What is to be compared, by names that can be those of folders."""
    systems = [_system(name, thing) for name, thing in _named(presets)]
    if not systems:
        raise ValueError("there is no preset to compare; name one or more, as in small,gin-vn")
    systems += [System(name, floor=kind) for name, kind in FLOORS.items() if floors]
    names = [system.name for system in systems]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two systems are called {name!r}; expected a name for each: a mapping gives them")
    own = settings_by_system(settings, [name for name in names if name not in FLOORS])
    return [system if system.floor is not None else replace(system, settings=own[system.name]) for system in systems]


def settings_by_system(settings: Mapping[str, Any], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The settings of each system: those of all, and those that begin with its name as in ``NAME:training.epochs``."""
    shared: dict[str, Any] = {}
    own: dict[str, dict[str, Any]] = {name: {} for name in names}
    for path, value in settings.items():
        name, colon, rest = path.partition(":")
        if not colon:
            shared[path] = value
        elif name not in own:
            raise ValueError(f"setting {path!r} is for the system {name!r}{near(name, names)}; there are {list(names)}")
        else:
            own[name][rest] = value
    return {name: {**shared, **mine} for name, mine in own.items()}


def _named(presets: Presets) -> list[tuple[str, Any]]:
    if isinstance(presets, str):
        presets = [name.strip() for name in presets.split(",") if name.strip()]
    if isinstance(presets, nn.Module):
        presets = [presets]
    if isinstance(presets, Mapping):
        return list(presets.items())
    return [(thing if isinstance(thing, str) else type(thing).__name__, thing) for thing in presets]


def _system(name: str, thing: Any) -> System:
    if isinstance(thing, nn.Module):
        system = System(name, module=thing)
    elif not isinstance(thing, str) or thing not in PRESETS:
        raise ValueError(
            f"preset {thing!r} is unknown{near(thing, PRESETS)}; expected one of {', '.join(PRESETS)}, or a module"
        )
    else:
        system = System(name, preset=thing)
    if not _PLAIN.fullmatch(name):
        raise ValueError(f"{name!r} cannot be the name of a system; expected letters, digits, '-', '_' and '.'")
    return system


def _repeats(folds: int, seeds: int | None, seed: int) -> Repeats:
    if folds and seeds is not None:
        raise ValueError(f"{folds} folds and {seeds} seeds are asked for; expected one of the two")
    if folds:
        SplitRequest(folds=folds)  # It checks the number.
        if folds > MOST_MODELS:
            raise ValueError(f"folds is {folds}; expected at most {MOST_MODELS:,}")
        return Repeats("folds", tuple(Cell(seed, fold) for fold in range(folds)))
    count = 3 if seeds is None else seeds
    if not 1 <= count <= MOST_MODELS:
        raise ValueError(f"seeds is {count}; expected 1 to {MOST_MODELS:,}")
    return Repeats("seeds", tuple(Cell(each) for each in range(seed, seed + count)))


def _share(budget: float | None, trainings: int) -> float | None:
    """Minutes of one training."""
    if budget is None:
        return None
    if not 0 < budget < float("inf"):
        raise ValueError(f"budget is {budget}; expected minutes above 0")
    return budget / trainings


def _within(system: System, minutes: float | None) -> System:
    if minutes is None or system.floor is not None:
        return system
    settings = dict(system.settings or {})
    if "training.minutes" in settings:
        raise ValueError("a budget and training.minutes are given; expected one of the two")
    return replace(system, settings={**settings, "training.minutes": minutes})


def _checked(system: System, common: TrainRequest, cell: Cell) -> None:
    """Whatever is wrong with the settings of a system is said before any data is read."""
    try:
        system.request(common, cell)
    except ValueError as error:
        raise ValueError(f"{system.name}: {error}") from error


def _check_reference(reference: str | None, systems: Sequence[System]) -> None:
    names = [system.name for system in systems]
    if reference is not None and reference not in names:
        raise ValueError(f"reference is {reference!r}{near(reference, names)}; expected one of {', '.join(names)}")


def _check_test(truth: Truth) -> None:
    if not len(truth.member.test_rows):
        raise ValueError("the test part is empty; expected rows to compare on")


def _refuse_other_files(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; expected a folder for the comparison: choose another")
    ours = {STORE, CELLS, "data.csv", *REPORT_FILES}
    for file in out.iterdir() if out.exists() else ():
        if file.name not in ours and not file.name.startswith(tuple(f".{name}." for name in ours)):
            raise ValueError(f"{out} holds other files, such as {file.name}; choose another folder")


def _refuse_taken(out: Path) -> None:
    raise ValueError(f"another comparison is at work in {out}; wait for its end, or choose another folder")
