import json
from dataclasses import dataclass

import pytest

from tokengt.config import from_dict, to_dict


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
