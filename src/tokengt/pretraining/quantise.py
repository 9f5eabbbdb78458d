"""Numbers in 8 bits: a few hundred thousand molecules with hundreds of descriptors travel in tens of megabytes.

A column is cut into 254 equal steps between its 0.1% and its 99.9% quantile, so that a few extreme values do not take
all steps for themselves: ``code = round(254 (x - low) / (high - low))``, and what lies outside gets the code of the
nearer end. Code 255 is a missing number. NumPy only.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STEPS, MISSING = 254, 255
_TAIL = 0.001


@dataclass(frozen=True)
class Ranges:
    """Where the steps of every column begin and end. A column whose ends are equal says nothing."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    @classmethod
    def of(cls, values: NDArray[np.floating]) -> "Ranges":
        """The ranges of columns [rows, columns]; what is not finite is missing, and a column without a number is 0."""
        low, high = [], []
        for column in values.T:
            known = column[np.isfinite(column)].astype(np.float64)
            ends = np.quantile(known, (_TAIL, 1 - _TAIL)) if len(known) else np.zeros(2)
            low.append(float(ends[0]))
            high.append(float(ends[1]))
        return cls(tuple(low), tuple(high))

    @property
    def informative(self) -> NDArray[np.bool_]:
        return np.array(self.high) > np.array(self.low)


def to_codes(values: NDArray[np.floating], ranges: Ranges) -> NDArray[np.uint8]:
    """Codes of numbers, [rows, columns]; those of a column that says nothing are 0."""
    low, high = np.array(ranges.low), np.array(ranges.high)
    width = np.where(high > low, high - low, 1.0)
    known = np.isfinite(values)
    steps = np.rint((np.where(known, values, low) - low) / width * STEPS)
    codes: NDArray[np.uint8] = np.where(known, np.clip(steps, 0, STEPS), MISSING).astype(np.uint8)
    return codes


def from_codes(codes: NDArray[np.uint8], ranges: Ranges) -> NDArray[np.float64]:
    """The numbers that codes stand for, NaN where missing: each at most half a step from what it was, if inside."""
    low, high = np.array(ranges.low), np.array(ranges.high)
    values: NDArray[np.float64] = np.where(codes == MISSING, np.nan, low + codes / STEPS * (high - low))
    return values
