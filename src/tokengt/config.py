"""Configs are frozen dataclasses beside their owners; here they become JSON and come back."""

import dataclasses
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def to_dict(config: Any) -> dict[str, Any]:
    return dataclasses.asdict(config)


def from_dict(cls: type[T], data: Any, where: str = "config") -> T:
    """Rebuild a nested config; an unknown key is a ValueError that says where it stands and what is known."""
    assert dataclasses.is_dataclass(cls)
    if not isinstance(data, dict):
        raise ValueError(f"{where} is {data!r}; expected the settings of a {cls.__name__}")
    hints = get_type_hints(cls)
    known = [f.name for f in dataclasses.fields(cls)]
    values = {}
    for name, value in data.items():
        if name not in known:
            raise ValueError(f"{where}.{name} is unknown; expected one of {', '.join(known)}")
        values[name] = _restore(hints[name], value, f"{where}.{name}")
    return cls(**values)


def _restore(kind: Any, value: Any, where: str) -> Any:
    """What JSON made a dict or a list becomes the dataclass or the tuple that ``kind`` names, None if it may be."""
    if get_origin(kind) in (Union, UnionType):
        others = [option for option in get_args(kind) if option is not NoneType]
        return value if value is None or len(others) > 1 else _restore(others[0], value, where)
    if dataclasses.is_dataclass(kind):
        assert isinstance(kind, type)
        return from_dict(kind, value, where)
    if get_origin(kind) is not tuple:
        return value
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{where} is {value!r}; expected a list")
    inner = get_args(kind)
    kinds = [inner[0]] * len(value) if inner[1:] == (...,) else list(inner)
    if len(kinds) != len(value):
        raise ValueError(f"{where} has {len(value)} entries; expected {len(kinds)}")
    return tuple(_restore(k, v, f"{where}[{place}]") for place, (k, v) in enumerate(zip(kinds, value, strict=True)))


def override(config: T, path: str, text: str, where: str) -> T:
    """The config with the field at a dotted ``path`` read from text, such as ``encoder.num_layers`` and ``6``.

    Raises:
        ValueError: one sentence: there is no such field (with those there are), or the text is not what it takes.
    """
    assert dataclasses.is_dataclass(config)
    name, _, rest = path.partition(".")
    known = [f.name for f in dataclasses.fields(config)]
    if name not in known:
        raise ValueError(f"{where}.{name} is unknown; expected one of {', '.join(known)}")
    value = getattr(config, name)
    if dataclasses.is_dataclass(value):
        if not rest:
            inner = ", ".join(f"{where}.{name}.{f.name}" for f in dataclasses.fields(value))
            raise ValueError(f"{where}.{name} has several settings; expected one of {inner}")
        new = override(value, rest, text, f"{where}.{name}")
    elif rest:
        raise ValueError(f"{where}.{name} is one value; {where}.{path} does not exist")
    else:
        new = _parsed(get_type_hints(type(config))[name], text, f"{where}.{name}")
    return dataclasses.replace(config, **{name: new})  # type: ignore[type-var]


def _parsed(kind: Any, text: str, where: str) -> Any:
    """Text as a value of a field's type."""
    if get_origin(kind) in (Union, UnionType):
        if text.lower() == "none":
            return None
        return _parsed(next(option for option in get_args(kind) if option is not NoneType), text, where)
    if get_origin(kind) is tuple:
        return tuple(_parsed(get_args(kind)[0], part.strip(), where) for part in text.split(",") if part.strip())
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise ValueError(f"{where} is {text!r}; expected one of {', '.join(map(str, get_args(kind)))}")
        return text
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{where} is {text!r}; expected true or false")
        return text.lower() == "true"
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{where} is {text!r}; expected {'a whole number' if kind is int else 'a number'}") from None
