"""Sparse products by the Triton kernel: its launches. Needs Triton to be imported."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokengt.kernels import sums
from tokengt.kernels.runs import Runs
from tokengt.kernels.tiles import padded_width

# Columns that one program has, and numbers of its tile of entries by columns. With one warp and so few numbers the
# kernels of neighbours, which gather as this one does, were the fastest on an H200.
_COLUMNS, _NUMBERS = 256, 512


def weighted_sums(
    table: Float[Tensor, "rows width"],
    places: Int[Tensor, " entries"],
    factors: Float[Tensor, " entries"],
    runs: Runs,
    dtype: torch.dtype,
) -> Float[Tensor, "runs width"]:
    """For every run, the sum of ``factors[e] * table[places[e]]`` over its entries: in float32, given in ``dtype``."""
    table = table.contiguous()
    if runs.pieces is None:
        return _launched(table, places, factors, runs.offsets, dtype)
    parts = _launched(table, places, factors, runs.offsets, torch.float32)
    return _launched(parts, None, None, runs.pieces, dtype)


def _launched(
    table: Tensor, places: Tensor | None, factors: Tensor | None, offsets: Tensor, dtype: torch.dtype
) -> Tensor:
    runs, width = len(offsets) - 1, table.shape[1]
    out = table.new_empty(runs, width, dtype=dtype)
    if not out.numel():
        return out
    pad = min(_COLUMNS, padded_width(width))
    gathered = places is not None
    # What is not read may be any tensor.
    given = (table, places if gathered else offsets, factors if gathered else offsets, offsets, out, width)
    with torch.cuda.device_of(table):  # type: ignore[no-untyped-call]
        sums.sum_runs[(runs, -(-width // pad))](
            *given, GATHERED=gathered, PAD=pad, ENTRIES=min(16, max(1, _NUMBERS // pad)), num_warps=1
        )
    return out
