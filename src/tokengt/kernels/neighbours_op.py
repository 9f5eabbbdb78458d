"""Attention to neighbours by the Triton kernels: their launches and the gradient. Needs Triton to be imported."""

from typing import Any

import torch
from jaxtyping import Float, Float32
from torch import Tensor
from torch.autograd.function import once_differentiable

from tokengt.kernels import neighbours
from tokengt.kernels.edge_orders import SLOPE, EdgeOrders
from tokengt.kernels.tiles import padded_width

# How many numbers a program's tile of edges by channels has, and how many warps. On an H200, 34,493 rows and 530,417
# edges in 4 heads of 256: 0.31, 0.57 and 0.37 ms; eight times as many numbers in four warps take 1.8, 2.6 and 1.7 ms.
FORWARD, BY_TARGET, BY_SOURCE = (512, 1), (512, 1), (512, 1)
# The most edges of a tile: more would be empty at most rows.
MOST_EDGES = 16
# In how many parts, at most, the gradient of a is made: 64 programs for each of the 132 multiprocessors of an H200.
PROGRAMS = 8448


def attend_edges(
    left: Float[Tensor, "rows heads channels"],
    right: Float[Tensor, "rows heads channels"],
    att: Float[Tensor, "heads channels"],
    orders: EdgeOrders,
) -> Float[Tensor, "rows heads channels"]:
    """What every row hears from the rows that edges lead from, in the type that products of ``left`` and ``att`` have.

    That is float32 under autocast: the gradients of scores are differences from the output, of which half precision
    would leave few digits. Kept for the backward: what goes in, what comes out, and a number per row and head.
    """
    result = _Attend.apply(left, right, att, orders)  # type: ignore[no-untyped-call]
    out: Tensor = result[0]
    return out


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
        left, right, att, orders = inputs
        return _forward(left.contiguous(), right.contiguous(), att.contiguous(), orders)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.orders = inputs
        ctx.set_materialize_grads(False)  # Otherwise zeros would be made as gradients of the other output.
        ctx.save_for_backward(*tensors, *output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        left, right, att, out, log_sums = (tensor.contiguous() for tensor in ctx.saved_tensors)
        return *_backward(grad_out.contiguous(), out, log_sums, left, right, att, ctx.orders), None


def _forward(
    left: Float[Tensor, "rows heads channels"],
    right: Float[Tensor, "rows heads channels"],
    att: Float[Tensor, "heads channels"],
    orders: EdgeOrders,
) -> tuple[Float[Tensor, "rows heads channels"], Float32[Tensor, "heads rows"]]:
    """Out, and the logarithms of the softmaxes' denominators."""
    rows, heads, _ = left.shape
    assert orders.rows == rows, "a program would read outside of its rows"
    out = torch.empty_like(left, dtype=torch.promote_types(left.dtype, att.dtype))
    log_sums = left.new_empty(heads, rows, dtype=torch.float32)
    tensors = (left, right, att, orders.to_offsets, orders.sources, out, log_sums)
    _launch(neighbours.neighbours_forward, FORWARD, rows, left, *tensors, rows)
    return out, log_sums


def _backward(
    grad_out: Float[Tensor, "rows heads channels"],
    out: Float[Tensor, "rows heads channels"],
    log_sums: Float32[Tensor, "heads rows"],
    left: Float[Tensor, "rows heads channels"],
    right: Float[Tensor, "rows heads channels"],
    att: Float[Tensor, "heads channels"],
    orders: EdgeOrders,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of left, right and a."""
    rows, heads, channels = left.shape
    edges, programs = len(orders.sources), min(rows, PROGRAMS)
    grad_left, grad_right = torch.empty_like(left), torch.empty_like(right)
    alphas, grad_scores = (left.new_empty(heads, edges, dtype=torch.float32) for _ in range(2))
    parts = left.new_empty(programs, heads, channels, dtype=torch.float32)
    given = (left, right, att)
    by_target, by_source = neighbours.neighbours_backward_targets, neighbours.neighbours_backward_sources
    to, made = (orders.to_offsets, orders.sources, log_sums), (grad_right, alphas, grad_scores, parts)
    _launch(by_target, BY_TARGET, programs, left, grad_out, out, *given, *to, *made, rows, edges)
    # Rows of the gradient are gathered once per edge: in the type of the others they are half as many bytes.
    come_from = (orders.from_offsets, orders.targets, orders.places, alphas, grad_scores)
    _launch(by_source, BY_SOURCE, rows, left, grad_out.to(left.dtype), *given, *come_from, grad_left, edges)
    return grad_left, grad_right, parts.sum(0).to(att.dtype)


def _launch(kernel: Any, setting: tuple[int, int], programs: int, left: Tensor, *arguments: Tensor | int) -> None:
    """So many programs for each head of ``left``."""
    _, heads, channels = left.shape
    if programs == 0:
        return
    with torch.cuda.device_of(left):  # type: ignore[no-untyped-call]
        kernel[(programs, heads)](*arguments, HEADS=heads, WIDTH=channels, SLOPE=SLOPE, **tile(setting, channels))


def tile(setting: tuple[int, int], channels: int) -> dict[str, int]:
    """Edges at a time by padded channels, and warps: fewer of them where a tile has few numbers."""
    numbers, warps = setting
    pad = padded_width(channels)
    edges = min(MOST_EDGES, max(1, numbers // pad))
    return {"EDGES": edges, "PAD": pad, "num_warps": max(1, min(warps, edges * pad // 256))}
