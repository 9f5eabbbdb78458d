"""How systems are drawn: TokenGT and its kin solid and bold, message passing dashed, other Transformers dotted."""

from collections.abc import Sequence
from typing import Any

_STYLES = {"O(n + m)": "--", "O(n^2)": ":", "O(n^2 + m)": ":"}


def strokes(systems: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Colour, style and width of every line, by (label, asymptotics); both families have the strong colours first."""
    from matplotlib import colormaps

    paired = colormaps["tab20"].colors  # type: ignore[attr-defined]
    colours = (*paired[::2], *paired[1::2])
    drawn, seen = [], {True: 0, False: 0}
    for label, asymptotics in systems:
        ours = label.startswith(("TokenGT", "Transformer"))
        style = {"linestyle": "-", "linewidth": 2.0} if ours else {"linestyle": _STYLES.get(asymptotics, "-")}
        drawn.append({"linewidth": 1.2, **style, "color": colours[seen[ours] % len(colours)], "label": label})
        seen[ours] += 1
    return drawn
