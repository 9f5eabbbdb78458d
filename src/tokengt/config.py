"""Configs are frozen dataclasses beside their owners; here they become JSON, come back, and take settings.

What comes in several kinds has one class per kind, so that a field that would do nothing cannot be set. Each class
says its kind, ``kind: Literal["orf"] = field(default="orf", init=False)``, and a field that takes any of them is
annotated with their union, ``OrfIds | LaplacianIds``. Where the kinds are a registry that others add to, the field
names the registry instead: ``model: ModelConfig = field(metadata={"kinds": MODELS})``.

A field that came to a class after files of it were written is marked ``field(default=..., metadata={"late": True})``.
It is written only where it is not its default: a file without it means the default, and is the same file. Where files
of that time mean something else than today's default, the metadata say what: ``{"late": True, "absent": value}``.
"""

import dataclasses
import difflib
import functools
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class BadSetting(ValueError):
    """A field that does not exist, or a value of another type: wrong whatever the other settings are."""


def to_dict(config: Any) -> dict[str, Any]:
    """All fields, nested ones too, but for late ones at their default; a class that has a kind always says it."""
    data = dataclasses.asdict(config)
    _leave_out_late(config, data)
    return data


def _leave_out_late(value: Any, data: Any) -> None:
    """Removes late fields that have their default from ``data``, which is ``value`` as asdict writes it."""
    if dataclasses.is_dataclass(value):
        for name, field in _fields(type(value)).items():
            inner = getattr(value, name)
            if field.metadata.get("late") and inner == _absent(field):
                del data[name]
            else:
                _leave_out_late(inner, data[name])
    elif isinstance(value, list | tuple):
        for inner, part in zip(value, data, strict=True):
            _leave_out_late(inner, part)


def _absent(field: dataclasses.Field[Any]) -> Any:
    """What a file means that does not have this late field."""
    return field.metadata.get("absent", field.default)


def read_json(file: Path) -> dict[str, Any]:
    """The names and values that a JSON file of ours holds.

    Raises:
        ValueError: one sentence: it is no JSON, or holds something else.
    """
    try:
        data = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise ValueError(f"{file} holds {_shown(data)}; expected names with their values")
    return data


def from_dict(cls: type[T], data: Any, where: str = "config") -> T:
    """Rebuild a nested config from what JSON holds.

    Values are checked, never converted: 4 is no text, "4" and 4.5 and true are no whole number, but 4 is a number.

    Raises:
        ValueError: one sentence with the dotted path of what is unknown, missing or of another type.
    """
    if not isinstance(data, Mapping):
        raise BadSetting(f"{where} is {_shown(data)}; expected the settings of a {cls.__name__}")
    fields, hints = _fields(cls), _hints(cls)
    values = {name: field.metadata["absent"] for name, field in fields.items() if "absent" in field.metadata}
    for name, value in data.items():
        if name not in fields:
            raise BadSetting(_unknown_field(cls, name, where))
        place = f"{where}.{name}"
        kinds = _kinds(fields[name], hints[name])
        values[name] = _restored(hints[name], value, place) if kinds is None else _of_kind(kinds, value, place)
    return _construct(cls, values, where)


def union_from_dict(options: Mapping[str, type[T]], data: Any, where: str = "config") -> T:
    """Rebuild a config of one of several classes: its ``kind`` says which."""
    if not isinstance(data, Mapping):
        raise BadSetting(f"{where} is {_shown(data)}; expected settings with a kind, one of {', '.join(options)}")
    if "kind" not in data:
        raise BadSetting(f"{where}.kind is missing; expected one of {', '.join(options)}")
    return from_dict(_chosen(options, data["kind"], where), data, where)


def kinds_of(union: Any) -> dict[str, type[Any]]:
    """The classes of a union such as ``OrfIds | LaplacianIds`` by the kind that each says."""
    classes = [option for option in get_args(union) if option is not NoneType]
    return {str(get_args(_hints(option)["kind"])[0]): option for option in classes}


