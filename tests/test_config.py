import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokengt.config import from_dict, kinds_of, override, to_dict, union_from_dict
from tokengt.models.tokengt.config import TokenGTConfig
from tokengt.models.tokengt.identifiers import IdentifierConfig, LaplacianIds, NoIds, OrfIds
from tokengt.training.config import TrainingConfig


@dataclass(frozen=True)
class Column:
    name: str
    classes: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Table:
    columns: tuple[Column, ...]
    key: Column | None = None
    size: tuple[int, Column] = (1, Column("x"))
    note: str | int | None = None
    counts: Mapping[str, int] = field(default_factory=dict)


@pytest.mark.parametrize(
    "config",
    [
        Table((Column("a", ("b", "c")), Column("d"))),
        Table((), key=Column("k", ()), size=(2, Column("y", ("z",))), note="n", counts={"rows": 3}),
        Table((), note=4),
    ],
)
def test_tuples_and_dataclasses_inside_each_other_come_back(config: Table) -> None:
    assert from_dict(Table, json.loads(json.dumps(to_dict(config)))) == config


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"columns": "ab"}, "config.columns is 'ab'; expected a list"),
        (
            {"columns": [{"nam": "a"}]},
            r"config.columns\[0\].nam is unknown \(did you mean name\?\); expected one of name, classes",
        ),
        ({"columns": [], "key": 3}, "config.key is 3; expected the settings of a Column"),
        ({"columns": [], "size": [1]}, "config.size has 1 entries; expected 2"),
        ({"columns": [{"name": "a", "classes": ["b", 2]}]}, r"config.columns\[0\].classes\[1\] is 2; expected text"),
        ({"columns": [], "counts": {"rows": "3"}}, "config.counts.rows is '3'; expected a whole number"),
        ({"columns": [], "counts": [3]}, r"config.counts is \[3\]; expected names with their values"),
        ({}, "config.columns is missing; expected a Table to have it"),
        ([], r"config is \[\]; expected the settings of a Table"),
    ],
)
def test_a_wrong_value_is_named(data: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        from_dict(Table, data)


@dataclass(frozen=True)
class Scalars:
    whole: int = 1
    number: float = 0.5
    flag: bool = False
    text: str = "a"
    choice: Literal["x", "y"] = "x"
    maybe: int | None = None
    many: tuple[float, ...] = ()


GOOD: dict[str, Any] = {
    "whole": st.integers(),
    "number": st.floats(allow_nan=False) | st.integers(),
    "flag": st.booleans(),
    "text": st.text(),
    "choice": st.sampled_from(["x", "y"]),
    "maybe": st.none() | st.integers(),
    "many": st.lists(st.floats(allow_nan=False) | st.integers()),
}
ANYTHING = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.lists(st.integers(), min_size=1)
)


@given(st.fixed_dictionaries({}, optional=GOOD))
def test_every_value_of_a_field_s_type_is_read_as_it_is(data: dict[str, Any]) -> None:
    read = to_dict(from_dict(Scalars, json.loads(json.dumps(data))))
    # A list of JSON is a tuple here, and nothing else is converted.
    assert all(read[name] == (tuple(value) if name == "many" else value) for name, value in data.items())
    assert all(type(read[name]) is type(value) for name, value in data.items() if name != "many")


def _fits(name: str, value: Any) -> bool:
    number = type(value) in (int, float)
    return {
        "whole": type(value) is int,
        "number": number,
        "flag": type(value) is bool,
        "text": type(value) is str,
        "choice": value in ("x", "y"),
        "maybe": value is None or type(value) is int,
        "many": type(value) is list,
    }[name]


@given(st.sampled_from(list(GOOD)), ANYTHING)
def test_every_value_of_another_type_is_refused_with_its_path(name: str, value: Any) -> None:
    if _fits(name, value):
        from_dict(Scalars, {name: value})
        return
    with pytest.raises(ValueError) as refusal:
        from_dict(Scalars, {name: value}, "run.json.model")
    assert str(refusal.value).startswith(f"run.json.model.{name} is {value!r}")


