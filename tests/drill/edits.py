"""Our own JSON files, edited: one field deleted, of a wrong type, huge, negative or pointing elsewhere."""

import copy
import json
import random
from typing import Any

# What stands in a file after the edit; text is written as JSON cannot say it.
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    7,
    10**6,
    10**9,
    10**30,
    -(10**9),
    0.5,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "abc",
    "../../etc/passwd",
    "/etc/passwd",
    "a\0b",
    "x" * 10_000,
    [],
    {},
    [[1]],
    [None],
    {"a": {"b": []}},
    ["../x"],
)
_RAW: tuple[bytes, ...] = (
    b"",
    b"{",
    b"[]",
    b"null",
    b"7",
    b'"text"',
    b"\xff\xfe\0",
    b"[" * 100_000,
    b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
    b"9" * 10_000,
    b"\xef\xbb\xbf{}",
    b"{} {}",
)


def edited(content: bytes, rng: random.Random, field: int) -> tuple[bytes, str]:
    """The file with one edit, most often of its field of this number, and what was done."""
    if rng.random() < 0.12:
        raw = rng.choice(_RAW)
        return raw, f"the file is {raw[:20]!r}"
    if rng.random() < 0.04:
        return content[: rng.randrange(len(content))], "the file is torn"
    data = json.loads(content)
    path = fields(data)[field]
    changed, what = _changed(copy.deepcopy(data), path, rng)
    return json.dumps(changed, indent=2).encode(), what


def fields(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every field, nested ones too."""
    found = [path] if path else []
    places = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for place, inner in places:
        found += fields(inner, (*path, place))
    return found


def _changed(data: Any, path: tuple[Any, ...], rng: random.Random) -> tuple[Any, str]:
    where, last = data, path[-1]
    for place in path[:-1]:
        where = where[place]
    shown = ".".join(map(str, path))
    way = rng.random()
    if way < 0.15:
        del where[last]
        return data, f"{shown} is deleted"
    if way < 0.2 and isinstance(where, dict):
        where[f"{last}_"] = where.pop(last)
        return data, f"{shown} is renamed"
    if way < 0.25 and isinstance(where[last], list):
        where[last] = where[last] * 2
        return data, f"{shown} is repeated"
    if way < 0.4 and type(where[last]) in (int, float):
        where[last] = rng.choice((where[last] + 1, -where[last], where[last] * 2, where[last] // 2, 0))
        return data, f"{shown} is {where[last]}"
    where[last] = rng.choice(VALUES)
    return data, f"{shown} is {str(where[last])[:30]!r}"
