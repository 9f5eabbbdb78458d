"""The kernels as operators of PyTorch: with gradients, and opaque to a compiler, which never stops at them.

Gradients that are sums over rows come in parts, which a compiler adds up together.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from tokengt.dropout import dropout_threshold
from tokengt.kernels import rows as kernels

# In how many parts a sum over rows is made: by four programs for each of the 132 multiprocessors of an H200. Few rows
# make few parts, because adding up the parts would take longer than making them.
PROGRAMS, _FEW_PROGRAMS, _FEW_ROWS = 528, 64, 4096
SUM_PROGRAMS = 64
# The most columns that one program of the activation or of a sum has.
_COLUMNS = 128
# How many numbers the tile of a program has, and how many warps: each the fastest of some twenty settings on an H200
# (46,700 x 768, bf16).
_ADD_NORM, _ADD_NORM_BACKWARD = (2048, 4), (1024, 8)
_ACTIVATE, _ACTIVATE_BACKWARD = (1024, 2), (512, 2)
_SUM = (2048, 4)


def _programs(rows: int | torch.SymInt) -> int:
    """A compiler, which leaves the number of rows open, gets one number for all."""
    return _FEW_PROGRAMS if isinstance(rows, int) and rows <= _FEW_ROWS else PROGRAMS


def _tile(setting: tuple[int, int], columns: int) -> dict[str, int]:
    """Rows of a tile, and warps."""
    numbers, warps = setting
    return {"TILE": max(1, numbers // columns), "num_warps": warps}


@torch.library.custom_op("tokengt::add_norm", mutates_args=())
def add_norm_op(
    x: Tensor,
    branch: Tensor,
    bias: Tensor,
    factor: Tensor | None,
    ids: Tensor | None,
    seed: Tensor | None,
    rate: float,
    weight: Tensor,
    shift: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """H = x + dropped(branch + bias) [rows, width], norm(H) in the branch's type, and H's means and 1 / deviations."""
    x, branch = x.contiguous(), branch.contiguous()
    out, normed, means, scales = outputs = _normed(x, branch)
    rows, width = x.shape
    threshold, kept = dropout_threshold(rate)
    pad = triton.next_power_of_2(width)
    setting = _tile(_ADD_NORM, pad)
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        kernels.add_norm_forward[(triton.cdiv(rows, setting["TILE"]),)](
            x, branch, bias, factor, ids, seed, weight, shift, out, normed, means, scales,
            rows, eps, threshold, 1 / kept, WIDTH=width, PAD=pad, **setting,
        )  # fmt: skip
    return outputs


def _normed(x: Tensor, branch: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    means, scales = (x.new_empty(x.shape[0], dtype=torch.float32) for _ in range(2))
    return x.new_empty(x.shape), branch.new_empty(branch.shape), means, scales


@add_norm_op.register_fake
def _(x: Tensor, branch: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _normed(x, branch)


@torch.library.custom_op("tokengt::add_norm_backward", mutates_args=())
def add_norm_backward_op(
    grad_out: Tensor | None,
    grad_normed: Tensor,
    out: Tensor,
    means: Tensor,
    scales: Tensor,
    weight: Tensor,
    factor: Tensor | None,
    ids: Tensor | None,
    seed: Tensor | None,
    rate: float,
    programs: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x and the branch, and parts [programs, 3, width] of those of weight, shift and bias."""
    grad_out = None if grad_out is None else grad_out.contiguous()
    grads = grad_x, grad_branch, parts = _normed_backward(out, grad_normed, programs)
    rows, width = out.shape
    threshold, kept = dropout_threshold(rate)
    pad = triton.next_power_of_2(width)
    with torch.cuda.device_of(out):  # type: ignore[no-untyped-call]
        kernels.add_norm_backward[(programs,)](
            grad_out, grad_normed.contiguous(), out, means, scales, weight, factor, ids, seed,
            grad_x, grad_branch, parts, rows, threshold, 1 / kept,
            WIDTH=width, PAD=pad, PROGRAMS=programs, **_tile(_ADD_NORM_BACKWARD, pad),
        )  # fmt: skip
    return grads


