"""How good predictions are, by the measures people compare: NumPy only, missing labels (NaN) left out."""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from tokengt.training.tasks import HITS, USUAL_HITS, Task, hits_at

Array = NDArray[np.float64]


def metrics(
    task: Task, predictions: Float[Tensor, "rows out"], targets: Float[Tensor, "rows targets"]
) -> dict[str, float]:
    """Metrics of ``task.predictions`` against labels; the first one is ``task.metric``.

    Regression: rmse, mae, r2. Binary: roc_auc, average_precision, accuracy. Both are means over the targets; with
    several targets there is also one entry per target, such as ``rmse/<name>``. Multiclass: accuracy, macro_f1,
    cross_entropy. Of links, mrr and hits@k are told too. A target for which a metric is undefined (no labels, one class
    only, no spread) is left out of it; the metric is NaN when no target is left.
    """
    predicted, labels = to_numpy(predictions), to_numpy(targets)
    if task.kind == "multiclass":
        values = _multiclass(predicted, labels[:, 0])
        return {name: values[name] for name in _first(task.metric, values)}
    means, parts = {}, {}
    for name in _first(task.metric, (*_USUAL[task.kind], *(_RANKS if task.links else ()))):
        means[name], scores = _mean_over_targets(task, name, predicted, labels)
        parts.update({f"{name}/{target}": value for target, value in scores.items()})
    return means if len(task.names) == 1 else {**means, **parts}


def headline(
    task: Task, predictions: Float[Tensor, "rows out"] | Array, targets: Float[Tensor, "rows targets"] | Array
) -> float:
    """``task.metric`` alone, as :func:`metrics` has it, for those who need it very often."""
    predicted, labels = (to_numpy(each) if isinstance(each, Tensor) else each for each in (predictions, targets))
    if task.kind == "multiclass":
        return _multiclass(predicted, labels[:, 0])[task.metric]
    return _mean_over_targets(task, task.metric, predicted, labels)[0]


def _mean_over_targets(task: Task, name: str, predicted: Array, labels: Array) -> tuple[float, dict[str, float]]:
    """A metric's mean over the targets for which it is defined, and the metric of each of those."""
    measure = _measure(task, name)
    scores: dict[str, float] = {}
    for column, target in enumerate(task.names):
        # A model that diverged has infinite errors: they are its metric, so NumPy need not warn about them.
        with np.errstate(all="ignore"):
            value = measure(*labelled(predicted[:, column], labels[:, column]))
        if value is not None:
            scores[target] = value
    return float(np.mean(list(scores.values()))) if scores else float("nan"), scores


def _measure(task: Task, name: str) -> "_Measure":
    k = hits_at(name)
    return (_REGRESSION if task.kind == "regression" else _BINARY)[name] if k is None else partial(hits, k=k)


def _first(name: str, names: Iterable[str]) -> list[str]:
    return [name, *(other for other in names if other != name)]


def describe(values: Mapping[str, float]) -> str:
    """One line for a terminal: the means, no entry of a single target; those that are undefined (NaN) come last."""
    means = {name: value for name, value in values.items() if "/" not in name}
    blank = [name for name, value in means.items() if math.isnan(value)]
    told = ", ".join(f"{name} {value:.4g}" for name, value in means.items() if name not in blank)
    if not blank:
        return told
    # Other metrics are undefined for several reasons, hits@k for one: there are fewer than k negatives.
    why = " with so few negatives" if told and all(hits_at(name) is not None for name in blank) else ""
    return f"{told} ({', '.join(blank)} undefined{why})".lstrip()


def to_numpy(tensor: Tensor) -> Array:
    array: Array = tensor.detach().cpu().double().numpy()
    return array


def labelled(predicted: Array, labels: Array) -> tuple[Array, Array]:
    """The rows that have a label."""
    present = ~np.isnan(labels)
    return predicted[present], labels[present]


def rmse(predicted: Array, labels: Array) -> float | None:
    return float(np.sqrt(np.mean((predicted - labels) ** 2))) if len(labels) else None


def mae(predicted: Array, labels: Array) -> float | None:
    return float(np.mean(np.abs(predicted - labels))) if len(labels) else None


def r2(predicted: Array, labels: Array) -> float | None:
    """The share of the labels' variance that is explained; undefined when all labels are equal."""
    if not len(labels) or labels.min() == labels.max():
        return None
    return float(1 - np.sum((predicted - labels) ** 2) / np.sum((labels - labels.mean()) ** 2))


def spearman(predicted: Array, labels: Array) -> float | None:
    """The correlation of the ranks, equal values sharing the mean of theirs; undefined when all labels are equal.

    Predictions that are all equal rank nothing: 0.
    """
    if len(labels) < 2 or labels.min() == labels.max():
        return None
    if np.isnan(predicted).any():
        return float("nan")
    ours, theirs = (_midranks(values) - (len(values) + 1) / 2 for values in (predicted, labels))
    spread = float(np.sqrt((ours**2).sum() * (theirs**2).sum()))
    return float((ours * theirs).sum() / spread) if spread else 0.0


