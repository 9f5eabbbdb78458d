"""Predictions as columns of a table: the same names and digits wherever they are written."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from tokengt.training.tasks import Task


def columns(task: Task, spread: bool = False) -> list[str]:
    """``predicted_<target>`` and, with ``spread``, ``std_<target>``; several classes add ``probability_<class>``."""
    names = [f"predicted_{name}" for name in task.names]
    if task.classes is not None:
        chances = [f"probability_{name}" for name in task.classes]
        return names + chances + ([f"std_{name}" for name in task.classes] if spread else [])
    return names + ([f"std_{name}" for name in task.names] if spread else [])


def cells(
    task: Task, values: Float[Tensor, "rows out"], spread: Float[Tensor, "rows out"] | None = None
) -> list[list[str]]:
    """The cells of :func:`columns`, one list per row; blank where there is no prediction."""
    numbers = [[_number(value) for value in row] for row in values.tolist()]
    stds = [[_number(value) for value in row] for row in spread.tolist()] if spread is not None else [[]] * len(numbers)
    if task.classes is None:
        return [row + std for row, std in zip(numbers, stds, strict=True)]
    best = torch.nan_to_num(values, nan=-1.0).argmax(1).tolist()
    names = [task.classes[place] if row[0] else "" for place, row in zip(best, numbers, strict=True)]
    return [[name, *row, *std] for name, row, std in zip(names, numbers, stds, strict=True)]


def label_cells(task: Task, targets: Float[Tensor, "rows targets"]) -> list[list[str]]:
    """Labels as a person wrote them: numbers, or the names of classes."""
    if task.classes is None:
        return [[_number(value) for value in row] for row in targets.tolist()]
    return [["" if value != value else task.classes[int(value)]] for (value,) in targets.tolist()]


def unused(names: Sequence[str], taken: Sequence[str]) -> list[str]:
    """The names, each with as many underscores at its end as tell it from those already taken."""
    chosen: list[str] = []
    for name in names:
        while name in taken or name in chosen:
            name += "_"
        chosen.append(name)
    return chosen


def _number(value: float) -> str:
    # More digits than float32 has: where the mean is large, a small standard deviation shows only in the last ones.
    return "" if value != value else f"{value:.12g}"
