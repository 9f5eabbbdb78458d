"""One training run from a store to a folder: loop, results; folds and ensembles too.

A fact is a table that a model needs beside its graphs, such as eigenvectors: it is computed once, before training.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokengt.config import to_dict
from tokengt.data.splits import Split
from tokengt.data.store import Store
from tokengt.files import write_whole
from tokengt.models.contract import Model
from tokengt.models.forest import write_forest
from tokengt.models.pretrained import CONFIG, is_untrained_config, write_model
from tokengt.training.averaging import growing, with_forest
from tokengt.training.calibrating import Seen, Told, calibrated, reliability
from tokengt.training.calibration import Calibration, write_calibration
from tokengt.training.card import LINEAR
from tokengt.training.floor import linear_floor
from tokengt.training.links import LinkSteps, link_steps
from tokengt.training.loop import Trainer
from tokengt.training.memory import refuse_too_large
from tokengt.training.metrics import to_numpy
from tokengt.training.notes import data_notes, say_if_beaten
from tokengt.training.origin import preset_of
from tokengt.training.parts import Part, Parts, cut
from tokengt.training.processes import shards_weights, without_precision_advice
from tokengt.training.progress import Progress
from tokengt.training.reliability import Reliability
from tokengt.training.request import TrainRequest
from tokengt.training.resolve import Member, Say, resolve, with_rows
from tokengt.training.results import SPLIT, SUMMARY, Findings, split_table, write_metrics, write_results
from tokengt.training.snapshots import State
from tokengt.training.spec import MEMBERS, RUN_FILE, RunSpec, is_first_format, read_run, write_run
from tokengt.training.start import Start

# What a run folder may hold before the run itself begins: the data made ready for it, and the table it was made from
# if that came from memory. A config of a model that is not trained yet may lie there too.
STORE, DATA = "store", "data.csv"


@without_precision_advice()
def train_run(fabric: Any, store: Store, request: TrainRequest, start: Start | None, folder: Path, say: Say) -> float:
    """Train all models of a run and write its folder; returns the seconds that this took in the training loop."""
    first = fabric.is_global_zero
    members = resolve(request, store, start, folder, say)
    store = with_rows(store, request)
    together = _joined(members)
    _check_same(folder, together, request, store)
    _check_memory(fabric, store, members[0])
    members = _with_facts(fabric, store, members, request.quiet)
    # Nothing may be written before all processes have compared this run with the one that is in the folder.
    fabric.barrier()
    homes = [folder] if len(members) == 1 else [folder / MEMBERS / member.name for member in members]
    if first:
        # Members first: in a run that an older version began, the new format of the whole asks for theirs.
        for home, member in zip(homes, members, strict=True):
            if home != folder and (home / RUN_FILE).is_file():
                write_run(home, member.spec)
        write_run(folder, together, [member.spec for member in members] if len(members) > 1 else ())
        if len(members) > 1:
            write_whole(folder / SPLIT, split_table(store, {member.name: member.codes for member in members}))
    notes = data_notes(store, members[0], request.recipe.task is None, say) if first else {}
    findings, summaries, parameters, seconds = [], [], 0, 0.0
    records: dict[str, list[Any]] = {}
    linear: Float[Tensor, "rows width"] | None = None
    trust = _TrustGathered(fabric, members)
    for place, (home, member) in enumerate(zip(homes, members, strict=True)):
        done = _train_one(fabric, member, home, request, say)
        seconds += done.seconds
        # After training, so that nobody waits for it before the first epoch.
        if first and request.floor and (place == 0 or member.split is not members[place - 1].split):
            linear = _linear(member, say)
        if first:
            trust.add(member, done)
        findings.append(_findings(member, done, linear, notes if len(members) == 1 else {}))
        records[member.name] = done.state.records
        parameters = done.parameters
        if first and len(members) > 1:
            # The models of an ensemble are drawn together.
            pictures, own = member.models == 1, {member.name: done.state.records}
            summaries.append(write_results(home, member.spec, store, findings[-1], own, parameters, pictures=pictures))
    if first:
        whole = findings[0] if len(findings) == 1 else _together(findings, notes)
        calibration, found = trust.calibrated(together, store)
        whole = replace(whole, predictions=_with_chances(calibration, whole.predictions), reliability=found)
        sealed = write_calibration(folder, calibration, together.fingerprint)
        write_run(folder, together, [member.spec for member in members] if len(members) > 1 else (), sealed)
        summary = write_results(folder, together, store, whole, records, parameters, summaries)
        say_if_beaten(together.task, summary, say)
    return seconds


@dataclass(frozen=True, eq=False)
class _Done:
    """A model that is trained: what it says of the held-out rows, where training ended, and how long it took.

    With a forest beside it, ``valid`` and ``test`` are what both say together, ``apart`` what each says of test rows.
    """

    model: Model
    valid: Told
    test: Told
    apart: Mapping[str, Float[Tensor, "rows width"]]
    state: State
    parameters: int
    seconds: float


class _TrustGathered:
    """What the models of a run say of their held-out rows, model after model."""

    def __init__(self, fabric: Any, members: list[Member]) -> None:
        self.fabric = fabric
        self.splits = len({id(member.split) for member in members})
        self.seen: list[Seen] = []
        self.told: list[tuple[list[Told], list[Told]]] = []
        self.split: Split | None = None

    def add(self, member: Member, done: _Done) -> None:
        if member.split is not self.split:
            # Of the models that share a split, the first one's vectors are compared.
            model = None if shards_weights(self.fabric) else done.model
            self.seen.append(Seen.by(member, model, self.fabric.device, self.splits))
            self.told.append(([], []))
            self.split = member.split
        for told, own in zip(self.told[-1], (done.valid, done.test), strict=True):
            told.append(own)

    def calibrated(self, spec: RunSpec, store: Store) -> tuple[Calibration, Reliability]:
        folds = [seen.fold(*told) for seen, told in zip(self.seen, self.told, strict=True)]
        calibration = calibrated(spec.task, folds, store.targets, self.seen[0].everything, spec.seed)
        return calibration, reliability(spec.task, folds, store.targets, calibration)


def _with_chances(calibration: Calibration, table: Float[Tensor, "rows width"]) -> Float[Tensor, "rows width"]:
    """Predictions as the run will make them, with probabilities that hold."""
    return torch.from_numpy(calibration.probabilities(to_numpy(table)))


def _check_memory(fabric: Any, store: Store, member: Member) -> None:
    """Refuse a model for which even a step on the largest graph alone does not fit."""
    graphs = store.graphs
    largest = (graphs.nodes.host_lengths + graphs.edges.host_lengths).argmax().reshape(1)
    refuse_too_large(member.spec.model, graphs, [largest], member.spec.training, fabric.device)


def _with_facts(fabric: Any, store: Store, members: list[Member], quiet: bool) -> list[Member]:
    """The members' stores with the facts that their models ask for, so that no training step has to compute them."""
    facts = members[0].spec.model.facts()
    if not facts:
        return members
    if members[0].spec.task.links:
        # Each member reads other edges than the store lists, and what is known of those would tell what is held out.
        shown = not quiet and fabric.is_global_zero
        alone = [replace(member.store, folder=None).with_facts(facts, shown) for member in members]
        return [replace(member, store=own) for member, own in zip(members, alone, strict=True)]
    if store.folder is not None and not fabric.is_global_zero:
        fabric.barrier()  # The first process computes and stores the facts; the others wait, then read them.
    complete = store.with_facts(facts, progress=not quiet and fabric.is_global_zero).graphs
    if store.folder is not None and fabric.is_global_zero:
        fabric.barrier()
    informed = []
    for member in members:
        graphs = member.store.graphs
        for fact in facts:
            rows = complete.fact(fact.name)
            assert rows is not None
            graphs = graphs.with_fact(fact.name, rows, fact.per)
        informed.append(replace(member, store=replace(member.store, graphs=graphs)))
    return informed


