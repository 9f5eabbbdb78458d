"""What ``torch.compile`` must leave alone."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import torch

P = ParamSpec("P")
R = TypeVar("R")


def eager_only(function: Callable[P, R]) -> Callable[P, R]:
    """Run ``function`` as plain Python inside a compiled model: its shapes are decided by the data."""
    return cast(Callable[P, R], torch.compiler.disable(function))  # type: ignore[no-untyped-call]
