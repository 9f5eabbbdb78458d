# mypy: allow-untyped-defs, allow-untyped-decorators
"""The Triton kernels of attention to neighbours: no table of all edges by channels is ever made.

Of an edge u -> v and a head, the score is s = a . LeakyReLU(left_u + right_v); alpha is the softmax of the scores of
all edges that lead to v, and out_v the sum of alpha left_u over them. With g the gradient of out,

    d_alpha = g_v . left_u,    ds = alpha (d_alpha - g_v . out_v),

x = left_u + right_v gets the gradient ds a LeakyReLU'(x), and left_u also alpha g_v. Edges come in the two orders of
:class:`~tokengt.kernels.edge_orders.EdgeOrders`: a program walks the edges that lead to a row, or those that begin at
it, EDGES at a time. Heads run slowest, so that the rows of one head, which all programs at work gather, may stay in a
GPU's cache.

``left``, ``right``, ``out`` and their gradients are [rows, HEADS * WIDTH]; what is kept of edges is [HEADS, edges] in
float32, in the order by target. Every sum is in float32. No program adds to memory that another one writes: results are
the same in every run.
"""

from typing import no_type_check

import triton
import triton.language as tl

_VARIES = ["rows", "edges"]


@triton.jit
@no_type_check
def _row(base, row, HEADS: tl.constexpr, WIDTH: tl.constexpr, PAD: tl.constexpr):
    """One row of this program's head, in float32."""
    column = tl.arange(0, PAD)
    return tl.load(_at(base, row, HEADS, WIDTH) + column, mask=column < WIDTH, other=0.0).to(tl.float32)


@triton.jit
@no_type_check
def _at(base, row, HEADS: tl.constexpr, WIDTH: tl.constexpr):
    """Where a row of this program's head begins; a table may have more than 2^31 numbers."""
    return base + (tl.zeros((), tl.int64) + row) * (HEADS * WIDTH) + tl.program_id(1) * WIDTH


