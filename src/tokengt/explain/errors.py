"""Where a model is wrong, and whether it knows: errors by groups of rows, and calibration. NumPy only.

An *error* is a number per row, the smaller the better: the absolute difference of a prediction from its label, or 1
where a predicted class is not the true one and 0 where it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import erf, sqrt
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

# Of a normal distribution, 95% lie within so many standard deviations.
_TWO_SIDED_95 = 1.96
# Shares of rows that intervals are asked to hold.
_ASKED = tuple(place / 20 for place in range(1, 20))


@dataclass(frozen=True)
class Group:
    """Some rows: how many, their mean error, and half the width of its 95% interval (NaN for a single row)."""

    name: str
    rows: int
    error: float
    half_width: float


@dataclass(frozen=True)
class Agreement:
    """One point of a calibration curve: what was claimed, what was found, over how many rows."""

    claimed: float
    found: float
    rows: int


def group_of(name: str, errors: Float[NDArray[Any], " rows"]) -> Group:
    count = len(errors)
    half = _TWO_SIDED_95 * float(errors.std(ddof=1)) / sqrt(count) if count > 1 else float("nan")
    return Group(name, count, float(errors.mean()) if count else float("nan"), half)


def by_size(errors: Float[NDArray[Any], " rows"], sizes: Int[NDArray[Any], " rows"], most: int = 8) -> list[Group]:
    """Mean errors of rows by the size of their graphs: ranges that hold about as many rows each."""
    if not len(sizes):
        return []
    ends = np.unique(np.quantile(sizes, np.linspace(0, 1, most + 1)[1:], method="inverted_cdf")).astype(np.int64)
    # The first range begins with the smallest size, each other one after the last size of the range before it.
    starts = np.concatenate([sizes.min(keepdims=True), ends[:-1] + 1])
    found = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        inside = (sizes >= start) & (sizes <= end)
        found.append(group_of(str(start) if start == end else f"{start} to {end}", errors[inside]))
    return found


def by_name(
    errors: Float[NDArray[Any], " rows"], members: Mapping[str, Bool[NDArray[Any], " rows"]], fewest: int = 1
) -> list[Group]:
    """Mean errors of rows that have something, such as an element; the most frequent first."""
    found = [group_of(name, errors[inside]) for name, inside in members.items() if int(inside.sum()) >= fewest]
    return sorted(found, key=lambda group: (-group.rows, group.name))


def coverage(errors: Float[NDArray[Any], " rows"], spread: Float[NDArray[Any], " rows"]) -> list[Agreement]:
    """How many labels lie within intervals that should hold a share of them, if errors were normal with this spread.

    An interval of z standard deviations to both sides should hold erf(z / sqrt 2) of the labels.
    """
    there = np.isfinite(errors) & np.isfinite(spread)
    # A spread of 0 claims to be certain: any error is then infinitely many standard deviations.
    with np.errstate(divide="ignore", invalid="ignore"):
        away = np.where(errors[there] == 0, 0.0, np.abs(errors[there]) / spread[there])
    if not len(away):
        return []
    return [Agreement(share, float((away <= _deviations(share)).mean()), len(away)) for share in _ASKED]


def reliability(
    claimed: Float[NDArray[Any], " rows"], happened: Bool[NDArray[Any], " rows"], bins: int = 10
) -> list[Agreement]:
    """How often what was claimed with some probability happened, in ranges of that probability of equal width."""
    places = np.minimum((claimed * bins).astype(np.int64), bins - 1)
    found = []
    for place in range(bins):
        inside = places == place
        if inside.any():
            found.append(Agreement(float(claimed[inside].mean()), float(happened[inside].mean()), int(inside.sum())))
    return found


def calibration_error(curve: list[Agreement]) -> float:
    """The mean distance of a curve from the diagonal, rows counted alike."""
    rows = sum(point.rows for point in curve)
    return sum(point.rows * abs(point.found - point.claimed) for point in curve) / rows if rows else float("nan")


def _deviations(share: float) -> float:
    """z with erf(z / sqrt 2) = share, by halving: a few digits are enough for a picture."""
    low, high = 0.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if erf(middle / sqrt(2)) < share else (low, middle)
    return (low + high) / 2
