"""How hard a row is to predict: a scale for its error, from what is known without its label.

Errors are larger far from the training data, where the labels of neighbours differ, where the model disagrees with
them, and often where predictions are large. How much each of these says is learned from the validation part: ridge
regression of log |error| on the *signs* below, each standardised and cut off at three deviations.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from numpy.typing import NDArray

from tokengt.training.neighbours import Labels, Near

Array = NDArray[np.float64]

# The pull of each weight to zero, in rows; chosen on validation parts of the ADMET regressions (results/LOG.md).
_PULL = 30.0
# Rows with a label below which nothing is learned of them: all are then equally hard.
FEWEST = 30
_FARTHEST = 3.0


@dataclass(frozen=True, eq=False)
class Signs:
    """What speaks for a large error, by name: [rows, targets] each."""

    columns: Mapping[str, Float[ndarray, "rows targets"]]

    @classmethod
    def of(
        cls,
        predictions: Float[ndarray, "rows targets"],
        centre: Float[ndarray, " targets"],
        scale: Float[ndarray, " targets"],
        near: Near | None = None,
        spread: Float[ndarray, "rows targets"] | None = None,
    ) -> "Signs":
        """Signs of predictions in natural units; ``spread`` is how far models disagree, or what the model says itself.

        ``centre`` and ``scale`` are mean and deviation of the training labels.
        """
        place = (predictions - centre) / scale
        columns = {"prediction": place, "extremeness": np.abs(place)}
        if spread is not None:
            columns["spread"] = np.log(np.maximum(spread / scale, 1e-6))
        if near is not None:
            alike = np.ones_like(place)
            columns |= _told("similar", 1 - near.similar[:, None] * alike, near.by_bits, predictions, scale)
            columns |= _told("near", near.distance[:, None] * alike, near.by_vectors, predictions, scale)
        return cls(columns)

    def table(self, names: tuple[str, ...]) -> Float[ndarray, "rows targets signs"]:
        return np.stack([self.columns[name] for name in names], 2)


def _told(name: str, away: Array, labels: Labels, predictions: Array, scale: Array) -> dict[str, Array]:
    """Signs of neighbours: how far away they are, how much their labels differ, how far the prediction is from them."""
    if np.isnan(away).all():
        return {}
    off = np.abs(predictions - labels.mean) / scale
    return {f"away from {name}": away, f"differences of {name}": labels.std / scale, f"off {name}": off}


@dataclass(frozen=True, eq=False)
class Difficulty:
    """log scale = offset + weights . standardised signs, for every target.

    ``names`` are those of the signs; ``mean`` and ``scale`` standardise them.
    """

    names: tuple[str, ...]
    mean: Float[ndarray, "targets signs"]
    scale: Float[ndarray, "targets signs"]
    weights: Float[ndarray, "targets signs"]
    offset: Float[ndarray, " targets"]

    @classmethod
    def fit(cls, signs: Signs, errors: Float[ndarray, "rows targets"]) -> "Difficulty":
        """From rows whose errors are known; NaN where there is no label."""
        names = tuple(signs.columns)
        table = signs.table(names)
        mean, scale, weights = (np.zeros((errors.shape[1], len(names))) for _ in range(3))
        offset, scale = np.zeros(errors.shape[1]), scale + 1
        for target in range(errors.shape[1]):
            there = ~np.isnan(errors[:, target])
            sizes, own = np.abs(errors[there, target]), table[there, target]
            if len(sizes) < FEWEST or not np.median(sizes) > 0:
                continue
            # A row that is right by chance would otherwise have the log of nothing.
            logs = np.log(sizes + 0.1 * np.median(sizes))
            offset[target] = logs.mean()
            # A sign that no row has is the same for all.
            own = np.where(np.isnan(own).all(0), 0.0, own)
            deviation = np.nanstd(own, 0)
            mean[target], scale[target] = np.nanmean(own, 0), np.where(deviation > 1e-9, deviation, 1.0)
            inputs = _standard(own, mean[target], scale[target])
            pulled = inputs.T @ inputs + _PULL * np.eye(len(names))
            weights[target] = np.linalg.solve(pulled, inputs.T @ (logs - offset[target]))
        return cls(names, mean, scale, weights, offset)

    def of(self, signs: Signs) -> Float[ndarray, "rows targets"]:
        """The scale of every row's error."""
        inputs = _standard(signs.table(self.names), self.mean, self.scale)
        return np.asarray(np.exp(self.offset + (inputs * self.weights).sum(2)))


def _standard(values: Array, mean: Array, scale: Array) -> Array:
    """A sign that is not known, because no neighbour has the label, speaks for nothing."""
    return np.nan_to_num(np.clip((values - mean) / scale, -_FARTHEST, _FARTHEST))
