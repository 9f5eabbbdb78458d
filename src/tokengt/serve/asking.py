"""Bodies of requests to what they ask for: pure functions that raise a :class:`~tokengt.serve.problems.Problem`.

JSON is read strictly. A name that stands in an object twice, a number that is none (NaN), half a character and nesting
without end are refused here, so that nothing behind this module meets them.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokengt.config import near
from tokengt.serve.explaining import Explained
from tokengt.serve.limits import Limits
from tokengt.serve.needs import Needs
from tokengt.serve.problems import Problem, shown
from tokengt.serve.sketches import MOST_CHARGE, MOST_DRAWN, ORDERS, Drawing, DrawnAtom, DrawnBond
from tokengt.workflow.beside import Beside

# The longest SMILES that is read at all; how many atoms it may have is another limit.
LONGEST_SMILES = 20_000
# The kinds of text that /api/table takes, and the ending that a file of each has.
TABLE_TYPES = {
    "text/csv": ".csv",
    "text/tab-separated-values": ".tsv",
    "text/plain": ".smi",
    "chemical/x-daylight-smiles": ".smi",
    "chemical/x-mdl-sdfile": ".sdf",
}
JSON_TYPE = "application/json"


# What any request of predictions may say besides what is to be predicted.
_HOW = ("alone", "interval", "neighbours")


@dataclass(frozen=True)
class Molecules:
    """Molecules to predict; ``descriptors`` has one row for each, where the run needs them."""

    smiles: tuple[str, ...]
    descriptors: tuple[tuple[float, ...], ...] = ()
    alone: bool = False
    beside: Beside = field(default_factory=Beside)


@dataclass(frozen=True)
class Graphs:
    """Graphs to predict, as ``networkx.node_link_data`` writes them."""

    graphs: tuple[dict[str, Any], ...]
    alone: bool = False
    beside: Beside = field(default_factory=Beside)


def media_type(header: str | None) -> str:
    """The type in a Content-Type header, without its parameters."""
    return (header or "").partition(";")[0].strip().lower()


def parse_json(body: bytes) -> Any:
    """What a body of JSON says.

    Raises:
        Problem: it is none, or holds what no text or number can be.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Problem(400, f"the body is not UTF-8 text (byte {error.start})", None, "JSON in UTF-8") from None
    try:
        content = json.loads(text, object_pairs_hook=_each_once, parse_constant=_no_number)
    except Problem:
        raise
    except json.JSONDecodeError as error:
        place = f"{error.msg}, line {error.lineno} column {error.colno}"
        raise Problem(400, f"the body is not JSON: {place}", None, "JSON") from None
    except ValueError:
        raise Problem(400, "the body holds a number of thousands of digits", None, "numbers of 64 bits") from None
    except RecursionError:
        raise Problem(400, "the body is nested too deeply", None, "lists and objects in a few levels") from None
    if "\\u" in text and not _is_unicode(content):
        raise Problem(400, "the body holds half of a character (a lone surrogate)", None, "Unicode text")
    return content


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise Problem(400, f"an object has the name {shown(twice)} twice", None, "every name once")
    return names


def _no_number(word: str) -> Any:
    raise Problem(400, f"the body holds {word}, which is no number in JSON", None, "finite numbers")


