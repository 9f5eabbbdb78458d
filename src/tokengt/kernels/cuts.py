"""Long sequences cut for the kernels of FAVOR+: decided on the host from host lengths, once per batch.

A tile is a few rows that one program works on at a time, a piece is many tiles that one program sums up.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from tokengt.ragged import Segments, to_device

# Rows of a tile, and rows of a tile while pieces are summed up. (In float32 the latter are TILE rows too, because a
# float32 factor is held as two parts and needs twice the registers.)
TILE, WIDE_TILE = 64, 128
# The number of programs that sum up pieces, a few for each multiprocessor of a large GPU; and the fewest rows of a
# piece, so that short sequences are not cut for nothing.
_PROGRAMS, _LEAST_PIECE = 1024, 512


@dataclass(frozen=True, eq=False)
class Cuts:
    """First row, number of rows and sequence of every tile and piece; the first piece of every sequence, and the end.

    Empty sequences are left out, and the others numbered without them.
    """

    tiles: Int[Tensor, "3 tiles"]
    pieces: Int[Tensor, "3 pieces"]
    bounds: Int[Tensor, " sequences_and_end"]


def make_cuts(segments: Segments, num_heads: int, features: int) -> Cuts:
    """Pieces so long that enough programs for a large GPU are left: one per piece, head and block of features."""
    assert segments.total < 2**31, "rows are counted in 32 bits"
    units = num_heads * -(-features // feature_block(features))
    rows = max(_LEAST_PIECE, -(-segments.total * units // (_PROGRAMS * WIDE_TILE)) * WIDE_TILE)
    (tiles, _), (pieces, bounds) = (_cut(segments, size) for size in (TILE, rows))
    device = segments.offsets.device
    return Cuts(to_device(tiles, device), to_device(pieces, device), to_device(bounds, device))


def _cut(segments: Segments, size: int) -> tuple[Int[Tensor, "3 cuts"], Int[Tensor, " sequences_and_end"]]:
    some = segments.host_lengths > 0
    lengths, starts = segments.host_lengths[some], segments.host[:-1][some]
    cuts = Segments.from_lengths(-(-lengths // size))
    first = cuts.positions * size
    counts = (lengths[cuts.ids] - first).clamp(max=size)
    return torch.stack((starts[cuts.ids] + first, counts, cuts.ids)).int(), cuts.host


def feature_block(features: int) -> int:
    """Features that a program works on at a time."""
    return 32 if features <= 32 else 64