@pytest.mark.parametrize("value", ["4", 4.5, True, None])
def test_a_whole_number_of_a_model_is_no_text_fraction_or_truth(value: Any) -> None:
    with pytest.raises(ValueError, match=f"^config.encoder.num_layers is {value!r}; expected a whole number$"):
        TokenGTConfig.from_dict({"encoder": {"num_layers": value}})


# Several kinds.


@dataclass(frozen=True)
class Circle:
    kind: Literal["circle"] = field(default="circle", init=False)
    size: float = 1.0
    colour: str = "red"


@dataclass(frozen=True)
class Square:
    kind: Literal["square"] = "square"
    size: float = 2.0
    corners: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.size > 9 and not self.corners:
            raise ValueError("a large square has corners")


@dataclass(frozen=True)
class Ring:
    width: int
    kind: Literal["ring"] = field(default="ring", init=False)


@dataclass(frozen=True)
class Oblong:
    kind: Literal["oblong"] = "oblong"
    size: float = 4.0


Shape = Circle | Square | Ring
REGISTERED: dict[str, type] = {"circle": Circle}


@dataclass(frozen=True)
class Drawing:
    shape: Shape = field(default_factory=Circle)
    second: Circle | Square | None = None
    third: Square | Oblong = field(default_factory=Square)
    more: tuple[Shape, ...] = ()
    any_of: Any = field(default_factory=Circle, metadata={"kinds": REGISTERED})


def test_a_kind_says_which_class_comes_back() -> None:
    drawing = Drawing(Square(size=3), Circle(colour="blue"), more=(Ring(2), Circle()))
    written = json.loads(json.dumps(to_dict(drawing)))
    assert written["shape"] == {"kind": "square", "size": 3, "corners": []}
    assert written["more"][0] == {"kind": "ring", "width": 2}
    assert from_dict(Drawing, written) == drawing
    assert kinds_of(Shape) == {"circle": Circle, "square": Square, "ring": Ring}
    assert union_from_dict({"circle": Circle}, {"kind": "circle", "size": 4}) == Circle(4)