def _joined(members: list[Member]) -> RunSpec:
    """What the run as a whole was made with: the first member's spec, which names all of them."""
    if len(members) == 1:
        return members[0].spec
    return replace(members[0].spec, members=tuple(member.name for member in members))


def refuse_to_overwrite(folder: Path, resume: bool) -> None:
    """A folder with a run in it is touched only to go on with that run, one with other files never."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; expected a folder for the run: choose another")
    if (folder / RUN_FILE).exists():
        if not resume:
            raise ValueError(
                f"{folder} already holds a run; go on with it (resume=True in Python, --resume in the "
                "command), or choose another folder"
            )
        if is_first_format(folder) and not is_finished(folder):
            raise ValueError(
                f"{folder} was begun by an older version of tokengt, whose checkpoints this one does not read; finish "
                "it with that version, or begin anew in another folder"
            )
    elif folder.exists() and any(not _is_ours(inside) for inside in folder.iterdir()):
        raise ValueError(f"{folder} exists and holds other files; choose another folder")


def is_finished(folder: Path) -> bool:
    """Whether a run has nothing left to do: its results are written last."""
    return (folder / SUMMARY).is_file()


def _is_ours(file: Path) -> bool:
    """What a run that was killed before it was written down leaves: its data, its config, temporary files."""
    if file.name == CONFIG:
        return is_untrained_config(file)
    temporary = tuple(f".{name}." for name in (RUN_FILE, CONFIG, DATA))
    return file.name in (STORE, DATA) or file.name.startswith(temporary)


def _check_same(folder: Path, spec: RunSpec, request: TrainRequest, store: Store) -> None:
    """Refuse to go on with another run than this one."""
    before = read_run(folder) if (folder / RUN_FILE).exists() else spec
    changed = spec.differences(before)
    if not changed:
        return
    was, asked = (preset_of(each, request, store) for each in (before, spec))
    if was != asked and was is not None:
        raise ValueError(
            f"{folder} was begun with the preset {was}, and this is the preset {asked or request.preset}; name the "
            "preset that it was begun with, or choose another folder"
        )
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    raise ValueError(f"{folder} was begun with other settings: {'; '.join(changed[:3])}{more}")


def _linear(member: Member, say: Say) -> Float[Tensor, "rows width"] | None:
    """What a linear model on fingerprints predicts for the test rows, NaN elsewhere; None where it cannot be fitted."""
    if member.by_row:
        return None
    floor = linear_floor(member.store, member.split, member.spec.task, member.spec.seed)
    if floor is None:
        return None
    if floor.fitted is not None:
        say(f"{LINEAR} is fitted to {floor.fitted:,} training graphs, chosen at random")
    table = torch.full((len(member.store.targets), member.spec.task.width), torch.nan, dtype=torch.float64)
    table[member.test_rows] = floor.predictions
    return table


def _findings(
    member: Member,
    done: _Done,
    linear: Float[Tensor, "rows width"] | None,
    notes: Mapping[str, Any],
) -> Findings:
    rows, table = member.test_rows, done.test.values
    floor = torch.full_like(table, torch.nan)
    floor[rows] = member.spec.task.floor(member.train_targets, len(rows))
    labels = tuple((~torch.isnan(member.train_targets)).sum(0).tolist())
    return Findings(rows, table, floor, member.codes, labels, linear, apart=done.apart, **notes)


def _together(found: list[Findings], notes: Mapping[str, Any]) -> Findings:
    """Every row as the mean of the models that did not learn from it; of folds, every row is some model's test row."""
    predictions = torch.nanmean(torch.stack([each.predictions for each in found]), 0)
    floor = torch.nanmean(torch.stack([each.floor for each in found]), 0)
    lines = [each.linear for each in found if each.linear is not None]
    linear = torch.nanmean(torch.stack(lines), 0) if len(lines) == len(found) else None
    apart = {name: torch.nanmean(torch.stack([each.apart[name] for each in found]), 0) for name in found[0].apart}
    rows = torch.unique(torch.cat([each.rows for each in found]))
    # The models of an ensemble share a split: each fold is told once.
    splits = [each for place, each in enumerate(found) if not any(_same_split(each, other) for other in found[:place])]
    folds = tuple(each.as_fold for each in splits) if len(splits) > 1 else ()
    whole = replace(found[0], rows=rows, predictions=predictions, floor=floor, linear=linear, folds=folds, **notes)
    return replace(whole, apart=apart)


