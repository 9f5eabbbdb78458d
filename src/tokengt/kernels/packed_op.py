"""The kernels as operators of PyTorch: with gradients, and opaque to a compiler, which never stops at them."""

from typing import Any

import torch
from torch import Tensor

from tokengt.kernels.heads import Heads
from tokengt.kernels.packed_launch import run_backward, run_forward


@torch.library.custom_op("tokengt::packed_attention", mutates_args=())
def packed_attention_op(
    qkv: Tensor,
    items: Tensor,
    buckets: Tensor,
    seed: Tensor | None,
    num_heads: int,
    head_dim: int,
    value_dim: int,
    dropout: float,
    marks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention [tokens, heads, value_dim] of rows [tokens, width], and base-2 log-sum-exps [heads, tokens]."""
    out, log_sums = _outputs(qkv, num_heads, value_dim)
    heads = Heads(num_heads, head_dim, value_dim)
    run_forward(qkv.contiguous(), items, buckets, seed, heads, dropout, out, log_sums, marks)
    return out, log_sums


@packed_attention_op.register_fake
def _(
    qkv: Tensor,
    items: Tensor,
    buckets: Tensor,
    seed: Tensor | None,
    num_heads: int,
    head_dim: int,
    value_dim: int,
    dropout: float,
    marks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    return _outputs(qkv, num_heads, value_dim)


def _outputs(qkv: Tensor, num_heads: int, value_dim: int) -> tuple[Tensor, Tensor]:
    log_sums = qkv.new_empty(num_heads, qkv.shape[0], dtype=torch.float32)
    return qkv.new_empty(qkv.shape[0], num_heads, value_dim), log_sums


@torch.library.custom_op("tokengt::packed_attention_backward", mutates_args=())
def packed_attention_backward_op(
    grad_out: Tensor,
    qkv: Tensor,
    out: Tensor,
    log_sums: Tensor,
    items: Tensor,
    buckets: Tensor,
    seed: Tensor | None,
    num_heads: int,
    head_dim: int,
    value_dim: int,
    dropout: float,
    marks: Tensor | None = None,
) -> Tensor:
    """The gradient of the rows [tokens, width]."""
    grad_qkv = qkv.new_empty(qkv.shape)
    heads = Heads(num_heads, head_dim, value_dim)
    grads = grad_out.contiguous()
    run_backward(qkv.contiguous(), out, grads, log_sums, items, buckets, seed, heads, dropout, grad_qkv, marks)
    return grad_qkv


@packed_attention_backward_op.register_fake
def _(
    grad_out: Tensor,
    qkv: Tensor,
    out: Tensor,
    log_sums: Tensor,
    items: Tensor,
    buckets: Tensor,
    seed: Tensor | None,
    num_heads: int,
    head_dim: int,
    value_dim: int,
    dropout: float,
    marks: Tensor | None = None,
) -> Tensor:
    return qkv.new_empty(qkv.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv, items, buckets, seed, *ctx.sizes, marks = inputs
    out, log_sums = output
    ctx.mark_non_differentiable(log_sums)
    ctx.set_materialize_grads(False)  # Zeros for the log-sum-exps would be one launch more.
    ctx.save_for_backward(qkv, out, log_sums, items, buckets, seed, marks)


def _backward(ctx: Any, grad_out: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad_out is None:
        return (None,) * 9
    *saved, marks = ctx.saved_tensors
    grad = packed_attention_backward_op(grad_out, *saved, *ctx.sizes, marks)
    return (grad, *[None] * 8)


packed_attention_op.register_autograd(_backward, setup_context=_setup)
