import math
from contextlib import suppress

import pytest
import torch
from torch import nn

from tokengt.training.config import TrainingConfig
from tokengt.training.optim import MovingAverage, clip_flat, make_optimizer, rate_at, set_rate


@pytest.mark.parametrize(
    ("schedule", "progress", "share"),
    [
        ("cosine", 0.0, 0.0),
        ("cosine", 0.05, 0.25),
        ("cosine", 0.2, 1.0),
        ("cosine", 0.6, 0.5),
        ("cosine", 0.4, 0.5 * (1 + math.sqrt(0.5))),
        ("cosine", 1.0, 0.0),
        ("linear", 0.1, 0.5),
        ("linear", 0.4, 0.75),
        ("linear", 1.0, 0.0),
        ("constant", 0.1, 0.5),
        ("constant", 1.0, 1.0),
    ],
)
def test_the_rate_rises_in_a_line_and_falls_by_its_schedule(schedule: str, progress: float, share: float) -> None:
    config = TrainingConfig(learning_rate=0.01, warmup=0.2, schedule=schedule)  # type: ignore[arg-type]
    assert rate_at(progress, config) == pytest.approx(0.01 * share, abs=1e-17)


def test_without_warmup_the_first_rate_is_the_peak() -> None:
    assert rate_at(0.0, TrainingConfig(learning_rate=0.5, warmup=0.0)) == 0.5


def test_adamw_as_asked_for() -> None:
    weight = nn.Parameter(torch.tensor([2.0]))
    config = TrainingConfig(learning_rate=0.1, weight_decay=0.5, beta2=0.9)
    optimizer = make_optimizer([weight], config)
    weight.grad = torch.tensor([3.0])
    set_rate(optimizer, 0.01)
    optimizer.step()
    # Decay 2 (1 - 0.01 x 0.5); the first step of Adam is the rate times the gradient's sign.
    assert weight.item() == pytest.approx(2 * (1 - 0.005) - 0.01, rel=1e-6)
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.9)


def test_the_average_by_hand() -> None:
    weight = nn.Parameter(torch.tensor([0.0]))
    average = MovingAverage([weight], 0.5)
    with torch.no_grad():
        weight.fill_(10.0)
    average.update(0)  # The decay is 1/10.
    assert float(average.values[0]) == pytest.approx(9.0)
    average.update(100)  # The decay is min(0.5, 101/110).
    assert float(average.values[0]) == pytest.approx(9.5)


def test_the_weights_come_back_after_the_block_whatever_happens() -> None:
    weight = nn.Parameter(torch.tensor([1.0, 2.0]))
    average = MovingAverage([weight], 0.9)
    with torch.no_grad():
        weight.add_(5.0)
    with suppress(KeyError), average.swapped_in():
        assert weight.tolist() == [1.0, 2.0]
        raise KeyError
    assert weight.tolist() == [6.0, 7.0]
    assert average.values[0].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("epochs", -1, "training.epochs is -1; expected 0 or more"),
        ("ema", 1.0, "training.ema is 1.0; expected 0 or more and below 1"),
        ("warmup", 1.0, "training.warmup is 1.0"),
        ("learning_rate", math.nan, "training.learning_rate is nan"),
        ("batch_size", 0, "batch_size is 0; expected at least 1"),
        ("accumulate", 0, "accumulate is 0"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(field: str, value: float, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        TrainingConfig(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("most", [0.1, 1.0, 100.0])
def test_gradients_in_one_tensor_are_clipped_as_torch_clips_them(most: float) -> None:
    flat = torch.randn(50, dtype=torch.float64)
    parameters = [
        nn.Parameter(torch.zeros(20, dtype=torch.float64)),
        nn.Parameter(torch.zeros(30, dtype=torch.float64)),
    ]
    for parameter, part in zip(parameters, flat.clone().split([20, 30]), strict=True):
        parameter.grad = part
    nn.utils.clip_grad_norm_(parameters, most)
    clip_flat(flat, most)
    torch.testing.assert_close(flat, torch.cat([p.grad for p in parameters if p.grad is not None]), rtol=1e-12, atol=0)


def test_the_average_by_a_weight_that_lies_on_the_device() -> None:
    one, two = (
        MovingAverage([nn.Parameter(torch.tensor([1.0, 5.0]).double()), nn.Parameter(torch.tensor(3.0).double())], 0.2)
        for _ in range(2)
    )
    for step in range(4):
        for average in (one, two):
            with torch.no_grad():
                for parameter in average.parameters:
                    parameter.mul_(2).sub_(step)
        one.update(step)
        two.update_by(torch.tensor(two.weight(step), dtype=torch.float64))
    torch.testing.assert_close(one.values, two.values, rtol=1e-14, atol=0)


def test_a_rate_that_lies_on_the_device_is_written_there() -> None:
    """A recording reads it from its place, so that this tensor must stay the same one."""
    rate = torch.tensor(0.5)
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(()))], lr=rate)
    set_rate(optimizer, 0.25)
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == 0.25
    set_rate(optimizer, torch.tensor(0.125, dtype=torch.float64))
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == 0.125
