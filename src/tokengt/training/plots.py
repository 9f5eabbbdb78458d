"""Pictures of a run: learning curves, and predictions against labels. The same numbers give the same bytes."""

import io
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from tokengt.files import write_whole
from tokengt.training.metrics import Array, confusion, labelled, mae, r2, rmse, roc_auc, roc_curve, to_numpy
from tokengt.training.tasks import Task

DPI = 150
MAX_PANELS = 6
MAX_CLASSES = 20
GREY = "0.6"
TITLES = {
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R2",
    "spearman": "Spearman correlation",
    "roc_auc": "ROC-AUC",
    "average_precision": "average precision",
    "accuracy": "accuracy",
    "macro_f1": "macro F1",
    "cross_entropy": "cross entropy",
    "mrr": "mean reciprocal rank",
}
# Columns and classes are named by the user: matplotlib must not read a dollar sign in a name as a formula.
_STYLE = {
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.5,
    "figure.titlesize": 12,
    "legend.edgecolor": "none",
    "legend.fontsize": 9,
}


def plot_curves(models: Mapping[str, Sequence[Mapping[str, Any]]], task: Task, file: Path, run: str = "") -> None:
    """Loss and the validation metric by epoch, the best epoch marked.

    Args:
        models: of every model, by its name, lines of metrics.jsonl: ``epoch``, ``train_loss``, ``valid_loss`` and
            ``valid`` (metrics by name); what is absent or null is not drawn.
        run: how the title calls this run.
    """

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        for place, (name, records) in enumerate(models.items()):
            _draw_model(task, records, left, right, _Place(name, place, len(models)))
        left.set(xlabel="epoch", ylabel=f"loss per label ({task.loss_name})", title="Loss")
        metric = TITLES.get(task.metric, task.metric)
        right.set(xlabel="epoch", ylabel=f"validation {metric}", title=f"Validation {metric}")
        _whole_epochs([record["epoch"] for records in models.values() for record in records], left, right)
        figure.suptitle(f"{run}: {_targets(task)}" if run else _targets(task))

    draw_figure(file, (9.5, 3.9), draw)


def plot_test(
    task: Task,
    predictions: Float[Tensor, "rows out"],
    targets: Float[Tensor, "rows targets"],
    folder: Path,
    *,
    std: Float[Tensor, "rows out"] | None = None,
    part: str = "test",
) -> Path:
    """Predictions against labels: writes and names ``parity.png``, ``roc.png`` or ``confusion.png`` by the task.

    Args:
        std: standard deviation of each prediction, drawn as error bars (regression).
        part: how the titles call these rows.
    """
    predicted, labels = to_numpy(predictions), to_numpy(targets)
    if task.kind == "regression":
        return _parity(task, predicted, labels, None if std is None else to_numpy(std), folder / "parity.png", part)
    if task.kind == "binary":
        return _roc(task, predicted, labels, folder / "roc.png", part)
    return _confusion(task, predicted, labels[:, 0], folder / "confusion.png", part)


def _parity(task: Task, predicted: Array, labels: Array, std: Array | None, file: Path, part: str) -> Path:
    shown = min(len(task.names), MAX_PANELS)
    columns = {1: 1, 2: 2, 4: 2}.get(shown, 3)
    rows = math.ceil(shown / columns)

    def draw(figure: Any) -> None:
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for place, axes in enumerate(grid):
            if place >= shown:
                axes.set_visible(False)
                continue
            spread = None if std is None else std[:, place]
            _parity_panel(axes, task.names[place], predicted[:, place], labels[:, place], spread)
        more = len(task.names) - shown
        figure.suptitle(f"Predicted and measured, {part} part" + (f" ({more} more targets not shown)" if more else ""))

    draw_figure(file, (5.2, 5.4) if shown == 1 else (4.1 * columns, 4.3 * rows + 0.3), draw)
    return file


