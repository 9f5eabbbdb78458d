# mypy: allow-untyped-defs, allow-untyped-decorators
"""The Triton kernel of sparse products: weighted sums of gathered rows, run after run."""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def sum_runs(
    table, places, factors, offsets, out, width,
    GATHERED: tl.constexpr, PAD: tl.constexpr, ENTRIES: tl.constexpr,
):  # fmt: skip
    """Of one run and PAD columns: the sum of ``factors[e] * table[places[e]]`` over its entries e, in float32.

    ``table`` is [rows, width], run r has the entries ``offsets[r]`` to ``offsets[r + 1]``. Where nothing is GATHERED,
    entry e is row e and counts once. Columns run slowest, so that those of the table which all programs at work gather
    may stay in a GPU's cache. Every sum is made by one program in one order.
    """
    run = tl.program_id(0)
    column = tl.program_id(1) * PAD + tl.arange(0, PAD)
    total = tl.zeros((ENTRIES, PAD), tl.float32)
    begin, end = tl.load(offsets + run), tl.load(offsets + run + 1)
    for first in range(begin, end, ENTRIES):
        entry = first + tl.arange(0, ENTRIES)
        inside = entry < end
        row = entry.to(tl.int64)
        if GATHERED:
            row = tl.load(places + entry, mask=inside, other=0).to(tl.int64)
        mask = inside[:, None] & (column < width)[None, :]
        x = tl.load(table + row[:, None] * width + column[None, :], mask=mask, other=0.0).to(tl.float32)
        if GATHERED:
            x *= tl.load(factors + entry, mask=inside, other=0.0).to(tl.float32)[:, None]
        total += x
    place = out + run.to(tl.int64) * width + column
    tl.store(place, tl.sum(total, 0).to(out.dtype.element_ty), mask=column < width)
