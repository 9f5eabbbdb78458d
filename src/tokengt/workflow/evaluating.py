"""How good a trained run is on a file that has the answers."""

import json
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tokengt.data import engines
from tokengt.data.links import asked_alone, with_negatives
from tokengt.data.manifest import Recipe
from tokengt.data.named import dataset_named, named_store, say_if_hidden
from tokengt.data.node_tables import NodeFiles
from tokengt.data.prepare import in_table, none_readable, survey
from tokengt.data.progress import progress_bar, say
from tokengt.data.shards import Rejected, ShardArrays, ShardRecipe, convert_shard
from tokengt.data.store import Store
from tokengt.data.tables import is_table, open_table
from tokengt.files import ready_to_write, scratch_folder, write_whole
from tokengt.inference import Predictor
from tokengt.interop.molecules import DEFAULT_POLICY
from tokengt.training.metrics import describe, metrics
from tokengt.training.plots import plot_test
from tokengt.training.processes import Device
from tokengt.training.results import finite
from tokengt.training.spec import RUN_FILE
from tokengt.training.tasks import Task
from tokengt.workflow.inputs import open_data
from tokengt.workflow.labelled import frame_column, known_classes, label_recipe, present_targets, store_labels
from tokengt.workflow.rows import Workers, batch_of_shard, chunk_rows, converted, writeable
from tokengt.workflow.stores import cuts_for, graphs_at

_NUMBERS = "metrics.json"


@dataclass(frozen=True)
class Evaluation:
    """``metrics`` over ``rows`` labelled rows.

    ``rejected`` rows could not be read, ``strange`` had unknown classes, for ``overflowed`` labelled rows the model
    gives no finite number, and the data has no labels of the targets that ``missing`` names.
    """

    metrics: dict[str, float]
    rows: int
    rejected: int
    strange: int
    overflowed: int = 0
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        counts = (
            (self.rejected, "rows rejected"),
            (self.strange, "labels of a class the run does not know"),
            (self.overflowed, "rows for which the model gives no finite number"),
        )
        odd = [f"{count:,} {what}" for count, what in counts if count]
        absent = [f"without {', '.join(self.missing)}, which the data does not have"] if self.missing else []
        return ", ".join([f"{describe(self.metrics)} over {self.rows:,} rows", *odd, *absent])

    def to_json(self, indent: int | None = None) -> str:
        """All of it; null for a metric that is undefined."""
        return json.dumps(finite(asdict(self)), indent=indent)


@dataclass(frozen=True, eq=False)
class _Labelled:
    """Labels and predictions of the same rows, and what was left out.

    ``reason`` is why the model gives no finite number for the first row of which it gives none; blank if there is none.
    """

    name: str
    mean: Float[Tensor, "rows out"]
    targets: Float[Tensor, "rows targets"]
    rejected: int
    strange: int
    reason: str


def evaluate(
    run: Predictor | str | Path,
    data: Any,
    *,
    smiles: str | None = None,
    out: Path | None = None,
    overwrite: bool = False,
    device: Device = "auto",
    max_atoms: int | None = None,
    workers: int | None = None,
    engine: engines.Engine = "processes",
    quiet: bool = False,
) -> Evaluation:
    """Compare a run's predictions with the labels of ``data``: a file like the one trained on, a store, or a name.

    Of a run with several targets, those that the data has are compared. With ``out``, a folder gets the picture
    (parity, ROC or confusion) and ``metrics.json``; those of an earlier evaluation are replaced with ``overwrite``.
    ``workers`` and ``engine`` are those of :func:`tokengt.workflow.predicting.predict_file`.
    """
    beside = Workers(workers, engine, not quiet)
    if out is not None:
        _check_out(out, overwrite)
    predictor = run if isinstance(run, Predictor) else Predictor.load(run, device, max_atoms=max_atoms)
    say_if_hidden(data, not quiet)
    dataset = dataset_named(data)
    if dataset is not None:
        data = named_store(dataset, predictor.spec.molecules or DEFAULT_POLICY, workers=workers, progress=not quiet)
    if predictor.task.links and isinstance(data, NodeFiles):
        data.refuse_without_pairs()
    present = present_targets(data, predictor.task.names)
    with scratch_folder() as scratch:
        found = _predicted(predictor, data, smiles, present, scratch, beside)
    evaluation, targets = _compared(predictor.task, found, present)
    if out is not None:
        plot_test(predictor.task, found.mean, targets, out, part="evaluation")
        write_whole(out / _NUMBERS, evaluation.to_json(indent=2).encode() + b"\n")
    return evaluation


def _predicted(
    predictor: Predictor, data: Any, smiles: str | None, present: tuple[str, ...], scratch: Path, workers: Workers
) -> _Labelled:
    """The labels of the data, whatever it is, and what the run predicts for their rows."""
    if not isinstance(data, Store) and hasattr(data, "to_csv"):
        smiles, frame, data = frame_column(predictor.spec, data, smiles), data, scratch / "data.csv"
        write_whole(data, frame.to_csv(index=False).encode())
    recipe = label_recipe(predictor, data, smiles, present)
    if isinstance(data, (str, Path)) and is_table(Path(data)):
        return _of_table(predictor, Path(data), recipe, workers)
    store = open_data(data, recipe, scratch / "store", quiet=not workers.shown, kept=False, max_rejected=1.0)
    if predictor.task.links:
        store = asked_alone(with_negatives(store, predictor.spec.seed))
    return _of_store(predictor, store, workers.shown)


