"""Configs are frozen dataclasses beside their owners; here they become JSON and come back."""

import dataclasses
from collections.abc import Mapping
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


def override(config: T, settings: Mapping[str, str], where: str) -> T:
    """The config with the fields at dotted paths read from text, such as ``{"encoder.num_layers": "6"}``.

    All at once: a value may be possible only together with another.

    Raises:
        ValueError: one sentence: there is no such field (with those there are), or the text is not what it takes.
    """
    assert dataclasses.is_dataclass(config)
    known = [f.name for f in dataclasses.fields(config)]
    grouped: dict[str, dict[str, str]] = {}
    for path, text in settings.items():
        name, _, rest = path.partition(".")
        if name not in known:
            raise ValueError(f"{where}.{name} is unknown; expected one of {', '.join(known)}")
        grouped.setdefault(name, {})[rest] = text
    changed = {name: _changed(config, name, inner, f"{where}.{name}") for name, inner in grouped.items()}
    return dataclasses.replace(config, **changed)  # type: ignore[type-var]


def _changed(config: Any, name: str, inner: Mapping[str, str], where: str) -> Any:
    """The new value of one field: ``inner`` has its text under the empty path, or paths inside it."""
    value = getattr(config, name)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if "" in inner:
            options = ", ".join(f"{where}.{f.name}" for f in dataclasses.fields(value))
            raise ValueError(f"{where} has several settings; expected one of {options}")
        return override(value, inner, where)
    for rest in inner:
        if rest:
            raise ValueError(f"{where} is one value; {where}.{rest} does not exist")
    return _parsed(get_type_hints(type(config))[name], inner[""], where)


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
