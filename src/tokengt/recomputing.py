"""Activations that are not kept but computed again in the backward pass: less memory for a third more work.

What a function has drawn at random (dropout) is drawn alike when it runs again, so that gradients are the same to the
last bit. A function may ask :func:`is_again` to leave out what must happen once per step.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

_AGAIN: ContextVar[bool] = ContextVar("recomputing", default=False)


def is_again() -> bool:
    """Whether this is a second run, for the gradient, of what was computed before."""
    return _AGAIN.get()


@contextmanager
def _again() -> Iterator[None]:
    token = _AGAIN.set(True)
    try:
        yield
    finally:
        _AGAIN.reset(token)


def recomputed(function: Callable[..., Tensor], *inputs: Any, on: bool = True) -> Tensor:
    """``function(*inputs)``, of which with ``on`` only the inputs are kept for the backward pass.

    The backward pass has to come before the next forward: what the function reads beside its inputs, such as weights,
    is read again.
    """
    if not on or not torch.is_grad_enabled():
        return function(*inputs)

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _again()

    out: Tensor = checkpoint(function, *inputs, use_reentrant=False, context_fn=contexts)
    return out
