"""Errors against sharpness: a straight line in the logarithm until float64 ends it."""

import math
from collections.abc import Callable

import pytest


def assert_falls_as_the_gap(error: Callable[[float], float], gap: Callable[[float], float], floor: float) -> None:
    """ln(error) falls by the logit gap's growth, five times in a row; far beyond, rounding is what remains.

    ``floor`` is where float64 ends it: errors come down to it, and a thousand times the last of them is still a line.
    """
    unit = 1 / gap(1.0)
    levels = [unit * gap_wanted for gap_wanted in (6, 9, 12, 15, 18, 21)]
    errors = [error(level) for level in levels]
    for low, high, before, after in zip(levels, levels[1:], errors, errors[1:], strict=False):
        slope = (math.log(after) - math.log(before)) / (high - low)
        assert slope == pytest.approx(-1 / unit, rel=0.03), errors
    beyond = [error(unit * 45), error(unit * 90)]
    assert max(beyond) < floor < errors[-1]
    assert min(beyond) > 1e-6 * max(beyond)
