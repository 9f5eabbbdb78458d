"""Numbers as a model learns them, and back: their distance from the mean in deviations, of some by their logarithm."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy import ndarray
from torch import Tensor

LogTargets = Literal["auto", "always", "never"]
# From this skewness on the logarithm of a positive target is learned; an exponential distribution has 2.
_SKEWED = 2.0
# How many deviations from the mean of the logarithms a label or a prediction can be.
_FURTHEST = 8.0
# The exponential of more does not fit into a float64.
_LARGEST_LOG = 700.0


@dataclass(frozen=True)
class Scaling:
    """The scale of every target.

    Args:
        mean: of each target's training labels.
        scale: their standard deviation.
        log_mean: of their logarithms, where those are learned; empty where that is so for no target.
        log_scale: the standard deviation of the logarithms; 0 for a target that is learned as it is.
    """

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    log_mean: tuple[float, ...] = ()
    log_scale: tuple[float, ...] = ()

    def learned(self, labels: Float[Tensor, "rows targets"]) -> Float[Tensor, "rows targets"]:
        """Labels (float64) as the model learns them."""
        plain = (labels - as_row(self.mean, labels.device)) / as_row(self.scale, labels.device)
        if not self.log_scale:
            return plain
        mean, scale, logged = self._logs(labels.device)
        # A label that is not positive can come up in other parts than the training's: it counts as a very small one.
        lowest = (mean - _FURTHEST * scale).exp()
        return torch.where(logged, (torch.maximum(labels, lowest).log() - mean) / scale, plain)

    def natural(self, said: Float[Tensor, "rows targets"]) -> Float[Tensor, "rows targets"]:
        """What :meth:`learned` made of labels, in the unit of the labels again."""
        plain = said * as_row(self.scale, said.device) + as_row(self.mean, said.device)
        if not self.log_scale:
            return plain
        mean, scale, logged = self._logs(said.device)
        return torch.where(logged, (said.clamp(-_FURTHEST, _FURTHEST) * scale + mean).exp(), plain)

    def variance(
        self, told: Float[Tensor, "rows targets"], said: Float[Tensor, "rows targets"]
    ) -> Float[Tensor, "rows targets"]:
        """The variance ``told`` beside what was ``said``, in the squared unit of the labels."""
        plain = told * as_row(self.scale, told.device).square()
        if not self.log_scale:
            return plain
        _, scale, logged = self._logs(told.device)
        # To first order: an error of the logarithm is a relative error of the number.
        return torch.where(logged, told * (scale * self.natural(said)).square(), plain)

    def comparable(self, numbers: Float[ndarray, "rows targets"]) -> Float[ndarray, "rows targets"]:
        """Labels or predictions in the unit in which errors are alike: logarithms, where these are learned."""
        if not self.log_scale:
            return numbers
        mean, scale = np.array(self.log_mean), np.array(self.log_scale)
        # What is not positive counts as in :meth:`learned`. Other targets have no logarithm, and need none.
        positive = np.where(scale > 0, np.maximum(numbers, np.exp(mean - _FURTHEST * scale)), 1.0)
        return np.where(scale > 0, np.log(positive), numbers)

    def from_comparable(self, numbers: Float[ndarray, "rows targets"]) -> Float[ndarray, "rows targets"]:
        """What :meth:`comparable` made of numbers, in their own unit again."""
        if not self.log_scale:
            return numbers
        logged = np.array(self.log_scale) > 0
        return np.where(logged, np.exp(np.where(logged, np.minimum(numbers, _LARGEST_LOG), 0.0)), numbers)

    def logged_mean(
        self,
        weight: Float[Tensor, " targets"],
        numbers: Float[Tensor, "... rows targets"],
        logs: Float[Tensor, "... targets"],
    ) -> tuple[Bool[Tensor, " targets"], Float[Tensor, "... rows targets"]]:
        """Which targets are learned by their logarithm, and of these a weighted mean of ``numbers`` with ``logs``.

        The mean is one of logarithms, and a number again: a geometric one.
        """
        mean, scale, logged = self._logs(numbers.device)
        own = torch.maximum(numbers, (mean - _FURTHEST * scale).exp()).log()
        both = (1 - weight) * own + weight * torch.where(logged, logs, 0.0)
        return logged, both.clamp(max=_LARGEST_LOG).exp()

    @property
    def deviations(self) -> Float[ndarray, " targets"]:
        """The standard deviation of the training labels, each as :meth:`comparable` has them."""
        return np.array([log or plain for log, plain in zip(self.log_scale or self.scale, self.scale, strict=True)])

    def _logs(
        self, device: torch.device
    ) -> tuple[Float[Tensor, " targets"], Float[Tensor, " targets"], Bool[Tensor, " targets"]]:
        """Mean and deviation of the logarithms (1 where there is none), and which targets have them."""
        scale = as_row(self.log_scale, device)
        logged = scale > 0
        return as_row(self.log_mean, device), torch.where(logged, scale, 1.0), logged


def moments(
    targets: Float[Tensor, "rows targets"], names: Sequence[str]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each column's labels."""
    mean, scale = [], []
    for name, column in zip(names, targets.T, strict=True):
        labels = column[~torch.isnan(column)]
        spread = float(labels.std(correction=0))
        if not isfinite(spread):
            raise ValueError(f"target {name!r} spreads too far for a standard deviation in float64; rescale it")
        # Equal labels can have a tiny deviation from their rounded mean, so the labels themselves are compared.
        constant = bool(labels.min() == labels.max()) or spread == 0
        mean.append(float(labels[0]) if constant else float(labels.mean()))
        scale.append(1.0 if constant else spread)
    return tuple(mean), tuple(scale)


def log_moments(
    targets: Float[Tensor, "rows targets"], names: Sequence[str], logs: LogTargets
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of the logarithms of those columns whose logarithm is to be learned; zeros of others.

    That is so, for "auto", of targets that are all positive and so skewed that the largest would be all that a squared
    error sees, where their logarithms are not. "always" asks for it of every target.

    Raises:
        ValueError: one sentence: a logarithm is asked for of labels that have none.
    """
    columns = [column[~torch.isnan(column)].double() for column in targets.detach().cpu().T]
    for name, labels in zip(names, columns, strict=True):
        if logs == "always" and len(labels) and float(labels.min()) <= 0:
            raise ValueError(
                f"target {name!r} holds {float(labels.min()):g}; expected numbers above 0, of which a logarithm can be "
                "learned (training.log_targets)"
            )
    wanted = [logs != "never" and _has_logs(labels, asked=logs == "always") for labels in columns]
    found = [labels.log() if own else torch.zeros(1) for labels, own in zip(columns, wanted, strict=True)]
    return tuple(float(each.mean()) for each in found), tuple(float(each.std(correction=0)) for each in found)


def _has_logs(labels: Float[Tensor, " labels"], *, asked: bool) -> bool:
    if len(labels) < 2 or float(labels.min()) <= 0 or bool(labels.min() == labels.max()):
        return False
    skewed = _skewness(labels)
    return asked or (skewed >= _SKEWED and abs(_skewness(labels.log())) <= skewed / 2)


def _skewness(values: Float[Tensor, " values"]) -> float:
    """The mean cube of the distance from the mean, in deviations: 0 for a symmetric distribution."""
    away = values - values.mean()
    return float(away.pow(3).mean() / away.square().mean().pow(1.5))


@lru_cache(maxsize=64)
def as_row(values: tuple[float, ...], device: torch.device) -> Float[Tensor, " targets"]:
    """The values as a tensor, cached on its device: a copy at each step would wait for all work queued before it."""
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=torch.float64, device=device)
