"""Predictions as columns of a table: the same names and digits wherever they are written."""

from jaxtyping import Float
from torch import Tensor

from tokengt.data.sheets import number_cell, prediction_cells
from tokengt.data.sheets import unused as unused
from tokengt.training.metrics import to_numpy
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
    return prediction_cells(to_numpy(values), None if spread is None else to_numpy(spread), task.classes)


def label_cells(task: Task, targets: Float[Tensor, "rows targets"]) -> list[list[str]]:
    """Labels as a person wrote them: numbers, or the names of classes."""
    if task.classes is None:
        return [[number_cell(value) for value in row] for row in targets.tolist()]
    return [["" if value != value else task.classes[int(value)]] for (value,) in targets.tolist()]
