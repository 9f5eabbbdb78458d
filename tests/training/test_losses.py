"""Losses of numbers: by hand, without labels, and what a model that tells its own variance learns."""

import math

import pytest
import torch

from tokengt.training.losses import REGRESSION_LOSSES
from tokengt.training.tasks import Task


def task(loss: str, targets: int = 1) -> Task:
    names = tuple(f"y{place}" for place in range(targets))
    return Task("regression", names, None, (10.0,) * targets, (2.0,) * targets, loss=loss)


def test_a_mean_and_a_variance_by_hand() -> None:
    # Scaled, the label is 1 and the prediction 0.5; the variance is e^1, so the deviation, which weighs it, e^0.5.
    gaussian = task("gaussian")
    output = torch.tensor([[0.5, 1.0]], dtype=torch.float64)
    surprise = (0.25 / math.e + 1.0) / 2
    loss = gaussian.loss_sum(output, torch.tensor([[12.0]]))
    assert float(loss) == pytest.approx(surprise * math.exp(0.5))
    assert gaussian.out_dim == 2
    assert gaussian.width == 1
    assert gaussian.predictions(output).tolist() == [[11.0]]
    variances = gaussian.variances(output)
    assert variances is not None
    assert variances.tolist() == [[pytest.approx(4 * math.e)]]


def test_outputs_of_several_targets_come_one_kind_after_another() -> None:
    both = task("gaussian", 2)
    assert both.out_dim == 4
    output = torch.tensor([[0.0, 1.0, 0.0, 2.0]])
    assert both.predictions(output).tolist() == [[10.0, 12.0]]
    variances = both.variances(output)
    assert variances is not None
    assert variances[0].tolist() == pytest.approx([4.0, 4 * math.exp(2)])


@pytest.mark.parametrize("loss", list(REGRESSION_LOSSES))
def test_a_missing_label_has_neither_loss_nor_gradient(loss: str) -> None:
    both = task(loss, 2)
    output = torch.randn(3, both.out_dim, generator=torch.Generator().manual_seed(0)).double()
    output[1] = float("inf")
    output.requires_grad_()
    targets = torch.tensor([[1.0, float("nan")], [float("nan")] * 2, [3.0, 4.0]])
    value = both.loss_sum(output, targets)
    value.backward()
    assert torch.isfinite(value)
    assert output.grad is not None
    blank = output.grad.reshape(3, -1, 2)
    assert blank[1].abs().sum() == 0
    assert blank[0, :, 1].abs().sum() == 0
    assert (blank[2, 0] != 0).all()
    # The others alone give the same.
    alone = both.loss_sum(output[[0, 2]].detach(), targets[[0, 2]])
    assert float(value.detach()) == pytest.approx(float(alone))


def test_extreme_variances_stay_finite() -> None:
    output = torch.tensor([[0.0, 1e6], [0.0, -1e6]], requires_grad=True)
    loss = task("gaussian").loss_sum(output, torch.tensor([[12.0], [12.0]]))
    loss.backward()
    assert torch.isfinite(loss)
    assert output.grad is not None
    assert torch.isfinite(output.grad).all()


def test_the_variance_learns_where_labels_are_uncertain() -> None:
    """Two kinds of rows, whose labels scatter by 0.1 and by 2: their predicted deviations come near these."""
    draw = torch.Generator().manual_seed(0)
    kind = torch.arange(400) % 2
    labels = 10 + 2 * torch.randn(400, 1, generator=draw) * torch.where(kind == 1, 2.0, 0.1)[:, None]
    weights = torch.zeros(2, 2, requires_grad=True)
    gaussian = task("gaussian")
    optimiser = torch.optim.Adam([weights], lr=0.1)
    for _ in range(250):
        optimiser.zero_grad()
        (gaussian.loss_sum(weights[kind], labels) / 400).backward()
        optimiser.step()
    variances = gaussian.variances(weights.detach())
    assert variances is not None
    assert variances.sqrt()[:, 0].tolist() == pytest.approx([0.2, 4.0], rel=0.15)


