"""Functions that ``torch.compile`` must leave alone."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from torch._compile import _disable_dynamo

P = ParamSpec("P")
R = TypeVar("R")


def eager_only(function: Callable[P, R]) -> Callable[P, R]:
    """Run ``function`` as plain Python inside a compiled model, because its shapes are decided by the data.

    ``torch.compiler.disable`` does the same but imports the compiler, which would cost a second or more in every
    program that never compiles.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return disabled(*args, **kwargs) if "torch._dynamo" in sys.modules else function(*args, **kwargs)

    disabled: Callable[P, R] = _disable_dynamo(function)
    return call
