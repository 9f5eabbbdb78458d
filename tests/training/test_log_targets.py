"""Where a target is positive and very skewed, such as a half-life, its logarithm is learned."""

import json
import math

import pytest
import torch
from torch import Tensor

from tokengt.config import from_dict, to_dict
from tokengt.training.config import TrainingConfig
from tokengt.training.request import TrainRequest
from tokengt.training.tasks import Task

NAN = float("nan")


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


# Two half-lives in a hundred are a thousand hours: skewness 6.9, of the logarithms 0.
SKEWED = column(*[math.exp(place / 10) for place in range(-49, 50)], 1e3)
EVEN = column(*map(float, range(1, 101)))


def fitted(targets: Tensor, logs: str = "auto") -> Task:
    names = [f"y{place}" for place in range(targets.shape[1])]
    return Task.fit("regression", targets, names).with_logs(targets, logs)  # type: ignore[arg-type]


def test_one_to_e_squared_by_hand() -> None:
    """Logarithms 0, 1 and 2 have mean 1 and variance 2/3; the label e is the mean, and so is an output of zero."""
    labels = column(1.0, math.e, math.e**2)
    task = fitted(labels, "always")
    assert task.log_mean == pytest.approx((1.0,))
    assert task.log_scale == pytest.approx((math.sqrt(2 / 3),))
    assert task.predictions(column(0.0)).item() == pytest.approx(math.e)
    assert task.predictions(column(math.sqrt(3 / 2))).item() == pytest.approx(math.e**2)
    # Squared errors of the scaled logarithm: 3/2 at both ends, 0 in the middle.
    assert float(task.loss_sum(column(0.0, 0.0, 0.0), labels)) == pytest.approx(3.0)
    # What others read as the scale of labels stays theirs.
    assert task.mean == pytest.approx((float(labels.mean()),))


def test_auto_takes_the_logarithm_of_what_is_positive_and_skewed_alone() -> None:
    task = fitted(torch.cat([SKEWED, EVEN, SKEWED - 2, -SKEWED], 1))
    assert task.logged == ("y0",)
    assert [scale > 0 for scale in task.log_scale] == [True, False, False, False]
    assert fitted(EVEN) == Task.fit("regression", EVEN, ["y0"])
    assert fitted(SKEWED, "never").logged == ()


def test_a_target_beside_it_is_learned_as_before() -> None:
    both = torch.cat([SKEWED, EVEN], 1)
    task, alone = fitted(both), Task.fit("regression", EVEN, ["y1"])
    output = torch.randn(100, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.equal(task.predictions(output)[:, 1:], alone.predictions(output[:, 1:]))
    blank = both.clone()
    blank[:, 0] = NAN
    assert float(task.loss_sum(output, blank)) == pytest.approx(float(alone.loss_sum(output[:, 1:], EVEN)))


def test_labels_of_other_parts_and_wild_outputs_stay_finite() -> None:
    """A validation label of zero has no logarithm; an output that has run away has no exponential."""
    task = fitted(SKEWED)
    assert math.isfinite(float(task.loss_sum(column(0.0, 0.0), column(0.0, -3.0))))
    assert torch.isfinite(task.predictions(column(1e6, -1e6))).all()
    assert (task.predictions(column(-1e6)) > 0).all()


def test_missing_labels_teach_nothing() -> None:
    task = fitted(SKEWED)
    output = column(0.3, -0.7).requires_grad_()
    task.loss_sum(output, column(NAN, 2.0)).backward()
    assert output.grad is not None
    assert output.grad[0].item() == 0
    assert output.grad[1].item() != 0


def test_predictions_and_labels_are_each_others_inverse() -> None:
    """An output that equals the scaled label has no loss, and its prediction is the label."""
    task = fitted(SKEWED)
    output = (SKEWED.log() - task.log_mean[0]) / task.log_scale[0]
    assert float(task.loss_sum(output, SKEWED)) == pytest.approx(0, abs=1e-12)
    torch.testing.assert_close(task.predictions(output), SKEWED)


def test_a_deviation_of_the_logarithm_is_a_relative_one_of_the_number() -> None:
    task = Task("regression", ("y",), None, (2.0,), (3.0,), loss="gaussian", log_mean=(0.0,), log_scale=(0.5,))
    output = torch.tensor([[2.0, math.log(0.04)]], dtype=torch.float64)  # The number e, 0.2 deviations of 0.5 off.
    variance = task.variances(output)
    assert variance is not None
    assert variance.item() == pytest.approx((0.2 * 0.5 * math.e) ** 2)


def test_bounds_are_bounds_of_the_logarithm() -> None:
    task = Task("regression", ("y",), None, (2.0,), (3.0,), bounded=True, log_mean=(0.0,), log_scale=(1.0,))
    above_e = torch.tensor([[NAN, math.e, NAN]], dtype=torch.float64)
    assert float(task.loss_sum(column(1.5), above_e)) == 0
    assert float(task.loss_sum(column(0.0), above_e)) == pytest.approx(1.0)


def test_what_has_no_logarithm_is_refused_where_it_is_asked_for() -> None:
    with pytest.raises(ValueError, match=r"target 'y0' holds -2; expected numbers above 0"):
        fitted(column(1.0, -2.0), "always")
    with pytest.raises(ValueError, match="log_targets is 'perhaps'; expected one of auto, always, never"):
        TrainRequest(settings={"training.log_targets": "perhaps"})
    with pytest.raises(ValueError, match="one number per target each"):
        Task("regression", ("y",), log_mean=(0.0,))
    with pytest.raises(ValueError, match="log_scale 0 or more"):
        Task("regression", ("y",), log_mean=(0.0,), log_scale=(-1.0,))


def test_a_task_from_before_there_were_logarithms_is_written_as_it_was() -> None:
    assert not {"log_mean", "log_scale"} & to_dict(fitted(EVEN)).keys()
    task = fitted(SKEWED)
    assert from_dict(Task, json.loads(json.dumps(to_dict(task)))) == task
    assert "log_targets" not in to_dict(TrainingConfig())
