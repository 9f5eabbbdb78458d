# mypy: allow-untyped-defs, allow-untyped-decorators
"""The Triton kernels: exact softmax attention over packed rows, and its gradient. Needs Triton to be imported.

Rows are [queries of all heads | keys of all heads | values of all heads], as one linear layer writes them; gradients
go to rows of the same layout. A *unit* is one sequence (or one tile of a long one) and one head; heads run fastest, so
that neighbouring programs read the same cache lines. ``items`` holds a start row, a length and a first query for every
entry of the tiles; an entry of length 0 is room that nothing has taken. Scores are in base 2 (``scale`` carries
log2 e), and so are the saved log-sum-exps, [heads, tokens].

MASKED kernels also read ``marks``, two numbers per row: two rows attend to each other where they have one in common, or
where either has none (-1). Every row has its own marks in common with itself, so that no softmax is empty.

Every sum is in float32, and float32 factors are multiplied as two TF32 parts each (PRECISION). No program adds to
memory that another one writes: results are the same in every run.
"""

from typing import no_type_check

import triton
import triton.language as tl

_VARIES = ["entry", "entries", "tokens", "threshold"]


@triton.jit
@no_type_check
def _dot(a, b, PRECISION: tl.constexpr):
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
@no_type_check
def _rows(base, row, length, STRIDE: tl.constexpr, WIDTH: tl.constexpr, PAD: tl.constexpr):
    """Pointers to a [rows, PAD] tile and which of them exist."""
    column = tl.arange(0, PAD)
    return base + row[:, None] * STRIDE + column[None, :], (row < length)[:, None] & (column < WIDTH)[None, :]


@triton.jit
@no_type_check
def _load(base, row, length, STRIDE: tl.constexpr, WIDTH: tl.constexpr, PAD: tl.constexpr):
    pointers, inside = _rows(base, row, length, STRIDE, WIDTH, PAD)
    return tl.load(pointers, mask=inside, other=0.0)


