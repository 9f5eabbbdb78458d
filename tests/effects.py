"""Which settings have a test of their effect: a config with a field that no test asserts fails one, by name."""

import dataclasses
from collections.abc import Callable, Iterator
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

Test = TypeVar("Test", bound=Callable[..., None])


class Effects:
    """The fields that the tests of one file assert."""

    def __init__(self) -> None:
        self._asserted: dict[type, set[str]] = {}

    def of(self, config: type, *names: str) -> Callable[[Test], Test]:
        """Marks a test that asserts what these fields of a config do, each changed by itself."""
        unknown = set(names) - settings(config)
        assert not unknown, f"{config.__name__} has no {unknown}"
        self._asserted.setdefault(config, set()).update(names)
        return lambda test: test

    def missing(self, config: type) -> list[str]:
        """Fields of a config, and of the configs inside it, that no test is marked for: ``SoftmaxConfig.dropout``."""
        return sorted(
            f"{each.__name__}.{name}"
            for each in _with_inner(config)
            for name in settings(each) - self._asserted.get(each, set())
        )


def settings(config: type) -> set[str]:
    """Fields that can be set: all but the kind, which the class itself says."""
    return {field.name for field in dataclasses.fields(config) if field.init}


def _with_inner(config: type) -> Iterator[type]:
    """A config and all configs that a field of it may hold."""
    yield config
    for name, hint in get_type_hints(config).items():
        if name in settings(config):
            for option in _options(hint):
                if dataclasses.is_dataclass(option):
                    yield from _with_inner(option)


def _options(hint: Any) -> Iterator[Any]:
    """The classes of a union, or a class alone."""
    inner = [option for option in get_args(hint) if option is not NoneType]
    if isinstance(hint, type) and not inner:
        yield hint
    for option in inner:
        yield from _options(option)
