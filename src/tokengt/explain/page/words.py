"""What the page says in words: numbers with few digits, tokens, methods and patterns in a sentence each."""

import math
from collections.abc import Sequence

from tokengt.explain.attributions import Attribution
from tokengt.explain.patterns import Column

METHOD_NAMES = {
    "integrated_gradients": "Integrated gradients",
    "occlusion": "Occlusion",
    "rollout": "Attention roll-out",
    "attention": "Attention of the last layer",
}
NOT_CAUSES = (
    "Attention shows where a model looks and not why it predicts what it does. The methods for what moved a prediction "
    "are better founded, and still describe the model, not chemistry or the world."
)

SPREAD = "± is the standard deviation over draws of identifiers and over models; it is not calibrated."
UNLIKE = (
    "Unlike anything trained on: hardly anything in the training data is as far from the rest as this. Rely neither on "
    "the prediction nor on its bounds."
)


def forest_sentence(share: float) -> str:
    """How much of a prediction is not the model's, and what becomes of that here."""
    return (
        f"{100 * share:.0f}% of the prediction is what a random forest on descriptors of the whole molecule says; "
        "what is shown here is due to the model, and the forest's part is held as it is."
    )


def number(value: float, digits: int = 4) -> str:
    """A few digits, with a real minus sign."""
    return f"{value:.{digits}g}".replace("-", "\N{MINUS SIGN}") if math.isfinite(value) else "unknown"


def signed(value: float, digits: int = 3) -> str:
    return ("+" if value > 0 else "") + number(value, digits)


def prediction_text(value: float, unit: str) -> str:
    """A prediction as a person reads it."""
    return f"{100 * value:.1f} %" if unit == "probability" else number(value)


def spread_text(value: float, unit: str) -> str:
    return f"{number(100 * value, 2)} %" if unit == "probability" else number(value, 2)


def interval_text(low: float, high: float, unit: str) -> str:
    return f"{prediction_text(low, unit)} to {prediction_text(high, unit)}"


def interval_sentence(level: float) -> str:
    """What the bounds below a prediction mean."""
    return (
        f"Below a prediction is the interval that is to hold {100 * level:g}% of true values, for inputs like those of "
        "the validation part, which set it."
    )


def graph_words(molecule: bool) -> dict[str, str]:
    """What nodes and edges are called."""
    if molecule:
        return {
            "nodes": "atoms",
            "edges": "bonds",
            "graph": "molecule",
            "one_node": "an atom",
            "either": "an atom or a bond",
        }
    return {"nodes": "nodes", "edges": "edges", "graph": "graph", "one_node": "a node", "either": "a node or an edge"}


def of_graph(text: str, molecule: bool) -> str:
    """The same words of a molecule: atoms and bonds instead of nodes and edges."""
    if not molecule:
        return text
    for word, other in (
        ("A node", "An atom"),
        ("An edge", "A bond"),
        ("a node", "an atom"),
        ("an edge", "a bond"),
        ("node", "atom"),
        ("edge", "bond"),
    ):
        text = text.replace(word, other)
    return text


def method_sentence(attribution: Attribution) -> str:
    """What a method asks."""
    if attribution.method == "integrated_gradients":
        return (
            f"How much each token moves the prediction on the way from a baseline, where {attribution.baseline}, to "
            "this graph."
        )
    if attribution.method == "occlusion":
        return "The prediction minus the prediction without the token, one token at a time."
    return (
        "Where attention goes from the token that the prediction is read from, followed through all layers. It has no "
        "sign and says nothing of how the prediction would change."
        if attribution.method == "rollout"
        else "Where the token that the prediction is read from attends in the last layer; it has no sign."
    )


def method_notes(attribution: Attribution) -> list[str]:
    """Whether the scores sum up to what they should."""
    total, change = attribution.total, attribution.change
    if attribution.method in ("rollout", "attention"):
        return [f"The scores sum to {number(total, 3)}."]
    ends = f"The prediction is {number(attribution.prediction)}"
    if attribution.method == "occlusion":
        return [
            f"{ends}; with {_reference(attribution)} it is {number(attribution.reference)}, a difference of "
            f"{signed(change)}. Scores of single tokens need not sum to that; here they sum to {signed(total)}."
        ]
    assert attribution.tolerance is not None
    off = f"off by {number(abs(attribution.gap), 2)}"
    allowed = f"the tolerance of {number(attribution.tolerance, 2)}"
    verdict = f"{off}, within {allowed}" if attribution.complete else f"{off}, more than {allowed}: doubt these scores"
    return [
        f"The scores sum to {signed(total)}. {ends} and that of the baseline {number(attribution.reference)}, a "
        f"difference of {signed(change)}: the sum is {verdict}.",
        *_parts(attribution),
    ]


def _reference(attribution: Attribution) -> str:
    """What is left when everything is occluded, as the attribution's own sentence says it."""
    _, _, kept = attribution.baseline.partition("the reference has ")
    return kept or "nothing left"


def _parts(attribution: Attribution) -> list[str]:
    if len(attribution.by_part) < 2:
        return []
    sums = [f"{signed(float(scores.sum()))} by {name}" for name, scores in attribution.by_part.items()]
    return [f"Of the sum, {_listed(sums)}."]


def _listed(texts: Sequence[str]) -> str:
    return ", ".join(texts[:-1]) + f" and {texts[-1]}" if len(texts) > 1 else "".join(texts)


def column_sentence(column: Column) -> str:
    """What a column of an equivariance profile means."""
    if column.role == "special":
        return f"Attention to the special token {column.name}, which is no node and no edge."
    if column.role == "left over":
        return "What no pattern explains: how unevenly a head attends to tokens of one pattern."
    query, _, keys = column.name.partition(": ")
    if not keys:
        return f"Attends evenly to {column.name}."
    subject = {"node": "A node", "edge": "An edge"}.get(query, f"A token of nodes {query}")
    if keys == "itself":
        return f"{subject} attends to itself."
    target = keys if query in ("node", "edge") else f"tokens of nodes {keys}"
    return f"{subject} attends evenly to {target}."