def test_a_quantile_is_where_that_share_of_the_labels_lies_below() -> None:
    labels = torch.linspace(0, 1, 101, dtype=torch.float64)[:, None]
    plain = Task("regression", ("y",), loss="quantile", quantile=0.8)
    losses = [float(plain.loss_sum(torch.full((101, 1), float(guess)), labels)) for guess in labels[:, 0]]
    assert float(labels[losses.index(min(losses)), 0]) == pytest.approx(0.8)
    assert float(plain.loss_sum(torch.tensor([[0.0]]), torch.tensor([[1.0]]))) == pytest.approx(0.8)
    assert float(plain.loss_sum(torch.tensor([[1.0]]), torch.tensor([[0.0]]))) == pytest.approx(0.2)


@pytest.mark.parametrize("loss", list(REGRESSION_LOSSES))
def test_a_bound_pulls_only_from_its_wrong_side(loss: str) -> None:
    """The label is >12 (scaled: 1); predictions of 0 and 2 are below and above. The other is <12."""
    bounded = Task("regression", ("y",), None, (10.0,), (2.0,), loss=loss, bounded=True)
    nan = float("nan")
    output = torch.zeros(2, bounded.out_dim, dtype=torch.float64)
    output[1, 0] = 2.0
    output.requires_grad_()
    below, above = torch.tensor([[nan, 12.0, nan]] * 2), torch.tensor([[nan, nan, 12.0]] * 2)
    exact = torch.tensor([[12.0, nan, nan]] * 2)
    for table, wrong in ((below, 0), (above, 1)):
        value = bounded.loss_sum(output, table)
        (slope,) = torch.autograd.grad(value, output)
        assert slope[1 - wrong].abs().sum() == 0
        assert slope[wrong, 0] != 0
        # From its wrong side a bound is a label.
        assert float(value.detach()) == pytest.approx(float(bounded.loss_sum(output[[wrong]], exact[[wrong]]).detach()))
    assert bounded.label_count(below) == bounded.label_count(exact) == 2
    assert bounded.label_count(torch.full((2, 3), nan)) == 0


def test_rows_and_targets_count_as_they_are_told() -> None:
    weighted = Task("regression", ("a", "b"), weighted=True, target_weights=(1.0, 3.0))
    output = torch.tensor([[1.0, 1.0], [2.0, 2.0]])
    table = torch.tensor([[0.0, 0.0, 2.0], [0.0, float("nan"), 0.5]])
    # Squares 1 and 1 of the first row, 4 of the second.
    assert float(weighted.loss_sum(output, table)) == pytest.approx(2 * (1 + 3 * 1) + 0.5 * 4)
    # A row of another part is blank, its weight too, and counts nothing.
    blank = torch.full((1, 3), float("nan"))
    assert float(weighted.loss_sum(output[:1], blank)) == 0


def test_classes_count_alike_when_they_are_balanced() -> None:
    labels = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, float("nan")]])
    plain = Task("binary", ("a", "b"))
    weights = plain.balanced(labels)
    assert weights == pytest.approx((4 / 6, 3 / 4, 4 / 2, 3 / 2))
    balanced = Task("binary", ("a", "b"), class_weights=weights)
    said = torch.zeros(4, 2, dtype=torch.float64)
    # Without knowing anything every label costs log 2: as much as before in all, half of it for each class.
    assert float(balanced.loss_sum(said, labels)) == pytest.approx(float(plain.loss_sum(said, labels)))
    positive = torch.where(labels == 1, labels, float("nan"))
    assert float(balanced.loss_sum(said, positive)) == pytest.approx(7 * math.log(2) / 2)
    kinds = Task("multiclass", ("kind",), ("x", "y", "z"))
    column = torch.tensor([[0.0], [0.0], [1.0], [float("nan")]])
    assert kinds.balanced(column) == pytest.approx((3 / 6, 3 / 3, 1.0))
    weighed = Task("multiclass", ("kind",), ("x", "y", "z"), class_weights=kinds.balanced(column))
    logits = torch.zeros(4, 3, dtype=torch.float64)
    assert float(weighed.loss_sum(logits, column)) == pytest.approx((0.5 + 0.5 + 1) * math.log(3))
    with pytest.raises(ValueError, match="classes count alike"):
        task("mse").balanced(labels)


def test_class_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="class_weights are 1 numbers; expected 2"):
        Task("binary", ("a",), class_weights=(1.0,))
    with pytest.raises(ValueError, match="cannot be a bound"):
        Task("binary", ("a",), bounded=True)
