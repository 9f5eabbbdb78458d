"""Intervals of differences, worked out by hand."""

import math

import numpy as np
import pytest

from tokengt.workflow.comparing_statistics import (
    Interval,
    best_of,
    bootstrap,
    percentile_interval,
    t_interval,
    verdict,
)


def test_the_interval_of_paired_differences_is_students() -> None:
    """Differences 1, 2, 3: mean 2, standard deviation 1; t of 2 degrees of freedom is 4.3027 at 97.5%."""
    interval = t_interval([1.0, 2.0, 3.0])
    assert interval is not None
    half = 4.302652729911275 / math.sqrt(3)
    assert (interval.centre, interval.low, interval.high) == pytest.approx((2.0, 2 - half, 2 + half), rel=1e-9)
    assert interval.holds_zero
    alike = t_interval([2.0, 2.0])
    assert alike == Interval(2.0, 2.0, 2.0)
    assert not alike.holds_zero
    assert t_interval([1.0]) is None


def test_splits_that_overlap_have_the_wider_interval_of_nadeau_and_bengio() -> None:
    """Ten splits of 80% to 10%: the variance of the mean is (1/10 + 1/8) of the differences', not 1/10."""
    values = [0.1, 0.3, 0.2, 0.25, 0.15, 0.2, 0.1, 0.3, 0.2, 0.2]
    plain, corrected = t_interval(values), t_interval(values, overlap=1 / 8)
    assert plain is not None
    assert corrected is not None
    assert corrected.centre == plain.centre == pytest.approx(0.2)
    # The squares of the deviations are 2 * 0.01 + 2 * 0.01 + 2 * 0.0025 = 0.045; t of 9 degrees is 2.262157.
    assert plain.high - 0.2 == pytest.approx(2.2621571628 * math.sqrt(0.045 / 9 / 10), rel=1e-9)
    assert corrected.high - 0.2 == pytest.approx(2.2621571628 * math.sqrt(0.045 / 9 * (1 / 10 + 1 / 8)), rel=1e-9)


def test_the_same_rows_are_drawn_for_every_system() -> None:
    """Errors that differ by exactly one in every row have a difference of one in every draw, whatever their spread."""
    errors = np.array([0.0, 5.0, -3.0, 12.0, 7.0])
    drawn = bootstrap([lambda rows: float(errors[rows].mean()), lambda rows: float((errors[rows] + 1).mean())], ORDER)
    assert drawn.shape == (1000, 2)
    assert np.ptp(drawn[:, 0]) > 5
    apart = percentile_interval(1.0, drawn[:, 1] - drawn[:, 0])
    assert apart is not None
    assert (apart.low, apart.high) == pytest.approx((1.0, 1.0))


ORDER = np.arange(5)


def test_the_bootstrap_of_a_mean_has_its_standard_error() -> None:
    """400 rows of variance 1: the mean of a draw has the standard deviation 1/20, its interval is 1.96 of them."""
    values = np.resize([-1.0, 1.0], 400)
    drawn = bootstrap([lambda rows: float(values[rows].mean())], np.arange(400), draws=4000, seed=1)
    interval = percentile_interval(0.0, drawn[:, 0])
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((-1.96 / 20, 1.96 / 20), rel=0.06)


def test_rows_of_one_graph_are_drawn_together() -> None:
    """Two graphs of three and one node: a draw is two graphs, so it has 6, 4 or 2 rows, and always whole graphs."""
    seen: set[tuple[int, ...]] = set()

    def measure(rows: np.ndarray) -> float:  # type: ignore[type-arg]
        seen.add(tuple(sorted(rows.tolist())))
        return 0.0

    bootstrap([measure], np.array([7, 7, 7, 9]))
    assert seen == {(0, 0, 1, 1, 2, 2), (0, 1, 2, 3), (3, 3)}


def test_draws_without_a_metric_are_left_out_unless_they_are_most() -> None:
    drawn = np.array([1.0, 2.0, 3.0, math.nan])
    interval = percentile_interval(2.0, drawn)
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((1.05, 2.95))
    assert percentile_interval(2.0, np.array([1.0, math.nan, math.nan, math.nan])) is None


def test_no_winner_is_named_where_an_interval_holds_zero() -> None:
    clear, unclear = Interval(1.0, 0.5, 1.5), Interval(1.0, -0.1, 2.1)
    assert verdict("a", {"b": clear, "c": Interval(2.0, 1.0, 3.0)}).startswith("a is better than every other system")
    mixed = verdict("a", {"b": clear, "c": unclear, "d": None})
    assert mixed.startswith("No winner: a has the best mean")
    assert mixed.endswith("for c, d.")
    assert verdict("a", {}) == "No winner: a is the only system with a result."
    assert verdict(None, {}) == "No winner: no system has a result."
    assert Interval(0.0, 0.0, 1.0).holds_zero
    assert Interval(math.nan, math.nan, math.nan).holds_zero


def test_the_best_is_the_lowest_error_or_the_highest_score() -> None:
    means = {"a": 1.0, "b": 0.5, "c": math.nan, "d": 0.5}
    assert best_of(means, higher=False) == "b"
    assert best_of(means, higher=True) == "a"
    assert best_of({"c": math.nan}, higher=True) is None
