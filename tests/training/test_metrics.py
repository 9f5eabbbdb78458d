import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tokengt.training.metrics import average_precision, confusion, describe, metrics, roc_auc, roc_curve, spearman
from tokengt.training.tasks import METRICS, Task

NAN = float("nan")
BINARY = Task("binary", ("a", "b"))
MULTICLASS = Task("multiclass", ("kind",), ("x", "y", "z"))
# Few distinct scores, so that ties are common.
SCORED = st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=40).filter(
    lambda rows: len({label for _, label in rows}) == 2
)


def table(*rows: tuple[float, ...]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def arrays(rows: list[tuple[int, bool]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([score / 5 for score, _ in rows]), np.array([float(label) for _, label in rows])


def test_regression_worked_by_hand() -> None:
    """Errors 1, -1, 2 on labels 1, 2, 6 (mean 3, spread 14); the row without a label is not there."""
    values = metrics(Task("regression", ("y",)), table((2,), (1,), (8,), (99,)), table((1,), (2,), (6,), (NAN,)))
    assert values == {"rmse": pytest.approx(math.sqrt(2)), "mae": pytest.approx(4 / 3), "r2": pytest.approx(1 - 6 / 14)}
    assert list(values) == ["rmse", "mae", "r2"]


def test_several_targets_are_averaged_and_named() -> None:
    """b has one label: an error, no spread. c has none at all."""
    task = Task("regression", ("a", "b", "c"))
    targets = table((1, 0, NAN), (3, NAN, NAN))
    values = metrics(task, table((1, 4, 0), (3, 5, 0)), targets)
    assert values == {
        "rmse": 2, "mae": 2, "r2": 1, "rmse/a": 0, "rmse/b": 4, "mae/a": 0, "mae/b": 4, "r2/a": 1
    }  # fmt: skip
    assert describe(values) == "rmse 2, mae 2, r2 1"


def test_describe_is_one_short_line() -> None:
    assert describe({"rmse": 0.61234, "mae": 0.47, "r2": 0.91, "rmse/a": 3.0}) == "rmse 0.6123, mae 0.47, r2 0.91"


def test_what_is_undefined_is_said_in_words() -> None:
    """Of eight negatives every link would be among the first ten: nobody reads "nan" for that."""
    task = Task("binary", ("link",), links=True)
    labels, scores = table(*[(place % 2,) for place in range(24)]), table(*[(place / 24,) for place in range(24)])
    values = metrics(task, scores, labels)
    assert values["hits@10"] == 10 / 12
    assert describe(values).endswith(", hits@10 0.8333 (hits@50, hits@100 undefined with so few negatives)")
    assert describe({"r2": NAN, "mae": 0.5, "r2/a": NAN}) == "mae 0.5 (r2 undefined)"
    assert describe({"rmse": NAN, "mae": NAN}) == "(rmse, mae undefined)"


def test_ranking_worked_by_hand() -> None:
    """scikit-learn's own example: pairs won 3 of 4; precisions 1 and 2/3 at recalls 1/2 and 1."""
    labels, scores = np.array([0.0, 0.0, 1.0, 1.0]), np.array([0.1, 0.4, 0.35, 0.8])
    assert roc_auc(scores, labels) == 0.75
    assert average_precision(scores, labels) == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    false, true = roc_curve(scores, labels)
    assert false.tolist() == [0, 0, 0.5, 0.5, 1]
    assert true.tolist() == [0, 0.5, 0.5, 1, 1]


def test_equal_scores_are_a_coin_and_the_share_of_positives() -> None:
    scores, labels = np.full(4, 0.3), np.array([1.0, 0.0, 0.0, 0.0])
    assert roc_auc(scores, labels) == 0.5
    assert average_precision(scores, labels) == 0.25


@given(SCORED)
def test_roc_auc_counts_pairs(rows: list[tuple[int, bool]]) -> None:
    scores, labels = arrays(rows)
    won = [np.sign(p - n) / 2 + 0.5 for p, n in product(scores[labels == 1], scores[labels == 0])]
    assert roc_auc(scores, labels) == pytest.approx(np.mean(won))
    false, true = roc_curve(scores, labels)
    assert np.trapezoid(true, false) == pytest.approx(np.mean(won))


@given(SCORED)
def test_average_precision_by_thresholds(rows: list[tuple[int, bool]]) -> None:
    scores, labels = arrays(rows)
    total, recall = 0.0, 0.0
    for threshold in sorted(set(scores), reverse=True):
        taken = labels[scores >= threshold]
        total += (taken.sum() / labels.sum() - recall) * taken.mean()
        recall = taken.sum() / labels.sum()
    assert average_precision(scores, labels) == pytest.approx(total)


def test_binary_leaves_out_what_is_undefined() -> None:
    """b has positives only: no ranking, but an accuracy. One half counts as positive."""
    targets = table((0, 1), (1, 1), (1, NAN), (0, 1))
    values = metrics(BINARY, table((0.2, 0.5), (0.9, 0.4), (0.3, 0.1), (0.3, 0.8)), targets)
    assert values["roc_auc"] == values["roc_auc/a"] == 0.875
    assert "roc_auc/b" not in values
    assert "average_precision/b" not in values
    assert values["accuracy/a"] == 0.75
    assert values["accuracy/b"] == pytest.approx(2 / 3)
    assert values["accuracy"] == pytest.approx((3 / 4 + 2 / 3) / 2)


@pytest.mark.parametrize("task", [Task("regression", ("y",)), Task("binary", ("y",)), MULTICLASS])
def test_without_labels_all_is_nan(task: Task) -> None:
    values = metrics(task, torch.zeros(2, task.out_dim), torch.full((2, 1), NAN))
    assert len(values) == 3
    assert all(math.isnan(value) for value in values.values())
    assert next(iter(values)) == task.metric


@pytest.mark.parametrize("task", [Task("regression", ("y",)), Task("binary", ("y",)), MULTICLASS])
def test_a_model_that_diverged_has_no_metric(task: Task) -> None:
    predictions = torch.full((3, task.out_dim), NAN)
    assert math.isnan(metrics(task, predictions, table((0,), (1,), (1,)))[task.metric])


def test_multiclass_worked_by_hand() -> None:
    """Labels x x y; guesses x y y. F1 of x: 2/3, of y: 2/3; z never occurs and does not count."""
    predictions = table((0.5, 0.25, 0.25), (0.25, 0.5, 0.25), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    targets = table((0,), (0,), (1,), (NAN,))
    values = metrics(MULTICLASS, predictions, targets)
    assert values == {
        "accuracy": pytest.approx(2 / 3),
        "macro_f1": pytest.approx(2 / 3),
        "cross_entropy": pytest.approx((math.log(2) + math.log(4)) / 3),
    }
    counts = confusion(predictions.numpy(), targets[:, 0].numpy())
    assert counts.tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 0]]


def test_a_certain_mistake_costs_much_but_not_infinity() -> None:
    values = metrics(MULTICLASS, table((1, 0, 0)), table((1,)))
    assert 700 < values["cross_entropy"] < 710


@pytest.mark.parametrize("kind", ["regression", "binary"])
def test_the_floor_scores_as_it_must(kind: str) -> None:
    """The mean explains nothing, and one probability for all ranks nothing."""
    targets = table((0,), (1,), (1,), (0,), (1,))
    task = Task.fit(kind, targets, ["y"])  # type: ignore[arg-type]
    values = metrics(task, task.floor(targets, 5), targets)
    assert values["r2" if kind == "regression" else "roc_auc"] == pytest.approx(0.0 if kind == "regression" else 0.5)


def test_spearman_worked_by_hand() -> None:
    """Ranks 1 2 3 4 against 2 1 4 3: 1 - 6 x 4 / (4 x 15) = 0.6. A tie takes the mean rank: 1.5 1.5 3 against 1 2 3."""
    assert spearman(np.array([0.1, 0.2, 5.0, 9.0]), np.array([20.0, 10.0, 40.0, 30.0])) == pytest.approx(0.6)
    tied = spearman(np.array([7.0, 7.0, 8.0]), np.array([1.0, 2.0, 3.0]))
    assert tied == pytest.approx(1.5 / math.sqrt(1.5 * 2))
    assert spearman(np.array([3.0, 2.0, 1.0]), np.array([1.0, 2.0, 3.0])) == -1
    assert spearman(np.array([1.0, 2.0]), np.array([5.0, 5.0])) is None
    assert spearman(np.array([1.0, 1.0]), np.array([5.0, 6.0])) == 0
    assert math.isnan(spearman(np.array([NAN, 1.0]), np.array([5.0, 6.0])) or 0)


def test_binary_cross_entropy_worked_by_hand() -> None:
    task = Task("binary", ("y",), metric="cross_entropy")
    values = metrics(task, table((0.25,), (0.5,), (0.9,)), table((1,), (0,), (NAN,)))
    assert values["cross_entropy"] == pytest.approx((math.log(4) + math.log(2)) / 2)
    assert list(values) == ["cross_entropy", "roc_auc", "average_precision", "accuracy"]
    certain = metrics(task, table((0.0,)), table((1,)))["cross_entropy"]
    assert 700 < certain < 710


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in METRICS.items() for name in names])
def test_every_metric_that_can_be_asked_for_is_measured_first_and_knows_what_is_better(kind: str, name: str) -> None:
    """Perfect predictions are better than poor ones by every metric, whichever way it points."""
    classes = ("x", "y") if kind == "multiclass" else None
    task = Task(kind, ("t",), classes, metric=name)  # type: ignore[arg-type]
    labels = table((0,), (1,), (1,), (0,))
    shares = [(0.1,), (0.9,), (0.8,), (0.3,)], [(0.6,), (0.7,), (0.2,), (0.9,)]
    good, poor = (table(*((1 - p, p) if classes else (p,) for (p,) in rows)) for rows in shares)
    values = metrics(task, good, labels)
    assert next(iter(values)) == task.metric == name
    assert task.is_better(values[name], metrics(task, poor, labels)[name])
