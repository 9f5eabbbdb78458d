"""An explanation to HTML."""

from collections.abc import Sequence

from tokengt.explain.explanation import Explanation
from tokengt.explain.page.document import assemble
from tokengt.explain.page.view import view

# In the order in which they need each other.
_SHARED = ("elements", "colours", "geometry", "bonds", "graph", "controls", "plot", "distance", "patterns")
_EXPLANATION = (*_SHARED, "weights", "map", "attention", "attribution", "page")


def render(explanation: Explanation, others: Sequence[Explanation] = ()) -> str:
    """One self-contained HTML file that shows an explanation; it has no side effects and asks no network.

    Args:
        explanation: what is shown first.
        others: explanations of other outputs (targets, classes) of the same model for the same graph, which a person
            can switch to.
    """
    data = view(explanation, others)
    return assemble(f"{data['title']} explained", data, _EXPLANATION)
