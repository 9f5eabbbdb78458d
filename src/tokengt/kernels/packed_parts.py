# mypy: allow-untyped-defs, allow-untyped-decorators
"""The Triton kernels for whole sequences in tiles that are no power of two, such as 96 = 64 + 32.

A block in Triton has powers of two for sizes, and of the scores of 70 tokens in a tile of 128 two thirds are padding.
Here the keys of a tile have two parts, FIRST and SECOND, and QUERIES of its rows are attended to both at a time. These
compute what ``forward_whole`` and ``backward_whole`` of :mod:`tokengt.kernels.packed` do, and that file says what the
arguments are. Needs Triton to be imported.
"""

from typing import no_type_check

import triton
import triton.language as tl

from tokengt.kernels.packed import _VARIES, _dot, _keep, _load, _marks, _shared, _store, _weights


@triton.jit
@no_type_check
def _inside(marks, row, other, length, MASKED: tl.constexpr):
    """[rows, others] which rows of a sequence may attend to which others."""
    inside = (other < length)[None, :]
    if MASKED:
        first, second = _marks(marks, row, length)
        third, fourth = _marks(marks, other, length)
        inside = inside & _shared(first, second, third, fourth)
    return inside


@triton.jit
@no_type_check
def _attend(
    qkv, out, log_sums, marks, seed, start, length, head, row, one, other, k, v, k2, v2, tokens, scale,
    threshold, rescale,
    HEADS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr, KEY_PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
    DROPOUT: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Some queries of a sequence against both parts of its keys; ``one`` and ``other`` are the rows of these parts."""
    STRIDE: tl.constexpr = HEADS * (2 * KEY + VALUE)
    q = _load(qkv + start * STRIDE + head * KEY, row, length, STRIDE, KEY, KEY_PAD)
    scores = _dot(q, tl.trans(k), PRECISION) * scale
    scores2 = _dot(q, tl.trans(k2), PRECISION) * scale
    scores = tl.where(_inside(marks, row, one, length, MASKED), scores, float("-inf"))
    scores2 = tl.where(_inside(marks, row, other, length, MASKED), scores2, float("-inf"))
    top = tl.maximum(tl.max(scores, 1), tl.max(scores2, 1))
    weights, weights2 = tl.exp2(scores - top[:, None]), tl.exp2(scores2 - top[:, None])
    total = tl.sum(weights, 1) + tl.sum(weights2, 1)
    tl.store(log_sums + head.to(tl.int64) * tokens + start + row, top + tl.log2(total), mask=row < length)
    if DROPOUT:
        query = start.to(tl.int32) + row
        weights = tl.where(_keep(tl.load(seed), head, query, 0, threshold, one.shape[0]), weights, 0.0)
        weights2 = tl.where(_keep(tl.load(seed), head, query, one.shape[0], threshold, other.shape[0]), weights2, 0.0)
        total = total / rescale
    values = _dot(weights.to(v.dtype), v, PRECISION) + _dot(weights2.to(v.dtype), v2, PRECISION)
    place = out + (start * HEADS + head) * VALUE
    _store(place, row, length, values / total[:, None], HEADS * VALUE, VALUE, VALUE_PAD)


@triton.jit(do_not_specialize=_VARIES)
@no_type_check
def forward_parts(
    qkv, out, log_sums, items, seed, marks, entry, entries, tokens, scale, threshold, rescale,
    HEADS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr, KEY_PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
    FIRST: tl.constexpr, SECOND: tl.constexpr, QUERIES: tl.constexpr,
    DROPOUT: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A whole sequence in one tile of two parts, some queries after the others."""
    STRIDE: tl.constexpr = HEADS * (2 * KEY + VALUE)
    one, other = tl.arange(0, FIRST), FIRST + tl.arange(0, SECOND)
    place, head = entry + tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    start = tl.load(items + place).to(tl.int64)
    length = tl.load(items + entries + place)
    if length == 0:
        return
    keys = qkv + start * STRIDE + (HEADS + head) * KEY
    values = qkv + start * STRIDE + 2 * HEADS * KEY + head * VALUE
    if MASKED:
        marks += 2 * start
    k = _load(keys, one, length, STRIDE, KEY, KEY_PAD)
    v = _load(values, one, length, STRIDE, VALUE, VALUE_PAD)
    k2 = _load(keys, other, length, STRIDE, KEY, KEY_PAD)
    v2 = _load(values, other, length, STRIDE, VALUE, VALUE_PAD)
    for begin in range(0, length, QUERIES):
        row = begin + tl.arange(0, QUERIES)
        _attend(
            qkv, out, log_sums, marks, seed, start, length, head, row, one, other, k, v, k2, v2, tokens, scale,
            threshold, rescale, HEADS, KEY, VALUE, KEY_PAD, VALUE_PAD, DROPOUT, MASKED, PRECISION,
        )  # fmt: skip


@triton.jit
@no_type_check
def _block(
    q, g, delta, log_sum, query, row, key, k, v, marks, length, head, seed, scale, threshold, rescale,
    FROM: tl.constexpr, DROPOUT: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What some queries add to the gradients of one part of the keys and values, and what these add to theirs."""
    weights = _weights(q, k, log_sum, _inside(marks, row, key, length, MASKED), scale, PRECISION)
    grads = _dot(g, tl.trans(v), PRECISION)
    used = weights
    if DROPOUT:
        keep = _keep(tl.load(seed), head, query, FROM, threshold, key.shape[0])
        used = tl.where(keep, weights * rescale, 0.0)
        grads = tl.where(keep, grads * rescale, 0.0)
    grad_v = _dot(tl.trans(used.to(g.dtype)), g, PRECISION)
    scores = (weights * (grads - delta[:, None])).to(q.dtype)
    return _dot(tl.trans(scores), q, PRECISION), grad_v, _dot(scores, k, PRECISION)


@triton.jit(do_not_specialize=_VARIES)
@no_type_check
def backward_parts(
    qkv, out, grad_out, log_sums, grad_qkv, items, seed, marks, entry, entries, tokens, scale, threshold, rescale,
    HEADS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr, KEY_PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
    FIRST: tl.constexpr, SECOND: tl.constexpr, QUERIES: tl.constexpr,
    DROPOUT: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """All three gradients of a whole sequence in one tile of two parts; the weights are computed again.

    What the softmax takes away from the gradient of the weights is the product of output and its gradient, as in the
    loop over long sequences: so one block of weights is held at a time.
    """
    STRIDE: tl.constexpr = HEADS * (2 * KEY + VALUE)
    LOG2E: tl.constexpr = 1.4426950408889634
    one, other = tl.arange(0, FIRST), FIRST + tl.arange(0, SECOND)
    place, head = entry + tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    start = tl.load(items + place).to(tl.int64)
    length = tl.load(items + entries + place)
    if length == 0:
        return
    keys, values = (HEADS + head) * KEY, 2 * HEADS * KEY + head * VALUE
    base, results = qkv + start * STRIDE, (start * HEADS + head) * VALUE
    if MASKED:
        marks += 2 * start
    k = _load(base + keys, one, length, STRIDE, KEY, KEY_PAD)
    v = _load(base + values, one, length, STRIDE, VALUE, VALUE_PAD)
    k2 = _load(base + keys, other, length, STRIDE, KEY, KEY_PAD)
    v2 = _load(base + values, other, length, STRIDE, VALUE, VALUE_PAD)
    grad_k, grad_v = tl.zeros((FIRST, KEY_PAD), tl.float32), tl.zeros((FIRST, VALUE_PAD), tl.float32)
    grad_k2, grad_v2 = tl.zeros((SECOND, KEY_PAD), tl.float32), tl.zeros((SECOND, VALUE_PAD), tl.float32)
    for begin in range(0, length, QUERIES):
        row = begin + tl.arange(0, QUERIES)
        q = _load(base + head * KEY, row, length, STRIDE, KEY, KEY_PAD)
        g = _load(grad_out + results, row, length, HEADS * VALUE, VALUE, VALUE_PAD)
        o = _load(out + results, row, length, HEADS * VALUE, VALUE, VALUE_PAD)
        delta = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
        log_sum = tl.load(log_sums + head.to(tl.int64) * tokens + start + row, mask=row < length, other=0.0)
        query = start.to(tl.int32) + row
        added_k, added_v, grad_q = _block(
            q, g, delta, log_sum, query, row, one, k, v, marks, length, head, seed, scale, threshold, rescale, 0,
            DROPOUT, MASKED, PRECISION,
        )  # fmt: skip
        grad_k += added_k
        grad_v += added_v
        added_k, added_v, added_q = _block(
            q, g, delta, log_sum, query, row, other, k2, v2, marks, length, head, seed, scale, threshold, rescale,
            FIRST, DROPOUT, MASKED, PRECISION,
        )  # fmt: skip
        grad_k2 += added_k
        grad_v2 += added_v
        grad_q = (grad_q + added_q) * (scale / LOG2E)
        _store(grad_qkv + start * STRIDE + head * KEY, row, length, grad_q, STRIDE, KEY, KEY_PAD)
    base = grad_qkv + start * STRIDE
    _store(base + keys, one, length, grad_k * (scale / LOG2E), STRIDE, KEY, KEY_PAD)
    _store(base + values, one, length, grad_v, STRIDE, VALUE, VALUE_PAD)
    _store(base + keys, other, length, grad_k2 * (scale / LOG2E), STRIDE, KEY, KEY_PAD)
    _store(base + values, other, length, grad_v2, STRIDE, VALUE, VALUE_PAD)
