"""Bodies of requests: what they ask for, or one sentence about what is wrong."""

import json
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokengt.interop.molecules import DEFAULT_POLICY
from tokengt.serve import asking
from tokengt.serve.asking import Graphs, Molecules, asked_explanation, asked_prediction, asked_sketch, parse_json
from tokengt.serve.limits import Limits
from tokengt.serve.needs import Needs
from tokengt.serve.problems import Problem, shown
from tokengt.serve.sketches import Drawing, DrawnAtom, DrawnBond
from tokengt.workflow.beside import Beside

MOLECULES, GRAPHS = Needs(DEFAULT_POLICY), Needs(None)
WITH_NUMBERS = Needs(DEFAULT_POLICY, ("T", "pH"))
LIMITS = Limits(rows=3, explain_atoms=5)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def predicted(content: Any, needs: Needs = MOLECULES) -> Molecules | Graphs:
    return asked_prediction(json.dumps(content).encode(), needs, LIMITS)


def test_what_is_asked_for() -> None:
    assert predicted({"smiles": ["C", "CC"]}) == Molecules(("C", "CC"))
    assert predicted({"smiles": ["C"], "alone": True}) == Molecules(("C",), (), True)
    beside = predicted({"smiles": ["C"], "interval": 0.9, "neighbours": True})
    assert beside == Molecules(("C",), beside=Beside(0.9, True))
    assert predicted({"smiles": ["C"], "interval": None}) == Molecules(("C",))
    assert predicted({"smiles": ["C"], "descriptors": [[1, 2.5]]}, WITH_NUMBERS) == Molecules(("C",), ((1.0, 2.5),))
    graph = {"nodes": [], "edges": []}
    assert predicted({"graphs": [graph]}, GRAPHS) == Graphs((graph,))
    body = json.dumps({"smiles": "C", "descriptors": [1, 2]}).encode()
    assert asked_explanation(body, WITH_NUMBERS, LIMITS).descriptors == (1.0, 2.0)
    assert asked_explanation(b'{"graph": {"nodes": []}, "item": 3.0}', GRAPHS, LIMITS).item == 3


@pytest.mark.parametrize(
    ("content", "status", "field", "sentence"),
    [
        ([], 422, "the body", "the body is a list of 0; expected an object with smiles"),
        (None, 422, "the body", "the body is null"),
        ({}, 422, "smiles", "the body has no field smiles"),
        ({"smile": ["C"]}, 422, "smile", "did you mean smiles?"),
        ({"smiles": "CCO"}, 422, "smiles", 'smiles is "CCO"; expected a list'),
        ({"smiles": []}, 422, "smiles", "smiles is empty; expected at least 1"),
        ({"smiles": ["C", 5]}, 422, "smiles[1]", "smiles[1] is 5; expected text"),
        ({"smiles": ["C"] * 4}, 413, "smiles", "smiles has 4 entries; expected at most 3 (the limit rows)"),
        ({"smiles": ["C" * 20_001]}, 422, "smiles[0]", "20,001 characters; expected at most 20,000"),
        ({"smiles": ["C"], "interval": "0.9"}, 422, "interval", 'interval is "0.9"; expected a finite number'),
        ({"smiles": ["C"], "neighbours": 1}, 422, "neighbours", "neighbours is 1; expected true or false"),
        ({"smiles": ["C"], "alone": 1}, 422, "alone", "alone is 1; expected true or false"),
    ],
)
def test_what_is_wrong_is_named(content: Any, status: int, field: str, sentence: str) -> None:
    with pytest.raises(Problem) as refusal:
        predicted(content)
    assert (refusal.value.status, refusal.value.field) == (status, field)
    assert sentence in refusal.value.error
    told = json.loads(refusal.value.body())
    assert told["error"] == refusal.value.error


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ([1], "descriptors[0] has 1 numbers; expected 2 numbers: T, pH"),
        ([1, 2, 3], "descriptors[0] has 3 entries"),
        ([1, "2"], 'descriptors[0][1] is "2"; expected a finite number'),
        ([1, True], "descriptors[0][1] is true"),
        ([1, 10**400], "descriptors[0][1] is too large a number"),
        (5, "descriptors[0] is 5; expected a list"),
    ],
)
def test_descriptors_are_numbers(row: Any, sentence: str) -> None:
    with pytest.raises(Problem) as refusal:
        predicted({"smiles": ["C"], "descriptors": [row]}, WITH_NUMBERS)
    assert sentence in refusal.value.error


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe{}", "not UTF-8 text (byte 0)"),
        (b'{"smiles": ["\xe9"]}', "not UTF-8"),
        (b'{"smiles": [NaN]}', "holds NaN"),
        (b'{"smiles": [-Infinity]}', "holds -Infinity"),
        (b'{"smiles": ["\\ud800"]}', "half of a character"),
        (b'{"\\udfff": 1}', "half of a character"),
        (b'{"smiles": [], "smiles": ["C"]}', 'the name "smiles" twice'),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"1" * 10_000, "thousands of digits"),
    ],
)
def test_json_is_read_strictly(body: bytes, sentence: str) -> None:
    with pytest.raises(Problem) as refusal:
        parse_json(body)
    assert refusal.value.status == 400
    assert sentence in refusal.value.error
    assert len(refusal.value.error) < 300


