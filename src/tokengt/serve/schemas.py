"""The requests and answers of every route as JSON schemas, for the OpenAPI description. Parsing is in asking.py."""

from typing import Any

from tokengt.serve.asking import LONGEST_SMILES, TABLE_TYPES
from tokengt.serve.limits import Limits
from tokengt.serve.needs import Needs
from tokengt.serve.sketches import MOST_CHARGE, MOST_DRAWN, ORDERS

Schema = dict[str, Any]

PROBLEM: Schema = {
    "type": "object",
    "description": "What is wrong: one sentence, the field that it is about, and what was expected there.",
    "properties": {
        "error": {"type": "string"},
        "field": {"type": ["string", "null"]},
        "expected": {"type": ["string", "null"]},
    },
    "required": ["error", "field", "expected"],
}
_WORDS = {
    400: "The body is no JSON, or not whole.",
    403: "The request comes from a page of another site, or names another host.",
    404: "There is no such page.",
    405: "The page has no such method.",
    408: "The body did not arrive in time.",
    409: "This run cannot be asked so.",
    413: "The request is larger than the server takes.",
    415: "The body is of another type.",
    422: "A field is not as it should be.",
    503: "The server is at work for too many requests; come again.",
    504: "The answer took too long.",
}
SMILES: Schema = {"type": "string", "maxLength": LONGEST_SMILES}
GRAPH: Schema = {
    "type": "object",
    "description": "A graph as networkx.node_link_data writes it.",
    "properties": {
        "directed": {"type": "boolean"},
        "multigraph": {"type": "boolean"},
        "nodes": {"type": "array", "items": {"type": "object"}},
        "edges": {
            "type": "array",
            "items": {"type": "object", "required": ["source", "target"]},
        },
    },
    "required": ["nodes", "edges"],
}
ROWS: Schema = {
    "type": "object",
    "properties": {
        "columns": {"type": "array", "items": {"type": "string"}},
        "rows": {
            "type": "array",
            "items": {
                "type": "object",
                "description": "The columns of a row: which one it is, its prediction, what was asked for beside it, "
                "and the reason if it has none.",
                "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
            },
        },
        "predicted": {"type": "integer"},
        "refused": {"type": "integer"},
    },
    "required": ["columns", "rows", "predicted", "refused"],
}
_ATOM: Schema = {
    "type": "object",
    "properties": {
        "element": {"type": "string", "maxLength": 2},
        "charge": {"type": "integer", "minimum": -MOST_CHARGE, "maximum": MOST_CHARGE},
        "x": {"type": "number"},
        "y": {"type": "number"},
    },
    "required": ["element"],
    "additionalProperties": False,
}
_BOND: Schema = {
    "type": "object",
    "properties": {
        "start": {"type": "integer", "minimum": 0},
        "end": {"type": "integer", "minimum": 0},
        "order": {"type": "integer", "enum": list(ORDERS)},
    },
    "required": ["start", "end"],
    "additionalProperties": False,
}
SKETCH: Schema = {
    "type": "object",
    "properties": {
        "atoms": {"type": "array", "items": _ATOM, "minItems": 1, "maxItems": MOST_DRAWN},
        "bonds": {"type": "array", "items": _BOND, "maxItems": 2 * MOST_DRAWN},
    },
    "required": ["atoms", "bonds"],
    "additionalProperties": False,
}
DRAWN: Schema = {
    "type": "object",
    "properties": {
        "atoms": {"type": "array", "items": _ATOM},
        "bonds": {"type": "array", "items": _BOND},
        "stereo_left_out": {"type": "boolean"},
    },
    "required": ["atoms", "bonds", "stereo_left_out"],
}
ONE_SMILES: Schema = {
    "type": "object",
    "properties": {"smiles": SMILES},
    "required": ["smiles"],
    "additionalProperties": False,
}
HEALTH: Schema = {
    "type": "object",
    "properties": {"status": {"type": "string", "enum": ["ready"]}},
    "required": ["status"],
}
RUN: Schema = {
    "type": "object",
    "description": "The run: what it predicts, what it needs, and the limits of a request.",
    "properties": {
        "input": {"type": "string", "enum": ["molecules", "graphs"]},
        "columns": {"type": "array", "items": {"type": "string"}},
        "beside": {
            "type": "object",
            "description": "What the run can tell beside predictions, as the page asks for it; null and false for "
            "what it cannot.",
            "properties": {
                "interval": {"type": ["number", "null"]},
                "neighbours": {"type": "boolean"},
                "columns": {"type": "array", "items": {"type": "string"}},
            },
        },
        "limits": {"type": "object"},
    },
    "required": ["input", "columns", "beside", "limits"],
}
EXPLAINED: Schema = {
    "type": "object",
    "properties": {"page": {"type": "string", "description": "Where the page is, for a while."}},
    "required": ["page"],
}


def prediction(needs: Needs, limits: Limits) -> Schema:
    """The body of POST /api/predict: SMILES, or graphs, as the run takes them."""
    how: Schema = {
        "alone": {
            "type": "boolean",
            "description": "Answer it in a batch of its own: bit for bit as tokengt predict answers a file of these "
            "rows.",
        },
        "interval": {
            "type": ["number", "null"],
            "minimum": 0.01,
            "maximum": 0.999,
            "description": "Columns low_ and high_ that are to hold this share of the true values, such as 0.9.",
        },
        "neighbours": {
            "type": "boolean",
            "description": "Columns similarity, distance and unlike_training: how near the training data is.",
        },
    }
    if needs.policy is None:
        fields: Schema = {"graphs": {"type": "array", "items": GRAPH, "minItems": 1, "maxItems": limits.rows}}
    else:
        fields = {"smiles": {"type": "array", "items": SMILES, "minItems": 1, "maxItems": limits.rows}}
    if needs.descriptors:
        told = ", ".join(needs.descriptors)
        fields["descriptors"] = {"type": "array", "items": _numbers(needs), "description": told}
    required = list(fields)
    return {
        "type": "object",
        "properties": {**fields, **how},
        "required": required,
        "additionalProperties": False,
    }


def explanation(needs: Needs) -> Schema:
    """The body of POST /api/explain."""
    fields: Schema = {"smiles": SMILES}
    if needs.policy is None:
        fields = {"graph": GRAPH, "item": {"type": "integer", "minimum": 0, "description": "The node or edge."}}
    elif needs.descriptors:
        fields["descriptors"] = _numbers(needs)
    required = [name for name in fields if name != "item"]
    return {"type": "object", "properties": fields, "required": required, "additionalProperties": False}


def _numbers(needs: Needs) -> Schema:
    count = len(needs.descriptors)
    return {"type": "array", "items": {"type": "number"}, "minItems": count, "maxItems": count}


def body(schema: Schema) -> Schema:
    """What a route says of its body, of JSON."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def table_body() -> Schema:
    """What /api/table says of its body."""
    text = {"schema": {"type": "string"}}
    return {"requestBody": {"required": True, "content": dict.fromkeys(TABLE_TYPES, text)}}


def answers(kind: str, schema: Schema | None, *problems: int, also: str | None = None) -> dict[int | str, Schema]:
    """The answers of a route: one of type ``kind`` (or of text, if ``also`` is accepted), or these problems."""
    content = {kind: {"schema": schema or {}}} | ({also: {"schema": {"type": "string"}}} if also else {})
    told: dict[int | str, Schema] = {200: {"description": "The answer.", "content": content}}
    for status in (403, 405, *problems):
        problem = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
        told[status] = {"description": _WORDS[status], "content": problem}
    return told
