"""Intervals that hold a share of new labels, from how far off predictions were on rows that were not trained on.

Split conformal prediction (Vovk et al. 2005, Lei et al. 2018), normalised: with errors e_i and scales s_i of n held-out
rows, the interval of a row with scale s is

    prediction ± q s,    q = the ceil((n + 1) level)-th smallest of |e_i| / s_i.

For rows like the held-out ones it holds the label with a chance of at least ``level``, whatever the model. Scales that
were learned from the same rows would be too flattering: each fifth of the rows has its scale from the other four.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from tokengt.data.batching import permutation
from tokengt.training.difficulty import Difficulty, Signs
from tokengt.training.metrics import spearman

_FIFTHS = 5


@dataclass(frozen=True, eq=False)
class Conformal:
    """How hard rows are, and the sorted ``scores`` |error| / scale of held-out rows, for every target."""

    difficulty: Difficulty
    scores: tuple[Float[ndarray, " _"], ...]

    @classmethod
    def fit(cls, signs: Signs, errors: Float[ndarray, "rows targets"], seed: int = 0) -> "Conformal":
        """``errors`` of held-out rows: label - prediction, NaN where there is no label."""
        rows = len(errors)
        fold = np.empty(rows, dtype=np.int64)
        fold[permutation(rows, seed).numpy()] = np.arange(rows) % _FIFTHS
        scales = np.ones_like(errors)
        for place in range(_FIFTHS):
            mine = fold == place
            if mine.any():
                learned = Difficulty.fit(signs, np.where(mine[:, None], np.nan, errors))
                scales[mine] = learned.of(signs)[mine]
        ratios = np.abs(errors) / scales
        scores = tuple(np.sort(column[~np.isnan(column)]) for column in ratios.T)
        return cls(Difficulty.fit(signs, errors), scores)

    def half_widths(self, signs: Signs, level: float) -> Float[ndarray, "rows targets"]:
        """Half of each row's interval; NaN for a target that too few held-out rows have a label of."""
        quantiles = np.array([quantile(scores, level) for scores in self.scores])
        return np.asarray(quantiles * self.difficulty.of(signs))


def quantile(scores: Float[ndarray, " rows"], level: float) -> float:
    """The ceil((n + 1) level)-th smallest of n sorted scores; NaN where there are too few for so high a level."""
    place = math.ceil((len(scores) + 1) * level)
    return float(scores[place - 1]) if 1 <= place <= len(scores) else math.nan


def fewest(level: float) -> int:
    """How many held-out labels an interval of this level needs."""
    return next(rows for rows in range(1, 1 << 20) if math.ceil((rows + 1) * level) <= rows)


def check_level(level: float) -> None:
    if not 0.01 <= level <= 0.999:
        raise ValueError(f"the interval is {level}; expected the share of labels that it is to hold, 0.01 to 0.999")


@dataclass(frozen=True)
class IntervalReport:
    """How good intervals are on rows with labels, as a mean over targets.

    ``coverage`` is the share of labels inside, ``width`` the mean width in units of the training labels' deviation, and
    ``rank_correlation`` that of the width with the absolute error (Spearman): 0 where all intervals are as wide.
    """

    level: float
    coverage: float
    width: float
    rank_correlation: float


def report(
    half: Float[ndarray, "rows targets"],
    errors: Float[ndarray, "rows targets"],
    scale: Float[ndarray, " targets"],
    level: float,
) -> IntervalReport | None:
    """None where no target has an interval and two labels."""
    found = []
    for target in range(errors.shape[1]):
        there = ~np.isnan(errors[:, target]) & ~np.isnan(half[:, target])
        if there.sum() < 2:
            continue
        sizes, widths = np.abs(errors[there, target]), half[there, target]
        ranks = spearman(widths, sizes)
        found.append((np.mean(sizes <= widths), 2 * widths.mean() / scale[target], 0.0 if ranks is None else ranks))
    if not found:
        return None
    coverage, width, ranks = (float(value) for value in np.mean(found, 0))
    return IntervalReport(level, coverage, width, ranks)
