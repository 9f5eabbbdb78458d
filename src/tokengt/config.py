"""Configs are frozen dataclasses beside their owners; here they become JSON and come back."""

import dataclasses
from typing import Any, TypeVar, get_origin, get_type_hints

T = TypeVar("T")


def to_dict(config: Any) -> dict[str, Any]:
    return dataclasses.asdict(config)


def from_dict(cls: type[T], data: dict[str, Any], where: str = "config") -> T:
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
        kind = hints[name]
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            value = from_dict(kind, value, f"{where}.{name}")
        elif get_origin(kind) is tuple:
            value = tuple(value)
        values[name] = value
    return cls(**values)
