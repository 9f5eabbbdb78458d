"""Which differences between systems are more than chance: pairs, their mean and its interval. NumPy only.

Two systems are compared on the same parts of the same data, so the difference is taken pair by pair: what makes one
test part harder than another is in both numbers and goes away.

Several trainings (folds or seeds): Student's t on the paired differences. Where every training has another split, their
training parts overlap and the plain variance of the mean is too small; it is corrected by the ratio of test to training
rows (Nadeau and Bengio 2003): variance * (1 / n + test / train).

One training: the test rows are drawn again with replacement, the same rows for all systems (the paired bootstrap of
Efron and Tibshirani 1993), and the interval lies between the percentiles of the differences.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
LEVEL = 0.95
# Of so many differences, the ends of an interval have a standard error of about a fiftieth of its length.
DRAWS = 1000


@dataclass(frozen=True)
class Interval:
    """A number and where it lies with 95% confidence."""

    centre: float
    low: float
    high: float

    @property
    def holds_zero(self) -> bool:
        """Whether chance alone may explain a difference; so it does where an end is not known."""
        return not (self.low > 0 or self.high < 0)


def t_interval(values: Sequence[float], overlap: float = 0.0) -> Interval | None:
    """The mean of several numbers, such as paired differences; None where one number alone has no spread.

    Args:
        values: one number for each training.
        overlap: test rows divided by training rows, where the trainings have splits of their own; else 0.
    """
    if len(values) < 2:
        return None
    from scipy.stats import t

    mean, spread = statistics.fmean(values), statistics.stdev(values)
    half = float(t.ppf((1 + LEVEL) / 2, len(values) - 1)) * spread * math.sqrt(1 / len(values) + overlap)
    return Interval(mean, mean - half, mean + half)


def bootstrap(
    measures: Sequence[Callable[[NDArray[np.int64]], float]],
    groups: NDArray[np.int64],
    draws: int = DRAWS,
    seed: int = 0,
) -> Array:
    """[draws, systems]: the metric of every system on rows drawn again with replacement, the same for all.

    Args:
        measures: for each system, its metric on the rows with these numbers.
        groups: which rows stay together, by the number of their group, ascending: the nodes or edges of one graph are
            drawn with it.
    """
    generator = np.random.default_rng(seed)
    starts = np.flatnonzero(np.diff(groups, prepend=groups[:1] - 1))
    ends = np.append(starts[1:], len(groups))
    alone = len(starts) == len(groups)
    found = np.empty((draws, len(measures)))
    for draw in range(draws):
        chosen = generator.integers(len(starts), size=len(starts))
        rows = chosen if alone else np.concatenate([np.arange(starts[one], ends[one]) for one in chosen])
        found[draw] = [measure(rows) for measure in measures]
    return found


def percentile_interval(centre: float, drawn: Array) -> Interval | None:
    """Between the percentiles of what was drawn; None where the metric is defined for hardly any of the draws."""
    known: Any = drawn[np.isfinite(drawn)]
    if len(known) < max(2, len(drawn) // 2):
        return None
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(centre, float(low), float(high))


def best_of(means: dict[str, float], higher: bool) -> str | None:
    """The system with the best mean; of equal ones the first. None where there is no number."""
    known = {name: mean for name, mean in means.items() if math.isfinite(mean)}
    return (max if higher else min)(known, key=lambda name: known[name], default=None)


def verdict(best: str | None, to_best: dict[str, Interval | None]) -> str:
    """Who has won, in one sentence, or why nobody has; ``to_best`` has the other systems' differences to the best."""
    if best is None:
        return "No winner: no system has a result."
    if not to_best:
        return f"No winner: {best} is the only system with a result."
    unclear = [name for name, interval in to_best.items() if interval is None or interval.holds_zero]
    if not unclear:
        return f"{best} is better than every other system here: no interval of a difference to it holds zero."
    return (
        f"No winner: {best} has the best mean, but the interval of the difference to it holds zero (or is not known) "
        f"for {', '.join(unclear)}."
    )
