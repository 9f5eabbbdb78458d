"""The function that takes a model and returns it accelerated."""

import copy
from collections.abc import Callable
from typing import TypeVar, cast

import torch
from torch import nn

from tokengt.accelerate.fast_encoder import FastEncoder
from tokengt.transformer import Encoder

M = TypeVar("M", bound=nn.Module)


def accelerate(
    model: M,
    *,
    device: torch.device | str,
    compile: bool = True,
    kernels: bool = False,
    backend: str = "inductor",
) -> M:
    """A module that computes what ``model`` does, faster, with the same weights.

    It is a copy that shares all parameters, buffers and parts with ``model``; in place of every :class:`Encoder` it has
    a fast twin, which is called alike. The original stays as it was, names in its state dict included, and sees every
    step of training. Each of the two has its own mode: call ``train()`` and ``eval()`` on the one that is called.
    Copies and pickles of the fast one are plain again.

    Args:
        model: any module. Without an :class:`Encoder` in it, or with nothing to do, it is returned itself.
        device: where it is going to run; it need not lie there yet.
        compile: put the blocks through ``torch.compile``.
        kernels: on a GPU, put Triton kernels between the matrix products of a block also where it is not compiled. For
            training steps that are recorded (:class:`Recorder`) or large: elsewhere the host would need longer to call
            them than the GPU to do their work.
        backend: of ``torch.compile``.
    """
    kernels = kernels and torch.device(device).type == "cuda"
    if not (compile or kernels):
        return model
    fast = _replaced(model, lambda encoder: FastEncoder(encoder, backend if compile else None, kernels=kernels))
    return cast(M, fast)


def fast_encoders(model: nn.Module) -> list[FastEncoder]:
    """The fast twins in an accelerated model."""
    return [module for module in model.modules() if isinstance(module, FastEncoder)]


def _replaced(module: nn.Module, make: Callable[[Encoder], FastEncoder]) -> nn.Module:
    """The module with ``make(encoder)`` for every encoder inside; itself where there is none."""
    if isinstance(module, Encoder):
        return make(module)
    children = {name: child if child is None else _replaced(child, make) for name, child in module._modules.items()}
    if all(child is module._modules[name] for name, child in children.items()):
        return module
    # A shallow copy shares the dicts of parameters and buffers: a model that is moved to another device moves both.
    twin = copy.copy(module)
    twin._modules = children
    return twin
