"""What a run says of inputs: predictions, and how far they can be trusted."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from tokengt.training.calibration import Trust


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions of many inputs, in order; to NumPy and to loops it is the array ``mean``.

    ``mean`` [rows, targets or classes] holds natural units or probabilities, NaN for an input that could not be read
    or for which the model gives no finite number. ``std`` is the standard deviation over draws and models, and what
    models say of themselves where they were trained to; None where there is a single pass that says nothing. A *draw*
    is one pass with its own random choices (:mod:`tokengt.models.passes`). ``problems`` says of every row of NaN why it
    is so, by its place. ``low`` and ``high`` are there where an interval was asked for, and with it, or by itself, how
    near the training data is: ``similarity``, ``distance`` and ``unlike``
    (:class:`tokengt.training.calibration.Trust`).
    """

    mean: NDArray[np.float64]
    std: NDArray[np.float64] | None
    problems: dict[int, str]
    low: NDArray[np.float64] | None = None
    high: NDArray[np.float64] | None = None
    similarity: NDArray[np.float64] | None = None
    distance: NDArray[np.float64] | None = None
    unlike: NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, answer: "Answer", kept: NDArray[np.int64], count: int, problems: dict[int, str]) -> "Predictions":
        """An answer's rows at their places ``kept`` among ``count`` inputs, NaN elsewhere."""

        def placed(values: NDArray[Any] | None) -> NDArray[np.float64] | None:
            return None if values is None else scattered(values, kept, count)

        trust, std = answer.trust, None if answer.std is None else answer.std.numpy()
        return cls(
            scattered(answer.mean.numpy(), kept, count),
            placed(std),
            problems,
            placed(trust.low),
            placed(trust.high),
            placed(trust.similarity),
            placed(trust.distance),
            None if trust.unlike is None else scattered(trust.unlike, kept, count) == 1,
        )

    def __len__(self) -> int:
        return len(self.mean)

    def __getitem__(self, place: Any) -> Any:
        return self.mean[place]

    def __iter__(self) -> Iterator[NDArray[np.float64]]:
        return iter(self.mean)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.mean, dtype=dtype, copy=copy)


@dataclass(frozen=True, eq=False)
class Answer:
    """Predictions of rows, their standard deviation if there is one, and how far they can be trusted."""

    mean: Float[Tensor, "rows width"]
    std: Float[Tensor, "rows width"] | None
    trust: Trust


def scattered(values: NDArray[Any], kept: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Rows at their places among all inputs, NaN elsewhere."""
    out = np.full((count, *values.shape[1:]), np.nan)
    out[kept] = values
    return out
