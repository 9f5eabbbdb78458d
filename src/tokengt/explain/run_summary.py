"""What a page says of a whole run and a file with labels: arrays and small tables, ready to be drawn."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokengt.explain.errors import Agreement, Group
from tokengt.explain.explanation import AttentionSummary
from tokengt.interop.depiction import Depiction


@dataclass(frozen=True)
class Curve:
    """The training of one model, epoch by epoch; None where a number is missing or not finite."""

    name: str
    epochs: tuple[int, ...]
    train_loss: tuple[float | None, ...]
    valid_loss: tuple[float | None, ...]
    metric: tuple[float | None, ...]


@dataclass(frozen=True, eq=False)
class Picture:
    """A graph to draw: a molecule's depiction, or edges [2, edges] between ``nodes``; ``marked`` nodes stand out."""

    depiction: Depiction | None = None
    nodes: int = 0
    edges: NDArray[np.int64] | None = None
    marked: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class WrongRow:
    """One of the rows with the largest errors, in words; ``picture`` is None where its graph is too large to draw."""

    name: str
    label: str
    prediction: str
    error: float
    picture: Picture | None


@dataclass(frozen=True, eq=False)
class TargetSummary:
    """How good the predictions of one target are, and where they are wrong.

    Args:
        name: the target.
        rows: how many rows have a label and a prediction.
        measures: metrics by name.
        labels: [rows] of numbers, or places of classes.
        predicted: [rows] numbers or probabilities; of several classes, that of the predicted one.
        spread: [rows] standard deviations of the predictions, where draws were asked for.
        roc: false and true positive rates of a binary target, [2, points].
        confusion: [true class, predicted class] counts, of a target of several classes.
        by_size: errors by the size of graphs.
        by_element: errors of molecules with each element.
        calibration: claimed and found shares.
        wrong: the rows with the largest errors.
        missing: why something is not here, by name.
    """

    name: str
    rows: int
    measures: Mapping[str, float]
    labels: NDArray[np.float64]
    predicted: NDArray[np.float64]
    by_size: tuple[Group, ...]
    by_element: tuple[Group, ...]
    calibration: tuple[Agreement, ...]
    wrong: tuple[WrongRow, ...]
    spread: NDArray[np.float64] | None = None
    roc: NDArray[np.float64] | None = None
    confusion: NDArray[np.int64] | None = None
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Substructure:
    """A piece of molecules, and what the predictions lose without it.

    Args:
        smiles: its spelling, ``*`` where a bond leaves it.
        molecules: how many of the molecules looked at have it.
        change: [outputs] the mean of prediction minus prediction without it, molecules counted alike.
        half_width: [outputs] half the 95% interval of that mean; NaN where one molecule alone has it.
        picture: None where it cannot be drawn by itself.
    """

    smiles: str
    molecules: int
    change: NDArray[np.float64]
    half_width: NDArray[np.float64]
    picture: Picture | None


@dataclass(frozen=True, eq=False)
class RunSummary:
    """A run and a file with labels.

    Args:
        run: the run's folder, in words.
        data: the file.
        model: the model in one line.
        task: "regression", "binary" or "multiclass".
        metric: the metric that chose the best epoch.
        outputs: names of what is predicted: targets, or classes.
        targets: one summary per target.
        facts: sentences on the run and the file.
        curves: one per model.
        attention: over the run's validation part; None where ``missing["attention"]`` says why.
        substructures: those that move predictions most come first.
        looked_at: how many molecules these were found in.
        missing: why something is not here, one sentence each.
        molecules: whether the graphs are molecules.
    """

    run: str
    data: str
    model: str
    task: str
    metric: str
    outputs: tuple[str, ...]
    classes: tuple[str, ...] | None
    targets: tuple[TargetSummary, ...]
    facts: tuple[str, ...]
    curves: tuple[Curve, ...]
    attention: AttentionSummary | None
    substructures: tuple[Substructure, ...]
    looked_at: int
    molecules: bool
    missing: Mapping[str, Any] = field(default_factory=dict)
