# mypy: allow-untyped-defs, allow-untyped-decorators
"""Triton kernels for what a block does between its matrix products. Needs Triton to be imported.

Rows are read once and written once. Sums over rows, which the gradients of a norm and of biases are, are added up by
each program over the rows that it has, every PROGRAMS-th tile, and written as one of PROGRAMS parts: no program adds to
memory that another one writes, so that results are the same in every run. All arithmetic is in float32.
"""

from typing import no_type_check

import triton
import triton.language as tl

_VARIES = ["rows", "threshold"]


@triton.jit
@no_type_check
def _mix(x):
    """MurmurHash3's finaliser."""
    x = (x ^ (x >> 16)) * tl.full((), 0x85EBCA6B, tl.uint32)
    x = (x ^ (x >> 13)) * tl.full((), 0xC2B2AE35, tl.uint32)
    return x ^ (x >> 16)


@triton.jit
@no_type_check
def _words(seed, row, column, HALF: tl.constexpr):
    """The random bits of a row's columns c and c + HALF, 16 each: ``tokengt.dropout`` has the same ones."""
    bits = tl.load(seed)
    place = row.to(tl.uint32)[:, None] * HALF + column.to(tl.uint32)[None, :]
    return _mix(_mix(place ^ (bits & 0x7FFFFFFF).to(tl.uint32)) + (bits >> 31).to(tl.uint32))


@triton.jit
@no_type_check
def _paths(factor, ids, row, rows):
    """What drop path multiplies rows by."""
    # This is no early return: Triton builds the code after a return too, and that would read from a missing tensor.
    if factor is None:
        path = (row * 0 + 1).to(tl.float32)
    else:
        sequence = tl.load(ids + row, mask=row < rows, other=0)
        path = tl.load(factor + sequence, mask=row < rows, other=0.0)
    return path


@triton.jit
@no_type_check
def _dropped(x, path, seed, row, column, threshold, rescale, WIDTH: tl.constexpr):
    """x [rows, columns] with drop path, by row, and dropout, by place."""
    x *= path[:, None]
    if seed is not None:
        HALF: tl.constexpr = (WIDTH + 1) // 2
        high = column >= HALF
        words = _words(seed, row, tl.where(high, column - HALF, column), HALF)
        bits = tl.where(high[None, :], words >> 16, words & 0xFFFF).to(tl.int32)
        x = tl.where(bits >= threshold, x * rescale, 0.0)
    return x


@triton.jit(do_not_specialize=_VARIES)
@no_type_check
def add_norm_forward(
    x, branch, bias, factor, ids, seed, weight, shift, out, normed, means, scales, rows, eps, threshold, rescale,
    WIDTH: tl.constexpr, PAD: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """out = x + dropped(branch + bias), and its LayerNorm; without a branch x itself is normed, and not written."""
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column = tl.arange(0, PAD)
    place = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
    real = column < WIDTH
    inside = (row < rows)[:, None] & real[None, :]
    h = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    if branch is not None:
        added = tl.load(branch + place, mask=inside, other=0.0).to(tl.float32)
        added += tl.load(bias + column, mask=real, other=0.0).to(tl.float32)[None, :]
        added = _dropped(added, _paths(factor, ids, row, rows), seed, row, column, threshold, rescale, WIDTH)
        # The norm must be that of the rounded rows, which are stored and which the backward reads.
        h = (h + added).to(out.dtype.element_ty).to(tl.float32)
        tl.store(out + place, h.to(out.dtype.element_ty), mask=inside)
    mean = tl.sum(h, 1) / WIDTH
    centred = tl.where(inside, h - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 1) / WIDTH + eps)
    gain = tl.load(weight + column, mask=real, other=0.0).to(tl.float32)[None, :]
    y = centred * scale[:, None] * gain + tl.load(shift + column, mask=real, other=0.0).to(tl.float32)[None, :]
    tl.store(normed + place, y.to(normed.dtype.element_ty), mask=inside)
    tl.store(means + row, mean, mask=row < rows)
    tl.store(scales + row, scale, mask=row < rows)


