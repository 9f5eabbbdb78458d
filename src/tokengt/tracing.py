"""What ``torch.compile`` must leave alone, and how it is asked."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch._compile import _disable_dynamo

P = ParamSpec("P")
R = TypeVar("R")

# Versions of one function: a block has ten or so (training or not, first, last or between, two precisions) a model.
_VERSIONS = 64


def compiled(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    """``torch.compile`` for a function that several models of a process share.

    After eight versions of a function PyTorch would run any other as plain Python, with no more than a line in the log.
    """
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, _VERSIONS)
    return torch.compile(function, **options)


def eager_only(function: Callable[P, R]) -> Callable[P, R]:
    """Run ``function`` as plain Python inside a compiled model: its shapes are decided by the data.

    ``torch.compiler.disable`` would import the compiler, a second or more, in every program that never compiles.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return disabled(*args, **kwargs) if "torch._dynamo" in sys.modules else function(*args, **kwargs)

    disabled: Callable[P, R] = _disable_dynamo(function)
    return call
