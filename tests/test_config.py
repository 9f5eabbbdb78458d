import json
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from tokengt.config import from_dict, override, to_dict


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


@pytest.mark.parametrize(
    "config",
    [
        Table((Column("a", ("b", "c")), Column("d"))),
        Table((), key=Column("k", ()), size=(2, Column("y", ("z",))), note="n"),
    ],
)
def test_tuples_and_dataclasses_inside_each_other_come_back(config: Table) -> None:
    assert from_dict(Table, json.loads(json.dumps(to_dict(config)))) == config


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"columns": "ab"}, "config.columns is 'ab'; expected a list"),
        ({"columns": [{"nam": "a"}]}, r"config.columns\[0\].nam is unknown; expected one of name, classes"),
        ({"columns": [], "key": 3}, "config.key is 3; expected the settings of a Column"),
        ({"columns": [], "size": [1]}, "config.size has 1 entries; expected 2"),
    ],
)
def test_a_wrong_value_is_named(data: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        from_dict(Table, data)


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
    inner: Inner = field(default_factory=Inner)


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("size", "12", Outer(size=12)),
        ("flag", "True", Outer(flag=True)),
        ("flag", "false", Outer()),
        ("limit", "3", Outer(limit=3)),
        ("limit", "None", Outer()),
        ("names", "a, b", Outer(names=("a", "b"))),
        ("names", "", Outer()),
        ("counts", "4", Outer(counts=(4,))),
        ("inner.kind", "two", Outer(inner=Inner("two"))),
        ("inner.rate", "1e-3", Outer(inner=Inner(rate=0.001))),
    ],
)
def test_a_field_is_read_from_text(path: str, text: str, expected: Outer) -> None:
    assert override(Outer(), {path: text}, "model") == expected


@pytest.mark.parametrize(
    ("path", "text", "sentence"),
    [
        ("depth", "1", "model.depth is unknown; expected one of size, flag, limit, names, counts, inner"),
        ("inner.depth", "1", "model.inner.depth is unknown; expected one of kind, rate"),
        ("inner", "1", "model.inner has several settings; expected one of model.inner.kind, model.inner.rate"),
        ("size.x", "1", "model.size is one value; model.size.x does not exist"),
        ("size", "2.5", "model.size is '2.5'; expected a whole number"),
        ("counts", "1,x", "model.counts is 'x'; expected a whole number"),
        ("inner.rate", "fast", "model.inner.rate is 'fast'; expected a number"),
        ("inner.kind", "three", "model.inner.kind is 'three'; expected one of one, two"),
        ("flag", "yes", "model.flag is 'yes'; expected true or false"),
        ("inner.rate", "-1", "rate is -1.0; expected 0 or more"),
    ],
)
def test_text_that_is_no_value_is_named(path: str, text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        override(Outer(), {path: text}, "model")


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