def _is_unicode(content: Any) -> bool:
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def asked_prediction(body: bytes, needs: Needs, limits: Limits) -> Molecules | Graphs:
    """What POST /api/predict asks for."""
    if needs.policy is None:
        given = _fields(parse_json(body), required=("graphs",), optional=_HOW)
        graphs = _listed(given["graphs"], "graphs", limits.rows, "the limit rows", least=1)
        return Graphs(tuple(_each(graphs, "graphs", _graph)), *_how(given))
    more = ("descriptors",) if needs.descriptors else ()
    given = _fields(parse_json(body), required=("smiles", *more), optional=_HOW)
    smiles = tuple(_each(_listed(given["smiles"], "smiles", limits.rows, "the limit rows", least=1), "smiles", text))
    rows: tuple[tuple[float, ...], ...] = ()
    if more:
        names = ", ".join(needs.descriptors)
        expected = f"one row of {len(needs.descriptors)} numbers ({names}) per SMILES"
        table = _listed(given["descriptors"], "descriptors", limits.rows, "the limit rows")
        if len(table) != len(smiles):
            raise Problem(
                422, f"descriptors has {len(table):,} rows for {len(smiles):,} SMILES", "descriptors", expected
            )
        rows = tuple(_each(table, "descriptors", lambda row, where: _numbers(row, where, needs.descriptors)))
    return Molecules(smiles, rows, *_how(given))


def _how(given: dict[str, Any]) -> tuple[bool, Beside]:
    """Whether a request is answered by itself, and what it wants beside predictions."""
    level = given.get("interval")
    interval = None if level is None else _number(level, "interval")
    alone, neighbours = (_truth(given.get(name, False), name) for name in ("alone", "neighbours"))
    return alone, Beside(interval, neighbours)


def asked_explanation(body: bytes, needs: Needs, limits: Limits) -> Explained:
    """What POST /api/explain asks for: one SMILES, or one graph and which row of it."""
    if needs.policy is None:
        given = _fields(parse_json(body), required=("graph",), optional=("item",))
        graph = _graph(given["graph"], "graph")
        check_size(graph, "graph", limits.explain_atoms, "the limit explain_atoms")
        return Explained(graph, _whole(given.get("item", 0), "item", 0, 2 * limits.explain_atoms))
    more = ("descriptors",) if needs.descriptors else ()
    given = _fields(parse_json(body), required=("smiles", *more))
    numbers = _numbers(given["descriptors"], "descriptors", needs.descriptors) if more else ()
    return Explained(text(given["smiles"], "smiles"), 0, numbers)


def check_size(graph: dict[str, Any], field: str, most: int, limit: str) -> None:
    """Refuse a graph of more nodes and edges than are taken, before anybody looks at them."""
    size = sum(len(part) for name in ("nodes", "edges", "links") if isinstance(part := graph.get(name), list))
    if size > most:
        expected = f"at most {most:,} ({limit})"
        raise Problem(413, f"{field} has {size:,} nodes and edges; expected {expected}", field, expected)


def asked_layout(body: bytes) -> str:
    """The SMILES that POST /api/layout wants drawn."""
    return text(_fields(parse_json(body), required=("smiles",))["smiles"], "smiles")


def asked_sketch(body: bytes) -> Drawing:
    """The drawing whose SMILES POST /api/sketch wants."""
    given = _fields(parse_json(body), required=("atoms", "bonds"))
    whose = "what can be drawn"
    atoms = _each(_listed(given["atoms"], "atoms", MOST_DRAWN, whose, least=1), "atoms", _atom)
    bonds = _each(
        _listed(given["bonds"], "bonds", 2 * MOST_DRAWN, whose),
        "bonds",
        lambda bond, where: _bond(bond, where, len(atoms)),
    )
    joined = set()
    for place, bond in enumerate(bonds):
        ends = frozenset((bond.start, bond.end))
        if len(ends) < 2 or ends in joined:
            expected = "two atoms, joined by no other bond"
            raise Problem(422, f"bonds[{place}] joins atoms {bond.start} and {bond.end}", f"bonds[{place}]", expected)
        joined.add(ends)
    return Drawing(tuple(atoms), tuple(bonds))