@triton.jit
@no_type_check
def _add_both(a, b, c, d):
    return a + c, b + d


@triton.jit
@no_type_check
def _load_rows(
    first, grad_out, grad_normed, out, means, scales, factor, ids, rows,
    WIDTH: tl.constexpr, PAD: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """What :func:`add_norm_backward` reads of a tile; zeros beyond the last row."""
    row = first + tl.arange(0, TILE)
    column = tl.arange(0, PAD)
    place = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    g = tl.load(grad_normed + place, mask=inside, other=0.0)
    h = tl.load(out + place, mask=inside, other=0.0)
    if grad_out is not None:
        above = tl.load(grad_out + place, mask=inside, other=0.0)
    else:
        above = tl.zeros((TILE, PAD), tl.float32)
    mean = tl.load(means + row, mask=row < rows, other=0.0)
    scale = tl.load(scales + row, mask=row < rows, other=0.0)
    return above, g, h, mean, scale, _paths(factor, ids, row, rows)


@triton.jit(do_not_specialize=_VARIES)
@no_type_check
def add_norm_backward(
    grad_out, grad_normed, out, means, scales, weight, factor, ids, seed, grad_x, grad_branch, parts,
    rows, threshold, rescale,
    WIDTH: tl.constexpr, PAD: tl.constexpr, TILE: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Gradients of x and the branch; a part [3, WIDTH] of those of the norm's weight and shift, and of the bias.

    Without ``grad_out`` and ``grad_branch`` it is that of a norm alone.

    The next rows are loaded while these are worked on, so that the program does not wait for memory.
    """
    column = tl.arange(0, PAD)
    real = column < WIDTH
    gain = tl.load(weight + column, mask=real, other=0.0).to(tl.float32)[None, :]
    of_weight = tl.zeros((TILE, PAD), tl.float32)
    of_shift = tl.zeros((TILE, PAD), tl.float32)
    of_bias = tl.zeros((TILE, PAD), tl.float32)
    begin = tl.program_id(0) * TILE
    above, g, h, mean, scale, path = _load_rows(
        begin, grad_out, grad_normed, out, means, scales, factor, ids, rows, WIDTH, PAD, TILE
    )
    for first in range(begin, rows, PROGRAMS * TILE):
        later = _load_rows(
            first + PROGRAMS * TILE, grad_out, grad_normed, out, means, scales, factor, ids, rows, WIDTH, PAD, TILE
        )
        row = first + tl.arange(0, TILE)
        place = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
        inside = (row < rows)[:, None] & real[None, :]
        scale = scale[:, None]
        unit = (h.to(tl.float32) - mean[:, None]) * scale
        g = g.to(tl.float32)
        of_weight += g * unit
        of_shift += g
        g *= gain
        along, middle = tl.reduce((g * unit, g), 1, _add_both)
        total = above.to(tl.float32) + (g - (middle[:, None] + unit * along[:, None]) / WIDTH) * scale
        tl.store(grad_x + place, total.to(grad_x.dtype.element_ty), mask=inside)
        if grad_branch is not None:
            total = _dropped(total, path, seed, row, column, threshold, rescale, WIDTH)
            of_bias += total
            tl.store(grad_branch + place, total.to(grad_branch.dtype.element_ty), mask=inside)
        above, g, h, mean, scale, path = later
    part = parts + tl.program_id(0) * 3 * WIDTH + column
    tl.store(part, tl.sum(of_weight, 0), mask=real)
    tl.store(part + WIDTH, tl.sum(of_shift, 0), mask=real)
    tl.store(part + 2 * WIDTH, tl.sum(of_bias, 0), mask=real)


@triton.jit
@no_type_check
def _normal(x):
    """Phi(x) and exp(-x^2 / 2), within 1e-7 (Abramowitz and Stegun 7.1.26): half of the work of two library calls."""
    bell = tl.exp2(x * x * -0.7213475204444817)
    t = 1.0 / (1.0 + 0.2316418883 * tl.abs(x))
    tail = ((((0.5307027145 * t - 0.7265760135) * t + 0.7107068705) * t - 0.1422483683) * t + 0.1274147960) * t * bell
    return tl.where(x < 0.0, tail, 1.0 - tail), bell


@triton.jit
@no_type_check
def _activation(x, GELU: tl.constexpr):
    if GELU:
        below, _ = _normal(x)
        return x * below
    return tl.where(x < 0.0, 0.0, x)  # A maximum would turn NaN into 0 on a GPU.


@triton.jit
@no_type_check
def _slope(x, GELU: tl.constexpr):
    """The activation's derivative; for GELU Phi(x) + x phi(x)."""
    if GELU:
        below, bell = _normal(x)
        return below + x * bell * 0.3989422804014327
    return tl.where(x <= 0.0, 0.0, 1.0)


@triton.jit
@no_type_check
def _biased(x, bias, row, column, first, rows, WIDTH: tl.constexpr):
    """x + bias at the columns of a half row that begins with column ``first``; their places, and which exist."""
    here = column + first
    real = (column < (WIDTH + 1) // 2) & (here < WIDTH)
    inside = (row < rows)[:, None] & real[None, :]
    place = row.to(tl.int64)[:, None] * WIDTH + here[None, :]
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    return value + tl.load(bias + here, mask=real, other=0.0).to(tl.float32)[None, :], place, inside


@triton.jit(do_not_specialize=_VARIES)
@no_type_check
def activate_forward(
    x, bias, seed, out, rows, threshold, rescale,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    """Dropout of the activation of x + bias: a tile of the columns' first half, and of the second."""
    HALF: tl.constexpr = (WIDTH + 1) // 2
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    if seed is not None:
        words = _words(seed, row, column, HALF)
    for second in tl.static_range(2):
        value, place, inside = _biased(x, bias, row, column, second * HALF, rows, WIDTH)
        value = _activation(value, GELU)
        if seed is not None:
            bits = (words >> 16 if second else words & 0xFFFF).to(tl.int32)
            value = tl.where(bits >= threshold, value * rescale, 0.0)
        tl.store(out + place, value.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=_VARIES)
@no_type_check
def activate_backward(
    grad_out, x, bias, seed, grad_x, parts, rows, threshold, rescale,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr, PROGRAMS: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    """The gradient of x, and a part [WIDTH] of that of the bias."""
    HALF: tl.constexpr = (WIDTH + 1) // 2
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    sum_0 = tl.zeros((TILE, COLUMNS), tl.float32)
    sum_1 = tl.zeros((TILE, COLUMNS), tl.float32)
    for first in range(tl.program_id(0) * TILE, rows, PROGRAMS * TILE):
        row = first + tl.arange(0, TILE)
        if seed is not None:
            words = _words(seed, row, column, HALF)
        for second in tl.static_range(2):
            value, place, inside = _biased(x, bias, row, column, second * HALF, rows, WIDTH)
            g = tl.load(grad_out + place, mask=inside, other=0.0).to(tl.float32)
            if seed is not None:
                bits = (words >> 16 if second else words & 0xFFFF).to(tl.int32)
                g = tl.where(bits >= threshold, g * rescale, 0.0)
            g *= _slope(value, GELU)
            tl.store(grad_x + place, g.to(grad_x.dtype.element_ty), mask=inside)
            if second:
                sum_1 += g
            else:
                sum_0 += g
    part = parts + tl.program_id(0) * WIDTH + column
    tl.store(part, tl.sum(sum_0, 0), mask=column < HALF)
    tl.store(part + HALF, tl.sum(sum_1, 0), mask=(column < HALF) & (column + HALF < WIDTH))


@triton.jit(do_not_specialize=["rows"])
@no_type_check
def sum_rows(
    x, parts, rows,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """A part [WIDTH] of the sum over rows."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((TILE, COLUMNS), tl.float32)
    for first in range(tl.program_id(0) * TILE, rows, PROGRAMS * TILE):
        row = first + tl.arange(0, TILE)
        inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
        place = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
        total += tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(parts + tl.program_id(0) * WIDTH + column, tl.sum(total, 0), mask=column < WIDTH)
