"""Ranks, wins and paired intervals of the benchmark, worked out by hand."""

import math

import numpy as np
import pytest

from tokengt.experiments.admet.endpoints import ENDPOINTS
from tokengt.experiments.admet.statistics import (
    Difference,
    EndpointScores,
    mean_ranks,
    often_measured,
    over_seeds,
    ranks,
    scored,
    wins,
)
from tokengt.workflow.comparing_statistics import Interval

HERG, CACO = ENDPOINTS["herg"], ENDPOINTS["caco2_wang"]


def test_the_best_has_rank_1_and_equal_means_share_their_ranks() -> None:
    means = {"a": 0.7, "b": 0.9, "c": 0.7, "d": 0.1}
    assert ranks(HERG, means) == {"a": 2.5, "b": 1.0, "c": 2.5, "d": 4.0}
    assert ranks(CACO, means) == {"a": 2.5, "b": 4.0, "c": 2.5, "d": 1.0}


def test_mean_ranks_are_over_the_endpoints_that_all_systems_have() -> None:
    dili, ames = ENDPOINTS["dili"], ENDPOINTS["ames"]
    means = {
        HERG: {"a": 0.7, "b": 0.9},  # b, a
        CACO: {"a": 0.3, "b": 0.3},  # shared
        dili: {"a": 0.8},  # b is missing
        ames: {"a": 0.8, "b": math.nan},
    }
    assert mean_ranks(means, ["a", "b"]) == ({"a": 1.75, "b": 1.25}, 2)
    assert mean_ranks(means, ["a", "c"]) == ({}, 0)
    # Of four endpoints b has two numbers, which is half of them, and c none.
    assert often_measured(means, ["a", "b", "c"]) == ["a", "b"]
    assert often_measured({**means, ENDPOINTS["bbb_martins"]: {"a": 0.1}}, ["a", "b"]) == ["a"]


def test_a_difference_counts_as_a_win_only_where_its_interval_does_not_hold_zero() -> None:
    def at(low: float, high: float) -> EndpointScores:
        return EndpointScores({}, {("a", "b"): Difference(Interval((low + high) / 2, low, high), 5)})

    scores = {"herg": at(0.01, 0.1), "ames": at(-0.01, 0.2), "dili": at(-0.3, -0.1), "bbb_martins": at(0.0, 0.2)}
    assert wins(scores, "a", "b") == {"ahead": 1, "level": 2, "behind": 1}


def test_errors_that_are_smaller_on_every_row_put_a_system_ahead() -> None:
    """MAE: less is better, and the difference is above zero for the better system, by the same amount on any rows."""
    labels = np.arange(20.0)
    systems = {"good": {0: labels + 1, 1: labels + 1}, "bad": {0: labels + 3, 1: labels - 3}}
    found = scored(CACO, labels, systems, draws=50)
    assert found.systems["good"].mean == 1.0
    assert found.systems["bad"].values == {0: 3.0, 1: 3.0}
    assert found.systems["bad"].std == 0.0
    ahead = found.differences["good", "bad"]
    assert ahead.interval == Interval(2.0, 2.0, 2.0)
    assert (ahead.verdict, ahead.seeds) == ("ahead", 2)
    assert found.differences["bad", "good"].interval == Interval(-2.0, -2.0, -2.0)


def test_systems_that_say_the_same_are_level_and_only_common_seeds_are_paired() -> None:
    generator = np.random.default_rng(0)
    labels = (np.arange(40) % 2).astype(float)
    told = {seed: generator.random(40) for seed in range(3)}
    found = scored(HERG, labels, {"a": told, "b": {1: told[1]}, "c": {7: told[0]}}, draws=50)
    assert found.differences["a", "b"].interval == Interval(0.0, 0.0, 0.0)
    assert (found.differences["a", "b"].verdict, found.differences["a", "b"].seeds) == ("level", 1)
    assert ("a", "c") not in found.differences
    assert found.systems["b"].std is None


def test_seeds_are_drawn_again_too() -> None:
    """Two seeds with the differences 0 and 1 on all rows: the mean of two drawn ones is 0, 1/2 or 1 as 1 to 2 to 1."""
    drawn = over_seeds(np.tile([0.0, 1.0], (4000, 1)), seed=0)
    shares = [float((drawn == value).mean()) for value in (0.0, 0.5, 1.0)]
    assert shares == pytest.approx([0.25, 0.5, 0.25], abs=0.03)
    assert (over_seeds(np.arange(4.0)[:, None], seed=0) == np.arange(4.0)).all()
