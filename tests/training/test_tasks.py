import json
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tokengt.config import from_dict, to_dict
from tokengt.training.classes import numbered_classes
from tokengt.training.metrics import metrics
from tokengt.training.tasks import Task

NAN = float("nan")
REGRESSION = Task("regression", ("a", "b"), None, (1.0, -2.0), (2.0, 0.5))
BINARY = Task("binary", ("a", "b"))
MULTICLASS = Task("multiclass", ("kind",), ("x", "y", "z"))
TASKS = [REGRESSION, BINARY, MULTICLASS]
LOSSES = [replace(REGRESSION, loss="mae"), replace(REGRESSION, loss="huber")]


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def random_case(task: Task, rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Outputs and labels, a third of them missing."""
    generator = torch.Generator().manual_seed(seed)
    output = torch.randn(rows, task.out_dim, generator=generator)
    high = 3 if task.kind == "multiclass" else 2
    labels = torch.randint(high, (rows, len(task.names)), generator=generator).double()
    missing = torch.rand(labels.shape, generator=generator) < 1 / 3
    return output, torch.where(missing, torch.nan, labels)


@pytest.mark.parametrize("task", TASKS)
def test_a_task_comes_back_from_json(task: Task) -> None:
    again = from_dict(Task, json.loads(json.dumps(to_dict(task))))
    assert again == task
    assert hash(again) == hash(task)


def test_what_each_kind_asks_of_the_model() -> None:
    assert [task.out_dim for task in TASKS] == [2, 2, 3]
    assert [task.metric for task in TASKS] == ["rmse", "roc_auc", "accuracy"]
    assert [task.higher_is_better for task in TASKS] == [False, True, True]
    # What is not given is not scaled.
    assert (BINARY.mean, BINARY.scale) == ((0.0, 0.0), (1.0, 1.0))


def test_fit_scales_each_target_by_the_labels_it_has() -> None:
    """1, 3 and 5: mean 3, variance 8/3. One label, or equal ones, have no spread."""
    targets = torch.tensor([[1, 0.1, NAN], [3, 0.1, NAN], [NAN, 0.1, 7], [5, NAN, NAN]], dtype=torch.float64)
    task = Task.fit(None, targets, ["a", "b", "c"])
    assert task.kind == "regression"
    assert task.mean == pytest.approx((3.0, 0.1, 7.0), abs=0)
    assert task.scale == pytest.approx((math.sqrt(8 / 3), 1.0, 1.0))


@pytest.mark.parametrize(
    ("targets", "classes", "kind"),
    [
        (column(0, 1, NAN, 0), None, "binary"),
        (column(0, 1, 2), None, "regression"),
        (column(0, 1), ("no", "yes"), "multiclass"),
        (column(0, 0.5), None, "regression"),
    ],
)
def test_the_kind_is_guessed(targets: Tensor, classes: tuple[str, ...] | None, kind: str) -> None:
    assert Task.fit(None, targets, ["a"], classes).kind == kind


def test_a_given_kind_wins() -> None:
    assert Task.fit("regression", column(0, 1), ["a"]) == Task("regression", ("a",), None, (0.5,), (0.5,))
    assert Task.fit("multiclass", column(0, 2, NAN), ["a"]) == Task("multiclass", ("a",), ("0", "1", "2"))
    assert numbered_classes(column(1, NAN, 3)) == ("0", "1", "2", "3")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Task.fit(None, column(NAN, NAN), ["y"]), "target 'y' has no label in the training rows"),
        (lambda: Task.fit("binary", column(0, 2), ["y"]), "target 'y' holds 2; expected 0 or 1"),
        (lambda: Task.fit("multiclass", column(0, 1.5), ["y"]), "target 'y' holds 1.5; expected whole numbers from 0"),
        (lambda: Task.fit("multiclass", column(0, -1), ["y"]), "target 'y' holds -1; expected whole numbers from 0"),
        (lambda: Task.fit("multiclass", column(0, 1e9), ["y"]), "target 'y' holds 1000000000; .* 10,000 classes"),
        (lambda: Task.fit("multiclass", column(0, 0), ["y"]), "target 'y' has fewer than two classes"),
        (lambda: Task.fit("multiclass", column(0, 2), ["y"], ["n", "m"]), "target 'y' holds 2; .* 0 to 1"),
        (lambda: Task.fit("regression", column(0, float("inf")), ["y"]), "target 'y' holds inf; expected a finite"),
        (lambda: Task.fit("regression", column(-1e300, 1e300), ["y"]), "target 'y' spreads too far"),
        (lambda: Task.fit("multiclass", torch.zeros(2, 2), ["y", "z"], ["n", "m"]), "one target, got 2: y, z"),
        (lambda: Task.fit(None, torch.zeros(2, 2), ["y"]), "2 columns but there are 1 target names"),
        (lambda: Task("binary", ("y",), ("n", "m")), "a binary task has no classes"),
        (lambda: Task("regression", ()), "a task needs a target"),
        (lambda: Task("regression", ("y",), None, (0.0,), (0.0,)), "scale above 0"),
        (lambda: Task("regression", ("y",), None, (0.0, 1.0), (1.0,)), "need 1 numbers each"),
        (lambda: BINARY.check(column(0)), "1 columns; expected 2"),
    ],
)
def test_labels_that_cannot_be_learned_are_named(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call()


def test_losses_worked_by_hand() -> None:
    """Squared: ((3-1)/2 - 2)^2 + ((-2+2)/0.5 - 1)^2 = 2. Entropies: log 2, log(1+e), log(2+e)-1."""
    targets = torch.tensor([[3.0, -2.0], [NAN, NAN]], dtype=torch.float64)
    assert float(REGRESSION.loss_sum(torch.tensor([[2.0, 1.0], [9.0, 9.0]]), targets)) == 2
    targets = torch.tensor([[1.0, 0.0], [NAN, NAN]], dtype=torch.float64)
    loss = BINARY.loss_sum(torch.tensor([[0.0, 1.0], [9.0, 9.0]]), targets)
    assert float(loss) == pytest.approx(math.log(2) + math.log(1 + math.e))
    loss = MULTICLASS.loss_sum(torch.tensor([[0.0, 1.0, 0.0], [9.0, 9.0, 9.0]]), column(1, NAN))
    assert float(loss) == pytest.approx(math.log(2 + math.e) - 1)


def test_other_losses_of_numbers_worked_by_hand() -> None:
    """Scaled errors 1 and -3: absolute 4; Huber 1/2 and 3 - 1/2. A metric or loss of another kind is refused."""
    targets = torch.tensor([[3.0, -2.0], [NAN, NAN]], dtype=torch.float64)
    output = torch.tensor([[2.0, -3.0], [9.0, 9.0]])
    assert float(replace(REGRESSION, loss="mae").loss_sum(output, targets)) == 4
    assert float(replace(REGRESSION, loss="huber").loss_sum(output, targets)) == 3
    assert float(replace(REGRESSION, loss="mse").loss_sum(output, targets)) == 10
    with pytest.raises(ValueError, match="the loss is huber; expected cross_entropy for the task binary"):
        replace(BINARY, loss="huber")
    with pytest.raises(
        ValueError, match="the metric is roc_auc; expected rmse, mae, r2, spearman for the task regression"
    ):
        replace(REGRESSION, metric="roc_auc")


@pytest.mark.parametrize("task", [*TASKS, *LOSSES])
@pytest.mark.parametrize("wild", [NAN, float("inf"), 1e30])
def test_missing_labels_give_no_loss_and_no_gradient(task: Task, wild: float) -> None:
    """Even where the output is no number, the rows that have labels learn as if they were alone."""
    output, targets = random_case(task, 20)
    missing = torch.isnan(targets)
    spoiled = torch.where(missing, wild, output).requires_grad_()
    clean = output.clone().requires_grad_()
    torch.use_deterministic_algorithms(True)
    try:
        losses = [task.loss_sum(spoiled, targets), task.loss_sum(clean, targets)]
        torch.stack(losses).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(losses[0], losses[1])
    assert spoiled.grad is not None
    assert clean.grad is not None
    assert torch.equal(spoiled.grad, clean.grad)
    assert not spoiled.grad[missing.expand_as(output)].any()
    assert spoiled.grad[~missing.expand_as(output)].all()


@pytest.mark.parametrize("task", TASKS)
def test_no_labels_and_no_rows_have_zero_loss(task: Task) -> None:
    for rows in (0, 3):
        output = torch.zeros(rows, task.out_dim, requires_grad=True)
        targets = torch.full((rows, len(task.names)), NAN, dtype=torch.float64)
        loss = task.loss_sum(output, targets)
        loss.backward()
        assert float(loss.detach()) == 0
        assert task.label_count(targets) == 0
        assert output.grad is not None
        assert not output.grad.any()


@given(st.sampled_from(TASKS), st.integers(0, 12), st.integers(0, 9))
def test_sums_over_pieces_are_the_sum_over_all(task: Task, cut: int, seed: int) -> None:
    """What gradient accumulation and many processes rest on."""
    output, targets = random_case(task, 12, seed)
    pieces = [(output[:cut], targets[:cut]), (output[cut:], targets[cut:])]
    assert sum(task.label_count(t) for _, t in pieces) == task.label_count(targets)
    total = sum(float(task.loss_sum(o.double(), t)) for o, t in pieces)
    assert total == pytest.approx(float(task.loss_sum(output.double(), targets)), abs=1e-12)


@pytest.mark.parametrize("task", TASKS)
def test_half_precision_outputs_are_summed_in_float32(task: Task) -> None:
    output, targets = random_case(task, 400)
    half = output.bfloat16()
    loss = task.loss_sum(half, targets)
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(float(task.loss_sum(half.double(), targets)), rel=1e-5)


def test_predictions_are_in_natural_units() -> None:
    predictions = REGRESSION.predictions(torch.tensor([[1.0, 2.0]]))
    assert predictions.dtype == torch.float64
    assert predictions.tolist() == [[3.0, -1.0]]
    assert BINARY.predictions(torch.tensor([[0.0, math.log(3)]]))[0].tolist() == pytest.approx([0.5, 0.75])
    assert MULTICLASS.predictions(torch.tensor([[0.0, math.log(2), 0.0]]))[0].tolist() == pytest.approx(
        [0.25, 0.5, 0.25]
    )


def test_predictions_first_made_in_inference_mode_do_not_spoil_training() -> None:
    task = Task("regression", ("a",), None, (0.123,), (4.56,))
    with torch.inference_mode():
        task.predictions(torch.zeros(1, 1))
    output = torch.zeros(1, 1, requires_grad=True)
    task.loss_sum(output, column(4.683)).backward()
    assert output.grad is not None
    assert float(output.grad) == pytest.approx(-2)


def test_the_floor_knows_only_the_training_labels() -> None:
    targets = torch.tensor([[1.0, 0.0], [1.0, NAN], [0.0, NAN], [NAN, NAN]], dtype=torch.float64)
    assert BINARY.floor(targets, 2).tolist() == [[pytest.approx(2 / 3), pytest.approx(1 / 3)]] * 2
    assert REGRESSION.floor(targets, 1).tolist() == [[pytest.approx(2 / 3), 0.0]]
    assert MULTICLASS.floor(column(2, 2, NAN, 0, 1), 1).tolist() == [[0.25, 0.25, 0.5]]


def test_the_floor_is_never_certain() -> None:
    """Without a y among four labels, every class counts once more: 2, 1 and 4 of 7. Otherwise its cross entropy would
    be that of the smallest number there is."""
    targets = column(2, 2, NAN, 0, 2)
    assert MULTICLASS.floor(targets, 1)[0].tolist() == pytest.approx([2 / 7, 1 / 7, 4 / 7])
    assert metrics(MULTICLASS, MULTICLASS.floor(targets, 1), column(1))["cross_entropy"] == pytest.approx(math.log(7))
    assert MULTICLASS.unseen_classes(targets) == ["y"]
    assert MULTICLASS.unseen_classes(column(0, 1, 2)) == []
    assert BINARY.unseen_classes(torch.zeros(2, 2)) == []


def test_nan_never_wins() -> None:
    assert REGRESSION.is_better(1.0, None)
    assert REGRESSION.is_better(1.0, NAN)
    assert REGRESSION.is_better(1.0, 2.0)
    assert not REGRESSION.is_better(2.0, 1.0)
    assert BINARY.is_better(0.8, 0.7)
    assert not BINARY.is_better(0.7, 0.7)
    assert not BINARY.is_better(NAN, None)
