"""What is written beside predictions, when it is asked for: intervals, and how near the training data is."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokengt.inference import Predictor
from tokengt.training.calibration import Trust
from tokengt.training.metrics import to_numpy
from tokengt.training.tasks import Task
from tokengt.workflow.rows import Chunk

# The share of labels that an interval is to hold where nobody says another.
USUAL_LEVEL = 0.9


@dataclass(frozen=True)
class Beside:
    """Columns that are asked for beside predictions: bounds of intervals, and how near the training data is."""

    interval: float | None = None
    neighbours: bool = False

    @classmethod
    def usual(cls, predictor: Predictor) -> "Beside":
        """What a page shows beside predictions: all that the run can tell, with intervals of the usual level."""
        calibration = predictor.calibration
        level = USUAL_LEVEL if calibration.has_interval(predictor.task, USUAL_LEVEL) else None
        return cls(level, calibration.known is not None)

    @property
    def asked(self) -> bool:
        return self.interval is not None or self.neighbours

    def names(self, task: Task) -> list[str]:
        bounds = [f"{bound}_{name}" for bound in ("low", "high") for name in task.names]
        return (bounds if self.interval is not None else []) + (
            ["similarity", "distance", "unlike_training"] if self.neighbours else []
        )

    def columns(self, chunk: Chunk, width: int, trust: Trust) -> tuple[NDArray[Any], ...]:
        """The columns of a chunk's rows, in the order of their names."""
        found: list[NDArray[Any]] = []
        if self.interval is not None:
            for bound in (trust.low, trust.high):
                found += list(_over_all(chunk, bound, width).T)
        if self.neighbours:
            found += [_over_all(chunk, each, 1)[:, 0] for each in (trust.similarity, trust.distance)]
            found.append(_over_all(chunk, trust.unlike, 1)[:, 0] == 1)
        return tuple(found)


def _over_all(chunk: Chunk, values: NDArray[Any] | None, width: int) -> NDArray[np.float64]:
    """Values of the rows that have an answer at their places among all, NaN elsewhere."""
    table = None if values is None else torch.from_numpy(values.astype(np.float64).reshape(len(values), -1))
    return to_numpy(chunk.spread_out(table, width))