def _parity_panel(axes: Any, name: str, predicted: Array, labels: Array, std: Array | None) -> None:
    drawn = np.isfinite(labels) & np.isfinite(predicted)
    x, y = labels[drawn], predicted[drawn]
    crowded = len(x) > 2000
    if std is not None and len(x):
        axes.errorbar(x, y, yerr=np.nan_to_num(std[drawn]), fmt="none", ecolor="C0", alpha=0.35, elinewidth=0.8)
    axes.scatter(x, y, s=4 if crowded else 14, alpha=0.25 if crowded else 0.6, color="C0", linewidths=0, zorder=2.5)
    if len(x):
        low, high = float(min(x.min(), y.min())), float(max(x.max(), y.max()))
        margin = 0.05 * (high - low) or 1.0
        limits = (low - margin, high + margin)
        axes.plot(limits, limits, color=GREY, linewidth=1, zorder=1)
        axes.set(xlim=limits, ylim=limits)
        _few_ticks(axes)
    else:
        _say(axes, "nothing to draw")
        axes.set_xticks([])
    axes.set_aspect("equal")
    with np.errstate(all="ignore"):
        measured = [(label, measure(*labelled(predicted, labels))) for label, measure in _PARITY]
    numbers = ", ".join(f"{label} {value:.3g}" for label, value in measured if value is not None)
    rows = int((~np.isnan(labels)).sum())
    axes.set_title(f"{_short(name, 40)} ({_count(rows, 'label')})\n{numbers}")
    axes.set(xlabel="measured", ylabel="predicted" + (" ± one standard deviation" if std is not None else ""))


def _few_ticks(axes: Any) -> None:
    """Few ticks, the same on both axes, and short labels: many or long ones would run into each other."""
    from matplotlib.ticker import MaxNLocator

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=4, min_n_ticks=3))
    # Numbers of five digits are written as 1.2 with a common factor of 1e4 beside the axis.
    axes.ticklabel_format(scilimits=(-3, 4))


def _roc(task: Task, predicted: Array, labels: Array, file: Path, part: str) -> Path:
    curves = []
    for place, name in enumerate(task.names):
        scores, truth = labelled(predicted[:, place], labels[:, place])
        area = roc_auc(scores, truth)
        if area is not None and not math.isnan(area):
            curves.append((name, area, int(truth.sum()), len(truth), *roc_curve(scores, truth)))

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":")
        for name, area, positives, rows, false, true in curves[:MAX_PANELS]:
            text = f"{_short(name)}: AUC {area:.3f} ({positives} of {rows} positive)"
            axes.plot(false, true, label=text, linewidth=1.6, zorder=2.5)
        for place, (*_, false, true) in enumerate(curves[MAX_PANELS:]):
            label = f"{len(curves) - MAX_PANELS} more" if place == 0 else None
            axes.plot(false, true, color=GREY, linewidth=0.7, alpha=0.6, zorder=1.5, label=label)
        undrawn = len(task.names) - len(curves)
        notes = [f"{_count(undrawn, 'task')} with one class only not drawn"] if undrawn else []
        if len(curves) > 1:
            notes.insert(0, f"mean AUC {np.mean([area for _, area, *_ in curves]):.3f} over {len(curves)} tasks")
        axes.set_title("\n".join([f"ROC curve, {part} part", *notes]))
        axes.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        if curves:
            # The legend goes below the axes, because the curves of weak models run through every corner inside them.
            figure.legend(loc="outside lower center")

    draw_figure(file, (5.4, 5.5 + 0.19 * min(len(curves), MAX_PANELS + 1)), draw)
    return file


