"""What a finished run leaves in its folder for people: tables, pictures, numbers and the model card."""

import io
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokengt._version import __version__
from tokengt.config import from_dict, read_json
from tokengt.data.links import LINK_ENDS
from tokengt.data.splits import PARTS as PARTS
from tokengt.data.store import Store
from tokengt.data.tables import TableWriter
from tokengt.files import write_whole
from tokengt.training import outputs
from tokengt.training.card import CardFacts, Fold, model_card
from tokengt.training.config import TrainingConfig
from tokengt.training.metrics import metrics
from tokengt.training.plots import plot_curves, plot_test
from tokengt.training.reliability import Reliability, plot_calibration
from tokengt.training.spec import RunSpec
from tokengt.training.tasks import Task

CARD, METRICS, SUMMARY = "README.md", "metrics.jsonl", "summary.json"
PREDICTIONS, SPLIT = "predictions.csv", "split.csv"
_SETTINGS = ("learning_rate", "weight_decay", "schedule", "warmup", "ema", "precision")


@dataclass(frozen=True, eq=False)
class Findings:
    """What was found out about a run besides its weights.

    ``rows`` are those of the test part; ``predictions`` [all rows, out] are of them, NaN elsewhere, and so is
    ``floor``, what knowing the training labels alone would predict, and ``linear``, what a linear model on fingerprints
    predicts (None where there is none); ``codes`` give every graph (or row, when rows were split) its part;
    ``train_labels`` count each target's training labels. ``folds``: of a cross-validation, what each fold was;
    ``codes`` and ``train_labels`` are then those of the first. ``apart``: where a forest stands beside the model, what
    each of the two predicts.
    """

    rows: Int[Tensor, " test"]
    predictions: Float[Tensor, "rows out"]
    floor: Float[Tensor, "rows out"]
    codes: Int[Tensor, " places"]
    train_labels: tuple[int, ...]
    linear: Float[Tensor, "rows out"] | None = None
    shared: int = 0
    unseen: Mapping[str, int] | None = None
    notes: tuple[str, ...] = ()
    folds: tuple[Fold, ...] = ()
    reliability: Reliability = field(default_factory=Reliability)
    apart: Mapping[str, Float[Tensor, "rows out"]] = field(default_factory=dict)

    @property
    def as_fold(self) -> Fold:
        """The parts of this split, counted."""
        return Fold({name: int((self.codes == code).sum()) for code, name in enumerate(PARTS)}, self.train_labels)


@dataclass(frozen=True)
class Summary:
    """What ``summary.json`` says: the metrics of the test part, by name; None where one is not defined.

    ``floor`` is what knowing only the training labels would give, ``linear`` what a linear model on fingerprints gives.
    ``apart`` is what the model and the forest beside it give by themselves. A run of several models has the metric of
    each in ``members``, any other its ``epochs``. ``intervals`` and ``chances`` say how far predictions of the test
    part were to be trusted.
    """

    task: str
    metric: str
    test_rows: int
    test: Mapping[str, float | None] | None = None
    floor: Mapping[str, float | None] | None = None
    linear: Mapping[str, float | None] | None = None
    apart: Mapping[str, Mapping[str, float | None]] | None = None
    epochs: int | None = None
    members: tuple[float | None, ...] = ()
    intervals: Mapping[str, float | None] | None = None
    chances: Mapping[str, float | None] | None = None


def read_summary(folder: Path) -> Summary:
    """The summary of a finished run; what other versions may add to it is left aside.

    Raises:
        ValueError: one sentence with the file and the field that is not as expected.
    """
    file = folder / SUMMARY
    known = {field.name for field in fields(Summary)}
    return from_dict(Summary, {name: value for name, value in read_json(file).items() if name in known}, str(file))