def override(config: T, settings: Mapping[str, Any], where: str) -> T:
    """The config with the fields at dotted paths set, such as ``{"encoder.num_layers": "6", "dim": 96}``.

    Text is read as the field's type says: ``true``, ``1e-3``, ``none`` where there may be nothing, ``4,8`` for a tuple.
    Values of any other type are checked. All are set at once, since one may be possible only together with another:
    their order does not matter. A new ``kind`` changes the class: fields that both classes have keep their values, the
    others take the new class's defaults.

    Raises:
        ValueError: one sentence: there is no such field (with those there are), or the value is not what it takes.
    """
    return _changed(type(config), _values(config), settings, where)


def _changed(cls: type[T], start: Mapping[str, Any], settings: Mapping[str, Any], where: str) -> T:
    """A config of ``cls`` with the values of ``start``, or the class's defaults, but for what the settings say."""
    fields, hints = _fields(cls), _hints(cls)
    grouped: dict[str, dict[str, Any]] = {}
    for path, value in settings.items():
        name, _, rest = path.partition(".")
        if name not in fields:
            raise BadSetting(_unknown_field(cls, name, where))
        grouped.setdefault(name, {})[rest] = value
    values = dict(start)
    for name, inner in grouped.items():
        kinds = _kinds(fields[name], hints[name])
        values[name] = _changed_field(hints[name], kinds, start.get(name), inner, f"{where}.{name}")
    return _construct(cls, values, where)


def _changed_field(
    hint: Any, kinds: Mapping[str, type] | None, value: Any, inner: Mapping[str, Any], where: str
) -> Any:
    """The new value of one field: ``inner`` has it under the empty path, or has paths inside the old value."""
    classes = _dataclasses(hint) if kinds is None else list(kinds.values())
    if "" in inner:
        whole = _whole_field(hint, kinds, classes, value, inner[""], where)
        if len(inner) > 1:
            raise BadSetting(f"{where} is set as a whole and in parts; expected one of the two")
        return whole
    if not classes:
        raise BadSetting(f"{where} is one value; {where}.{next(iter(inner))} does not exist")
    if kinds is None:
        return _changed(classes[0], {} if value is None else _values(value), inner, where)
    if "kind" in inner:
        cls: type = _chosen(kinds, inner["kind"], where)
    elif value is not None:
        cls = type(value)
    else:
        raise BadSetting(f"{where}.kind is missing; expected one of {', '.join(kinds)}")
    # The kind is left out of the values that are carried over, because every class has a kind of its own.
    old = {} if value is None else _values(value)
    shared = {name: setting for name, setting in old.items() if name in _fields(cls) and name != "kind"}
    return _changed(cls, shared, {path: new for path, new in inner.items() if path != "kind"}, where)


def _whole_field(
    hint: Any, kinds: Mapping[str, type] | None, classes: list[type], old: Any, value: Any, where: str
) -> Any:
    if not classes or value is None or (isinstance(value, str) and value.lower() == "none" and _may_be_none(hint)):
        return _setting(hint, value, where)
    if isinstance(value, (Mapping, *classes)):
        return _restored(hint, value, where) if kinds is None else _of_kind(kinds, value, where)
    names = _fields(classes[0] if old is None else type(old))
    raise BadSetting(f"{where} has several settings; expected one of {', '.join(f'{where}.{name}' for name in names)}")


def _setting(hint: Any, value: Any, where: str) -> Any:
    """One value of a setting: text is read as ``hint`` says, anything else is checked."""
    if get_origin(hint) in (Union, UnionType):
        if value is None or (isinstance(value, str) and value.lower() == "none" and _may_be_none(hint)):
            return _restored(hint, None, where)
        return _first_that_fits(_setting, hint, value, where)
    if get_origin(hint) is tuple and isinstance(value, str | list | tuple):
        parts = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
        places = zip(_entries(hint, parts, where), parts, strict=True)
        return tuple(_setting(entry, part, where) for entry, part in places)
    if isinstance(value, str):
        return _read(hint, value, where)
    # NumPy's numbers become Python's, so that a sweep over np.linspace works like one over a list.
    plain = value if isinstance(value, bool | int) or not isinstance(value, Real) else _plain(value)
    restored = _restored(hint, plain, where)
    # A whole number given for a float field becomes a float, as text would: the same setting is saved the same way.
    return float(restored) if hint is float else restored