class _Gathered:
    """Labels and predictions of shards as they come, in any order; the graphs are not kept."""

    def __init__(self, predictor: Predictor, recipe: ShardRecipe) -> None:
        self.predictor, self.recipe = predictor, recipe
        self.means: dict[int, Tensor] = {}
        self.labels: dict[int, Tensor] = {}
        self.first_rejected: dict[int, Rejected] = {}
        self.rows = self.rejected = self.strange = 0
        self.reason = ""

    def add(self, number: int, shard: ShardArrays) -> int:
        """Returns how many rows there are in the shard."""
        rows, graphs, predictor = (
            len(shard.arrays["lines"]) + len(shard.rejected),
            batch_of_shard(shard),
            self.predictor,
        )
        if graphs is not None:
            names = tuple(column.name for column in self.recipe.targets)
            spellings = shard.classes if self.recipe.multiclass else None
            targets = writeable(shard.arrays["targets"])
            self.labels[number], unknown = known_classes(targets, names, spellings, predictor.task)
            self.means[number] = predictor.predict_graphs(graphs).mean
            self.reason = self.reason or next(iter(predictor.reasons(graphs, self.means[number]).values()), "")
            self.strange += unknown
        if shard.rejected:
            self.first_rejected[number] = shard.rejected[0]
        self.rows, self.rejected = self.rows + rows, self.rejected + len(shard.rejected)
        return rows

    def in_order(self, parts: dict[int, Tensor], width: int) -> Tensor:
        none = torch.empty(0, width, dtype=torch.float64)
        return torch.cat([none, *(parts[number] for number in sorted(parts))])


def _of_table(predictor: Predictor, path: Path, recipe: Recipe, workers: Workers) -> _Labelled:
    """Rows are read and made into graphs by other processes while the model runs."""
    _, shard_recipe, table = in_table(recipe, open_table(path))
    most, sha256 = table.survey()
    found = _Gathered(predictor, shard_recipe)
    work = partial(convert_shard, recipe=shard_recipe)
    with (
        closing(converted(table, work, most, chunk_rows(predictor, most), workers, sha256=sha256)) as shards,
        progress_bar(most, "rows", "evaluating", shown=workers.shown) as advance,
    ):
        for number, shard in shards:
            advance(found.add(number, shard))
    targets = found.in_order(found.labels, len(predictor.task.names))
    asked = [predictor.task.names.index(column.name) for column in shard_recipe.targets]
    if bool(torch.isnan(targets[:, asked]).all(0).any()):
        # A column without a label may be one without a number, or a table without rows; that is said as prepare does.
        survey(table, shard_recipe)
    if found.rejected:
        first = found.first_rejected[min(found.first_rejected)]
        if not found.means:
            raise ValueError(none_readable(table, shard_recipe, found.rows, first))
        count = f"{found.rejected:,} of {found.rows:,} rows could not be read"
        say(f"{count} (the first on line {first.line}: {first.reason})", workers.shown)
    mean = found.in_order(found.means, predictor.task.width)
    return _Labelled(path.name, mean, targets, found.rejected, found.strange, found.reason)


def _of_store(predictor: Predictor, store: Store, shown: bool) -> _Labelled:
    spec, manifest = predictor.spec, store.manifest
    targets, strange = store_labels(predictor, store)
    parts, reason = [], ""
    with progress_bar(len(store), "graphs", "evaluating", shown=shown) as advance:
        for cut in cuts_for(predictor, store):
            graphs = graphs_at(store, cut, spec)
            parts.append(predictor.predict_graphs(graphs).mean)
            reason = reason or next(iter(predictor.reasons(graphs, parts[-1]).values()), "")
            advance(len(graphs))
    return _Labelled(manifest.source.name, torch.cat(parts), targets, manifest.rejected, strange, reason)


def _compared(
    task: Task, found: _Labelled, present: tuple[str, ...]
) -> tuple[Evaluation, Float[Tensor, "rows targets"]]:
    """The metrics, and the labels that they are of.

    Raises:
        ValueError: there is no label to compare with, or no finite prediction of a row with one.
    """
    labelled = (~torch.isnan(found.targets)).any(1)
    if not bool(labelled.any()):
        raise ValueError(f"{found.name} has no label of {', '.join(present)} to compare with")
    overflowed = torch.isnan(found.mean).any(1)
    if bool((overflowed | ~labelled).all()):
        raise ValueError(
            f"{found.name} has no row with a label for which the model gives a finite number: {found.reason}"
        )
    targets = found.targets.masked_fill(overflowed[:, None], torch.nan)
    evaluation = Evaluation(
        metrics(task, found.mean, targets),
        int((labelled & ~overflowed).sum()),
        found.rejected,
        found.strange,
        int((labelled & overflowed).sum()),
        tuple(name for name in task.names if name not in present),
    )
    return evaluation, targets


def _check_out(out: Path, overwrite: bool) -> None:
    """Whatever is wrong with the folder to write to is said before any work is done."""
    ready_to_write(out / _NUMBERS)
    if (out / RUN_FILE).exists():
        raise ValueError(f"{out} is the folder of a run, which has pictures of its own; choose another folder")
    if (out / _NUMBERS).exists() and not overwrite:
        raise ValueError(
            f"{out} holds an evaluation; choose another folder, or have it replaced (--force, in Python overwrite=True)"
        )
