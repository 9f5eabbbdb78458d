"""Models that are only planned: their tensors have shapes and no numbers, so that building one is quick."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

# Some functions of torch.nn.init do not ask who listens, but call these.
_DRAWS = (torch.Tensor.normal_, torch.Tensor.uniform_)


@contextmanager
def planned() -> Iterator[None]:
    """Modules that are built inside have all their tensors on the meta device, and nothing is drawn for them.

    PyTorch would import its compiler to draw numbers there, which takes a second or more.
    """
    with torch.device("meta"), _NothingDrawn():
        yield


class _NothingDrawn(TorchFunctionMode):
    """Functions of ``torch.nn.init`` and methods that draw give their tensor back as it is."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DRAWS or getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
