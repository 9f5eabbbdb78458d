"""Probabilities that are too certain are set right, their order stays, and few labels change little."""

import numpy as np
import pytest
import torch

from tokengt.training.probabilities import ProbabilityMap, curve, mean_error, outcomes


def drawn(count: int, seed: int, certain: float) -> tuple[np.ndarray, np.ndarray]:
    """Chances whose logits are ``certain`` times those by which the labels were drawn."""
    draw = np.random.default_rng(seed)
    logits = draw.normal(size=(count, 1)) * 2
    labels = (draw.random((count, 1)) < 1 / (1 + np.exp(-logits))).astype(float)
    return 1 / (1 + np.exp(-certain * logits)), labels


@pytest.mark.parametrize("certain", [0.5, 1.0, 3.0])
def test_the_slope_is_found(certain: float) -> None:
    found = ProbabilityMap.fit_binary(*drawn(5000, 0, certain))
    assert found.slope[0] == pytest.approx(1 / certain, rel=0.12)
    assert found.offset[0] == pytest.approx(0, abs=0.1)
    chances, labels = drawn(5000, 1, certain)
    after = found.apply(chances)
    assert mean_error(after, labels) < max(0.03, mean_error(chances, labels) / 3)
    assert np.array_equal(np.argsort(after[:, 0]), np.argsort(chances[:, 0]))


def test_few_labels_change_little_and_one_class_nothing() -> None:
    chances, labels = drawn(4, 0, 3.0)
    assert abs(ProbabilityMap.fit_binary(chances, labels).slope[0] - 1) < 0.4
    same = ProbabilityMap.fit_binary(chances, np.ones((4, 1)))
    assert (same.slope.tolist(), same.offset.tolist()) == ([1.0], [0.0])
    assert np.allclose(same.apply(chances), chances)
    blank = ProbabilityMap.fit_binary(chances, np.full((4, 1), np.nan))
    assert blank.slope.tolist() == [1.0]


def test_a_model_that_is_wrong_is_not_turned_around() -> None:
    chances, labels = drawn(500, 0, 1.0)
    assert ProbabilityMap.fit_binary(chances, 1 - labels).slope[0] == 1.0


def test_targets_are_calibrated_apart_and_missing_labels_left_out() -> None:
    certain, labels = drawn(2000, 0, 3.0)
    timid, _ = drawn(2000, 0, 0.5)
    both = np.concatenate([certain, timid], 1)
    labels = np.concatenate([labels, labels], 1)
    labels[::2, 0] = np.nan
    found = ProbabilityMap.fit_binary(both, labels)
    assert found.slope[0] < 0.5 < 1.5 < found.slope[1]
    rows = np.array([[np.nan, 0.5], [0.0, 1.0]])
    after = found.apply(rows)
    assert np.isnan(after[0, 0])
    assert np.isfinite(after[1]).all()


def test_one_slope_for_several_classes() -> None:
    draw = np.random.default_rng(0)
    logits = draw.normal(size=(4000, 3)) * 2
    true = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = np.array([draw.choice(3, p=row) for row in true], dtype=float)
    certain = np.exp(2 * logits) / np.exp(2 * logits).sum(1, keepdims=True)
    found = ProbabilityMap.fit_classes(certain, labels)
    assert found.slope[0] == pytest.approx(0.5, rel=0.1)
    after = found.apply(certain)
    assert np.allclose(after.sum(1), 1)
    assert np.array_equal(after.argmax(1), certain.argmax(1))
    assert np.allclose(after, true, atol=0.06)
    assert mean_error(after, labels[:, None]) < mean_error(certain, labels[:, None]) / 3


def test_the_curve_by_hand() -> None:
    found = curve(np.array([0.05, 0.05, 0.72, 0.78, 1.0]), np.array([0.0, 1.0, 1.0, 1.0, np.nan]))
    assert found.told.tolist() == pytest.approx([0.05, 0.75])
    assert found.seen.tolist() == [0.5, 1.0]
    assert found.rows.tolist() == [2.0, 2.0]
    assert found.error == pytest.approx((2 * 0.45 + 2 * 0.25) / 4)
    assert np.isnan(curve(np.zeros(0), np.zeros(0)).error)


def test_of_classes_the_likeliest_counts() -> None:
    ((told, held),) = outcomes(np.array([[0.2, 0.7, 0.1], [0.5, 0.3, 0.2]]), np.array([[1.0], [2.0]]))
    assert told.tolist() == [0.7, 0.5]
    assert held.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("classes", [False, True])
def test_the_readable_way_gives_the_same(classes: bool) -> None:
    """What an explanation follows back to atoms is the probability that predict gives."""
    chances = np.random.default_rng(0).dirichlet(np.ones(3), 20)
    chances[0] = [0.0, 0.0, 1.0]
    found = (
        ProbabilityMap(np.array([0.7]), np.zeros(1)) if classes else ProbabilityMap(*np.ones((2, 3)) * [[0.7], [0.2]])
    )
    given = torch.from_numpy(chances).requires_grad_()
    told = found.readable(given)
    assert np.allclose(told.detach().numpy(), found.apply(chances), atol=1e-12)
    (slope,) = torch.autograd.grad(told[1:, 0].sum(), given)
    assert torch.isfinite(slope).all()
    assert (slope[1:, 0] > 0).all()