def test_whole_characters_may_be_escaped() -> None:
    assert parse_json(b'"\\ud83d\\ude00 \\u00e9"') == "\U0001f600 é"


def test_a_drawing() -> None:
    content = {"atoms": [{"element": "C"}, {"element": "O", "charge": -1, "x": 1, "y": 2}]}
    drawing = asked_sketch(json.dumps({**content, "bonds": [{"start": 0, "end": 1, "order": 2}]}).encode())
    assert drawing == Drawing((DrawnAtom("C"), DrawnAtom("O", -1, 1.0, 2.0)), (DrawnBond(0, 1, 2),))
    for bonds, field in (
        ([{"start": 0, "end": 2}], "bonds[0].end"),
        ([{"start": 0, "end": 0}], "bonds[0]"),
        ([{"start": 0, "end": 1}, {"start": 1, "end": 0}], "bonds[1]"),
        ([{"start": 0, "end": 1, "order": 4}], "bonds[0].order"),
        ([{"start": 0, "end": True}], "bonds[0].end"),
        ([{"start": 0}], "bonds[0].end"),
        ([7], "bonds[0]"),
    ):
        with pytest.raises(Problem) as refusal:
            asked_sketch(json.dumps({**content, "bonds": bonds}).encode())
        assert refusal.value.field == field


def refusal_of(read: Callable[[], object]) -> Problem | None:
    """The problem that comes out; nothing else may."""
    try:
        read()
    except Problem as problem:
        return problem
    return None


@given(JSON_VALUES)
def test_any_json_is_an_answer_or_a_problem(content: Any) -> None:
    """Whatever a body says, nothing but a Problem comes out, and its sentence is one line of text."""
    body = json.dumps(content).encode()
    for read in (
        lambda: asked_prediction(body, MOLECULES, LIMITS),
        lambda: asked_prediction(body, WITH_NUMBERS, LIMITS),
        lambda: asked_prediction(body, GRAPHS, LIMITS),
        lambda: asked_explanation(body, GRAPHS, LIMITS),
        lambda: asked_sketch(body),
        lambda: asking.asked_layout(body),
    ):
        problem = refusal_of(read)
        if problem is not None:
            assert problem.status in (400, 413, 422)
            assert "\n" not in problem.error
            assert json.loads(problem.body())["error"] == problem.error


@given(st.binary(max_size=60))
def test_any_bytes_are_json_or_a_problem(body: bytes) -> None:
    problem = refusal_of(lambda: parse_json(body))
    assert problem is None or problem.status == 400


def test_values_are_shown_short() -> None:
    assert shown("x" * 1000) == '"' + "x" * 59 + "..."
    assert shown([1, 2]) == "a list of 2"
    assert shown('<b>"') == '"<b>\\""'


def test_limits_have_ranges() -> None:
    for each in fields(Limits):
        wrong = (-1.0, float("nan"), float("inf")) if isinstance(each.default, float) else (0, -1)
        for value in wrong:
            with pytest.raises(ValueError, match=f"the limit {each.name} is"):
                Limits(**{each.name: value})
    with pytest.raises(
        ValueError, match=r"rows is 5,000; expected at most 2,048; longer files are for tokengt predict"
    ):
        Limits(rows=5000)


def test_the_limits_of_the_guide_are_those_there_are() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "serve.md").read_text()
    _, table = guide.split("| Limit | Default | Meaning |\n|---|---|---|\n")
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \|", table, re.MULTILINE)
    assert {name: float(value) for name, value in rows} == {each.name: each.default for each in fields(Limits)}
