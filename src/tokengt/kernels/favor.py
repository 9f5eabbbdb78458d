# mypy: allow-untyped-defs, allow-untyped-decorators
"""The Triton kernels of FAVOR+ for long sequences: features live in registers, none is written to memory.

``favor_chunks`` has the equations: e(x) = exp(W x - |x|^2 / 2 - stabiliser), a table T = [V, N] of sums over keys, and
its gradient. Rows are [queries of all heads | keys of all heads | values of all heads]. W carries the temperature and
is filled up to whole blocks of FEATURES rows by its first one, which changes no maximum; the tables' rows there are
zero. A *tile* is TILE rows of one sequence, a *piece* many tiles of it; ``tiles`` and ``pieces`` hold the first row,
the number of rows and the sequence of each. Every sum is in float32 and made by one program, piece by piece.
"""

from typing import no_type_check

import triton
import triton.language as tl

from tokengt.kernels.packed import _dot, _load, _store

_VARIES = ["tokens", "blocks"]


@triton.jit
@no_type_check
def _half_norm(x, KEY: tl.constexpr):
    """|x|^2 / 2 with the temperature 1 / sqrt(KEY)."""
    wide = x.to(tl.float32)
    return tl.sum(wide * wide, 1) * (0.5 * KEY**-0.5)


@triton.jit
@no_type_check
def _block(base, block, FEATURES: tl.constexpr, WIDTH: tl.constexpr, PAD: tl.constexpr):
    """A block of rows of W or of a table."""
    row = block * FEATURES + tl.arange(0, FEATURES)
    return _load(base, row, (block + 1) * FEATURES, WIDTH, WIDTH, PAD)


@triton.jit
@no_type_check
def _vector(base, WIDTH: tl.constexpr, PAD: tl.constexpr):
    column = tl.arange(0, PAD)
    return tl.load(base + column, mask=column < WIDTH, other=0.0)


@triton.jit
@no_type_check
def _tile(tiles, HEADS: tl.constexpr):
    """This program's tile and head: the first row, the number of rows, the head, the place of its table."""
    tile, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    count = tl.num_programs(0) // HEADS
    sequence = tl.load(tiles + 2 * count + tile).to(tl.int64)
    return tl.load(tiles + tile).to(tl.int64), tl.load(tiles + count + tile), head, sequence * HEADS + head


@triton.jit
@no_type_check
def _by_query(grad, centred, normaliser):
    """The gradients of numerator and denominator, [g, -g . (output - centre)] / denominator."""
    g = grad.to(tl.float32) / normaliser[:, None]
    return g, -tl.sum(g * centred.to(tl.float32), 1)