def _fields(content: Any, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    known = (*required, *optional)
    if not isinstance(content, dict):
        raise Problem.of_value("the body", content, f"an object with {' and '.join(required)}")
    for name in content:
        if name not in known:
            raise Problem(
                422,
                f"the body has a field {shown(name)}{near(name, known)}; expected {', '.join(known)}",
                name[:60],
                f"one of {', '.join(known)}",
            )
    for name in required:
        if name not in content:
            raise Problem(422, f"the body has no field {name}; expected {' and '.join(required)}", name, "a value")
    return content


def _listed(value: Any, field: str, most: int, limit: str, least: int = 0) -> list[Any]:
    if not isinstance(value, list):
        raise Problem.of_value(field, value, "a list")
    if len(value) < least:
        raise Problem(422, f"{field} is empty; expected at least {least}", field, f"at least {least}")
    if len(value) > most:
        expected = f"at most {most:,} ({limit})"
        raise Problem(413, f"{field} has {len(value):,} entries; expected {expected}", field, expected)
    return value


def _each(values: list[Any], field: str, read: Callable[[Any, str], Any]) -> list[Any]:
    return [read(value, f"{field}[{place}]") for place, value in enumerate(values)]


def text(value: Any, field: str, most: int = LONGEST_SMILES) -> str:
    """A text of a reasonable length."""
    if not isinstance(value, str):
        raise Problem.of_value(field, value, "text")
    if len(value) > most:
        expected = f"at most {most:,} characters"
        raise Problem(422, f"{field} has {len(value):,} characters; expected {expected}", field, expected)
    return value


def _truth(value: Any, field: str) -> bool:
    if not isinstance(value, bool):
        raise Problem.of_value(field, value, "true or false")
    return value


def _graph(value: Any, field: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Problem.of_value(field, value, "an object as networkx.node_link_data gives it")
    return value


def _numbers(value: Any, field: str, names: Sequence[str]) -> tuple[float, ...]:
    row = _listed(value, field, len(names), "one per descriptor")
    if len(row) != len(names):
        expected = f"{len(names)} numbers: {', '.join(names)}"
        raise Problem(422, f"{field} has {len(row)} numbers; expected {expected}", field, expected)
    return tuple(_each(row, field, _number))


def _number(value: Any, field: str) -> float:
    expected = "a finite number"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Problem.of_value(field, value, expected)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise Problem(422, f"{field} is too large a number; expected {expected}", field, expected)
    return number


def _whole(value: Any, field: str, least: int, most: int) -> int:
    # JSON has one kind of number: 2.0 is the whole number 2.
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(whole, bool) or not isinstance(whole, int) or not least <= whole <= most:
        raise Problem.of_value(field, value, f"a whole number from {least} to {most}")
    return whole


def _atom(value: Any, where: str) -> DrawnAtom:
    given = _within(value, where, ("element",), ("charge", "x", "y"))
    return DrawnAtom(
        text(given["element"], f"{where}.element", 2),
        _whole(given.get("charge", 0), f"{where}.charge", -MOST_CHARGE, MOST_CHARGE),
        _number(given.get("x", 0), f"{where}.x"),
        _number(given.get("y", 0), f"{where}.y"),
    )


def _bond(value: Any, where: str, atoms: int) -> DrawnBond:
    given = _within(value, where, ("start", "end"), ("order",))
    start, end = (_whole(given[name], f"{where}.{name}", 0, atoms - 1) for name in ("start", "end"))
    return DrawnBond(start, end, _whole(given.get("order", 1), f"{where}.order", min(ORDERS), max(ORDERS)))


def _within(value: Any, where: str, required: Sequence[str], optional: Sequence[str]) -> dict[str, Any]:
    """An object inside the body."""
    if not isinstance(value, dict):
        raise Problem.of_value(where, value, f"an object with {' and '.join(required)}")
    known = (*required, *optional)
    for name in value:
        if name not in known:
            expected = f"one of {', '.join(known)}"
            raise Problem(422, f"{where} has a field {shown(name)}{near(name, known)}", where, expected)
    for name in required:
        if name not in value:
            raise Problem(422, f"{where} has no field {name}", f"{where}.{name}", "a value")
    return value