def test_a_registry_of_kinds_may_grow_after_the_class_that_names_it() -> None:
    with pytest.raises(ValueError, match=r"^config.any_of.kind is 'ring'; expected one of circle$"):
        from_dict(Drawing, {"any_of": {"kind": "ring", "width": 1}})
    REGISTERED["ring"] = Ring
    try:
        drawing = from_dict(Drawing, {"any_of": {"kind": "ring", "width": 1}})
        assert drawing.any_of == Ring(1)
        assert override(drawing, {"any_of.width": "4"}, "d").any_of == Ring(4)
        assert override(drawing, {"any_of.kind": "circle"}, "d").any_of == Circle()
    finally:
        del REGISTERED["ring"]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"shape": {}}, "config.shape.kind is missing; expected one of circle, square, ring"),
        (
            {"shape": {"kind": "circl"}},
            r"config.shape.kind is 'circl' \(did you mean circle\?\); expected one of circle, square, ring",
        ),
        ({"shape": {"kind": 3}}, "config.shape.kind is 3; expected one of circle, square, ring"),
        ({"shape": 3}, "config.shape is 3; expected settings with a kind, one of circle, square, ring"),
        ({"shape": None}, "config.shape is None; expected settings with a kind, one of circle, square, ring"),
        ({"second": {"kind": "ring"}}, "config.second.kind is 'ring'; expected one of circle, square"),
        (
            {"shape": {"kind": "circle", "corners": []}},
            "config.shape.corners is unknown for kind circle; expected one of kind, size, colour",
        ),
        ({"more": [{"kind": "circle", "size": "1"}]}, r"config.more\[0\].size is '1'; expected a number"),
        ({"shape": {"kind": "ring"}}, "config.shape.width is missing; expected a Ring to have it"),
    ],
)
def test_a_wrong_kind_is_named_with_those_there_are(data: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        from_dict(Drawing, data)


def test_a_new_kind_keeps_the_values_that_both_have_in_any_order_of_settings() -> None:
    blue = Drawing(Circle(size=5.0, colour="blue"))
    assert override(blue, {"shape.kind": "square"}, "d").shape == Square(size=5.0)
    for settings in (
        {"shape.kind": "square", "shape.corners": "1,2", "shape.size": "10"},
        {"shape.size": 10, "shape.corners": (1, 2), "shape.kind": "square"},
    ):
        assert override(blue, settings, "d").shape == Square(size=10.0, corners=(1, 2))
    assert override(blue, {"shape.kind": "circle", "shape.size": "2"}, "d").shape == Circle(2.0, "blue")
    assert override(blue, {"shape.kind": "ring", "shape.width": "3"}, "d").shape == Ring(3)
    assert override(blue, {"third.kind": "oblong"}, "d").third == Oblong(size=2.0)
    assert override(blue, {"second.kind": "square"}, "d").second == Square()
    assert override(replace(blue, second=Circle()), {"second": "none"}, "d").second is None
    assert override(blue, {"shape": Ring(7)}, "d").shape == Ring(7)
    assert override(blue, {"shape": {"kind": "ring", "width": 7}}, "d").shape == Ring(7)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"shape.kind": "square", "shape.colour": "red"},
            "d.shape.colour is unknown; expected one of kind, size, corners",
        ),
        ({"shape.kind": "oval"}, "d.shape.kind is 'oval'; expected one of circle, square, ring"),
        ({"shape.kind": "ring"}, "d.shape.width is missing; expected a Ring to have it"),
        ({"shape": "ring"}, "d.shape has several settings; expected one of d.shape.kind, d.shape.size, d.shape.colour"),
        ({"second.size": 3}, "d.second.kind is missing; expected one of circle, square"),
        ({"shape": Ring(1), "shape.width": 2}, "d.shape is set as a whole and in parts; expected one of the two"),
        ({"shape.kind": "square", "shape.size": "10"}, "a large square has corners"),
    ],
)
def test_a_setting_of_another_kind_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        override(Drawing(), settings, "d")


# Settings.


@dataclass(frozen=True)
class Inner:
    kind: Literal["one", "two"] = "one"
    rate: float = 0.5

    def __post_init__(self) -> None:
        if self.rate < 0:
            raise ValueError(f"rate is {self.rate}; expected 0 or more")


@dataclass(frozen=True)
class Outer:
    size: int = 1
    flag: bool = False
    limit: int | None = None
    names: tuple[str, ...] = ()
    counts: tuple[int, ...] = (1, 2)
    pair: tuple[int, float] = (1, 0.5)
    inner: Inner = field(default_factory=Inner)
    extra: Inner | None = None


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("size", "12", Outer(size=12)),
        ("size", 12, Outer(size=12)),
        ("size", np.int64(12), Outer(size=12)),
        ("flag", "True", Outer(flag=True)),
        ("flag", "false", Outer()),
        ("flag", True, Outer(flag=True)),
        ("limit", "3", Outer(limit=3)),
        ("limit", "None", Outer()),
        ("limit", None, Outer()),
        ("names", "a, b", Outer(names=("a", "b"))),
        ("names", "", Outer()),
        ("names", ("a", "b"), Outer(names=("a", "b"))),
        ("counts", "4", Outer(counts=(4,))),
        ("counts", [4, 5], Outer(counts=(4, 5))),
        ("pair", "3, 4", Outer(pair=(3, 4.0))),
        ("inner.kind", "two", Outer(inner=Inner("two"))),
        ("inner.rate", "1e-3", Outer(inner=Inner(rate=0.001))),
        ("inner.rate", 2, Outer(inner=Inner(rate=2.0))),
        ("inner", Inner("two"), Outer(inner=Inner("two"))),
        ("extra.rate", "0.25", Outer(extra=Inner(rate=0.25))),
        ("extra", "none", Outer()),
    ],
)
def test_a_field_is_read_from_text_or_taken_as_a_value(path: str, value: Any, expected: Outer) -> None:
    assert override(Outer(), {path: value}, "model") == expected


