"""Pictures of explanations: matplotlib figures, and the same as HTML for notebooks."""

import base64
import html
import io
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tokengt.explain.attributions import Attribution
from tokengt.explain.maps import CLAMP, AttentionMaps, clamp_map
from tokengt.explain.profile import EquivarianceProfile

if TYPE_CHECKING:
    from tokengt.explain.explanation import Explanation

_DPI = 110
# Names of tokens are written out on a map of up to this many.
_NAMED = 40
# The tokens with the largest scores are shown, at most so many.
_SHOWN = 30


def plot_attention_maps(maps: AttentionMaps, layer: int | None = None, head: int | None = None) -> Any:
    """The map of one layer and head; the mean over heads, or one panel per layer, where they are left out."""
    weights = maps.weights if layer is None else maps.weights[layer : layer + 1]
    drawn = weights.mean(1) if head is None else weights[:, head]
    columns = min(4, max(1, len(drawn)))
    rows = -(-len(drawn) // columns) if len(drawn) else 1
    figure = _figure(3.0 * columns + 0.5, 3.0 * rows + 0.4)
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for place, axes in enumerate(grid):
        if place >= len(drawn):
            axes.set_axis_off()
            continue
        axes.imshow(clamp_map(drawn[place], _clamp(drawn[place])), cmap="Blues", vmin=0, vmax=1)
        number = place + 1 if layer is None else layer + 1
        axes.set_title(f"layer {number}, " + ("mean over heads" if head is None else f"head {head + 1}"))
        _name_axes(axes, maps.tokens.names)
    return figure


def plot_attention_distance(distance: NDArray[np.float64], usual: NDArray[np.float64] | None = None) -> Any:
    """Hops [layers, heads] by depth, one dot per head; ``usual`` is the mean over other graphs, as a line."""
    figure = _figure(4.2, 3.2)
    axes = figure.subplots()
    layers = np.arange(1, len(distance) + 1)
    axes.scatter(np.repeat(layers, distance.shape[1]), distance.flatten(), s=14, alpha=0.7, label="one head")
    axes.plot(layers, distance.mean(1), color="C1", label="mean over heads")
    if usual is not None:
        axes.plot(layers, usual.mean(1), color="0.5", linestyle="--", label="validation set")
    axes.set_xlabel("layer")
    axes.set_xticks(layers)
    axes.set_ylabel("attention distance, hops")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    return figure


def plot_equivariance_profile(profile: EquivarianceProfile, layer: int | None = None) -> Any:
    """Shares of every head, one row per head and one column per pattern; of one layer, or of all."""
    shares = profile.shares if layer is None else profile.shares[layer : layer + 1]
    layers, heads, columns = shares.shape
    figure = _figure(0.42 * columns + 1.6, 0.14 * layers * heads + 2.4)
    axes = figure.subplots()
    picture = axes.imshow(shares.reshape(-1, columns), cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(columns), profile.names, rotation=60, ha="right", fontsize=8)
    first = 1 if layer is None else layer + 1
    axes.set_yticks([heads * place for place in range(layers)], [f"layer {first + place}" for place in range(layers)])
    for place in range(1, layers):
        axes.axhline(heads * place - 0.5, color="0.6", linewidth=0.6)
    figure.colorbar(picture, ax=axes, label="share of attention", shrink=0.8)
    return figure


def plot_attribution(attribution: Attribution) -> Any:
    """Scores of the tokens that have the largest ones, the largest on top, and what they sum to."""
    scores = np.nan_to_num(attribution.scores)
    order = np.argsort(-np.abs(scores), kind="stable")[:_SHOWN][::-1]
    figure = _figure(4.6, 0.18 * len(order) + 1.2)
    axes = figure.subplots()
    colours = ["C3" if scores[token] < 0 else "C0" for token in order]
    axes.barh(range(len(order)), scores[order], color=colours)
    axes.set_yticks(range(len(order)), [attribution.tokens.names[token] for token in order], fontsize=7)
    axes.axvline(0, color="0.3", linewidth=0.6)
    axes.set_title(attribution.method.replace("_", " "))
    axes.set_xlabel(_sums(attribution), fontsize=8)
    return figure


def explanation_html(explanation: "Explanation") -> str:
    """The explanation as one block of HTML, for notebooks."""
    spread, interval = explanation.spread, explanation.interval
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{explanation.prediction[place]:.6g}</td>"
        f"<td>{'' if spread is None else f'± {spread[place]:.2g}'}</td>"
        f"<td>{'' if interval is None else f'{interval.low[place]:.4g} to {interval.high[place]:.4g}'}</td></tr>"
        for place, name in enumerate(explanation.outputs)
    )
    figures = [plot_attribution(each) for each in explanation.attributions.values()]
    if explanation.distance is not None and len(explanation.distance):
        usual = None if explanation.usual is None else explanation.usual.distance
        figures.append(plot_attention_distance(explanation.distance, usual))
    if explanation.profile is not None and len(explanation.profile.shares):
        figures.append(plot_equivariance_profile(explanation.profile))
    reasons = "".join(f"<li>{html.escape(why)}</li>" for why in dict.fromkeys(explanation.missing.values()))
    return (
        f"<div><p>{html.escape(explanation.model)}; {html.escape(explanation.unit)}</p><table>{rows}</table>"
        + "".join(map(as_html, figures))
        + (f"<ul>{reasons}</ul>" if reasons else "")
        + "</div>"
    )


def as_html(figure: Any) -> str:
    """A figure as an image that stands in the page itself."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=_DPI, metadata={"Software": None})
    return f'<img src="data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}">'


def _figure(width: float, height: float) -> Any:
    """A figure of matplotlib that no window manager knows of."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _clamp(weights: NDArray[np.floating[Any]]) -> float:
    """The darkest colour: the weight that one in a hundred is above, at least that of the paper's figures."""
    return max(CLAMP, float(np.quantile(weights, 0.99))) if weights.size else CLAMP


def _name_axes(axes: Any, names: tuple[str, ...]) -> None:
    if len(names) > _NAMED:
        axes.set_xticks([])
        axes.set_yticks([])
        return
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=5)
    axes.set_yticks(range(len(names)), names, fontsize=5)


def _sums(attribution: Attribution) -> str:
    if np.isnan(attribution.prediction):
        return f"sum {attribution.total:.4g}; no statement about the prediction"
    words = f"sum {attribution.total:.4g}, prediction minus reference {attribution.change:.4g}"
    return words if attribution.tolerance is None else f"{words}\n(off by {attribution.gap:.1g})"
