"""A summary of a run as the data of its page."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokengt.explain.errors import Agreement, Group, calibration_error
from tokengt.explain.page import words
from tokengt.explain.page.drawing import draw_graph, draw_molecule
from tokengt.explain.page.numbers import as_numbers
from tokengt.explain.page.view import patterns_view, usual_words
from tokengt.explain.run_summary import Curve, Picture, RunSummary, Substructure, TargetSummary, WrongRow

# Dots of a parity plot and points of a curve: more would not be seen.
_MOST_POINTS = 4000
_DIGITS = 6


def summary_view(summary: RunSummary) -> dict[str, Any]:
    molecule = summary.molecules
    return {
        "title": f"{summary.run} on {summary.data}",
        "facts": [summary.model, *summary.facts],
        "task": summary.task,
        "metric": summary.metric,
        "outputs": list(summary.outputs),
        "classes": None if summary.classes is None else list(summary.classes),
        "words": words.graph_words(molecule),
        "targets": [_target(target, summary.task) for target in summary.targets],
        "curves": _curves(summary),
        "distance": _distance(summary),
        "patterns": _patterns(summary, molecule),
        "substructures": _substructures(summary),
        "notes": [words.NOT_CAUSES],
    }


def _target(target: TargetSummary, task: str) -> dict[str, Any]:
    kept = _evenly(len(target.labels))
    return {
        "name": target.name,
        "rows": target.rows,
        "measures": [{"name": name, "value": _finite(value)} for name, value in target.measures.items()],
        "labels": _short(target.labels[kept]),
        "predicted": _short(target.predicted[kept]),
        "spread": None if target.spread is None else _short(target.spread[kept]),
        "left_out": len(target.labels) - len(kept),
        "roc": None if target.roc is None else _short(target.roc[:, _evenly(target.roc.shape[1])]),
        "confusion": None if target.confusion is None else target.confusion.tolist(),
        "by_size": [_group(group) for group in target.by_size],
        "by_element": [_group(group) for group in target.by_element],
        "calibration": _calibration(target),
        "error_words": "mean absolute error" if task == "regression" else "share of rows predicted wrong",
        "wrong": [_wrong(row) for row in target.wrong],
    }


def _calibration(target: TargetSummary) -> dict[str, Any]:
    if not target.calibration:
        return {"missing": target.missing.get("calibration", "There is nothing to compare.")}
    return {
        "points": [_agreement(point) for point in target.calibration],
        "error": _finite(calibration_error(list(target.calibration))),
    }


def _curves(summary: RunSummary) -> dict[str, Any]:
    if not summary.curves:
        return {"missing": summary.missing.get("curves", "The run does not say how it was trained.")}
    return {"models": [_curve(curve) for curve in summary.curves]}


def _distance(summary: RunSummary) -> dict[str, Any]:
    usual = summary.attention
    if usual is None or not usual.distance.size:
        return {"missing": summary.missing.get("attention", "This model has no layer that attends.")}
    return {"graph": None, "usual": as_numbers(usual.distance), "usual_words": usual_words(usual), "note": None}


def _patterns(summary: RunSummary, molecule: bool) -> dict[str, Any]:
    usual = summary.attention
    if usual is None or not usual.profile.shares.size:
        return {"missing": summary.missing.get("attention", "This model has no layer that attends.")}
    return patterns_view([(usual_words(usual), usual.profile)], molecule)


def _substructures(summary: RunSummary) -> dict[str, Any]:
    if not summary.substructures:
        reason = summary.missing.get("substructures")
        return {"missing": reason or "No piece is common to several of the molecules that were looked at."}
    return {"looked_at": summary.looked_at, "pieces": [_substructure(piece) for piece in summary.substructures]}


def _substructure(piece: Substructure) -> dict[str, Any]:
    return {
        "smiles": piece.smiles,
        "molecules": piece.molecules,
        "change": as_numbers(piece.change),
        "half_width": as_numbers(piece.half_width),
        "picture": _picture(piece.picture),
    }


def _curve(curve: Curve) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(curve).items()}


def _wrong(row: WrongRow) -> dict[str, Any]:
    return {**vars(row), "picture": _picture(row.picture)}


def _picture(picture: Picture | None) -> dict[str, Any] | None:
    if picture is None:
        return None
    if picture.depiction is not None:
        drawing = draw_molecule(picture.depiction)
    else:
        edges = np.zeros((2, 0), dtype=np.int64) if picture.edges is None else picture.edges
        drawing = draw_graph(picture.nodes, edges)
    return {**drawing, "marked": list(picture.marked)}


def _group(group: Group) -> dict[str, Any]:
    return {**vars(group), "error": _finite(group.error), "half_width": _finite(group.half_width)}


def _agreement(point: Agreement) -> dict[str, Any]:
    return dict(vars(point))


def _evenly(count: int) -> NDArray[np.int64]:
    """Places of at most so many rows, evenly spread, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, _MOST_POINTS)).round().astype(np.int64))


def _short(values: NDArray[np.float64]) -> Any:
    """Numbers of a few digits: a picture shows no more."""
    return as_numbers(np.array([float(f"{value:.{_DIGITS}g}") for value in values.ravel()]).reshape(values.shape))


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
