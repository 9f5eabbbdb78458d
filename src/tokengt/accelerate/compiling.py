"""How ``torch.compile`` is called."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from tokengt.attention import AttentionPlan

P = ParamSpec("P")
R = TypeVar("R")

# How many compiled versions one function may have. A block has about ten per model: training or not, first, last or
# between, two precisions.
_VERSIONS = 64


def compiled(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    """``torch.compile`` for a function that several models of a process share.

    After eight versions of a function PyTorch would run any other as plain Python, with no more than a line in the log.
    """
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, _VERSIONS)
    return torch.compile(function, **options)


def leave_sizes_open(plan: AttentionPlan, rows: Int[Tensor, " rows"] | None = None) -> None:
    """Have compiled code not depend on how many sequences and tiles a batch has, or rows that are asked for.

    The compiler takes two sizes that are equal by chance in its first call for one and the same, and compiles a second
    version when they are not. That takes time; and a step would be recorded from another version than the one that ran
    it before, and differ from it in its last bits.
    """
    torch._dynamo.maybe_mark_dynamic(plan.segments.host, 0)
    if plan.tiles is not None:
        torch._dynamo.maybe_mark_dynamic(plan.tiles.items, 1)
    if rows is not None:
        torch._dynamo.maybe_mark_dynamic(rows, 0)
