"""Attention maps side by side as the paper draws them, one column per model."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokengt.explain.maps import CLAMP, Map, clamp_map
from tokengt.files import write_whole

_DPI = 150
_MISSING = "0.92"
# Sizes in inches: a panel, the gap between two panels, and the margins for names. They are set by hand because a
# layout engine takes seconds for so many panels.
_PANEL, _GAP, _LEFT, _TOP, _EDGE = 1.1, 0.08, 0.95, 0.85, 0.1


def draw_map_grid(
    maps: Sequence[Sequence[Map | None]],
    row_names: Sequence[str],
    column_names: Sequence[str],
    file: Path,
    *,
    title: str = "",
    clamp: float = CLAMP,
) -> None:
    """Draw ``maps[row][column]``, each [query tokens, key tokens]; None leaves a panel grey.

    The same numbers give the same bytes.
    """
    if not maps or len(maps) != len(row_names) or any(len(row) != len(column_names) for row in maps):
        raise ValueError(f"expected {len(row_names)} rows of {len(column_names)} maps, one for every name")

    with _figure(file, len(row_names), len(column_names), title) as grid:
        for axes_row, maps_row in zip(grid, maps, strict=True):
            for axes, weights in zip(axes_row, maps_row, strict=True):
                _panel(axes, weights, clamp)
        for axes, name in zip(grid[0], column_names, strict=True):
            axes.set_title(name)
        for axes, name in zip(grid[:, 0], row_names, strict=True):
            axes.set_ylabel(name, rotation=0, ha="right", va="center")


def _panel(axes: Any, weights: Map | None, clamp: float) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_linewidth(0.4)
    if weights is None:
        axes.set_facecolor(_MISSING)
        return
    shown = clamp_map(weights, clamp)
    axes.imshow(shown, cmap="Blues", vmin=0, vmax=1, interpolation="nearest", aspect="auto")


@contextmanager
def _figure(file: Path, rows: int, columns: int, title: str) -> Iterator[Any]:
    """Axes to draw on, whatever this machine's matplotlibrc says; written whole at the end of the block."""
    import matplotlib
    from matplotlib.figure import Figure

    width = _LEFT + columns * (_PANEL + _GAP) - _GAP + _EDGE
    height = _TOP + rows * (_PANEL + _GAP) - _GAP + _EDGE
    inside = {"left": _LEFT / width, "right": 1 - _EDGE / width, "top": 1 - _TOP / height, "bottom": _EDGE / height}
    content = io.BytesIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"axes.titlesize": 8, "axes.labelsize": 8, "figure.titlesize": 10})
        figure = Figure(figsize=(width, height))
        spaces = {"wspace": _GAP / _PANEL, "hspace": _GAP / _PANEL}
        yield figure.subplots(rows, columns, squeeze=False, gridspec_kw={**inside, **spaces})
        figure.suptitle(title, x=_EDGE / width, y=1 - _EDGE / height, ha="left", va="top")
        figure.savefig(content, format="png", dpi=_DPI, metadata={"Software": None})
    write_whole(file, content.getvalue())