@triton.jit(do_not_specialize=_VARIES)
@no_type_check
def sum_tables(
    qkv, weights, pieces, tops, values, norms, totals, grad_out, centred, offsets, normalisers, tokens, blocks,
    HEADS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr, KEY_PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
    TILE: tl.constexpr, FEATURES: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One piece, head and block of features: sums of e(x) y^T, e(x) z, y and z over its rows.

    Of keys y is the value and z one, and the stabiliser the largest exponent so far, written to ``tops``; of queries
    (y, z) is the gradient of numerator and denominator, and the stabiliser is known.
    """
    STRIDE: tl.constexpr = HEADS * (2 * KEY + VALUE)
    unit = tl.program_id(0) // blocks
    block, piece, head = tl.program_id(0) % blocks, unit // HEADS, unit % HEADS
    count = tl.num_programs(0) // blocks // HEADS
    start = tl.load(pieces + piece).to(tl.int64)
    length = tl.load(pieces + count + piece)
    w = _block(weights, block, FEATURES, KEY, KEY_PAD)
    row = tl.arange(0, TILE)
    x_rows = qkv + start * STRIDE + (head + HEADS * KEYS) * KEY
    if KEYS:
        y_rows = qkv + start * STRIDE + 2 * HEADS * KEY + head * VALUE
    else:
        y_rows = grad_out + (start * HEADS + head) * VALUE
    o_rows = centred + (start * HEADS + head) * VALUE
    of_rows = head.to(tl.int64) * tokens + start
    top = tl.full((), float("-inf"), tl.float32)
    value = tl.zeros((FEATURES, VALUE_PAD), tl.float32)
    norm = tl.zeros((FEATURES,), tl.float32)
    total = tl.zeros((VALUE_PAD,), tl.float32)
    ones = tl.zeros((), tl.float32)
    for first in range(0, length, TILE):
        inside = row < length - first
        x = _load(x_rows, row, length - first, STRIDE, KEY, KEY_PAD)
        exponent = _dot(x, tl.trans(w), PRECISION)
        if KEYS:
            y = _load(y_rows, row, length - first, STRIDE, VALUE, VALUE_PAD)
            higher = tl.maximum(top, tl.max(tl.where(inside[:, None], exponent, float("-inf"))))
            e = tl.exp(exponent - (_half_norm(x, KEY) + higher)[:, None])
            e = tl.where(inside[:, None], e, 0.0)
            shrink = tl.exp(top - higher)
            norm = norm * shrink + tl.sum(e, 0)
            value = value * shrink + _dot(tl.trans(e.to(y.dtype)), y, PRECISION)
            total += tl.sum(y.to(tl.float32), 0)
            ones += tl.sum(inside.to(tl.float32))
            top = higher
            y_rows += TILE * STRIDE
        else:
            g = _load(y_rows, row, length - first, HEADS * VALUE, VALUE, VALUE_PAD)
            o = _load(o_rows, row, length - first, HEADS * VALUE, VALUE, VALUE_PAD)
            offset = tl.load(offsets + of_rows + row, mask=inside, other=0.0)
            normaliser = tl.load(normalisers + of_rows + row, mask=inside, other=1.0)
            y, z = _by_query(g, o, normaliser)
            e = tl.exp(exponent - offset[:, None])
            norm += tl.sum(e * z[:, None], 0)
            value += _dot(tl.trans(e.to(x.dtype)), y.to(x.dtype), PRECISION)
            total += tl.sum(y, 0)
            ones += tl.sum(z)
            y_rows += TILE * HEADS * VALUE
            o_rows += TILE * HEADS * VALUE
            of_rows += TILE
        x_rows += TILE * STRIDE
    place = unit.to(tl.int64) * blocks + block
    feature, column = tl.arange(0, FEATURES), tl.arange(0, VALUE_PAD)
    _store(values + place * FEATURES * VALUE, feature, FEATURES, value, VALUE, VALUE, VALUE_PAD)
    tl.store(norms + place * FEATURES + feature, norm)
    tl.store(totals + place * (VALUE + 1) + column, total, mask=column < VALUE)
    tl.store(totals + place * (VALUE + 1) + VALUE, ones)
    if KEYS:
        tl.store(tops + place, top)


@triton.jit(do_not_specialize=["width"])
@no_type_check
def over_pieces(x, bounds, out, width, MAX: tl.constexpr, COLUMNS: tl.constexpr):
    """The sum, or the largest, of each sequence's pieces, one after another: [pieces, width] to [sequences, width]."""
    blocks = tl.cdiv(width, COLUMNS)
    sequence = (tl.program_id(0) // blocks).to(tl.int64)
    column = tl.program_id(0) % blocks * COLUMNS + tl.arange(0, COLUMNS)
    first, end = tl.load(bounds + sequence), tl.load(bounds + sequence + 1)
    found = tl.full((COLUMNS,), float("-inf") if MAX else 0.0, tl.float32)
    for piece in range(first, end):
        row = tl.load(x + piece * width + column, mask=column < width, other=0.0)
        found = tl.maximum(found, row) if MAX else found + row
    tl.store(out + sequence * width + column, found, mask=column < width)


@triton.jit(do_not_specialize=_VARIES)
@no_type_check
def answer_queries(
    qkv, weights, tiles, values, norms, floors, centres, out, centred, offsets, normalisers, tokens, blocks,
    HEADS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr, KEY_PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
    TILE: tl.constexpr, FEATURES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The outputs of one tile and head; features are to its queries what keys are in the online softmax.

    What they differ by from the centre is kept apart: of the output, once rounded, little of it may be left.
    """
    STRIDE: tl.constexpr = HEADS * (2 * KEY + VALUE)
    start, length, head, table = _tile(tiles, HEADS)
    row, feature = tl.arange(0, TILE), tl.arange(0, FEATURES)
    q = _load(qkv + start * STRIDE + head * KEY, row, length, STRIDE, KEY, KEY_PAD)
    values += table * blocks * FEATURES * VALUE
    norms += table * blocks * FEATURES
    top = tl.full((TILE,), float("-inf"), tl.float32)
    above = tl.zeros((TILE, VALUE_PAD), tl.float32)
    below = tl.zeros((TILE,), tl.float32)
    for block in range(blocks):
        exponent = _dot(q, tl.trans(_block(weights, block, FEATURES, KEY, KEY_PAD)), PRECISION)
        higher = tl.maximum(top, tl.max(exponent, 1))
        e = tl.exp(exponent - higher[:, None])
        shrink = tl.exp(top - higher)
        value = _block(values, block, FEATURES, VALUE, VALUE_PAD)
        above = above * shrink[:, None] + _dot(e.to(value.dtype), value, PRECISION)
        below = below * shrink + tl.sum(e * tl.load(norms + block * FEATURES + feature)[None, :], 1)
        top = higher
    half_norm = _half_norm(q, KEY)
    shrink = tl.exp(-half_norm)
    below = below * shrink + tl.load(floors + table * (VALUE + 1) + VALUE)
    above = above * shrink[:, None] + _vector(floors + table * (VALUE + 1), VALUE, VALUE_PAD)[None, :]
    result = above / below[:, None]
    place = (start * HEADS + head) * VALUE
    _store(centred + place, row, length, result, HEADS * VALUE, VALUE, VALUE_PAD)
    result += _vector(centres + table * VALUE, VALUE, VALUE_PAD)[None, :]
    _store(out + place, row, length, result, HEADS * VALUE, VALUE, VALUE_PAD)
    of_rows = head.to(tl.int64) * tokens + start + row
    tl.store(offsets + of_rows, top + half_norm, mask=row < length)
    tl.store(normalisers + of_rows, below, mask=row < length)


@triton.jit(do_not_specialize=_VARIES)
@no_type_check
def queries_backward(
    qkv, weights, tiles, values, norms, floors, centred, offsets, normalisers, grad_out, grad_qkv, tokens, blocks,
    HEADS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr, KEY_PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
    TILE: tl.constexpr, FEATURES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The queries' gradient of one tile and head."""
    STRIDE: tl.constexpr = HEADS * (2 * KEY + VALUE)
    start, length, head, table = _tile(tiles, HEADS)
    row, feature = tl.arange(0, TILE), tl.arange(0, FEATURES)
    q = _load(qkv + start * STRIDE + head * KEY, row, length, STRIDE, KEY, KEY_PAD)
    g = _load(grad_out + (start * HEADS + head) * VALUE, row, length, HEADS * VALUE, VALUE, VALUE_PAD)
    o = _load(centred + (start * HEADS + head) * VALUE, row, length, HEADS * VALUE, VALUE, VALUE_PAD)
    of_rows = head.to(tl.int64) * tokens + start + row
    offset = tl.load(offsets + of_rows, mask=row < length, other=0.0)
    normaliser = tl.load(normalisers + of_rows, mask=row < length, other=1.0)
    y, z = _by_query(g, o, normaliser)
    values += table * blocks * FEATURES * VALUE
    norms += table * blocks * FEATURES
    slope = tl.zeros((TILE, KEY_PAD), tl.float32)
    for block in range(blocks):
        w = _block(weights, block, FEATURES, KEY, KEY_PAD)
        e = tl.exp(_dot(q, tl.trans(w), PRECISION) - offset[:, None])
        value = _block(values, block, FEATURES, VALUE, VALUE_PAD)
        grad = _dot(y.to(q.dtype), tl.trans(value), PRECISION)
        grad += z[:, None] * tl.load(norms + block * FEATURES + feature)[None, :]
        slope += _dot((grad * e).to(q.dtype), w, PRECISION)
    floor = _vector(floors + table * (VALUE + 1), VALUE, VALUE_PAD)
    lost = tl.sum(y * floor[None, :], 1) + z * tl.load(floors + table * (VALUE + 1) + VALUE)
    slope += q.to(tl.float32) * (lost * KEY**-0.5)[:, None]
    _store(grad_qkv + start * STRIDE + head * KEY, row, length, slope, STRIDE, KEY, KEY_PAD)


@triton.jit(do_not_specialize=_VARIES)
@no_type_check
def keys_backward(
    qkv, weights, tiles, values, norms, floors, centres, peaks, grad_qkv, tokens, blocks,
    HEADS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr, KEY_PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
    TILE: tl.constexpr, FEATURES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The keys' and values' gradients of one tile and head; ``values``, ``norms`` and ``floors`` are gradients."""
    STRIDE: tl.constexpr = HEADS * (2 * KEY + VALUE)
    start, length, head, table = _tile(tiles, HEADS)
    row, feature = tl.arange(0, TILE), tl.arange(0, FEATURES)
    k = _load(qkv + start * STRIDE + (HEADS + head) * KEY, row, length, STRIDE, KEY, KEY_PAD)
    v = _load(qkv + start * STRIDE + 2 * HEADS * KEY + head * VALUE, row, length, STRIDE, VALUE, VALUE_PAD)
    u = (v.to(tl.float32) - _vector(centres + table * VALUE, VALUE, VALUE_PAD)[None, :]).to(v.dtype)
    offset = _half_norm(k, KEY) + tl.load(peaks + table)
    values += table * blocks * FEATURES * VALUE
    norms += table * blocks * FEATURES
    slope = tl.zeros((TILE, KEY_PAD), tl.float32)
    grad_v = tl.zeros((TILE, VALUE_PAD), tl.float32)
    lost = tl.zeros((TILE,), tl.float32)
    for block in range(blocks):
        w = _block(weights, block, FEATURES, KEY, KEY_PAD)
        e = tl.exp(_dot(k, tl.trans(w), PRECISION) - offset[:, None])
        value = _block(values, block, FEATURES, VALUE, VALUE_PAD)
        grad = _dot(u, tl.trans(value), PRECISION) + tl.load(norms + block * FEATURES + feature)[None, :]
        through = grad * e
        grad_v += _dot(e.to(v.dtype), value, PRECISION)
        slope += _dot(through.to(k.dtype), w, PRECISION)
        lost += tl.sum(through, 1)
    slope -= k.to(tl.float32) * (lost * KEY**-0.5)[:, None]
    grad_v += _vector(floors + table * (VALUE + 1), VALUE, VALUE_PAD)[None, :]
    base = grad_qkv + start * STRIDE
    _store(base + (HEADS + head) * KEY, row, length, slope, STRIDE, KEY, KEY_PAD)
    _store(base + 2 * HEADS * KEY + head * VALUE, row, length, grad_v, STRIDE, VALUE, VALUE_PAD)