def _midranks(values: Array) -> Array:
    """Ranks from 1; equal values share the mean of theirs."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray(np.cumsum(sizes) - (sizes - 1) / 2)[group]


def roc_auc(scores: Array, labels: Array) -> float | None:
    """The chance that a positive scores above a negative, a tie counting half (Mann-Whitney with midranks)."""
    positives = int(labels.sum())
    negatives = len(labels) - positives
    if not positives or not negatives:
        return None
    if np.isnan(scores).any():
        return float("nan")
    rank_sum = float(_midranks(scores)[labels == 1].sum())
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)


def average_precision(scores: Array, labels: Array) -> float | None:
    """Precision at each distinct score, weighted by the recall gained there; undefined with one class only."""
    positives = labels.sum()
    if not positives or positives == len(labels):
        return None
    if np.isnan(scores).any():
        return float("nan")
    above, hits = _above_thresholds(scores, labels)
    return float(np.sum(np.diff(hits, prepend=0.0) / positives * hits / above))


def _ranks(scores: Array, labels: Array) -> Array | None:
    """The rank of every positive among the negatives: 1 + how many score higher, and half of those that tie.

    Undefined without a positive or a negative; NaN where a score is.
    """
    positives, negatives = scores[labels == 1], np.sort(scores[labels == 0])
    if not len(positives) or not len(negatives):
        return None
    if np.isnan(scores).any():
        return np.full(len(positives), np.nan)
    above = len(negatives) - np.searchsorted(negatives, positives, side="right")
    tied = np.searchsorted(negatives, positives, side="right") - np.searchsorted(negatives, positives, side="left")
    return np.asarray(1 + above + tied / 2, dtype=np.float64)


def mrr(scores: Array, labels: Array) -> float | None:
    """The mean reciprocal rank: the mean over positives of 1 / rank, where rank 1 is above all negatives."""
    ranks = _ranks(scores, labels)
    return None if ranks is None else float(np.mean(1 / ranks))


def hits(scores: Array, labels: Array, k: int) -> float | None:
    """hits@k: the share of positives that score above all but k - 1 negatives; a tie with the k-th is no hit.

    Undefined with fewer than k negatives, of which every positive would be a hit.
    """
    negatives = np.sort(scores[labels == 0])
    if len(negatives) < k or not bool((labels == 1).any()):
        return None
    if np.isnan(scores).any():
        return float("nan")
    return float(np.mean(scores[labels == 1] > negatives[-k]))


def accuracy(probabilities: Array, labels: Array) -> float | None:
    """The share on the right side of one half; a NaN is on neither."""
    return float(np.mean(np.where(labels == 1, probabilities >= 0.5, probabilities < 0.5))) if len(labels) else None


def cross_entropy(probabilities: Array, labels: Array) -> float | None:
    """The mean of -log of the probability that the label was given, in nats."""
    return _surprise(np.where(labels == 1, probabilities, 1 - probabilities)) if len(labels) else None


def _surprise(chosen: Array) -> float:
    # The smallest positive number stands for a probability of 0, so that a certain mistake does not cost infinity.
    return float(-np.log(np.maximum(chosen, np.finfo(np.float64).tiny)).mean())


def roc_curve(scores: Array, labels: Array) -> tuple[Array, Array]:
    """False and true positive rates from (0, 0) to (1, 1), a point at each distinct score; needs both classes."""
    above, hits = _above_thresholds(scores, labels)
    false = np.concatenate([[0.0], above - hits])
    true = np.concatenate([[0.0], hits])
    return false / false[-1], true / true[-1]


def confusion(predicted: Array, labels: Array) -> NDArray[np.int64]:
    """How often class ``row`` was predicted as class ``column``: [classes, classes] from probabilities and labels."""
    classes, present = predicted.shape[1], ~np.isnan(labels)
    pairs = labels[present].astype(np.int64) * classes + predicted[present].argmax(1)
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)


def _above_thresholds(scores: Array, labels: Array) -> tuple[Array, Array]:
    """At each distinct score, highest first: how many rows score at least that, and how many of them are positive."""
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    ends = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(scores) - 1)
    return (ends + 1).astype(np.float64), np.cumsum(labels[order])[ends]


def _multiclass(predicted: Array, labels: Array) -> dict[str, float]:
    present = ~np.isnan(labels)
    nan = float("nan")
    if not present.any() or np.isnan(predicted[present]).any():
        return {"accuracy": nan, "macro_f1": nan, "cross_entropy": nan}
    table = confusion(predicted, labels)
    hits, of_label, of_guess = np.diag(table), table.sum(1), table.sum(0)
    # The F1 score of a class that no row has and that was never predicted is 0 / 0: it is left out of the mean.
    seen = of_label + of_guess > 0
    f1 = 2 * hits[seen] / (of_label + of_guess)[seen]
    rows = np.flatnonzero(present)
    chosen = predicted[rows, labels[rows].astype(np.int64)]
    return {
        "accuracy": float(hits.sum() / table.sum()),
        "macro_f1": float(f1.mean()),
        "cross_entropy": _surprise(chosen),
    }


_Measure = Callable[[Array, Array], float | None]
_REGRESSION: dict[str, _Measure] = {"rmse": rmse, "mae": mae, "r2": r2, "spearman": spearman}
_BINARY: dict[str, _Measure] = {
    "roc_auc": roc_auc,
    "average_precision": average_precision,
    "accuracy": accuracy,
    "cross_entropy": cross_entropy,
    "mrr": mrr,
}
# What is reported whatever the task's own metric is.
_USUAL = {"regression": ("rmse", "mae", "r2"), "binary": ("roc_auc", "average_precision", "accuracy")}
# And of links, where it counts who is ahead.
_RANKS = ("mrr", *(f"{HITS}{k}" for k in USUAL_HITS))
