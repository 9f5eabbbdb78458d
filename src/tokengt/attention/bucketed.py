"""Softmax attention over packed sequences on a CPU: one step of autograd for all buckets of a layer.

Sequences of similar length share one call of PyTorch's kernel, so a batch of 32 molecules needs about a dozen calls per
layer. Left to autograd, every call would bring some twenty views, copies and their gradients along, which take as long
as the kernel itself. The kernel and its inputs, down to where they lie in memory, are the same as with
:func:`torch.nn.functional.scaled_dot_product_attention`, and so are the bits of what comes out.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from tokengt.kernels.heads import Heads
from tokengt.ragged import Segments, as_bias

_FORWARD: Any = torch._scaled_dot_product_flash_attention_for_cpu
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def takes_bucketed(qkv: Float[Tensor, "tokens width"], heads: Heads, dropout: float) -> bool:
    """Whether :func:`bucketed_attention` can attend: on a CPU, with one width for all, and without dropout."""
    plain = qkv.dtype in (torch.float32, torch.float64)
    return qkv.device.type == "cpu" and plain and heads.key == heads.value and dropout == 0 and len(qkv) > 0


def bucketed_attention(
    qkv: Float[Tensor, "tokens width"],
    segments: Segments,
    heads: Heads,
    masks: tuple[Bool[Tensor, "_ 1 _ _"], ...] | None = None,
) -> Float[Tensor, "tokens values"]:
    """Attention of every sequence to itself, from rows [queries | keys | values], the heads side by side.

    ``masks`` say for every bucket which rows may attend to which; None where all of a sequence may.
    """
    biases: list[Tensor | None] = (
        segments.bucket_biases(qkv.dtype) if masks is None else [as_bias(mask, qkv.dtype) for mask in masks]
    )
    if torch.is_grad_enabled() and qkv.requires_grad:
        out: Tensor = _Attention.apply(qkv, segments, heads, biases)  # type: ignore[no-untyped-call]
        return out
    return _joined([out for out, _ in _attend(_gathered(qkv, segments), segments, heads, biases)], segments)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, segments: Segments, heads: Heads, biases: list[Tensor | None]) -> Tensor:
        parts = _gathered(qkv, segments)
        done = _attend(parts, segments, heads, biases)
        ctx.segments, ctx.heads, ctx.biases = segments, heads, biases
        ctx.save_for_backward(*parts, *(tensor for pair in done for tensor in pair))
        return _joined([out for out, _ in done], segments)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        segments, heads = ctx.segments, ctx.heads
        saved: tuple[Tensor, ...] = ctx.saved_tensors
        parts, outs, sums = saved[:3], saved[3::2], saved[4::2]
        scale = heads.key**-0.5
        windows = (_windows(rows, segments, heads) for rows in (_with_padding(grad, segments), *parts))
        found = [
            _BACKWARD(*rows, out, sums_of, 0.0, False, attn_mask=bias, scale=scale)
            for *rows, out, sums_of, bias in zip(*windows, outs, sums, ctx.biases, strict=True)
        ]
        # Of queries, of keys, and of values.
        grads = [_joined(list(of_buckets), segments) for of_buckets in zip(*found, strict=True)]
        return torch.cat(grads, 1), None, None, None


def _gathered(qkv: Tensor, segments: Segments) -> tuple[Tensor, ...]:
    """Queries, keys and values, the rows of every bucket side by side.

    Each is gathered by itself: how far rows lie apart decides which kernel multiplies them, and so the last bits.
    """
    parts = qkv.chunk(3, 1)
    return parts if segments.in_order else tuple(part.index_select(0, segments.to_buckets) for part in parts)


def _attend(
    parts: tuple[Tensor, ...], segments: Segments, heads: Heads, biases: list[Tensor | None]
) -> list[tuple[Tensor, Tensor]]:
    """The output of every bucket, and the logarithms of its sums, which the gradient needs."""
    scale = heads.key**-0.5
    windows = (_windows(rows, segments, heads) for rows in parts)
    return [
        _FORWARD(*rows, 0.0, False, attn_mask=bias, scale=scale) for *rows, bias in zip(*windows, biases, strict=True)
    ]


def _windows(rows: Tensor, segments: Segments, heads: Heads) -> Iterator[Tensor]:
    """Views [sequences, heads, width, head_dim] of the rows of every bucket, each made by one operator."""
    step, start = rows.stride(0), rows.storage_offset()
    for count, width in segments.bucket_shapes:
        shape, strides = (count, heads.count, width, heads.key), (width * step, heads.key, step, 1)
        yield rows.as_strided(shape, strides, start)
        start += count * width * step


def _with_padding(grad: Tensor, segments: Segments) -> Tensor:
    """Gradients of the rows of every bucket side by side; padding has none."""
    if segments.in_order:
        return grad.contiguous()
    return grad.index_select(0, segments.to_buckets).index_fill_(0, segments.padding, 0.0)


def _joined(parts: list[Tensor], segments: Segments) -> Tensor:
    """What the kernel says of every bucket, [sequences, heads, width, head_dim], as packed rows again."""
    flat = [part.transpose(1, 2).reshape(-1, part.shape[1] * part.shape[3]) for part in parts]
    together = flat[0] if len(flat) == 1 else torch.cat(flat)
    return together if segments.in_order else together.index_select(0, segments.from_buckets)
