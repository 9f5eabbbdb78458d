"""Intervals hold what they promise, are wide where errors are large, and agree with what is worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokengt.training.conformal import Conformal, check_level, fewest, quantile, report
from tokengt.training.difficulty import FEWEST, Difficulty, Signs


def signs(*columns: np.ndarray) -> Signs:
    return Signs({f"sign {place}": column for place, column in enumerate(columns)})


def test_the_quantile_by_hand() -> None:
    nine = np.arange(1.0, 10.0)
    assert [quantile(nine, level) for level in (0.5, 0.8, 0.9)] == [5.0, 8.0, 9.0]
    assert math.isnan(quantile(nine, 0.95))  # ten more rows would be needed
    assert [fewest(level) for level in (0.5, 0.9, 0.95)] == [1, 9, 19]
    assert math.isnan(quantile(np.zeros(0), 0.5))


@pytest.mark.parametrize("level", [0.0, 1.0, 90.0, float("nan")])
def test_a_level_is_a_share(level: float) -> None:
    with pytest.raises(ValueError, match=r"the interval is .*; expected the share of labels"):
        check_level(level)


def test_where_all_rows_are_alike_it_is_plain_split_conformal() -> None:
    errors = np.random.default_rng(0).normal(size=(200, 1))
    same = signs(np.ones((200, 1)))
    half = Conformal.fit(same, errors).half_widths(same, 0.9)
    assert np.ptp(half) == 0
    # Scales of the fifths differ a little from that of all rows; the scores make up for it.
    assert half[0, 0] == pytest.approx(quantile(np.sort(np.abs(errors[:, 0])), 0.9), rel=0.1)


def rows_of_two_kinds(count: int, seed: int) -> tuple[Signs, np.ndarray]:
    """Errors that are eight times as large where the first sign is large; the second says nothing."""
    draw = np.random.default_rng(seed)
    tells, tells_nothing = draw.normal(size=(count, 1)), draw.normal(size=(count, 1))
    return signs(tells, tells_nothing), draw.normal(size=(count, 1)) * np.exp(tells)


def test_intervals_hold_what_they_promise_and_rank_errors() -> None:
    conformal = Conformal.fit(*rows_of_two_kinds(400, 0))
    new, errors = rows_of_two_kinds(4000, 1)
    for level in (0.5, 0.8, 0.9, 0.95):
        found = report(conformal.half_widths(new, level), errors, np.ones(1), level)
        assert found is not None
        assert found.coverage == pytest.approx(level, abs=0.04)
        assert found.rank_correlation > 0.5
    weights = conformal.difficulty.weights[0]
    assert weights[0] > 0.5 > 5 * abs(weights[1])


def test_mean_coverage_over_many_small_validation_parts() -> None:
    """Sixty rows each, as small endpoints have: the mean over parts is what is promised."""
    new, errors = rows_of_two_kinds(1000, 99)
    held = []
    for seed in range(60):
        conformal = Conformal.fit(*rows_of_two_kinds(60, seed), seed=seed)
        held.append(np.mean(np.abs(errors) <= conformal.half_widths(new, 0.9)))
    assert np.mean(held) == pytest.approx(0.9, abs=0.02)


def test_targets_have_their_own_intervals_and_missing_labels_count_for_nothing() -> None:
    both, errors = rows_of_two_kinds(300, 0)
    two = Signs({name: np.repeat(column, 2, 1) for name, column in both.columns.items()})
    errors = np.concatenate([errors, 100 * errors], 1)
    errors[::3, 1] = np.nan
    conformal = Conformal.fit(two, errors)
    assert [len(scores) for scores in conformal.scores] == [300, 200]
    alone = Conformal.fit(both, errors[:, :1])
    assert np.array_equal(conformal.half_widths(two, 0.9)[:, 0], alone.half_widths(both, 0.9)[:, 0])
    assert np.median(conformal.half_widths(two, 0.9)[:, 1]) > 50 * np.median(conformal.half_widths(two, 0.9)[:, 0])


def test_too_few_labels_teach_nothing_about_rows() -> None:
    few, errors = rows_of_two_kinds(FEWEST - 1, 0)
    difficulty = Difficulty.fit(few, errors)
    assert np.array_equal(difficulty.of(few), np.ones((FEWEST - 1, 1)))


def test_a_sign_that_is_not_known_speaks_for_nothing() -> None:
    known, errors = rows_of_two_kinds(200, 0)
    lost = Signs({**known.columns, "lost": np.full((200, 1), np.nan)})
    ours, without = Difficulty.fit(lost, errors), Difficulty.fit(known, errors)
    assert np.allclose(ours.of(lost), without.of(known))
    some = Signs({name: np.where(np.arange(200)[:, None] == 0, np.nan, each) for name, each in known.columns.items()})
    assert without.of(some)[0, 0] == pytest.approx(np.exp(without.offset[0]))


def test_signs_by_hand() -> None:
    told = Signs.of(np.array([[1.0, 4.0]]), np.array([2.0, 2.0]), np.array([1.0, 4.0]), spread=np.array([[1.0, 4.0]]))
    assert told.columns["prediction"].tolist() == [[-1.0, 0.5]]
    assert told.columns["extremeness"].tolist() == [[1.0, 0.5]]
    assert told.columns["spread"].tolist() == [[0.0, 0.0]]


@given(st.integers(1, 40), st.floats(0.02, 0.98))
def test_the_quantile_leaves_at_most_the_promised_share_outside(rows: int, level: float) -> None:
    scores = np.arange(rows, dtype=np.float64)
    found = quantile(scores, level)
    if not math.isnan(found):
        assert (scores <= found).sum() >= level * (rows + 1) - 1e-9
        assert rows >= fewest(level) or level * (rows + 1) <= rows + 1e-9


def test_a_report_of_nothing() -> None:
    blank = np.full((5, 1), np.nan)
    assert report(np.ones((5, 1)), blank, np.ones(1), 0.9) is None
    same = report(np.ones((5, 1)), np.array([[0.5], [0.5], [2.0], [0.1], [0.2]]), np.array([2.0]), 0.9)
    assert same is not None
    assert (same.coverage, same.width, same.rank_correlation) == (0.8, 1.0, 0.0)
