"""Which settings have a test of their effect: a config with a field that no test asserts fails one, by name.

And what such tests have in common.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

import torch
from torch import Tensor, nn

Test = TypeVar("Test", bound=Callable[..., None])


class Effects:
    """The configs that the tests of one file are about, and which of their fields these tests assert."""

    def __init__(self, *configs: type) -> None:
        self.asserted: dict[type, set[str]] = {config: set() for config in configs}

    def of(self, configs: type | Sequence[type], *names: str) -> Callable[[Test], Test]:
        """Marks a test that asserts what these fields of a config (or of several) do, each changed by itself."""
        for config in [configs] if isinstance(configs, type) else configs:
            unknown = set(names) - settings(config)
            assert not unknown, f"{config.__name__} has no {unknown}"
            self.asserted[config].update(names)
        return lambda test: test

    @property
    def missing(self) -> list[str]:
        """Fields that no test is marked for, such as ``SoftmaxConfig.dropout``."""
        return sorted(
            f"{config.__name__}.{name}"
            for config, asserted in self.asserted.items()
            for name in settings(config) - asserted
        )


def settings(config: type) -> set[str]:
    """Fields that can be set: all but the kind, which the class itself says."""
    return {field.name for field in dataclasses.fields(config) if field.init}


def with_inner(config: type) -> Iterator[type]:
    """A config and all configs that a field of it may hold."""
    yield config
    for name, hint in get_type_hints(config).items():
        if name in settings(config):
            for option in _options(hint):
                if dataclasses.is_dataclass(option):
                    yield from with_inner(option)


def _options(hint: Any) -> Iterator[Any]:
    """The classes of a union, or a class alone."""
    inner = [option for option in get_args(hint) if option is not NoneType]
    if isinstance(hint, type) and not inner:
        yield hint
    for option in inner:
        yield from _options(option)


def assert_dropped(dropped: Tensor, plain: Tensor, rate: float) -> None:
    """Entries are zero at this rate, within five standard deviations, and the others divided by the share kept."""
    assert plain.abs().min() > 0
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], (plain / (1 - rate))[kept], rtol=1e-5, atol=1e-6)
    assert abs(1 - kept.double().mean().item() - rate) < 5 * math.sqrt(rate * (1 - rate) / dropped.numel())


def set_all(module: nn.Module, value: float) -> None:
    for parameter in module.parameters():
        nn.init.constant_(parameter, value)


def kept_bytes(model: nn.Module, run: Callable[[], Tensor]) -> int:
    """Bytes of all tensors that autograd keeps of one forward, without the weights."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    seen: dict[int, int] = {}

    def note(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in weights:
            seen[storage.data_ptr()] = storage.nbytes()
        return x

    held = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: held.append(x) or note(x), lambda x: x):
        run()
    return sum(seen.values())
