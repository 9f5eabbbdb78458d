"""Errors by groups and calibration, worked out by hand."""

import numpy as np
import pytest

from tokengt.explain.errors import by_name, by_size, calibration_error, coverage, group_of, reliability


def test_a_group_has_its_mean_and_interval() -> None:
    group = group_of("all", np.array([1.0, 3.0]))
    # The standard deviation is sqrt 2, and that of the mean of two rows is 1.
    assert (group.rows, group.error, group.half_width) == (2, 2.0, pytest.approx(1.96))
    assert np.isnan(group_of("one", np.array([1.0])).half_width)


def test_sizes_are_cut_into_ranges_that_miss_no_row() -> None:
    sizes = np.array([1, 1, 2, 5, 5, 5, 9, 30])
    groups = by_size(np.arange(8.0), sizes, most=4)
    assert sum(group.rows for group in groups) == 8
    assert [group.name for group in groups] == ["1", "2 to 5", "6 to 30"]
    assert groups[1].error == np.mean([2, 3, 4, 5])
    assert [group.name for group in by_size(np.ones(3), np.array([7, 7, 7]))] == ["7"]
    assert by_size(np.zeros(0), np.zeros(0, dtype=np.int64)) == []


def test_names_are_sorted_by_how_many_rows_have_them() -> None:
    members = {"N": np.array([True, False, False]), "C": np.array([True, True, True])}
    assert [(group.name, group.error) for group in by_name(np.array([3.0, 0.0, 0.0]), members)] == [("C", 1), ("N", 3)]
    assert [group.name for group in by_name(np.ones(3), members, fewest=2)] == ["C"]


def test_intervals_of_the_right_width_hold_their_share() -> None:
    errors = np.random.default_rng(0).normal(size=20_000)
    assert calibration_error(coverage(errors, np.ones(20_000))) < 0.01
    # Half of the 1.96 deviations that 95% are claimed for hold erf(0.98 / sqrt 2) = 67.3% of the labels.
    narrow = {round(point.claimed, 2): point.found for point in coverage(errors, np.full(20_000, 0.5))}
    assert narrow[0.95] == pytest.approx(0.673, abs=0.01)
    # Whoever claims to be certain and is not is always wrong; whoever is right is always right.
    assert {point.found for point in coverage(np.array([1.0, 0.0]), np.zeros(2))} == {0.5}


def test_reliability_counts_what_happened() -> None:
    curve = reliability(np.array([0.1, 0.15, 0.9, 1.0]), np.array([False, True, True, True]))
    assert [(point.claimed, point.found, point.rows) for point in curve] == [
        (pytest.approx(0.125), 0.5, 2),
        (pytest.approx(0.95), 1.0, 2),
    ]
    assert calibration_error(curve) == pytest.approx((0.375 + 0.05) / 2)
