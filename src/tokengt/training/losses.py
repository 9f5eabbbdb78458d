"""What training makes small where numbers are learned. Targets are scaled: their training labels have deviation 1.

A loss may ask the model for several outputs per target, such as a mean and a variance. The outputs of all targets come
one kind after another, the predictions themselves first: [mean of each target, variance of each target]. A new loss is
a class here and its place in :data:`REGRESSION_LOSSES`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

# The logarithm of a variance stays inside these: no scaled target is known to a thousandth of its deviation.
_LOG_VARIANCES = (-14.0, 7.0)


@dataclass(frozen=True)
class RegressionLoss(ABC):
    """One loss. ``quantile`` is for the one that is called so."""

    quantile: float = 0.5

    name: ClassVar[str]
    # What is summed up, with its unit.
    words: ClassVar[str]
    # How many outputs the model has per target.
    outputs: ClassVar[int] = 1

    @abstractmethod
    def each(
        self, output: Float[Tensor, "rows outputs targets"], wanted: Float[Tensor, "rows targets"]
    ) -> Float[Tensor, "rows targets"]:
        """The loss of every label."""

    def variance(self, output: Float[Tensor, "rows outputs targets"]) -> Float[Tensor, "rows targets"] | None:
        """How far off the model itself takes its prediction to be, squared; None where it does not say."""
        return None


class SquaredError(RegressionLoss):
    name, words = "mse", "scaled squared error"

    def each(self, output: Tensor, wanted: Tensor) -> Tensor:
        return (output[:, 0] - wanted).square()


class AbsoluteError(RegressionLoss):
    name, words = "mae", "scaled absolute error"

    def each(self, output: Tensor, wanted: Tensor) -> Tensor:
        return (output[:, 0] - wanted).abs()


class Huber(RegressionLoss):
    """Half the square up to one standard deviation, then a line with the slope that the square has there."""

    name, words = "huber", "Huber loss of the scaled error"

    def each(self, output: Tensor, wanted: Tensor) -> Tensor:
        error = output[:, 0] - wanted
        return F.huber_loss(error, torch.zeros_like(error), reduction="none")


class Quantile(RegressionLoss):
    """The pinball loss, least where the share ``quantile`` of the labels lies below the prediction.

    At one half that is the median, and the loss half the absolute error.
    """

    name, words = "quantile", "pinball loss of the scaled error"

    def each(self, output: Tensor, wanted: Tensor) -> Tensor:
        missing = wanted - output[:, 0]
        return torch.maximum(self.quantile * missing, (self.quantile - 1) * missing)


class Gaussian(RegressionLoss):
    """A mean and the logarithm of a variance: the surprise of the label under that normal distribution.

    Each label weighs as much as the deviation that is told for it (beta-NLL with beta = 1/2, Seitzer et al. 2022):
    otherwise the mean is hardly learned where the variance is large.
    """

    name, words, outputs = "gaussian", "surprise under the predicted normal distribution, weighted", 2

    def each(self, output: Tensor, wanted: Tensor) -> Tensor:
        told = output[:, 1].clamp(*_LOG_VARIANCES)
        surprise = ((output[:, 0] - wanted).square() * (-told).exp() + told) / 2
        return surprise * (told.detach() / 2).exp()

    def variance(self, output: Tensor) -> Tensor:
        return output[:, 1].clamp(*_LOG_VARIANCES).exp()


# By name; the first is the default.
REGRESSION_LOSSES: Mapping[str, type[RegressionLoss]] = {
    loss.name: loss for loss in (SquaredError, AbsoluteError, Huber, Quantile, Gaussian)
}
