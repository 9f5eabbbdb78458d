"""An explanation to HTML."""

import html
from collections.abc import Sequence

from tokengt.explain.explanation import Explanation
from tokengt.explain.page.document import assemble
from tokengt.explain.page.summary_view import summary_view
from tokengt.explain.page.view import view
from tokengt.explain.run_summary import RunSummary

# In the order in which they need each other.
_SHARED = ("elements", "colours", "geometry", "bonds", "graph", "controls", "plot", "distance", "patterns")
EXPLANATION = (*_SHARED, "weights", "map", "attention", "attribution", "page")
SUMMARY = (*_SHARED, "curves", "predictions", "errors", "wrong", "substructures", "summary")


def render(explanation: Explanation, others: Sequence[Explanation] = ()) -> str:
    """One self-contained HTML file that shows an explanation; it has no side effects and asks no network.

    Args:
        explanation: what is shown first.
        others: explanations of other outputs (targets, classes) of the same model for the same graph, which a person
            can switch to.
    """
    data = view(explanation, others)
    return assemble(f"{data['title']} explained", data, EXPLANATION)


def render_summary(summary: RunSummary) -> str:
    """One self-contained HTML file that shows how good a run is, and where it is wrong."""
    data = summary_view(summary)
    return assemble(f"{data['title']} summarised", data, SUMMARY)


def framed(page: str, height: int = 900) -> str:
    """A page inside another, such as a notebook: it runs its own script, and has no part in what is around it."""
    style = f"width:100%;height:{height}px;border:0"
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{html.escape(page)}"></iframe>'
