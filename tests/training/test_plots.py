import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tokengt.training import plots
from tokengt.training.plots import plot_curves, plot_test
from tokengt.training.tasks import Task

pytest.importorskip("matplotlib")
from matplotlib import rc_context, rcParams
from matplotlib.figure import Figure
from matplotlib.image import imread

NAN = float("nan")
REGRESSION = Task("regression", ("y",))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were saved."""
    figures: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *args: Any, **kwargs: Any) -> None:
        figures.append(figure)
        save(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def records(*metric: float | None, name: str = "rmse") -> list[dict[str, Any]]:
    return [
        {"epoch": place, "step": place, "train_loss": 1 / place, "valid_loss": 2 / place, "valid": {name: value}}
        for place, value in enumerate(metric, 1)
    ]


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def texts(figure: Figure) -> str:
    """All words of a figure."""
    from matplotlib.text import Text

    return "\n".join(text.get_text() for text in figure.findobj(Text))


@pytest.mark.parametrize(("task", "best"), [(REGRESSION, (3, 0.5)), (Task("binary", ("y",)), (2, 0.9))])
def test_curves_mark_the_best_epoch(task: Task, best: tuple[int, float], tmp_path: Path, drawn: list[Figure]) -> None:
    plot_curves(
        {"": records(0.8, 0.9, 0.5, None, NAN, name=task.metric)}, task, tmp_path / "curves.png", run="first run"
    )
    left, right = drawn[0].axes
    assert [line.get_ydata().tolist() for line in left.lines[:2]] == [
        [1 / n for n in range(1, 6)],
        [2 / n for n in range(1, 6)],
    ]
    assert np.array_equal(right.lines[0].get_ydata(), [0.8, 0.9, 0.5, NAN, NAN], equal_nan=True)
    star = right.lines[-1]
    assert (star.get_xdata().tolist(), star.get_ydata().tolist()) == ([best[0]], [best[1]])
    assert f"best: {best[1]} in epoch {best[0]}" in texts(drawn[0])
    assert "first run: y" in texts(drawn[0])


@pytest.mark.parametrize(("count", "named"), [(3, True), (7, False)])
def test_curves_of_several_models_are_drawn_together(
    count: int, named: bool, tmp_path: Path, drawn: list[Figure]
) -> None:
    """As many names as fit a legend, and stars for all."""
    models = {f"fold-{place}": records(1.0, 0.5 + place) for place in range(count)}
    plot_curves(models, REGRESSION, tmp_path / "curves.png")
    left, right = drawn[0].axes
    stars = [line for line in right.lines if line.get_marker() == "*"]
    assert [line.get_ydata().tolist() for line in stars] == [[0.5], *([[1.0]] * (count - 1))]
    assert ("best of fold-2: 1 in epoch 1" in texts(drawn[0])) == named
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["training", "validation"]


@pytest.mark.parametrize("lines", [[], records(1.0), [{"epoch": 1, "train_loss": float("inf")}], records(None, None)])
def test_curves_of_almost_nothing(lines: list[dict[str, Any]], tmp_path: Path, drawn: list[Figure]) -> None:
    plot_curves({"": lines}, REGRESSION, tmp_path / "curves.png")
    assert ("no validation metric" in texts(drawn[0])) == (lines != records(1.0))
    assert imread(tmp_path / "curves.png").shape[1] == round(9.5 * plots.DPI)


def test_parity_shows_each_label_once(tmp_path: Path, drawn: list[Figure]) -> None:
    """Errors 1, -1 and 2 on 1, 2, 6; a row without a label, and one without a prediction."""
    predictions = torch.tensor([[2.0], [1.0], [8.0], [9.0]])
    targets = torch.tensor([[1.0], [2.0], [6.0], [NAN]])
    assert plot_test(REGRESSION, predictions, targets, tmp_path, part="held-out") == tmp_path / "parity.png"
    (axes,) = drawn[0].axes
    assert axes.collections[0].get_offsets().tolist() == [[1, 2], [2, 1], [6, 8]]
    assert axes.get_xlim() == axes.get_ylim()
    assert "y (3 labels)\nRMSE 1.41, MAE 1.33, R² 0.571" in texts(drawn[0])
    assert "held-out part" in texts(drawn[0])


@pytest.mark.parametrize("panels", [1, 3])
@pytest.mark.parametrize(("low", "width"), [(0, 1), (-12345.678, 1000), (-1_234_567, 300), (0.001, 0.0004)])
def test_parity_labels_do_not_run_into_each_other(
    tmp_path: Path, drawn: list[Figure], panels: int, low: float, width: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    targets = low + width * torch.rand(30, panels, dtype=torch.float64, generator=generator)
    predictions = targets + 0.1 * width * torch.randn(30, panels, dtype=torch.float64, generator=generator)
    plot_test(Task("regression", tuple(f"target {n}" for n in range(panels))), predictions, targets, tmp_path)
    for axes in drawn[0].axes:
        for axis in (axes.xaxis, axes.yaxis):
            first, last = axis.get_view_interval()
            inside = [t.label1 for t in axis.get_major_ticks() if first <= t.get_loc() <= last]
            boxes = [label.get_window_extent() for label in inside]
            assert len(boxes) >= 3
            assert not any(one.overlaps(next_one) for one, next_one in pairwise(boxes)), [t.get_text() for t in inside]


def test_parity_draws_the_spread(tmp_path: Path, drawn: list[Figure]) -> None:
    targets = torch.tensor([[1.0], [NAN], [2.0]])
    plot_test(REGRESSION, targets + 1, targets, tmp_path, std=torch.tensor([[0.5], [9.0], [0.25]]))
    bars = drawn[0].axes[0].collections[0].get_segments()
    assert [bar.tolist() for bar in bars] == [[[1, 1.5], [1, 2.5]], [[2, 2.75], [2, 3.25]]]


def test_parity_has_six_panels_at_most(tmp_path: Path, drawn: list[Figure]) -> None:
    targets = normal(9, 8)
    targets[:, 1] = NAN
    plot_test(Task("regression", tuple("abcdefgh")), targets + 0.1, targets, tmp_path)
    assert [axes.get_title()[0] for axes in drawn[0].axes] == list("abcdef")
    assert "2 more targets not shown" in texts(drawn[0])
    assert "b (0 labels)" in texts(drawn[0])


def test_roc_labels_six_curves_and_says_what_is_missing(tmp_path: Path, drawn: list[Figure]) -> None:
    labels = torch.tensor([[0.0], [0.0], [1.0], [1.0]]).repeat(1, 9)
    labels[:, 1] = 1
    scores = torch.tensor([[0.1], [0.4], [0.35], [0.8]]).repeat(1, 9)
    assert plot_test(Task("binary", tuple("abcdefghi")), scores, labels, tmp_path) == tmp_path / "roc.png"
    (axes,) = drawn[0].axes
    # The diagonal, then the eight tasks that have both classes.
    assert len(axes.lines) == 9
    assert axes.lines[1].get_xydata().tolist() == [[0, 0], [0, 0.5], [0.5, 0.5], [0.5, 1], [1, 1]]
    words = texts(drawn[0])
    assert "a: AUC 0.750 (2 of 4 positive)" in words
    assert "2 more" in words
    assert "mean AUC 0.750 over 8 tasks\n1 task with one class only not drawn" in words
    assert [text.get_text()[0] for text in drawn[0].legends[0].get_texts()] == list("acdefg2")


def test_roc_of_one_class_only(tmp_path: Path, drawn: list[Figure]) -> None:
    plot_test(Task("binary", ("a",)), torch.zeros(2, 1), torch.zeros(2, 1), tmp_path)
    assert "1 task with one class only not drawn" in texts(drawn[0])
    assert (tmp_path / "roc.png").is_file()


def test_confusion_shares_are_of_the_true_class(tmp_path: Path, drawn: list[Figure]) -> None:
    """Three cats, one of them taken for a dog; a dog that is a dog; no label, no prediction."""
    task = Task("multiclass", ("animal",), ("cat", "dog", "eel"))
    guesses = torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1], [NAN, NAN, NAN]])
    targets = torch.tensor([[0.0], [0], [0], [1], [NAN], [2]])
    assert plot_test(task, guesses, targets, tmp_path) == tmp_path / "confusion.png"
    axes = drawn[0].axes[0]
    assert axes.images[0].get_array().data == pytest.approx(np.array([[2 / 3, 1 / 3, 0], [0, 1, 0], [0, 0, 0]]))
    assert [text.get_text() for text in axes.texts] == ["67%\n2", "33%\n1", "100%\n1"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["cat (3)", "dog (1)", "eel (0)"]
    assert "75.0% of 4 labels right" in axes.get_title()


def test_confusion_names_twenty_classes_at_most(tmp_path: Path, drawn: list[Figure]) -> None:
    task = Task("multiclass", ("kind",), tuple(f"class {place}" for place in range(45)))
    targets = torch.arange(45.0)[:, None]
    plot_test(task, torch.eye(45), targets, tmp_path)
    axes = drawn[0].axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [f"class {place}" for place in range(0, 45, 3)]
    assert not axes.texts


def test_names_are_words_not_formulas(tmp_path: Path, drawn: list[Figure]) -> None:
    """Dollars, unknown scripts, tabs and very long names neither stop the picture nor warn."""
    task = Task("regression", (r"$\frac{1$ cost_{x}", "溶解度\tlog", "n" * 200))
    plot_test(task, normal(5, 3), normal(5, 3), tmp_path)
    plot_curves({"": records(1.0, 0.5)}, task, tmp_path / "curves.png", run="$a_$ run")
    assert r"$\frac{1$ cost_{x} (5 labels)" in texts(drawn[0])
    assert "n" * 41 not in texts(drawn[0])


def test_same_numbers_same_bytes_and_nothing_else_changes(tmp_path: Path) -> None:
    """Whatever the caller's own settings are; they stay as they were."""
    predictions, targets = normal(30, 1), normal(30, 1)
    plot_test(REGRESSION, predictions, targets, tmp_path / "one")
    with rc_context({"font.size": 30, "figure.dpi": 20, "axes.facecolor": "red"}):
        plot_test(REGRESSION, predictions, targets, tmp_path / "two")
        assert rcParams["font.size"] == 30
    content = (tmp_path / "one" / "parity.png").read_bytes()
    assert content == (tmp_path / "two" / "parity.png").read_bytes()
    assert b"matplotlib" not in content.lower()
    assert [file.name for file in (tmp_path / "one").iterdir()] == ["parity.png"]


def test_without_matplotlib_one_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"curves.png needs matplotlib: pip install 'tokengt\[chem\]'"):
        plot_curves({"": records(1.0)}, REGRESSION, tmp_path / "curves.png")
    assert not list(tmp_path.iterdir())
