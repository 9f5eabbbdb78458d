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
    record: bool = False,
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
        record: on a GPU, record what a training step does there, once per size of a batch, and replay it. For a loop of
            one process that calls ``backward()`` once after each forward, under one kind of autocast, with weights that
            keep their place in memory; the gradients that it leaves are written over by the next step. Where our
            attention kernels do not apply nothing is recorded.
        backend: of ``torch.compile``.
    """
    record = record and torch.device(device).type == "cuda"
    if not (compile or record):
        return model
    fast = _replaced(model, lambda encoder: FastEncoder(encoder, backend if compile else None, record=record))
    return cast(M, fast)


def forget(model: nn.Module) -> None:
    """Free the memory that recordings hold, and record no more."""
    for encoder in _fast_encoders(model):
        encoder.forget()


def steps_replayed(model: nn.Module) -> int:
    """How many forwards were replayed so far."""
    return sum(encoder.steps_replayed for encoder in _fast_encoders(model))


def _fast_encoders(model: nn.Module) -> list[FastEncoder]:
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
