"""Sizes that batches are filled up to: few, so that the batches of a training come in the same ones again and again."""

import math
from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

from tokengt.ragged import Segments

# How many rows a sequence has that is only added to fill a batch up.
_FILLING = 64
# Two sizes differ by at least this many rows (also of rows that are read) or sequences: small batches differ in all
# three, and would otherwise hardly ever have the same size.
_LEAST_ROWS, _LEAST_SEQUENCES = 64, 16


def rounded(count: int, least: int = 1) -> int:
    """Up to a multiple of a 64th of the power of two below, or of ``least``: 64 sizes at most between n and 2 n."""
    step = max(least, (1 << max(count, 1).bit_length() - 1) // 64)
    return -(-count // step) * step


def with_margin(entries: int) -> int:
    """Room for a count that varies by its square root: four deviations more than ``entries``, and 0 for 0."""
    return -(-(entries + 4 * math.isqrt(entries)) // 16) * 16


@dataclass(frozen=True)
class Size:
    """Rows, sequences and rows read (None: all) of a batch that was filled up."""

    rows: int
    sequences: int
    read: int | None

    @classmethod
    def of(cls, segments: Segments, rows: Int[Tensor, " read"] | None) -> "Size":
        total = rounded(segments.total, _LEAST_ROWS)
        # Count as many filling sequences as any batch of this size may need, so that batches with the same number of
        # rows also have few different numbers of sequences.
        filling = -(-(rounded(total + 1, _LEAST_ROWS) - total) // _FILLING)
        read = None if rows is None else rounded(len(rows), _LEAST_ROWS)
        return cls(total, rounded(segments.count + filling, _LEAST_SEQUENCES), read)

    def fill(self, segments: Segments) -> Segments:
        """The same sequences, and others behind them up to this size."""
        return segments.filled(self.rows, self.sequences, _FILLING)