@triton.jit
@no_type_check
def _store(base, row, length, values, STRIDE: tl.constexpr, WIDTH: tl.constexpr, PAD: tl.constexpr):
    pointers, inside = _rows(base, row, length, STRIDE, WIDTH, PAD)
    tl.store(pointers, values.to(base.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def _keep(seed, head, query, first, threshold, KEYS: tl.constexpr):
    """Which weights [queries, KEYS keys] dropout keeps: a function of (seed, head, query row, key position) only.

    Philox for every weight would cost more than attention itself, about 70 integer operations each. So it draws two
    words per query (seven rounds, the fewest that pass its authors' tests), a 32-bit mixer of two products spreads them
    over pairs of keys, and each key of a pair takes 16 bits. ``first`` is the even position of the first key.
    """
    zero = query * 0
    word, other, _, _ = tl.philox(seed, query, zero + head, zero, zero, 7)
    pair = (tl.arange(0, KEYS // 2) + first // 2).to(tl.uint32)
    x = word[:, None] + pair[None, :] * tl.full((), 0x9E3779B9, tl.uint32)
    x = (x ^ (x >> 16)) * tl.full((), 0x7FEB352D, tl.uint32) + other[:, None]
    x = (x ^ (x >> 15)) * tl.full((), 0x846CA68B, tl.uint32)
    x = x ^ (x >> 16)
    bits = tl.reshape(tl.join(x & 0xFFFF, x >> 16), (query.shape[0], KEYS))
    return bits.to(tl.int32) >= threshold


@triton.jit
@no_type_check
def _marks(marks, row, length):
    """The two marks of some rows; rows beyond the sequence have none, so that they attend to something."""
    inside = row < length
    return tl.load(marks + 2 * row, mask=inside, other=-1), tl.load(marks + 2 * row + 1, mask=inside, other=-1)


@triton.jit
@no_type_check
def _shared(a, b, c, d):
    """[queries, keys] which queries with the marks a, b may attend to which keys with the marks c, d."""
    first, second, one, other = a[:, None], b[:, None], c[None, :], d[None, :]
    equal = (first == one) | (first == other) | (second == one) | (second == other)
    return equal | (first < 0) | (one < 0)


@triton.jit
@no_type_check
def _weights(q, k, log_sum, inside, scale, PRECISION: tl.constexpr):
    """softmax weights from the saved log-sum-exp; zero for keys that are not ``inside``."""
    scores = _dot(q, tl.trans(k), PRECISION) * scale
    return tl.exp2(tl.where(inside, scores, float("-inf")) - log_sum[:, None])


@triton.jit(do_not_specialize=_VARIES)
@no_type_check
def forward_whole(
    qkv, out, log_sums, items, seed, marks, entry, entries, tokens, scale, threshold, rescale,
    HEADS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr, KEY_PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
    TILE: tl.constexpr, DROPOUT: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A whole sequence in one tile."""
    STRIDE: tl.constexpr = HEADS * (2 * KEY + VALUE)
    row = tl.arange(0, TILE)
    place, head = entry + tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    start = tl.load(items + place).to(tl.int64)
    length = tl.load(items + entries + place)
    if length == 0:
        return
    base = qkv + start * STRIDE
    q = _load(base + head * KEY, row, length, STRIDE, KEY, KEY_PAD)
    k = _load(base + (HEADS + head) * KEY, row, length, STRIDE, KEY, KEY_PAD)
    v = _load(base + 2 * HEADS * KEY + head * VALUE, row, length, STRIDE, VALUE, VALUE_PAD)
    scores = _dot(q, tl.trans(k), PRECISION) * scale
    inside = (row < length)[None, :]
    if MASKED:
        first, second = _marks(marks + 2 * start, row, length)
        inside = inside & _shared(first, second, first, second)
    scores = tl.where(inside, scores, float("-inf"))
    top = tl.max(scores, 1)
    weights = tl.exp2(scores - top[:, None])
    total = tl.sum(weights, 1)
    tl.store(log_sums + head.to(tl.int64) * tokens + start + row, top + tl.log2(total), mask=row < length)
    if DROPOUT:
        keep = _keep(tl.load(seed), head, start.to(tl.int32) + row, 0, threshold, TILE)
        weights = tl.where(keep, weights, 0.0)
        total = total / rescale
    values = _dot(weights.to(v.dtype), v, PRECISION) / total[:, None]
    _store(out + (start * HEADS + head) * VALUE, row, length, values, HEADS * VALUE, VALUE, VALUE_PAD)


@triton.jit(do_not_specialize=_VARIES)
@no_type_check
def backward_whole(
    qkv, grad_out, log_sums, grad_qkv, items, seed, marks, entry, entries, tokens, scale, threshold, rescale,
    HEADS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr, KEY_PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
    TILE: tl.constexpr, DROPOUT: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """All three gradients of a whole sequence; the weights are computed again."""
    STRIDE: tl.constexpr = HEADS * (2 * KEY + VALUE)
    LOG2E: tl.constexpr = 1.4426950408889634
    row = tl.arange(0, TILE)
    place, head = entry + tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    start = tl.load(items + place).to(tl.int64)
    length = tl.load(items + entries + place)
    if length == 0:
        return
    base = qkv + start * STRIDE
    q = _load(base + head * KEY, row, length, STRIDE, KEY, KEY_PAD)
    k = _load(base + (HEADS + head) * KEY, row, length, STRIDE, KEY, KEY_PAD)
    v = _load(base + 2 * HEADS * KEY + head * VALUE, row, length, STRIDE, VALUE, VALUE_PAD)
    g = _load(grad_out + (start * HEADS + head) * VALUE, row, length, HEADS * VALUE, VALUE, VALUE_PAD)
    log_sum = tl.load(log_sums + head.to(tl.int64) * tokens + start + row, mask=row < length, other=0.0)
    inside = (row < length)[None, :]
    if MASKED:
        first, second = _marks(marks + 2 * start, row, length)
        inside = inside & _shared(first, second, first, second)
    weights = _weights(q, k, log_sum, inside, scale, PRECISION)
    grad_weights = _dot(g, tl.trans(v), PRECISION)
    used = weights
    if DROPOUT:
        keep = _keep(tl.load(seed), head, start.to(tl.int32) + row, 0, threshold, TILE)
        used = tl.where(keep, weights * rescale, 0.0)
        grad_weights = tl.where(keep, grad_weights * rescale, 0.0)
    grad_v = _dot(tl.trans(used.to(g.dtype)), g, PRECISION)
    delta = tl.sum(weights * grad_weights, 1)
    grad_scores = (weights * (grad_weights - delta[:, None])).to(q.dtype)
    grad_q = _dot(grad_scores, k, PRECISION) * (scale / LOG2E)
    grad_k = _dot(tl.trans(grad_scores), q, PRECISION) * (scale / LOG2E)
    base = grad_qkv + start * STRIDE
    _store(base + head * KEY, row, length, grad_q, STRIDE, KEY, KEY_PAD)
    _store(base + (HEADS + head) * KEY, row, length, grad_k, STRIDE, KEY, KEY_PAD)
    _store(base + 2 * HEADS * KEY + head * VALUE, row, length, grad_v, STRIDE, VALUE, VALUE_PAD)


@triton.jit(do_not_specialize=_VARIES)
@no_type_check
def forward_looped(
    qkv, out, log_sums, items, seed, marks, entry, entries, tokens, scale, threshold, rescale,
    HEADS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr, KEY_PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
    TILE: tl.constexpr, DROPOUT: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of queries of a long sequence; a loop over its key tiles with the online softmax."""
    STRIDE: tl.constexpr = HEADS * (2 * KEY + VALUE)
    place, head = entry + tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    start = tl.load(items + place).to(tl.int64)
    length = tl.load(items + entries + place)
    if length == 0:
        return
    tile = tl.load(items + 2 * entries + place)
    row = tl.arange(0, TILE)
    # Pointers are moved on from tile to tile, because 64-bit offsets for every element would fill the registers.
    keys = qkv + start * STRIDE + (HEADS + head) * KEY
    values = qkv + start * STRIDE + 2 * HEADS * KEY + head * VALUE
    if MASKED:
        key_marks = marks + 2 * start
    start += tile
    left = length - tile
    q = _load(qkv + start * STRIDE + head * KEY, row, left, STRIDE, KEY, KEY_PAD)
    top = tl.full((TILE,), float("-inf"), tl.float32)
    if MASKED:
        mark_a, mark_b = _marks(marks + 2 * start, row, left)
        # A query may have no key in the first tiles, and minus infinity minus itself is no number.
        top = tl.full((TILE,), -1e30, tl.float32)
    total = tl.zeros((TILE,), tl.float32)
    result = tl.zeros((TILE, VALUE_PAD), tl.float32)
    for first in range(0, length, TILE):
        k = _load(keys, row, length - first, STRIDE, KEY, KEY_PAD)
        v = _load(values, row, length - first, STRIDE, VALUE, VALUE_PAD)
        scores = _dot(q, tl.trans(k), PRECISION) * scale
        inside = (row < length - first)[None, :]
        if MASKED:
            mark_c, mark_d = _marks(key_marks, row, length - first)
            inside = inside & _shared(mark_a, mark_b, mark_c, mark_d)
            key_marks += 2 * TILE
        scores = tl.where(inside, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(weights, 1)
        if DROPOUT:
            keep = _keep(tl.load(seed), head, start.to(tl.int32) + row, first, threshold, TILE)
            weights = tl.where(keep, weights, 0.0)
        result = result * shrink[:, None] + _dot(weights.to(v.dtype), v, PRECISION)
        top = higher
        keys += TILE * STRIDE
        values += TILE * STRIDE
    tl.store(log_sums + head.to(tl.int64) * tokens + start + row, top + tl.log2(total), mask=row < left)
    if DROPOUT:
        total = total / rescale
    _store(out + (start * HEADS + head) * VALUE, row, left, result / total[:, None], HEADS * VALUE, VALUE, VALUE_PAD)


@triton.jit(do_not_specialize=_VARIES)
@no_type_check
def backward_looped(
    qkv, out, grad_out, log_sums, grad_qkv, items, seed, marks, entry, entries, tokens, scale, threshold, rescale,
    HEADS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr, KEY_PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
    TILE: tl.constexpr, DROPOUT: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of a long sequence, first as keys against every query tile, then as queries against every key tile.

    The scores are computed twice; in return nothing is added up in memory by several programs.
    """
    STRIDE: tl.constexpr = HEADS * (2 * KEY + VALUE)
    LOG2E: tl.constexpr = 1.4426950408889634
    place, head = entry + tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    begin = tl.load(items + place).to(tl.int64)
    length = tl.load(items + entries + place)
    if length == 0:
        return
    tile = tl.load(items + 2 * entries + place)
    row = tl.arange(0, TILE)
    start, left = begin + tile, length - tile
    origin = begin.to(tl.int32)

    k = _load(qkv + start * STRIDE + (HEADS + head) * KEY, row, left, STRIDE, KEY, KEY_PAD)
    v = _load(qkv + start * STRIDE + 2 * HEADS * KEY + head * VALUE, row, left, STRIDE, VALUE, VALUE_PAD)
    grad_k = tl.zeros((TILE, KEY_PAD), tl.float32)
    grad_v = tl.zeros((TILE, VALUE_PAD), tl.float32)
    queries = qkv + begin * STRIDE + head * KEY
    results = out + (begin * HEADS + head) * VALUE
    grads = grad_out + (begin * HEADS + head) * VALUE
    sums = log_sums + head.to(tl.int64) * tokens + begin
    if MASKED:
        mark_a, mark_b = _marks(marks + 2 * start, row, left)
        their_marks = marks + 2 * begin
    for first in range(0, length, TILE):
        q = _load(queries, row, length - first, STRIDE, KEY, KEY_PAD)
        g = _load(grads, row, length - first, HEADS * VALUE, VALUE, VALUE_PAD)
        o = _load(results, row, length - first, HEADS * VALUE, VALUE, VALUE_PAD)
        delta = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
        log_sum = tl.load(sums + row, mask=row < length - first, other=0.0)
        inside = (row < left)[None, :]
        if MASKED:
            mark_c, mark_d = _marks(their_marks, row, length - first)
            inside = inside & _shared(mark_c, mark_d, mark_a, mark_b)
            their_marks += 2 * TILE
        weights = _weights(q, k, log_sum, inside, scale, PRECISION)
        grad_weights = _dot(g, tl.trans(v), PRECISION)
        used = weights
        if DROPOUT:
            keep = _keep(tl.load(seed), head, origin + first + row, tile, threshold, TILE)
            used = tl.where(keep, weights * rescale, 0.0)
            grad_weights = tl.where(keep, grad_weights * rescale, 0.0)
        grad_v += _dot(tl.trans(used.to(g.dtype)), g, PRECISION)
        grad_scores = (weights * (grad_weights - delta[:, None])).to(q.dtype)
        grad_k += _dot(tl.trans(grad_scores), q, PRECISION)
        queries += TILE * STRIDE
        results += TILE * HEADS * VALUE
        grads += TILE * HEADS * VALUE
        sums += TILE
    base = grad_qkv + start * STRIDE
    _store(base + (HEADS + head) * KEY, row, left, grad_k * (scale / LOG2E), STRIDE, KEY, KEY_PAD)
    _store(base + 2 * HEADS * KEY + head * VALUE, row, left, grad_v, STRIDE, VALUE, VALUE_PAD)

    q = _load(qkv + start * STRIDE + head * KEY, row, left, STRIDE, KEY, KEY_PAD)
    g = _load(grad_out + (start * HEADS + head) * VALUE, row, left, HEADS * VALUE, VALUE, VALUE_PAD)
    o = _load(out + (start * HEADS + head) * VALUE, row, left, HEADS * VALUE, VALUE, VALUE_PAD)
    delta = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    log_sum = tl.load(log_sums + head.to(tl.int64) * tokens + start + row, mask=row < left, other=0.0)
    grad_q = tl.zeros((TILE, KEY_PAD), tl.float32)
    keys = qkv + begin * STRIDE + (HEADS + head) * KEY
    values = qkv + begin * STRIDE + 2 * HEADS * KEY + head * VALUE
    if MASKED:
        their_marks = marks + 2 * begin
    for first in range(0, length, TILE):
        k = _load(keys, row, length - first, STRIDE, KEY, KEY_PAD)
        v = _load(values, row, length - first, STRIDE, VALUE, VALUE_PAD)
        inside = (row < length - first)[None, :]
        if MASKED:
            mark_c, mark_d = _marks(their_marks, row, length - first)
            inside = inside & _shared(mark_a, mark_b, mark_c, mark_d)
            their_marks += 2 * TILE
        weights = _weights(q, k, log_sum, inside, scale, PRECISION)
        grad_weights = _dot(g, tl.trans(v), PRECISION)
        if DROPOUT:
            keep = _keep(tl.load(seed), head, start.to(tl.int32) + row, first, threshold, TILE)
            grad_weights = tl.where(keep, grad_weights * rescale, 0.0)
        grad_scores = (weights * (grad_weights - delta[:, None])).to(q.dtype)
        grad_q += _dot(grad_scores, k, PRECISION)
        keys += TILE * STRIDE
        values += TILE * STRIDE
    _store(base + head * KEY, row, left, grad_q * (scale / LOG2E), STRIDE, KEY, KEY_PAD)