def _normed_backward(out: Tensor, grad_normed: Tensor, programs: int) -> tuple[Tensor, Tensor, Tensor]:
    parts = out.new_empty(programs, 3, out.shape[1], dtype=torch.float32)
    return out.new_empty(out.shape), grad_normed.new_empty(out.shape), parts


@add_norm_backward_op.register_fake
def _(grad_out: Tensor | None, grad_normed: Tensor, out: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _normed_backward(out, grad_normed, others[-1])


def _add_norm_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, _, _, factor, ids, seed, ctx.rate, weight, *_ = inputs
    out, _, means, scales = output
    ctx.mark_non_differentiable(means, scales)
    ctx.set_materialize_grads(False)  # Zeros for outputs that nothing is learned through would be a launch each.
    ctx.save_for_backward(out, means, scales, weight, factor, ids, seed)


def _add_norm_gradient(
    ctx: Any, grad_out: Tensor | None, grad_normed: Tensor | None, *_: Any
) -> tuple[Tensor | None, ...]:
    out = ctx.saved_tensors[0]
    if grad_normed is None:  # Nobody reads the norm of these rows.
        grad_normed = torch.zeros_like(out)
    programs = _programs(out.shape[0])
    grad_x, grad_branch, parts = add_norm_backward_op(grad_out, grad_normed, *ctx.saved_tensors, ctx.rate, programs)
    weight, shift, bias = parts.sum(0).unbind(0)
    return grad_x, grad_branch, bias, None, None, None, None, weight, shift, None


add_norm_op.register_autograd(_add_norm_gradient, setup_context=_add_norm_setup)


@torch.library.custom_op("tokengt::norm", mutates_args=())
def norm_op(x: Tensor, weight: Tensor, shift: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """LayerNorm of x [rows, width] in the given type, and the rows' means and 1 / deviations."""
    x = x.contiguous()
    normed, means, scales = outputs = _only_normed(x, dtype)
    rows, width = x.shape
    pad = triton.next_power_of_2(width)
    setting = _tile(_ADD_NORM, pad)
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        kernels.add_norm_forward[(triton.cdiv(rows, setting["TILE"]),)](
            x, None, None, None, None, None, weight, shift, None, normed, means, scales,
            rows, eps, 0, 1.0, WIDTH=width, PAD=pad, **setting,
        )  # fmt: skip
    return outputs


def _only_normed(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    means, scales = (x.new_empty(x.shape[0], dtype=torch.float32) for _ in range(2))
    return x.new_empty(x.shape, dtype=dtype), means, scales


@norm_op.register_fake
def _(x: Tensor, weight: Tensor, shift: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    return _only_normed(x, dtype)


@torch.library.custom_op("tokengt::norm_backward", mutates_args=())
def norm_backward_op(
    grad: Tensor, x: Tensor, means: Tensor, scales: Tensor, weight: Tensor, programs: int
) -> tuple[Tensor, Tensor]:
    """The gradient of x, and parts [programs, 3, width] of those of weight and shift; the third is zero."""
    grads = grad_x, parts = _only_normed_backward(x, programs)
    rows, width = x.shape
    pad = triton.next_power_of_2(width)
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        kernels.add_norm_backward[(programs,)](
            None, grad.contiguous(), x, means, scales, weight, None, None, None,
            grad_x, None, parts, rows, 0, 1.0,
            WIDTH=width, PAD=pad, PROGRAMS=programs, **_tile(_ADD_NORM_BACKWARD, pad),
        )  # fmt: skip
    return grads


def _only_normed_backward(x: Tensor, programs: int) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(programs, 3, x.shape[1], dtype=torch.float32)


@norm_backward_op.register_fake
def _(grad: Tensor, x: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return _only_normed_backward(x, others[-1])


def _norm_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, *_ = inputs
    _, means, scales = output
    ctx.mark_non_differentiable(means, scales)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x.contiguous(), means, scales, weight)


def _norm_gradient(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 5
    x, means, scales, weight = ctx.saved_tensors
    grad_x, parts = norm_backward_op(grad, x, means, scales, weight, _programs(x.shape[0]))
    of_weight, of_shift, _ = parts.sum(0).unbind(0)
    return grad_x, of_weight, of_shift, None, None


norm_op.register_autograd(_norm_gradient, setup_context=_norm_setup)


@torch.library.custom_op("tokengt::activate", mutates_args=())
def activate_op(x: Tensor, bias: Tensor, seed: Tensor | None, rate: float, gelu: bool) -> Tensor:
    """Dropout of the activation of x + bias."""
    x = x.contiguous()
    out = x.new_empty(x.shape)
    rows, width = x.shape
    threshold, kept = dropout_threshold(rate)
    columns, blocks = _halves(width)
    setting = _tile(_ACTIVATE, columns)
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        kernels.activate_forward[(triton.cdiv(rows, setting["TILE"]), blocks)](
            x, bias, seed, out, rows, threshold, 1 / kept, WIDTH=width, COLUMNS=columns, GELU=gelu, **setting
        )  # fmt: skip
    return out


@activate_op.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


def _halves(width: int) -> tuple[int, int]:
    """Columns of a program, and programs side by side, for half of a row: the other half is done beside it."""
    half = (width + 1) // 2
    columns = min(_COLUMNS, int(triton.next_power_of_2(half)))
    return columns, int(triton.cdiv(half, columns))


@torch.library.custom_op("tokengt::activate_backward", mutates_args=())
def activate_backward_op(
    grad_out: Tensor, x: Tensor, bias: Tensor, seed: Tensor | None, rate: float, gelu: bool, programs: int
) -> tuple[Tensor, Tensor]:
    """The gradient of x, and parts [programs, width] of that of the bias."""
    grads = grad_x, parts = _activated_backward(x, programs)
    rows, width = x.shape
    threshold, kept = dropout_threshold(rate)
    columns, blocks = _halves(width)
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        kernels.activate_backward[(programs, blocks)](
            grad_out.contiguous(), x.contiguous(), bias, seed, grad_x, parts, rows, threshold, 1 / kept,
            WIDTH=width, COLUMNS=columns, PROGRAMS=programs, GELU=gelu, **_tile(_ACTIVATE_BACKWARD, columns),
        )  # fmt: skip
    return grads


def _activated_backward(x: Tensor, programs: int) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(programs, x.shape[1], dtype=torch.float32)


@activate_backward_op.register_fake
def _(grad_out: Tensor, x: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return _activated_backward(x, others[-1])


def _activate_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, bias, seed, ctx.rate, ctx.gelu = inputs
    ctx.save_for_backward(x, bias, seed)


def _activate_gradient(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
    programs = _programs(grad_out.shape[0])
    grad_x, parts = activate_backward_op(grad_out, *ctx.saved_tensors, ctx.rate, ctx.gelu, programs)
    return grad_x, parts.sum(0), None, None, None


activate_op.register_autograd(_activate_gradient, setup_context=_activate_setup)


@torch.library.custom_op("tokengt::linear", mutates_args=())
def linear_op(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x weight^T + bias, one type for all three."""
    return torch.addmm(bias, x, weight.t())


@linear_op.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


@torch.library.custom_op("tokengt::sum_rows", mutates_args=())
def sum_rows_op(x: Tensor) -> Tensor:
    """Parts [programs, width] of the sum over rows, in float32."""
    x = x.contiguous()
    rows, width = x.shape
    parts = _summed(x)
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        kernels.sum_rows[(SUM_PROGRAMS, triton.cdiv(width, _COLUMNS))](
            x, parts, rows, WIDTH=width, COLUMNS=_COLUMNS, PROGRAMS=SUM_PROGRAMS, **_tile(_SUM, _COLUMNS)
        )  # fmt: skip
    return parts


def _summed(x: Tensor) -> Tensor:
    return x.new_empty(SUM_PROGRAMS, x.shape[1], dtype=torch.float32)


sum_rows_op.register_fake(_summed)


def _linear_setup(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight)


def _linear_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
    x, weight = ctx.saved_tensors
    return grad @ weight, grad.t() @ x, sum_rows_op(grad).sum(0).to(grad.dtype)


linear_op.register_autograd(_linear_gradient, setup_context=_linear_setup)