@triton.jit
@no_type_check
def _rows(base, row, inside, HEADS: tl.constexpr, WIDTH: tl.constexpr, PAD: tl.constexpr):
    """Gathered rows [EDGES, PAD] of this program's head, in float32."""
    column = tl.arange(0, PAD)
    first = row.to(tl.int64) * (HEADS * WIDTH) + tl.program_id(1) * WIDTH
    mask = inside[:, None] & (column < WIDTH)[None, :]
    return tl.load(base + first[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
@no_type_check
def _store_row(base, row, values, HEADS: tl.constexpr, WIDTH: tl.constexpr, PAD: tl.constexpr):
    column = tl.arange(0, PAD)
    tl.store(_at(base, row, HEADS, WIDTH) + column, values.to(base.dtype.element_ty), mask=column < WIDTH)


@triton.jit
@no_type_check
def _of_head(number):
    """Where the numbers of this program's head begin in a table [HEADS, number]."""
    return tl.program_id(1).to(tl.int64) * number


@triton.jit(do_not_specialize=_VARIES)
@no_type_check
def neighbours_forward(
    left, right, att, offsets, sources, out, log_sums, rows,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, PAD: tl.constexpr, EDGES: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    """One row and head: out, and the logarithm of the sum of exponentials of its scores.

    Each of the EDGES places of a tile has a softmax of its own, which are brought together at the end: within the loop
    no number passes from one edge to another.
    """
    row = tl.program_id(0)
    r = _row(right, row, HEADS, WIDTH, PAD)[None, :]
    a = _row(att, 0, HEADS, WIDTH, PAD)[None, :]
    # A place may have no edge at all, and minus infinity minus itself is no number.
    top = tl.full((EDGES,), -1e38, tl.float32)
    total = tl.zeros((EDGES,), tl.float32)
    heard = tl.zeros((EDGES, PAD), tl.float32)
    begin, end = tl.load(offsets + row), tl.load(offsets + row + 1)
    for first in range(begin, end, EDGES):
        edge = first + tl.arange(0, EDGES)
        inside = edge < end
        sent = _rows(left, tl.load(sources + edge, mask=inside, other=0), inside, HEADS, WIDTH, PAD)
        x = sent + r
        score = tl.where(inside, tl.sum(tl.where(x > 0.0, x, SLOPE * x) * a, 1), float("-inf"))
        higher = tl.maximum(top, score)
        e = tl.exp(score - higher)
        shrink = tl.exp(top - higher)
        total = total * shrink + e
        heard = heard * shrink[:, None] + e[:, None] * sent
        top = higher
    peak = tl.max(top, 0)
    shrink = tl.exp(top - peak)
    sum_of_all = tl.sum(total * shrink, 0)
    _store_row(out, row, tl.sum(heard * shrink[:, None], 0) / sum_of_all, HEADS, WIDTH, PAD)
    tl.store(log_sums + _of_head(rows) + row, peak + tl.log(sum_of_all))


@triton.jit(do_not_specialize=_VARIES)
@no_type_check
def neighbours_backward_targets(
    grad_out, out, left, right, att, offsets, sources, log_sums, grad_right, alphas, grad_scores, parts, rows, edges,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, PAD: tl.constexpr, EDGES: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    """Of every so many rows one program each: the gradient of ``right``, alpha and ds of all edges that lead there.

    And a part [HEADS, WIDTH] of the gradient of a, which is a sum over all edges.
    """
    a = _row(att, 0, HEADS, WIDTH, PAD)
    of_att = tl.zeros((EDGES, PAD), tl.float32)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        r = _row(right, row, HEADS, WIDTH, PAD)[None, :]
        g = _row(grad_out, row, HEADS, WIDTH, PAD)
        middle = tl.sum(g * _row(out, row, HEADS, WIDTH, PAD), 0)
        log_sum = tl.load(log_sums + _of_head(rows) + row)
        of_right = tl.zeros((EDGES, PAD), tl.float32)
        begin, end = tl.load(offsets + row), tl.load(offsets + row + 1)
        for first in range(begin, end, EDGES):
            edge = first + tl.arange(0, EDGES)
            inside = edge < end
            sent = _rows(left, tl.load(sources + edge, mask=inside, other=0), inside, HEADS, WIDTH, PAD)
            x = sent + r
            leaky = tl.where(x > 0.0, x, SLOPE * x)
            score = tl.where(inside, tl.sum(leaky * a[None, :], 1), float("-inf"))
            alpha = tl.exp(score - log_sum)
            ds = alpha * (tl.sum(sent * g[None, :], 1) - middle)
            of_att += ds[:, None] * leaky
            of_right += ds[:, None] * tl.where(x > 0.0, 1.0, SLOPE)
            tl.store(alphas + _of_head(edges) + edge, alpha, mask=inside)
            tl.store(grad_scores + _of_head(edges) + edge, ds, mask=inside)
        _store_row(grad_right, row, tl.sum(of_right, 0) * a, HEADS, WIDTH, PAD)
    _store_row(parts, tl.program_id(0), tl.sum(of_att, 0), HEADS, WIDTH, PAD)


@triton.jit(do_not_specialize=_VARIES)
@no_type_check
def neighbours_backward_sources(
    grad_out, left, right, att, offsets, targets, places, alphas, grad_scores, grad_left, edges,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, PAD: tl.constexpr, EDGES: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    """One row and head: the gradient of ``left``, from the edges that begin there."""
    row = tl.program_id(0)
    own = _row(left, row, HEADS, WIDTH, PAD)[None, :]
    a = _row(att, 0, HEADS, WIDTH, PAD)[None, :]
    total = tl.zeros((EDGES, PAD), tl.float32)
    begin, end = tl.load(offsets + row), tl.load(offsets + row + 1)
    for first in range(begin, end, EDGES):
        edge = first + tl.arange(0, EDGES)
        inside = edge < end
        target = tl.load(targets + edge, mask=inside, other=0)
        place = _of_head(edges) + tl.load(places + edge, mask=inside, other=0)
        alpha = tl.load(alphas + place, mask=inside, other=0.0)[:, None]
        ds = tl.load(grad_scores + place, mask=inside, other=0.0)[:, None]
        x = own + _rows(right, target, inside, HEADS, WIDTH, PAD)
        g = _rows(grad_out, target, inside, HEADS, WIDTH, PAD)
        total += alpha * g + tl.where(x > 0.0, ds, SLOPE * ds) * a
    _store_row(grad_left, row, tl.sum(total, 0), HEADS, WIDTH, PAD)
