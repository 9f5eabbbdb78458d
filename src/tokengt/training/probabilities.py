"""Probabilities that mean what they say: of the rows that are given 0.8, eight in ten are positive.

What a network says is often too certain. Two numbers per yes/no target set it right, fitted to the validation part by
logistic regression of the label on the logit (Platt 1999): logit' = slope logit + offset. Several classes of one target
share one slope (temperature scaling, Guo et al. 2017). Both are pulled to 1 and 0, so that few labels change little,
and neither changes the order of rows.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]

# The pull to leaving probabilities as they are, in labels.
_PULL = 5.0
# A certain answer has a logit of this size; float64 tells probabilities apart up to it.
_CERTAIN = 37.0
BINS = 10


@dataclass(frozen=True, eq=False)
class ProbabilityMap:
    """Slope and offset of every yes/no target; for classes one slope, and no offset."""

    slope: Float[ndarray, " targets"]
    offset: Float[ndarray, " targets"]

    @classmethod
    def fit_binary(
        cls, chances: Float[ndarray, "rows targets"], labels: Float[ndarray, "rows targets"]
    ) -> "ProbabilityMap":
        found = [_platt(_logit(p[~np.isnan(y)]), y[~np.isnan(y)]) for p, y in zip(chances.T, labels.T, strict=True)]
        slope, offset = np.array(found).reshape(-1, 2).T
        return cls(slope, offset)

    @classmethod
    def fit_classes(cls, chances: Float[ndarray, "rows classes"], labels: Float[ndarray, " rows"]) -> "ProbabilityMap":
        there = ~np.isnan(labels)
        return cls(np.array([_slope(_logs(chances[there]), labels[there].astype(np.int64))]), np.zeros(1))

    def apply(self, chances: Float[ndarray, "rows width"]) -> Float[ndarray, "rows width"]:
        """The same rows with chances that hold; several classes where there is one slope for more than one column."""
        if len(self.slope) == 1 and chances.shape[1] > 1:
            return _softmax(self.slope[0] * _logs(chances))
        return _sigmoid(self.slope * _logit(chances) + self.offset)

    def readable(self, chances: Float[Tensor, "rows width"]) -> Float[Tensor, "rows width"]:
        """:meth:`apply` through which gradients flow."""
        slope, offset = (torch.from_numpy(each).to(chances.device) for each in (self.slope, self.offset))
        logs = chances.clamp(min=np.exp(-_CERTAIN)).log()
        if len(slope) == 1 and chances.shape[1] > 1:
            return (slope * logs).softmax(1)
        logits = logs - (1 - chances).clamp(min=np.exp(-_CERTAIN)).log()
        return (slope * logits + offset).sigmoid()


@dataclass(frozen=True)
class ProbabilityReport:
    """How well probabilities hold on rows with labels, as a mean over targets.

    ``error`` is the expected calibration error: by how much the share of positives differs from the probability, over
    ten bins of it. ``before`` is the same without calibration.
    """

    error: float
    before: float


@dataclass(frozen=True, eq=False)
class Curve:
    """For each bin that holds rows: mean probability, share of positives, and rows."""

    told: Float[ndarray, " bins"]
    seen: Float[ndarray, " bins"]
    rows: Float[ndarray, " bins"]

    @property
    def error(self) -> float:
        return float((self.rows * np.abs(self.told - self.seen)).sum() / self.rows.sum()) if len(self.rows) else np.nan


def curve(chances: Float[ndarray, " rows"], hits: Float[ndarray, " rows"]) -> Curve:
    """Probabilities against what happened, in ten bins of equal width; NaN labels are left out."""
    there = ~np.isnan(hits)
    chances, hits = chances[there], hits[there]
    places = np.minimum((chances * BINS).astype(np.int64), BINS - 1)
    rows = np.bincount(places, minlength=BINS).astype(np.float64)
    used = rows > 0
    told, seen = (np.bincount(places, values, BINS)[used] / rows[used] for values in (chances, hits))
    return Curve(told, seen, rows[used])


def outcomes(
    chances: Float[ndarray, "rows width"], labels: Float[ndarray, "rows targets"]
) -> list[tuple[Array, Array]]:
    """Chances and 0 or 1 of each yes/no target; of classes, how sure the likeliest one was and whether it held."""
    if chances.shape[1] == labels.shape[1]:
        return [(chances[:, place], labels[:, place]) for place in range(labels.shape[1])]
    best = chances.argmax(1)
    return [(chances.max(1), np.where(np.isnan(labels[:, 0]), np.nan, best == labels[:, 0]))]


def mean_error(chances: Float[ndarray, "rows width"], labels: Float[ndarray, "rows targets"]) -> float:
    """The expected calibration error, as a mean over the targets that have labels."""
    errors = [curve(told, seen).error for told, seen in outcomes(chances, labels)]
    known = [error for error in errors if not np.isnan(error)]
    return float(np.mean(known)) if known else np.nan


def _platt(logits: Array, labels: Array) -> tuple[float, float]:
    """Slope and offset of the least loss; (1, 0) for labels of one class, or where rows would be turned around."""
    if not len(labels) or labels.min() == labels.max():
        return 1.0, 0.0
    inputs, as_it_is = np.stack([logits, np.ones_like(logits)], 1), np.array([1.0, 0.0])

    def loss(weights: Array) -> tuple[float, Array]:
        out, away = inputs @ weights, weights - as_it_is
        surprise = np.logaddexp(0, out) - labels * out
        return float(surprise.sum() + _PULL / 2 * away @ away), inputs.T @ (_sigmoid(out) - labels) + _PULL * away

    slope, offset = _least(loss, as_it_is)
    return (slope, offset) if slope > 0 else (1.0, 0.0)


def _slope(logs: Array, labels: NDArray[np.int64]) -> float:
    """The same for the one slope of several classes."""
    if not len(labels):
        return 1.0
    own = logs[np.arange(len(labels)), labels]

    def loss(weights: Array) -> tuple[float, Array]:
        (slope,) = weights
        surprise = np.logaddexp.reduce(slope * logs, axis=1) - slope * own
        down = ((_softmax(slope * logs) * logs).sum(1) - own).sum() + _PULL * (slope - 1)
        return float(surprise.sum() + _PULL / 2 * (slope - 1) ** 2), np.array([down])

    (slope,) = _least(loss, np.ones(1))
    return slope if slope > 0 else 1.0


def _least(loss: Callable[[Array], tuple[float, Array]], start: Array) -> tuple[float, ...]:
    """The minimum of a convex loss, given with its gradient."""
    from scipy.optimize import minimize

    return tuple(float(value) for value in minimize(loss, start, jac=True, method="L-BFGS-B").x)


def _logit(chances: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.asarray(np.clip(np.log(chances) - np.log1p(-chances), -_CERTAIN, _CERTAIN))


def _logs(chances: Array) -> Array:
    return np.asarray(np.log(np.maximum(chances, np.exp(-_CERTAIN))))


def _sigmoid(logits: Array) -> Array:
    from scipy.special import expit

    return np.asarray(expit(logits))


def _softmax(logits: Array) -> Array:
    raised = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(raised / raised.sum(1, keepdims=True))