def _plain(number: Real) -> int | float:
    return int(number) if isinstance(number, Integral) else float(number)


def _read(hint: Any, text: str, where: str) -> Any:
    """Text as a value of a type that has no parts."""
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise BadSetting(f"{where} is {text!r}; expected true or false")
        return text.lower() == "true"
    if hint not in (int, float):
        return _restored(hint, text, where)
    try:
        value = hint(text)
    except ValueError:
        raise BadSetting(f"{where} is {text!r}; expected {_WORDS[hint]}") from None
    # What could be set but not read again would make a run that cannot be opened.
    return _restored(hint, value, where)


_SHOWN = 80
_WORDS: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _restored(hint: Any, value: Any, where: str) -> Any:
    """A checked value: what JSON made a dict or a list becomes the dataclass or the tuple that ``hint`` names."""
    origin = get_origin(hint) or hint
    if origin in (Union, UnionType):
        return _restored_union(hint, value, where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise BadSetting(f"{where} is {_shown(value)}; expected a list")
        places = enumerate(zip(_entries(hint, value, where), value, strict=True))
        return tuple(_restored(entry, part, f"{where}[{place}]") for place, (entry, part) in places)
    if _dataclasses(hint):
        return value if isinstance(value, hint) else from_dict(hint, value, where)
    if origin is Literal:
        # In Python True equals 1, so the types are compared as well.
        if not any(value == option and type(value) is type(option) for option in get_args(hint)):
            raise BadSetting(_unknown_value(value, map(str, get_args(hint)), where))
        return value
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise BadSetting(f"{where} is {_shown(value)}; expected names with their values")
        entry = (get_args(hint) or (Any, Any))[1]
        return {name: _restored(entry, part, f"{where}.{name}") for name, part in value.items()}
    # Exact types are compared, because isinstance would take a bool for an int.
    if hint in _WORDS and type(value) is not hint and not (hint is float and type(value) is int):
        raise BadSetting(f"{where} is {_shown(value)}; expected {_WORDS[hint]}")
    # JSON can hold numbers that neither a float nor a tensor of integers can, and NaN, which compares with nothing.
    if hint is float and (value != value or (type(value) is int and abs(value) > sys.float_info.max)):
        raise BadSetting(f"{where} is {_shown(value)}; expected {_WORDS[hint]} that a float holds")
    if hint is int and not -(2**63) <= value < 2**63:
        raise BadSetting(f"{where} is {_shown(value)}; expected {_WORDS[hint]} of at most 64 bits")
    return value


def _shown(value: Any) -> str:
    """A value as Python writes it, cut when it is long: a wrong file may hold anything in place of a number."""
    try:
        text = repr(value)
    except RecursionError:
        return "deeply nested"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _restored_union(hint: Any, value: Any, where: str) -> Any:
    if value is None and _may_be_none(hint):
        return None
    if len(_dataclasses(hint)) > 1:
        return _of_kind(kinds_of(hint), value, where)
    return _first_that_fits(_restored, hint, value, where)


def _first_that_fits(restore: Callable[[Any, Any, str], Any], hint: Any, value: Any, where: str) -> Any:
    """The value as the first of a union's types that takes it."""
    options = [option for option in get_args(hint) if option is not NoneType]
    for option in options[:-1]:
        try:
            return restore(option, value, where)
        except ValueError:
            continue
    return restore(options[-1], value, where)


def _of_kind(kinds: Mapping[str, type], value: Any, where: str) -> Any:
    return value if isinstance(value, tuple(kinds.values())) else union_from_dict(kinds, value, where)


def _chosen(kinds: Mapping[str, type[T]], kind: Any, where: str) -> type[T]:
    if not isinstance(kind, str) or kind not in kinds:
        raise BadSetting(_unknown_value(kind, kinds, f"{where}.kind"))
    return kinds[kind]


def _construct(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    fields = _fields(cls)
    for name, field in fields.items():
        has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if field.init and not has_default and name not in values:
            raise BadSetting(f"{where}.{name} is missing; expected a {cls.__name__} to have it")
    # A field that the constructor does not take, such as a kind, has the class's own value and was only checked.
    return cls(**{name: value for name, value in values.items() if fields[name].init})


# A class's annotations stay as they are, and working them out costs more than all else of a small config.
_hints: Callable[[Any], dict[str, Any]] = functools.cache(get_type_hints)


def _fields(cls: type) -> dict[str, dataclasses.Field[Any]]:
    assert dataclasses.is_dataclass(cls)
    return {field.name: field for field in dataclasses.fields(cls)}


def _values(config: Any) -> dict[str, Any]:
    return {name: getattr(config, name) for name, field in _fields(type(config)).items() if field.init}


def _kinds(field: dataclasses.Field[Any], hint: Any) -> Mapping[str, type] | None:
    """The classes that a field of several kinds can take; None for any other field."""
    if "kinds" in field.metadata:
        registered: Mapping[str, type] = field.metadata["kinds"]
        return registered
    return kinds_of(hint) if len(_dataclasses(hint)) > 1 else None


def _dataclasses(hint: Any) -> list[type]:
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return [option for option in options if isinstance(option, type) and dataclasses.is_dataclass(option)]


def _may_be_none(hint: Any) -> bool:
    return NoneType in get_args(hint)


def _entries(hint: Any, parts: Any, where: str) -> list[Any]:
    """The type of every entry of a tuple that has these parts."""
    inner = get_args(hint)
    entries = [inner[0]] * len(parts) if inner[1:] == (...,) else list(inner)
    if len(entries) != len(parts):
        raise BadSetting(f"{where} has {len(parts)} entries; expected {len(entries)}")
    return entries


def _unknown_field(cls: type, name: str, where: str) -> str:
    fields = _fields(cls)
    own = "kind" in fields and not fields["kind"].init
    of_kind = f" for kind {fields['kind'].default}" if own else ""
    # A field of a part is meant where one is called so; otherwise a name that was misspelled.
    meant = near(name, fields) or near_path(name, field_paths(cls))
    return f"{where}.{name} is unknown{of_kind}{meant}; expected one of {', '.join(fields)}"


def field_paths(cls: type) -> list[str]:
    """Dotted paths of all fields of a config, those of its parts too, of whatever kind the parts may be."""
    paths, hints = [], _hints(cls)
    for name in _fields(cls):
        inner = {path: None for part in _dataclasses(hints[name]) for path in field_paths(part)}
        paths += [name, *(f"{name}.{path}" for path in inner)]
    return paths


def near_path(path: str, paths: Iterable[str]) -> str:
    """:func:`near` for dotted paths: one that ends alike is nearer than one that is spelled alike."""
    ends: dict[str, str] = {}
    for known in paths:
        ends.setdefault(known.rpartition(".")[2], known)
    end = path.rpartition(".")[2]
    return f" (did you mean {ends[end]}?)" if end in ends else near(path, [*ends.values()])


def _unknown_value(value: Any, options: Iterable[str], where: str) -> str:
    names = list(options)
    return f"{where} is {value!r}{near(value, names)}; expected one of {', '.join(names)}"


def near(name: Any, options: Iterable[str]) -> str:
    """`` (did you mean NAME?)`` with the option that the writer may have meant; empty where none is close.

    An option is close by its letters, or as the beginning of what was written, or the other way round.
    """
    if not isinstance(name, str):
        return ""
    written, names = name.lower(), {option.lower(): option for option in options}
    close = difflib.get_close_matches(written, list(names), 1, 0.66)
    inside = [option for option in names if min(len(option), len(written)) > 2 and _begins(option, written)]
    meant = sorted(inside, key=lambda option: abs(len(option) - len(written))) + close
    return f" (did you mean {names[meant[0]]}?)" if meant else ""


def _begins(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)
