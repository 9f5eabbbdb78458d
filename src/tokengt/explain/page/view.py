"""An explanation as the data of its page: whatever the script needs, and nothing that it would have to work out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokengt.explain.attributions import Attribution
from tokengt.explain.explanation import AttentionSummary, Explanation
from tokengt.explain.page import words
from tokengt.explain.page.drawing import draw_graph, draw_molecule
from tokengt.explain.page.numbers import as_numbers
from tokengt.explain.page.packing import pack_maps
from tokengt.explain.patterns import Column
from tokengt.explain.profile import EquivarianceProfile
from tokengt.explain.tokens import EDGE, NODE, Tokens
from tokengt.interop.depiction import depict


def view(explanation: Explanation, others: Sequence[Explanation] = ()) -> dict[str, Any]:
    """What the page shows; ``others`` explain other outputs (targets or classes) for the same graph."""
    molecule = explanation.molecule is not None
    return {
        "title": _title(explanation),
        "facts": _facts(explanation),
        "words": words.graph_words(molecule),
        "prediction": _prediction(explanation),
        "graph": _graph(explanation),
        "tokens": _tokens(explanation.tokens),
        "token": _read_token(explanation),
        "attention": _attention(explanation),
        "attribution": _attribution(explanation, others),
        "distance": _distance(explanation),
        "patterns": _patterns(explanation, molecule),
        "notes": [words.NOT_CAUSES],
    }


def _title(explanation: Explanation) -> str:
    if explanation.molecule is None:
        return explanation.source or f"A graph of {explanation.graph.num_nodes:,} nodes"
    text = explanation.molecule
    return text.text if text.kind == "smiles" else text.smiles


def _facts(explanation: Explanation) -> list[str]:
    graph = explanation.graph
    nodes, edges = ("atoms", "bonds") if explanation.molecule is not None else ("nodes", "edges")
    counts = f"{graph.num_nodes:,} {nodes}, {len(explanation.tokens.edges):,} tokens of {edges}"
    facts = [counts, explanation.model]
    named = explanation.molecule is not None and explanation.source.startswith("SMILES ")
    if explanation.source and explanation.source != _title(explanation) and not named:
        facts.insert(0, explanation.source)
    if explanation.level != "graph":
        facts.insert(0, f"{explanation.level} {explanation.row}")
    if explanation.members > 1:
        facts.append(f"mean of {explanation.members} models; attention is that of the first")
    return facts


def _prediction(explanation: Explanation) -> dict[str, Any]:
    unit, spread, interval = explanation.unit, explanation.spread, explanation.interval
    rows = [
        {
            "name": name,
            "value": float(value),
            "text": words.prediction_text(float(value), unit),
            "spread": None if spread is None else words.spread_text(float(spread[place]), unit),
            "interval": None
            if interval is None
            else words.interval_text(float(interval.low[place]), float(interval.high[place]), unit),
        }
        for place, (name, value) in enumerate(zip(explanation.outputs, explanation.prediction, strict=True))
    ]
    notes = [words.SPREAD] if spread is not None else []
    notes += [] if interval is None else [words.interval_sentence(interval.level)]
    notes += [] if explanation.forest is None else [words.forest_sentence(explanation.forest)]
    return {
        "rows": rows,
        "shown": explanation.output,
        "note": " ".join(notes) or None,
        "warning": words.UNLIKE if explanation.unlike else None,
    }


def _graph(explanation: Explanation) -> dict[str, Any]:
    if explanation.molecule is not None:
        own = explanation.molecule
        return draw_molecule(depict(own.text, own.policy, own.kind))
    graph = explanation.graph
    return draw_graph(graph.num_nodes, graph.edge_index[:2].cpu().numpy())


def _tokens(tokens: Tokens) -> list[dict[str, Any]]:
    def own(kind: str, ends: list[int]) -> tuple[str, list[int]]:
        if kind == NODE:
            return "node", ends[:1]
        return ("edge" if len(ends) == 2 else "tuple", ends) if kind == EDGE else ("special", [])

    found = []
    for name, kind, ends in zip(tokens.names, tokens.kinds, tokens.endpoints.tolist(), strict=True):
        shown, nodes = own(kind, ends)
        found.append({"name": name, "kind": shown, "nodes": nodes})
    return found


def _read_token(explanation: Explanation) -> int:
    """The token that is looked at first: the one that the prediction is read from, if it is one."""
    tokens, row = explanation.tokens, explanation.row
    if explanation.level == "graph":
        return 0
    return int(tokens.nodes[row] if explanation.level == "node" else tokens.of_edge[row])


def _attention(explanation: Explanation) -> dict[str, Any]:
    maps = explanation.maps
    if maps is None or not maps.weights.size:
        return {"missing": explanation.missing.get("maps", "This model has no layer that attends.")}
    packed = pack_maps(maps.weights)
    if packed is None:
        return {
            "missing": f"The graph has {len(explanation.tokens):,} tokens: their maps would make this page too large "
            "to open."
        }
    return {name: getattr(packed, name) for name in packed.__dataclass_fields__}


def _attribution(explanation: Explanation, others: Sequence[Explanation]) -> dict[str, Any]:
    by_output = {each.output: each.attributions for each in (*others, explanation)}
    methods = [
        _method(name, [by_output.get(place, {}).get(name) for place in range(len(explanation.outputs))])
        for name in explanation.attributions
    ]
    absent = {name: why for name, why in explanation.missing.items() if name in words.METHOD_NAMES}
    reasons = [f"{words.METHOD_NAMES[name]}: {why}" for name, why in absent.items()]
    if not methods:
        return {"missing": " ".join(reasons) or "Attributions were not asked for."}
    return {"methods": methods, "notes": reasons, "outputs": sorted(by_output)}


def _method(name: str, by_output: Sequence[Attribution | None]) -> dict[str, Any]:
    """One method for all outputs; null for an output that it was not asked of."""
    first = next(each for each in by_output if each is not None)
    return {
        "key": name,
        "name": words.METHOD_NAMES[name],
        "sentence": words.method_sentence(first),
        "one_sided": name in ("rollout", "attention"),
        "values": [None if each is None else as_numbers(each.scores) for each in by_output],
        "notes": [None if each is None else words.method_notes(each) for each in by_output],
    }


def _distance(explanation: Explanation) -> dict[str, Any]:
    if explanation.distance is None or not explanation.distance.size:
        reason = explanation.missing.get("distance") or explanation.missing.get("maps")
        return {"missing": reason or "This model has no layer that attends."}
    usual, absent = explanation.usual, explanation.missing.get("usual")
    return {
        "graph": as_numbers(explanation.distance),
        "usual": None if usual is None else as_numbers(usual.distance),
        "usual_words": None if usual is None else usual_words(usual),
        "note": f"Not compared with the validation part: {absent}." if absent else None,
    }


def _patterns(explanation: Explanation, molecule: bool) -> dict[str, Any]:
    profile, usual = explanation.profile, explanation.usual
    if profile is None or not profile.shares.size:
        reason = explanation.missing.get("profile") or explanation.missing.get("maps")
        return {"missing": reason or "This model has no layer that attends."}
    graphs = [("this graph", profile)] + ([] if usual is None else [(usual_words(usual), usual.profile)])
    return patterns_view(graphs, molecule)


def patterns_view(graphs: Sequence[tuple[str, EquivarianceProfile]], molecule: bool) -> dict[str, Any]:
    """The profiles of some graphs, or means over many, by name."""
    first = graphs[0][1]
    return {
        "columns": [_column(column, molecule) for column in first.columns],
        "read_columns": [_column(column, molecule) for column in first.read_columns],
        "graphs": [
            {
                "name": name,
                "shares": as_numbers(profile.shares),
                "mass": as_numbers(profile.mass),
                "on_rows": as_numbers(_padded(profile.on_rows, len(profile.columns))),
                "read": as_numbers(profile.read_shares),
            }
            for name, profile in graphs
        ],
    }


def usual_words(usual: AttentionSummary) -> str:
    return f"mean over {usual.graphs:,} graphs of the {usual.part}"


def _column(column: Column, molecule: bool) -> dict[str, str]:
    sentence = words.of_graph(words.column_sentence(column), molecule)
    return {"name": words.of_graph(column.name, molecule), "role": column.role, "sentence": sentence}


def _padded(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Columns that a table does not have, as unknown."""
    missing = np.full((*values.shape[:-1], width - values.shape[-1]), np.nan)
    return np.concatenate([values, missing], -1)
