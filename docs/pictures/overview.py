"""The one picture of the README: a graph, its tokens, a plain Transformer, a prediction.

``make pictures`` runs it and writes docs/images/overview.png.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

IMAGES = Path(__file__).parents[1] / "images"
# Acetic acid: two carbons, two oxygens, three bonds. One colour per atom: it is the atom's identifier.
ATOMS = (("C", 0.55, 2.4), ("C", 1.75, 2.4), ("O", 2.4, 3.45), ("O", 2.4, 1.35))
COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2")
BONDS = ((0, 1), (1, 2), (1, 3))
SPECIAL, FEATURE, NODE, EDGE = "#d9d9d9", "#eeeeee", "#ffe9a8", "#c9e4f6"
ROW, WIDTHS = 0.36, (0.55, 0.42, 0.42, 0.62)


def draw_graph(axis: Axes) -> None:
    for u, v in BONDS:
        (_, x, y), (_, a, b) = ATOMS[u], ATOMS[v]
        if (u, v) == (1, 2):  # the double bond
            for shift in (-0.07, 0.07):
                axis.plot((x + shift, a + shift), (y, b), color="#555555", lw=2, zorder=1)
        else:
            axis.plot((x, a), (y, b), color="#555555", lw=2, zorder=1)
    for number, (symbol, x, y) in enumerate(ATOMS):
        axis.scatter(x, y, s=780, color=COLOURS[number], zorder=2)
        axis.text(x, y, f"{symbol}$_{number + 1}$", ha="center", va="center", color="white", size=13, zorder=3)


def token(axis: Axes, x: float, y: float, name: str, cells: tuple[tuple[str, str], ...]) -> None:
    """One row of the table: feature, identifiers of the two ends, type."""
    axis.text(x - 0.12, y + ROW / 2, name, ha="right", va="center", size=10)
    for (text, colour), width in zip(cells, WIDTHS, strict=True):
        axis.add_patch(Rectangle((x, y), width, ROW, facecolor=colour, edgecolor="white", lw=1.5))
        axis.text(x + width / 2, y + ROW / 2, text, ha="center", va="center", size=9.5, color="#222222")
        x += width


def draw_tokens(axis: Axes, x: float) -> None:
    top = 3.55
    for text, width, left in zip(("X", "$P_u$", "$P_v$", "E"), WIDTHS, (0, 0.55, 0.97, 1.39), strict=True):
        axis.text(x + left + width / 2, top + ROW + 0.12, text, ha="center", va="bottom", size=11)
    axis.text(x - 0.12, top + ROW / 2, "[graph]", ha="right", va="center", size=10)
    axis.add_patch(Rectangle((x, top), sum(WIDTHS), ROW, facecolor=SPECIAL, edgecolor="white", lw=1.5))
    axis.text(x + sum(WIDTHS) / 2, top + ROW / 2, "learned", ha="center", va="center", size=9.5, color="#222222")
    symbols = [symbol for symbol, _, _ in ATOMS]
    for number, symbol in enumerate(symbols):
        own = ("", COLOURS[number])
        name = f"{symbol}$_{number + 1}$"
        token(axis, x, top - (number + 1) * ROW, name, ((symbol, FEATURE), own, own, ("node", NODE)))
    for place, (u, v) in enumerate(BONDS):
        name = f"{symbols[u]}$_{u + 1}${symbols[v]}$_{v + 1}$"
        kind = ("=" if (u, v) == (1, 2) else "-", FEATURE)
        ends = ("", COLOURS[u]), ("", COLOURS[v])
        token(axis, x, top - (place + 5) * ROW, name, (kind, *ends, ("edge", EDGE)))


def box(axis: Axes, x: float, y: float, width: float, height: float, text: str, colour: str, size: float = 11) -> None:
    shape = FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0.03", facecolor=colour, edgecolor="#555555")
    axis.add_patch(shape)
    axis.text(x + width / 2, y + height / 2, text, ha="center", va="center", size=size)


def arrow(axis: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axis.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=18, color="#555555", lw=1.6))


def overview() -> plt.Figure:
    figure, axis = plt.subplots(figsize=(12, 4.2), layout="constrained")
    axis.set(xlim=(0, 13), ylim=(0, 4.75))
    axis.axis("off")
    draw_graph(axis)
    draw_tokens(axis, 4.6)
    for y, text in ((2.75, "attention"), (1.65, "MLP")):
        box(axis, 8.1, y, 1.7, 0.55, text, "#e8eef7")
    frame = FancyBboxPatch((7.85, 1.35), 2.2, 2.25, boxstyle="round,pad=0.08", facecolor="none", edgecolor="#555555")
    axis.add_patch(frame)
    arrow(axis, (8.95, 2.72), (8.95, 2.25))
    axis.text(10.22, 1.3, r"$\times$ T", size=12, va="bottom")
    for y, text in ((2.95, "graph"), (2.2, "node"), (1.45, "edge")):
        box(axis, 11.35, y, 1.35, 0.5, f"one row\nper {text}", "#f3f3f3", 9.5)
    arrow(axis, (2.95, 2.45), (3.7, 2.45))
    arrow(axis, (6.75, 2.45), (7.65, 2.45))
    axis.text(7.2, 2.6, "$w_{in}$", ha="center", size=11)
    arrow(axis, (10.25, 2.45), (11.2, 2.45))
    for x, title in ((1.45, "graph"), (5.6, "tokens"), (8.95, "plain Transformer"), (12.03, "prediction")):
        axis.text(x, 4.58, title, ha="center", va="center", size=13, weight="bold")
    captions = (
        (1.45, "atoms and bonds,\nnodes and edges"),
        (
            5.3,
            "every node and edge is one row; colours are\northonormal node identifiers P: rows that\n"
            "share a node share a colour",
        ),
        (8.95, "reads rows: no message passing,\nno structure in its attention"),
        (12.03, "of the whole,\nor of its pieces"),
    )
    for x, text in captions:
        axis.text(x, 0.62, text, ha="center", va="top", size=9.5, color="#444444")
    return figure


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    overview().savefig(IMAGES / "overview.png", dpi=120)