def test_a_number_is_written_the_same_whether_it_was_text_or_a_value() -> None:
    """What a run was made with is compared as JSON: 0 and 0.0 would make it another run."""
    written = [json.dumps(to_dict(override(Outer(), {"inner.rate": value}, "m"))) for value in (0, 0.0, "0", "0.0")]
    assert len(set(written)) == 1


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("depth", "1", "model.depth is unknown; expected one of size, flag, limit, names, counts, pair, inner, extra"),
        ("inner.depth", "1", "model.inner.depth is unknown; expected one of kind, rate"),
        ("inner.rates", "1", r"model.inner.rates is unknown \(did you mean rate\?\); expected one of kind, rate"),
        ("inner", "1", "model.inner has several settings; expected one of model.inner.kind, model.inner.rate"),
        ("inner", 1, "model.inner has several settings; expected one of model.inner.kind, model.inner.rate"),
        ("size.x", "1", "model.size is one value; model.size.x does not exist"),
        ("size", "2.5", "model.size is '2.5'; expected a whole number"),
        ("size", 2.5, "model.size is 2.5; expected a whole number"),
        ("size", True, "model.size is True; expected a whole number"),
        ("size", None, "model.size is None; expected a whole number"),
        ("limit", True, "model.limit is True; expected a whole number"),
        ("counts", "1,x", "model.counts is 'x'; expected a whole number"),
        ("counts", 4, "model.counts is 4; expected a list"),
        ("pair", "3", "model.pair has 1 entries; expected 2"),
        ("inner.rate", "fast", "model.inner.rate is 'fast'; expected a number"),
        ("inner.rate", False, "model.inner.rate is False; expected a number"),
        ("inner.kind", "three", "model.inner.kind is 'three'; expected one of one, two"),
        ("flag", "yes", "model.flag is 'yes'; expected true or false"),
        ("flag", 1, "model.flag is 1; expected true or false"),
        ("inner.rate", "-1", "rate is -1.0; expected 0 or more"),
    ],
)
def test_what_is_no_value_is_named(path: str, value: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        override(Outer(), {path: value}, "model")


def test_overriding_leaves_the_config_as_it_was() -> None:
    config: Any = Outer()
    override(config, {"inner.rate": "0.25"}, "model")
    assert config == Outer()


def test_settings_that_are_only_possible_together_are_set_together() -> None:
    @dataclass(frozen=True)
    class Range:
        low: int = 0
        high: int = 1

        def __post_init__(self) -> None:
            if self.low >= self.high:
                raise ValueError("low is not below high")

    assert override(Range(), {"low": "5", "high": "9"}, "range") == Range(5, 9)
    with pytest.raises(ValueError, match="low is not below high"):
        override(Range(), {"low": "5"}, "range")


# The project's own configs.


# Hypothesis draws what JSON may hold and not the configs: these are built in the test itself, where a failure shows.
WIDTHS = st.integers(1, 64)
RATES = st.floats(0, 0.9)
FEATURES = st.fixed_dictionaries({"categories": st.lists(st.integers(1, 9), max_size=3)})
IDENTIFIERS = st.one_of(
    st.just({"kind": "none"}),
    st.fixed_dictionaries({"kind": st.sampled_from([kind for kind in kinds_of(IdentifierConfig) if kind != "none"])}),
    st.fixed_dictionaries({"kind": st.sampled_from(["orf", "random", "near_orthonormal"]), "dim": WIDTHS}),
    st.fixed_dictionaries({"kind": st.just("laplacian"), "dim": WIDTHS, "sign_flip": st.booleans(), "dropout": RATES}),
)
HEADS = st.one_of(
    st.fixed_dictionaries({"level": st.just("graph"), "readout": st.sampled_from(["token", "sum", "mean"])}),
    st.fixed_dictionaries({"level": st.just("link"), "symmetric": st.booleans(), "out_dim": WIDTHS}),
    st.fixed_dictionaries({"level": st.sampled_from(["node", "edge"]), "mlp": st.booleans()}),
    st.fixed_dictionaries({"hidden": st.lists(WIDTHS, min_size=1), "activation": st.sampled_from(["relu", "gelu"])}),
)
TOKENS = st.fixed_dictionaries(
    {"node_features": FEATURES, "layout": st.sampled_from(["directed", "undirected"]), "null_token": st.booleans()}
)
ENCODERS = st.fixed_dictionaries({"num_layers": WIDTHS, "mlp_dim": st.none() | WIDTHS, "mlp_dropout": RATES})
MODELS = st.fixed_dictionaries(
    {"dim": WIDTHS, "identifiers": IDENTIFIERS, "head": HEADS, "tokens": TOKENS, "encoder": ENCODERS}
)


@given(MODELS)
def test_a_model_comes_back_from_json_as_it_was(data: dict[str, Any]) -> None:
    model = TokenGTConfig.from_dict(data)
    written = json.loads(json.dumps(model.to_dict()))
    assert TokenGTConfig.from_dict(written) == model
    assert written["kind"] == "tokengt"
    for part in ("identifiers", "head", "tokens", "encoder"):
        unchanged = {name: written[part][name] for name in data[part] if name != "node_features"}
        assert unchanged == {name: value for name, value in data[part].items() if name != "node_features"}


def _scalars(config: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Where the scalars of a config lie."""
    paths: list[tuple[str, ...]] = []
    for each in fields(config):
        value = getattr(config, each.name)
        inside = (*path, each.name)
        paths += _scalars(value, inside) if is_dataclass(value) else [] if isinstance(value, tuple) else [inside]
    return paths


@pytest.mark.parametrize("config", [TokenGTConfig(), TokenGTConfig(identifiers=OrfIds()), TrainingConfig()])
def test_every_scalar_of_a_config_is_checked(config: Any) -> None:
    for path in _scalars(config):
        data = json.loads(json.dumps(to_dict(config)))
        place = data
        for name in path[:-1]:
            place = place.setdefault(name, {})  # A part that came late is left out at its default.
        place[path[-1]] = ["no scalar"]
        with pytest.raises(ValueError) as refusal:
            from_dict(type(config), data, "run")
        assert str(refusal.value).startswith(f"run.{'.'.join(path)} is ['no scalar']"), path


def test_identifiers_are_switched_by_a_setting() -> None:
    model = TokenGTConfig(identifiers=LaplacianIds(8, sign_flip=False))
    assert override(model, {"identifiers.kind": "orf"}, "model").identifiers == OrfIds(8)
    assert override(model, {"identifiers.kind": "none"}, "model").identifiers == NoIds()
    sentence = "model.identifiers.sign_flip is unknown for kind orf; expected one of kind, dim"
    for order in (1, -1):
        settings = dict([("identifiers.kind", "orf"), ("identifiers.sign_flip", "true")][::order])
        with pytest.raises(ValueError, match=f"^{sentence}$"):
            override(model, settings, "model")


def test_settings_and_the_fit_to_the_data_may_come_one_after_the_other() -> None:
    """A preset without the [graph] token is no error before its head is known: the model refuses, not the config."""
    tokens = override(TokenGTConfig(), {"tokens.graph_token": False}, "model")
    assert replace(tokens, head=replace(tokens.head, level="node")).head.level == "node"