def split_table(store: Store, codes: Mapping[str, Int[Tensor, " places"]]) -> bytes:
    """``split.csv``: where each graph stands in the source (or which row of the one graph it is), and its parts."""
    count = len(next(iter(codes.values())))
    graphs = count == len(store)
    first = store.lines.tolist() if graphs else range(count)
    parts = [[PARTS[code] if code >= 0 else "" for code in column.tolist()] for column in codes.values()]
    return table([("line" if graphs else store.manifest.level, *codes), *zip(first, *parts, strict=True)])


def write_metrics(folder: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """``metrics.jsonl``, one line per epoch. It holds no times: the same run writes the same bytes."""
    lines = (json.dumps(finite(record)) + "\n" for record in records)
    write_whole(folder / METRICS, "".join(lines).encode())


def write_results(
    folder: Path,
    spec: RunSpec,
    store: Store,
    findings: Findings,
    records: Mapping[str, Sequence[Mapping[str, Any]]],
    parameters: int,
    members: Sequence[Mapping[str, Any]] = (),
    *,
    pictures: bool = True,
) -> dict[str, Any]:
    """Everything people look at, with ``pictures`` or without; returns the summary.

    ``records`` are the epochs of each model by its name, ``members`` the summaries of models that are averaged.
    """
    rows = findings.rows
    predicted, targets = findings.predictions[rows], store.targets[rows]
    if not bool(torch.isfinite(predicted).all()):
        raise ValueError("the trained model predicts infinite or undefined numbers; lower training.learning_rate")
    summary: dict[str, Any] = {"task": spec.task.kind, "metric": spec.task.metric, "test_rows": len(rows)}
    if len(rows):
        summary["test"] = metrics(spec.task, predicted, targets)
        summary["floor"] = metrics(spec.task, findings.floor[rows], targets)
        if findings.linear is not None:
            summary["linear"] = metrics(spec.task, findings.linear[rows], targets)
        if findings.apart:
            summary["apart"] = {name: metrics(spec.task, told[rows], targets) for name, told in findings.apart.items()}
        summary |= _trust(findings.reliability)
    if pictures:
        _draw(folder, spec.task, findings, targets, records)
    if not members and any(records.values()):
        (summary["epochs"],) = map(len, records.values())
    if members:
        summary["members"] = [member.get("test", {}).get(spec.task.metric) for member in members]
    write_whole(folder / PREDICTIONS, predictions_table(spec, store, rows, predicted))
    write_whole(folder / CARD, model_card(_facts(spec, store, findings, summary, parameters, members)).encode())
    # The last file: a run that has it is finished.
    write_whole(folder / SUMMARY, json.dumps(finite(summary), indent=2).encode() + b"\n")
    return summary


def _draw(
    folder: Path,
    task: Task,
    findings: Findings,
    targets: Float[Tensor, "rows targets"],
    records: Mapping[str, Sequence[Mapping[str, Any]]],
) -> None:
    if len(findings.rows):
        plot_test(task, findings.predictions[findings.rows], targets, folder)
        plot_calibration(task, findings.reliability, folder / "calibration.png")
    if any(records.values()):
        plot_curves(records, task, folder / "curves.png")


def _trust(found: Reliability) -> dict[str, Any]:
    """What the summary says of intervals and probabilities."""
    known = {"intervals": found.intervals, "chances": found.chances}
    return {name: asdict(report) for name, report in known.items() if report is not None}


def predictions_table(spec: RunSpec, store: Store, rows: Int[Tensor, " rows"], predicted: Tensor) -> bytes:
    """``predictions.csv``: where each row stands, its labels and its predictions, which are the last columns."""
    head, front = _where(spec, store, rows)
    head += outputs.unused(spec.task.names, head)
    head += outputs.unused(outputs.columns(spec.task), head)
    labels, predictions = outputs.label_cells(spec.task, store.targets[rows]), outputs.cells(spec.task, predicted)
    return table([head, *(a + b + c for a, b, c in zip(front, labels, predictions, strict=True))])


def _where(spec: RunSpec, store: Store, rows: Int[Tensor, " rows"]) -> tuple[list[str], list[list[Any]]]:
    """Where rows stand, columns and cells: ids where nodes have some, else the line, and numbers inside its graph."""
    segments = store.graphs.level_rows(spec.level)
    graphs = torch.searchsorted(segments.host, rows, right=True) - 1
    inside: tuple[str, ...] = ()
    places: list[list[int]] = [[] for _ in range(len(rows))]
    if spec.level == "link":
        assert store.graphs.link_numbers is not None
        inside, places = LINK_ENDS, store.graphs.link_numbers.local[:, rows].T.tolist()
    elif spec.level != "graph":
        inside, places = (spec.level,), (rows - segments.host[graphs])[:, None].tolist()
    if store.names is not None and spec.tables is not None:
        names, own = store.names, spec.tables
        columns = [own.source, own.target] if spec.level == "link" else [own.id]
        return columns, [[names[number] for number in each] for each in places]
    head = ["line", *inside]
    front: list[list[Any]] = [[line, *own] for line, own in zip(store.lines[graphs].tolist(), places, strict=True)]
    texts = store.texts(graphs.tolist())
    if texts is not None:
        head.append(spec.text_column or "smiles")
        for cell, text in zip(front, texts, strict=True):
            cell.append(text)
    return head, front


def _facts(
    spec: RunSpec,
    store: Store,
    findings: Findings,
    summary: Mapping[str, Any],
    parameters: int,
    members: Sequence[Mapping[str, Any]],
) -> CardFacts:
    manifest, folds = store.manifest, findings.folds or (findings.as_fold,)
    in_memory = not manifest.source.sha256
    return CardFacts(
        task=spec.task,
        level=spec.level,
        source=None if in_memory else manifest.source.name,
        sha256=store.data_checksum() if in_memory else manifest.source.sha256,
        rows=manifest.source.rows,
        rejected=manifest.rejected,
        unit="row" if manifest.by_line else "graph",
        tables=manifest.tables is not None,
        split=spec.split,
        counts=folds[0].counts,
        train_labels=tuple(map(min, zip(*(fold.train_labels for fold in folds), strict=True))),
        model=spec.model.describe(),
        parameters=parameters,
        test=summary.get("test"),
        floor=summary.get("floor"),
        linear=summary.get("linear"),
        apart=summary.get("apart"),
        settings={
            "seed": spec.seed,
            "loss": spec.task.loss,
            "metric": spec.task.metric,
            **_settings(spec.training, len(store)),
        },
        versions=_versions(store.is_molecules),
        molecules=store.is_molecules,
        text_column=spec.text_column,
        descriptors=spec.descriptors.columns,
        members=max(1, len(spec.members)),
        folds=findings.folds,
        alone=tuple(member["test"] for member in members if member.get("test")),
        shared=findings.shared,
        unseen_elements=findings.unseen or {},
        notes=findings.notes,
        reliability=findings.reliability,
    )


def _settings(training: TrainingConfig, graphs: int) -> dict[str, Any]:
    """The settings that a reader of the card wants to know; what a step takes as it was, not as it was set."""
    if graphs == 1:
        step: dict[str, Any] = {"batch": "the whole graph at every step"}
    elif training.batch_tokens:
        step = {"batch_tokens": training.batch_tokens}
    else:
        step = {"batch_size": training.batch_size}
    return {"epochs": training.epochs} | step | {name: getattr(training, name) for name in _SETTINGS}


def _versions(molecules: bool) -> dict[str, str]:
    versions = {"tokengt": __version__, "torch": torch.__version__.split("+")[0]}
    if molecules:
        with suppress(PackageNotFoundError):
            versions["rdkit"] = version("rdkit")
    return versions


def table(rows: Sequence[Sequence[Any]]) -> bytes:
    """CSV in UTF-8 with one kind of line end."""
    text = io.StringIO()
    TableWriter(text).writerows(rows)
    return text.getvalue().encode()


def finite(value: Any) -> Any:
    """NaN and infinity as null, because JSON cannot write them."""
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
