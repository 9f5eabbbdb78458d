"""How far attention maps are from the basis, as functions that a compiler can fuse, and the precision of products."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tokengt.experiments.basis.settings import Precision
from tokengt.models.tokengt.scores import dropped_and_normed


def attention_errors(
    scores: Float[Tensor, "graphs heads width width"],
    targets: Float[Tensor, "one_or_graphs heads width width"],
    columns: Bool[Tensor, "one_or_graphs width"],
    rows: Bool[Tensor, "one_or_graphs width"],
) -> Float[Tensor, "graphs heads width"]:
    """sum_j (alpha_ij - B_ij)^2 of every real row i, alpha = softmax(scores) over the real columns, in float32."""
    return (masked_softmax(scores, columns) - targets).square().sum(-1) * rows[:, None, :]


def masked_softmax(
    scores: Float[Tensor, "graphs heads width width"], columns: Bool[Tensor, "one_or_graphs width"]
) -> Float[Tensor, "graphs heads width width"]:
    return scores.float().masked_fill(~columns[:, None, None, :], -torch.inf).softmax(-1)


@dataclass(frozen=True)
class Kernels:
    """The parts of a step that move memory and compute little: eager, or fused by the compiler."""

    norm: Callable[..., Tensor]
    errors: Callable[..., Tensor]


EAGER = Kernels(dropped_and_normed, attention_errors)


@cache
def compiled_kernels() -> Kernels:
    """Compiled once per process for all cells: weights are arguments, and numbers of tokens and graphs may vary."""
    # The norm is faster when it is compiled for one width. It is therefore not compiled for any shape from the start:
    # the compiler makes the number of tokens variable when it first changes.
    return Kernels(torch.compile(dropped_and_normed), torch.compile(attention_errors, dynamic=True))


@contextmanager
def matmul_precision(precision: Precision) -> Iterator[torch.dtype]:
    """Float32 products in float32, or on TF32 cores; yields the type that the large ones are to be in."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
    try:
        yield torch.bfloat16 if precision == "bf16" else torch.float32
    finally:
        torch.set_float32_matmul_precision(before)
