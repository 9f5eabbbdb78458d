"""Each target of a run by itself: its metrics, its errors by size and element, its calibration, its worst rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from tokengt.data.leaks import ELEMENTS
from tokengt.data.store import Store
from tokengt.explain.errors import Agreement, by_name, by_size, coverage, reliability
from tokengt.explain.page.words import number
from tokengt.explain.run_summary import Picture, TargetSummary, WrongRow
from tokengt.inference import Predictor
from tokengt.interop.depiction import depict
from tokengt.interop.molecules import ATOM_CATEGORIES, MoleculePolicy
from tokengt.sparse import as_dense
from tokengt.training.metrics import confusion, metrics, roc_curve, to_numpy
from tokengt.training.tasks import Task

# The rows with the largest errors that are drawn.
_WRONG = 12
# A graph of more nodes is no picture.
_LARGEST_PICTURE = 300
# Elements that fewer rows have are left out.
_FEWEST = 3


@dataclass(frozen=True, eq=False)
class Labelled:
    """Data with labels, and what a run predicts for it; one row per graph, node or edge.

    ``labels`` and ``mean`` have NaN where there is no label or no finite prediction; ``std`` is None for a single pass.
    """

    store: Store
    labels: Float[Tensor, "rows targets"]
    mean: Float[Tensor, "rows out"]
    std: Float[Tensor, "rows out"] | None

    @cached_property
    def graph_of(self) -> Int[NDArray[np.int64], " rows"]:
        """The graph of every row."""
        found: NDArray[np.int64] = self.store.graphs.level_rows(self.store.manifest.level).ids.cpu().numpy()
        return found

    @cached_property
    def sizes(self) -> Int[NDArray[np.int64], " rows"]:
        """How many nodes the graph of every row has."""
        found: NDArray[np.int64] = self.store.graphs.nodes.lengths.cpu().numpy()[self.graph_of]
        return found

    @cached_property
    def elements(self) -> dict[str, Bool[NDArray[np.bool_], " rows"]]:
        """Which rows are of molecules with an element; none for other graphs."""
        features = as_dense(self.store.graphs.node_features)
        if not self.store.is_molecules or features is None:
            return {}
        owners, rows = self.store.graphs.nodes.ids.cpu().numpy(), features[:, 0].cpu().numpy().astype(np.int64)
        there = np.zeros((len(self.store), ATOM_CATEGORIES[0]), dtype=bool)
        there[owners, rows] = True
        # Category 0 is hydrogen; the last one stands for what is no element.
        return {name: there[self.graph_of, place] for place, name in enumerate(ELEMENTS) if there[:, place].any()}


def target_summaries(predictor: Predictor, data: Labelled, source: str) -> tuple[TargetSummary, ...]:
    """One summary per target that the data has labels of.

    Raises:
        ValueError: there is no label to compare with.
    """
    found = [_summary(predictor, data, place) for place in range(len(predictor.task.names))]
    present = tuple(each for each in found if each is not None)
    if not present:
        raise ValueError(f"{source} has no row with a label for which the model gives a finite number")
    return present


def _summary(predictor: Predictor, data: Labelled, place: int) -> TargetSummary | None:
    task = predictor.task
    classes = task.classes is not None
    outputs = to_numpy(data.mean) if classes else to_numpy(data.mean)[:, place : place + 1]
    labels = to_numpy(data.labels)[:, place]
    rows = np.flatnonzero(np.isfinite(labels) & np.isfinite(outputs).all(1))
    if not len(rows):
        return None
    labels, outputs = labels[rows], outputs[rows]
    predicted = outputs.argmax(1).astype(np.float64) if classes else outputs[:, 0]
    errors, wrongness = _errors(task, labels, outputs)
    spread = None if data.std is None or classes else to_numpy(data.std)[rows, place]
    calibration, why = _calibration(task, labels, outputs, errors, spread)
    alone = Task(task.kind, (task.names[place],), task.classes, metric=task.metric, loss=task.loss)
    worst = np.argsort(-wrongness, kind="stable")[:_WRONG]
    return TargetSummary(
        name=task.names[place],
        rows=len(rows),
        measures=metrics(
            alone,
            data.mean[rows] if classes else data.mean[rows, place : place + 1],
            data.labels[rows, place : place + 1],
        ),
        labels=labels,
        predicted=predicted,
        by_size=tuple(by_size(errors, data.sizes[rows])),
        by_element=tuple(by_name(errors, {name: own[rows] for name, own in data.elements.items()}, _FEWEST)),
        calibration=tuple(calibration),
        wrong=tuple(
            _wrong(predictor, data, int(rows[one]), labels[one], outputs[one], wrongness[one]) for one in worst
        ),
        spread=spread,
        roc=_roc(outputs[:, 0], labels) if task.kind == "binary" else None,
        confusion=confusion(outputs, labels) if classes else None,
        missing={"calibration": why} if why else {},
    )


def _errors(
    task: Task, labels: Float[NDArray[np.float64], " rows"], outputs: Float[NDArray[np.float64], "rows out"]
) -> tuple[Float[NDArray[np.float64], " rows"], Float[NDArray[np.float64], " rows"]]:
    """The error of every row (:mod:`tokengt.explain.errors`), and what sorts rows by how wrong they are.

    Where a class is wrong or not, the probability that was not given to the true one tells more.
    """
    if task.kind == "regression":
        away = np.abs(outputs[:, 0] - labels)
        return away, away
    if task.kind == "binary":
        away = np.abs(outputs[:, 0] - labels)
        return (away > 0.5).astype(np.float64), away
    true = labels.astype(np.int64)
    return (outputs.argmax(1) != true).astype(np.float64), 1 - outputs[np.arange(len(true)), true]


def _calibration(
    task: Task,
    labels: Float[NDArray[np.float64], " rows"],
    outputs: Float[NDArray[np.float64], "rows out"],
    errors: Float[NDArray[np.float64], " rows"],
    spread: Float[NDArray[np.float64], " rows"] | None,
) -> tuple[Sequence[Agreement], str | None]:
    """Claimed against found, or why there is nothing claimed."""
    if task.kind == "binary":
        return reliability(outputs[:, 0], labels == 1), None
    if task.kind == "multiclass":
        return reliability(outputs.max(1), errors == 0), None
    if spread is None:
        return (), (
            "A single pass claims nothing about its errors; several draws (--draws 16, in Python draws=16) do, by how "
            "far they lie apart."
        )
    return coverage(errors, spread), None


def _roc(scores: NDArray[np.float64], labels: NDArray[np.float64]) -> NDArray[np.float64] | None:
    if not 0 < int(labels.sum()) < len(labels):
        return None
    return np.stack(roc_curve(scores, labels))


def _wrong(
    predictor: Predictor, data: Labelled, row: int, label: float, outputs: NDArray[np.float64], wrongness: float
) -> WrongRow:
    task, level = predictor.task, predictor.spec.level
    graph = int(data.graph_of[row])
    line = int(data.store.lines[graph])
    where = f"line {line}" if data.store.is_molecules else f"graph {line}"
    inside = int(row - data.store.graphs.level_rows(level).host[graph]) if level != "graph" else None
    name = where if inside is None else f"{where}, {level} {inside}"
    if task.classes is not None:
        label_text, best = task.classes[int(label)], int(outputs.argmax())
        prediction = f"{task.classes[best]} ({outputs[best]:.0%})"
    else:
        binary = task.kind == "binary"
        label_text = f"{label:.0f}" if binary else number(float(label))
        prediction = f"{outputs[0]:.0%}" if binary else number(float(outputs[0]))
    return WrongRow(name, label_text, prediction, float(wrongness), _picture(predictor, data.store, graph, inside))


def _picture(predictor: Predictor, store: Store, graph: int, inside: int | None) -> Picture | None:
    """The graph of a row, with the node or the ends of the edge that the row belongs to marked."""
    own = store.graphs[graph]
    marked: tuple[int, ...] = ()
    if inside is not None:
        marked = (inside,) if predictor.spec.level == "node" else tuple(own.edge_index[:, inside].tolist())
    texts = store.texts([graph])
    if own.num_nodes > _LARGEST_PICTURE:
        return None
    if texts is None:
        return Picture(None, own.num_nodes, own.edge_index[:2].cpu().numpy(), marked)
    policy = predictor.spec.molecules or MoleculePolicy()
    return Picture(depict(texts[0], policy), own.num_nodes, None, marked)
