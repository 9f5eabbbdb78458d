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
