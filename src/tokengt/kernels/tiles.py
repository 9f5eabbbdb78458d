"""Which sequences share a tile size: decided on the host from host lengths, once per batch.

A tile is a square of queries and keys that one program works on; sequences with one tile size make a bucket, which is
one launch of a kernel.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from tokengt.ragged import Segments, to_device

# How many bytes of queries, keys, values and output gradients one program of the backward may hold.
_TILE_BYTES = 96 * 2**10
# Keys and values of at most so many columns in all, in half precision, leave room for tiles of two parts.
_NARROW = 64
# So many programs fit onto a GPU at once, so that another launch for some of them saves nothing.
_FEW = 1024
# A sixteenth of all sequences, or fewer, is too few for a launch of their own.
_COMPANY = 16


@dataclass(frozen=True)
class Tiling:
    """Tile sizes that hold a whole sequence (ascending), and the tile of the loop over anything longer.

    A size is a power of two, or the sum of two of them (:func:`tile_parts`); the loop's is a power of two.
    """

    whole: tuple[int, ...] = (16, 32, 64, 128)
    block: int = 64


@dataclass(frozen=True, eq=False)
class Tiles:
    """A batch cut for the softmax kernels: entries sorted by bucket, each a whole sequence or one tile of a long one.

    ``items`` lies with the data: start row, length and first query of every entry.
    ``buckets`` holds tile size, whether it loops, first entry and end; it stays on the CPU, so that reading it never
    waits for a GPU, and is a tensor, so that a compiled model does not depend on its numbers.
    """

    items: Int[Tensor, "3 entries"]
    buckets: Int[Tensor, "buckets 4"]


def padded_width(width: int) -> int:
    """The power of two that a matrix product works on, at least 16."""
    return max(16, 1 << (width - 1).bit_length())


def tile_parts(tile: int) -> tuple[int, int]:
    """The powers of two that a tile size is the sum of, such as 64 + 32 for 96; the second is 0 where it is one."""
    first = 1 << (tile.bit_length() - 1)
    second = tile - first
    assert second & (second - 1) == 0, f"{tile} is no sum of two powers of two"
    return first, second


def choose_tiling(head_dim: int, value_dim: int, bytes_each: int) -> Tiling:
    """The tile sizes at these head sizes: wide heads and long types leave room for fewer rows."""
    widths = padded_width(head_dim) + padded_width(value_dim)
    # A float32 factor is held as two parts, so it takes eight bytes.
    row = 2 * widths * (8 if bytes_each == 4 else bytes_each)
    whole = [tile for tile in (16, 32, 64, 128) if tile * row <= _TILE_BYTES]
    if whole[-1] == 128 and widths <= _NARROW and bytes_each == 2:
        whole.insert(-1, 96)
    return Tiling(tuple(whole), min(64, whole[-1]))


def _with_company(group: Int[Tensor, " sequences"], whole: int) -> Int[Tensor, " sequences"]:
    """Where few sequences have a tile size, they join the next larger one that has others, or the loop.

    A launch of their own would cost more than the part of the larger tile that they leave empty.
    """
    return _company(group, whole)[group]


def _company(group: Int[Tensor, " sequences"], whole: int) -> Int[Tensor, " groups"]:
    """The tile size that the sequences of each join."""
    counts = torch.bincount(group, minlength=whole + 1).tolist()
    joins = list(range(whole + 1))
    for place in range(whole):
        larger = next((other for other in range(place + 1, whole + 1) if counts[other]), None)
        if larger is not None and counts[place] * _COMPANY <= len(group):
            joins[place] = larger
            counts[larger] += counts[place]
    for place in reversed(range(whole)):
        joins[place] = joins[joins[place]]
    return torch.tensor(joins)


def make_tiles(segments: Segments, tiling: Tiling) -> Tiles:
    """Sort sequences into the smallest tile that holds them; empty ones have nothing to write and are left out."""
    assert segments.total < 2**31, "rows are counted in 32 bits"
    lengths = segments.host_lengths
    group = _with_company(torch.bucketize(lengths, torch.tensor(tiling.whole)), len(tiling.whole))
    group, order = torch.sort(group, stable=True)
    order, group = order[lengths[order] > 0], group[lengths[order] > 0]
    tiles = torch.where(group < len(tiling.whole), 1, -(-lengths[order] // tiling.block))
    entries = Segments.from_lengths(tiles)
    order, group = order[entries.ids], group[entries.ids]
    first = entries.positions * tiling.block
    items = torch.stack((segments.host[order], lengths[order], first)).int()
    bounds = torch.searchsorted(group, torch.arange(len(tiling.whole) + 2))
    sizes = torch.tensor([*((tile, 0) for tile in tiling.whole), (tiling.block, 1)])
    buckets = torch.cat((sizes, bounds[:-1, None], bounds[1:, None]), 1)
    return Tiles(to_device(items, segments.offsets.device), buckets)


@dataclass(frozen=True, eq=False)
class StepTiles:
    """Tiles of many steps, all cut alike, so that the kernels of one step serve the others.

    Which tile sizes are used is decided from the ``usual`` lengths, once for all steps.
    """

    tiling: Tiling
    joins: NDArray[np.int64]

    @classmethod
    def decide(cls, tiling: Tiling, usual: Int[Tensor, " sequences"], programs: int) -> "StepTiles":
        """``programs`` is about how many a step has, heads times sequences."""
        group = torch.bucketize(usual, torch.tensor(tiling.whole))
        joins = _company(group, len(tiling.whole)).numpy()
        if programs <= _FEW:
            # They all run at once anyway, so that the largest tile takes no longer than the smaller ones before it.
            joins = np.maximum(joins, int(joins[group.numpy()].max()))
        return cls(tiling, joins)

    def needed(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """The most entries that any step has in each bucket; ``lengths`` is [steps, sequences]."""
        steps, groups = len(lengths), len(self.joins)
        group, tiles = self._cut(lengths)
        key = np.arange(steps)[:, None] * groups + group
        entries = np.bincount(key.ravel(), tiles.ravel(), minlength=steps * groups).reshape(steps, groups)
        most: NDArray[np.int64] = entries.max(0).astype(np.int64)
        return most

    def items(self, starts: NDArray[np.int64], lengths: NDArray[np.int64], room: Sequence[int]) -> NDArray[np.int32]:
        """[steps, 3, entries] as :attr:`Tiles.items` has them, with ``room`` for so many in each bucket."""
        steps, groups, total = len(lengths), len(self.joins), sum(room)
        group, tiles = (array.ravel() for array in self._cut(lengths))
        step = np.repeat(np.arange(steps), lengths.shape[1])
        # One entry per tile: a sequence in the loop's bucket has several.
        entry = np.repeat(np.arange(len(group)), tiles)
        tile = np.arange(len(entry)) - np.repeat(np.cumsum(tiles) - tiles, tiles)
        order = np.argsort((step * groups + group)[entry], kind="stable")
        entry, tile = entry[order], tile[order]
        key = (step * groups + group)[entry]
        first = np.searchsorted(key, np.arange(steps * groups))
        begins = np.cumsum([0, *room[:-1]])
        slot = begins[group[entry]] + np.arange(len(entry)) - first[key]
        out = np.zeros((steps, 3, total), dtype=np.int32)
        out[step[entry], 0, slot] = starts.ravel()[entry]
        out[step[entry], 1, slot] = lengths.ravel()[entry]
        out[step[entry], 2, slot] = tile * self.tiling.block
        return out

    def buckets(self, room: Sequence[int]) -> Int[Tensor, "buckets 4"]:
        """As :attr:`Tiles.buckets` has them."""
        ends = np.cumsum(room)
        rows = [(*size, end - count, end) for size, count, end in zip(self._sizes, room, ends, strict=True)]
        return torch.tensor(rows)

    @cached_property
    def _sizes(self) -> list[tuple[int, int]]:
        return [*((tile, 0) for tile in self.tiling.whole), (self.tiling.block, 1)]

    def _cut(self, lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The bucket of every sequence, and how many entries it has there."""
        group = self.joins[np.searchsorted(self.tiling.whole, lengths)]
        tiles = np.where(group < len(self.tiling.whole), 1, -(-lengths // self.tiling.block))
        return group, np.where(lengths > 0, tiles, 0)