def _confusion(task: Task, predicted: Array, labels: Array, file: Path, part: str) -> Path:
    assert task.classes is not None
    classes = [_short(name, 18) for name in task.classes]
    # A row of NaN has no largest entry, so it is not counted as a prediction.
    counts = confusion(predicted, np.where(np.isnan(predicted).any(1), np.nan, labels))
    totals = counts.sum(1)
    shares = counts / np.maximum(totals, 1)[:, None]
    labelled_cells = len(classes) <= MAX_CLASSES
    side = 4 + 0.36 * len(classes) if labelled_cells else 9.0

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        figure.colorbar(image, ax=axes, label="share of the row", shrink=0.75)
        places = range(0, len(classes), max(1, math.ceil(len(classes) / MAX_CLASSES)))
        size = 9 if len(classes) <= 10 else 7.5
        axes.set_xticks(places, [classes[place] for place in places], rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(places, [f"{classes[p]} ({totals[p]})" for p in places])
        axes.tick_params(labelsize=size, length=0)
        for row, column in np.argwhere(counts > 0) if labelled_cells else ():
            text = f"{shares[row, column]:.0%}\n{counts[row, column]}" if len(classes) <= 10 else counts[row, column]
            colour = "white" if shares[row, column] > 0.55 else "0.15"
            axes.text(column, row, text, ha="center", va="center", fontsize=size, color=colour)
        axes.spines[:].set_visible(False)
        right = float(np.trace(counts) / max(1, counts.sum()))
        title = f"{_short(task.names[0], 40)}, {part} part\n{right:.1%} of {_count(int(counts.sum()), 'label')} right"
        axes.set_title(title)
        axes.set(xlabel="predicted class", ylabel="true class (labels)")

    draw_figure(file, (side + 1.2, side), draw)
    return file


class _Place(NamedTuple):
    """Which of how many models a curve belongs to."""

    name: str
    number: int
    models: int

    @property
    def best(self) -> str | None:
        """How the legend calls its best epoch; None where there are too many models to name."""
        if self.models > MAX_PANELS:
            return None
        return "best" if self.models == 1 else f"best of {self.name}"


def _draw_model(task: Task, records: Sequence[Mapping[str, Any]], left: Any, right: Any, place: _Place) -> None:
    epochs = [record["epoch"] for record in records]
    # Dots are drawn as long as they do not touch, so that a run of a single epoch is visible too.
    style: dict[str, Any] = {"marker": "o", "markersize": 3} if len(epochs) <= 40 else {}
    if place.models > 1:
        style["alpha"] = 1 - 0.6 * place.number / place.models
    for key, label, colour in (("train_loss", "training", "C0"), ("valid_loss", "validation", "C1")):
        losses = [_number(record.get(key)) for record in records]
        if not all(map(math.isnan, losses)):
            named = label in left.get_legend_handles_labels()[1]
            left.plot(epochs, losses, label=None if named else label, color=colour, **style)
            left.legend()
    values = [_number((record.get("valid") or {}).get(task.metric)) for record in records]
    right.plot(epochs, values, color="C1", **style)
    _mark_best(task, epochs, values, place.best, left, right)


def _mark_best(task: Task, epochs: Sequence[int], values: Sequence[float], name: str | None, *panels: Any) -> None:
    best: int | None = None
    for place, value in enumerate(values):
        if task.is_better(value, None if best is None else values[best]):
            best = place
    if best is None:
        _say(panels[-1], "no validation metric")
        return
    for axes in panels:
        axes.axvline(epochs[best], color=GREY, linewidth=1, linestyle=":", zorder=1)
    label = None if name is None else f"{name}: {values[best]:.4g} in epoch {epochs[best]}"
    panels[-1].plot([epochs[best]], [values[best]], "*", color="C3", markersize=11, label=label, linestyle="none")
    if label is not None:
        panels[-1].legend()


def _whole_epochs(epochs: Sequence[int], *panels: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    first, last = (min(epochs), max(epochs)) if epochs else (1, 1)
    margin = max(0.5, 0.03 * (last - first))
    for axes in panels:
        axes.set_xlim(max(first - margin, 0.5), last + margin)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.grid(axis="y", color="0.9", linewidth=0.7)


def _say(axes: Any, text: str) -> None:
    """Words in place of what cannot be drawn."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=GREY)
    axes.set_yticks([])


def draw_figure(file: Path, size: tuple[float, float], draw: Callable[[Any], None]) -> None:
    """Let ``draw`` fill a figure of its own, whatever this machine's matplotlibrc says, and write it whole."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"{file.name} needs matplotlib: pip install 'tokengt[chem]'") from error
    content = io.BytesIO()
    with warnings.catch_warnings(), matplotlib.rc_context():
        # Letters that the font lacks are drawn as boxes; matplotlib need not warn about it.
        warnings.filterwarnings("ignore", message=r"(?s)Glyph .* missing from")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        figure.savefig(content, format="png", dpi=DPI, metadata={"Software": None})
    write_whole(file, content.getvalue())


def _number(value: Any) -> float:
    """What is absent or infinite has no place in a picture."""
    return float(value) if value is not None and math.isfinite(value) else float("nan")


def _targets(task: Task) -> str:
    if len(task.names) <= 2:
        return " and ".join(_short(name, 40) for name in task.names)
    return f"{_short(task.names[0])} and {len(task.names) - 1} other targets"


def _short(text: str, most: int = 24) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


_PARITY = (("RMSE", rmse), ("MAE", mae), ("R²", r2))
