"""How ``torch.compile`` is asked."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

# Versions of one function: a block has about ten per model (training or not, first, last or between, two precisions).
_VERSIONS = 64


def compiled(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    """``torch.compile`` for a function that several models of a process share.

    After eight versions of a function PyTorch would run any other as plain Python, with no more than a line in the log.
    """
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, _VERSIONS)
    return torch.compile(function, **options)