def _same_split(one: Findings, other: Findings) -> bool:
    return torch.equal(one.codes, other.codes)


def _train_one(fabric: Any, member: Member, folder: Path, request: TrainRequest, say: Say) -> _Done:
    """Train one model; the folder then holds its weights."""
    spec, first = member.spec, fabric.is_global_zero
    if first:
        write_run(folder, spec)
        write_whole(folder / SPLIT, split_table(member.store, {"part": member.codes}))
    model, graphs = member.build(), member.store.graphs
    parts = cut(
        *(graphs, member.labels, spec.level, member.split),
        by_row=member.by_row,
        costs=model.costs(graphs),
        links=_links(member) if spec.task.links else None,
    )
    trainer = Trainer(
        fabric,
        model,
        parts,
        spec.task,
        spec.training,
        seed=spec.seed,
        folder=folder,
        fingerprint=spec.fingerprint,
        progress=Progress(
            spec.training.epochs,
            request.quiet or not first,
            member.name or "training",
            int(graphs.nodes.host_lengths[parts.train.places[0]]) if len(parts.train.places) == 1 else None,
        ),
        on_epoch=(lambda records: write_metrics(folder, records)) if first else (lambda records: None),
        warn=say if first else (lambda sentence: None),
    )
    if first and fabric.device.type == "cuda":
        say(trainer.how)
    forest = growing(member, fabric.device) if first and spec.forest else None
    began = time.monotonic()
    state = trainer.run(request.resume)
    seconds = time.monotonic() - began
    valid = _told(trainer, parts, member, parts.valid, member.valid_rows)
    test = _told(trainer, parts, member, parts.test, member.test_rows)
    apart: Mapping[str, Float[Tensor, "rows width"]] = {}
    if forest is not None:
        both = with_forest(member, valid, test, forest, say)
        valid, test, apart = both.valid, both.test, both.apart
        write_forest(folder, both.forest, spec.fingerprint)
    if first:
        write_model(folder, to_dict(spec.model), trainer.best, spec.fingerprint)
    fabric.barrier()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return _Done(model, valid, test, apart, state, parameters, seconds)


def _links(member: Member) -> LinkSteps:
    store, spec = member.store, member.spec
    rows, drawn = member.split.train, store.drawn
    return link_steps(store.graphs, store.targets, rows, drawn, spec.training.links, spec.seed)


def _told(trainer: Trainer, parts: Parts, member: Member, part: Part, rows: Int[Tensor, " held"]) -> Told:
    """What the model says of held-out rows, in a table of all rows that is NaN elsewhere."""
    task, empty = member.spec.task, (len(member.store.targets), member.spec.task.width)
    blank = torch.full(empty, torch.nan, dtype=torch.float64)
    if not len(part.places):
        return Told(blank)
    output = trainer.outputs(part)
    index, _ = parts.graphs.level_rows(parts.level).take(part.places)
    asked = torch.zeros(len(blank), dtype=torch.bool)
    asked[rows] = True
    tables = []
    for values in (task.predictions(output), task.variances(output)):
        if values is not None:
            whole = blank.clone()
            whole[index] = values
            tables.append(torch.where(asked[:, None], whole, torch.nan))
    return Told(*tables)
