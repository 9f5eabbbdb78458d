"""Packed sequences of different lengths: where each begins, how to select some, and buckets of similar length.

*Packed* means that the rows of many sequences lie one after another in one tensor; :class:`Segments` says where each
sequence begins and ends. Nothing here pads a batch to its longest member. Only torch and NumPy are needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

# The shortest sequence of a bucket has at least this share of the longest one's length. On a CPU padding costs time, so
# buckets are tight; on a GPU every bucket is one more launch, so they are wider.
_BUCKET_RATIO = {"cpu": 0.9, "cuda": 0.6}
# Where neighbouring sequences have equal lengths, each run of them is a bucket as it lies: nothing is padded or moved,
# but there are more buckets. This pays when a run has at least this many sequences on average.
_RUN = {"cpu": 2, "cuda": 32}


def to_device(host: Shaped[Tensor, "*shape"], device: torch.device | str) -> Shaped[Tensor, "*shape"]:
    """A CPU tensor on a device, without waiting for the work queued there.

    ``host`` lies in pageable memory, so it has been read when this returns and the caller may change or free it.
    """
    return host.to(device, non_blocking=True)


@dataclass(frozen=True, eq=False)
class Bucket:
    """Sequences of similar length, padded to the longest of them.

    ``rows[s, j]`` is the packed row of element j of sequence s; where ``mask`` is False it points at the
    sequence's own first row. ``mask`` is None when nothing is padded.
    """

    rows: Int[Tensor, "sequences width"]
    mask: Bool[Tensor, "sequences width"] | None


@final
class Segments:
    """Consecutive runs of rows: run s is rows ``offsets[s]`` up to ``offsets[s + 1]``.

    ``offsets`` lives with the data; ``host`` is the same on the CPU, so asking for a length never makes the
    host wait for a GPU. Neither ever changes, so what follows from them (lengths, ids, buckets, ...) is computed when
    it is first asked for and kept.
    """

    def __init__(self, offsets: Int[Tensor, " bounds"], host: Int[Tensor, " bounds"]) -> None:
        self.offsets = offsets
        self.host = host
        self._biases: tuple[torch.dtype, list[Tensor | None]] | None = None

    @classmethod
    def from_lengths(cls, lengths: Int[Tensor, " segments"], device: torch.device | str | None = None) -> "Segments":
        """Segments of the given lengths (a CPU tensor), in order."""
        host = torch.zeros(len(lengths) + 1, dtype=torch.int64)
        torch.cumsum(lengths, 0, out=host[1:])
        return cls(host if device is None else to_device(host, device), host)

    @classmethod
    def from_offsets(cls, offsets: Int[Tensor, " bounds"]) -> "Segments":
        """Segments on the CPU; the offsets are copied, since they may lie in a mapped file."""
        host = offsets.clone()
        return cls(host, host)

    @classmethod
    def uniform(cls, count: int, length: int, device: torch.device | str | None = None) -> "Segments":
        """``count`` segments of the same length."""
        host = torch.arange(count + 1) * length
        # Counted on the device too: nothing is copied, so that this can be a part of recorded work.
        return cls(host if device is None else torch.arange(count + 1, device=device) * length, host)

    def to(self, device: torch.device | str) -> "Segments":
        return Segments(to_device(self.host, device), self.host)

    @property
    def count(self) -> int:
        return len(self.host) - 1

    @cached_property
    def total(self) -> int:
        return int(self.host[-1])

    @property
    def starts(self) -> Int[Tensor, " segments"]:
        return self.offsets[:-1]

    @cached_property
    def lengths(self) -> Int[Tensor, " segments"]:
        return self.offsets.diff()

    @cached_property
    def host_lengths(self) -> Int[Tensor, " segments"]:
        return self.host.diff()

    @property
    def max_length(self) -> int:
        return int(self.host_lengths.max()) if self.count else 0

    @cached_property
    def squared_total(self) -> float:
        """The sum of all squared lengths, which the work of attention grows with."""
        return float(self.host_lengths.double().square().sum())

    @cached_property
    def ids(self) -> Int[Tensor, " rows"]:
        """The segment of every row."""
        # On a GPU a binary search gives the same numbers with fewer launches.
        if self.offsets.is_cuda:
            return searched_ids(self.offsets, self.total)
        index = torch.arange(self.count, device=self.offsets.device)
        return torch.repeat_interleave(index, self.lengths, output_size=self.total)

    @cached_property
    def positions(self) -> Int[Tensor, " rows"]:
        """The place of every row inside its segment."""
        return self.placed(torch.zeros_like(self.starts))

    def placed(self, starts: Int[Tensor, " segments"]) -> Int[Tensor, " rows"]:
        """Where every row lies when its segment begins at ``starts`` instead."""
        rows = torch.arange(self.total, device=self.offsets.device)
        return rows + (starts - self.starts).index_select(0, self.ids)

    @cached_property
    def pairs(self) -> "Segments":
        """Ordered pairs of rows of one segment: n * n of them for a segment of n rows."""
        return Segments.from_lengths(self.host_lengths.square(), self.offsets.device)

    def take(
        self, index: Int[Tensor, " chosen"], there: Int[Tensor, " chosen"] | None = None
    ) -> tuple[Int[Tensor, " rows"], "Segments"]:
        """Rows of the chosen segments, in that order, and the segments they form.

        There is no loop over segments. ``index`` is a CPU tensor; ``there`` is the same tensor on the device of the
        data, for callers that have it already.
        """
        chosen = self.chosen(index)
        if there is None:
            there = to_device(index, self.offsets.device)
        return chosen.placed(self.starts.index_select(0, there)), chosen

    def chosen(self, index: Int[Tensor, " chosen"]) -> "Segments":
        """The chosen segments packed anew, in that order; ``index`` is a CPU tensor."""
        return Segments.from_lengths(self.host_lengths.index_select(0, index), self.offsets.device)

    def host_rows(self, index: Int[Tensor, " chosen"]) -> Int[Tensor, " rows"]:
        """Rows of the chosen segments on the CPU, wherever the data is."""
        return Segments(self.host, self.host).take(index)[0]

    def grouped(self, outer: "Segments") -> "Segments":
        """Segments of segments: where run r of ``outer`` holds some of these segments, run r here holds their rows."""
        if outer.total == 0:
            return outer
        host = self.host.index_select(0, outer.host)
        return Segments(to_device(host, self.offsets.device), host)

    @cached_property
    def runs(self) -> tuple[Int[Tensor, " runs"], Int[Tensor, " runs"]]:
        """For every run of neighbouring segments of equal length: that length, and how many they are. On the CPU."""
        lengths = self.host_lengths
        values, counts = torch.unique_consecutive(lengths[lengths > 0], return_counts=True)
        return values, counts

    @cached_property
    def in_order(self) -> bool:
        """Whether buckets hold the rows as they lie, so that nothing is moved: sorted sequences, or only one."""
        lengths, counts = self.runs
        least = _RUN.get(self.offsets.device.type, 32)
        # Sorted sequences have one run per length; a factor of two forgives a few that are out of place.
        ordered = len(counts) <= 2 * len(torch.unique(lengths))
        return (ordered and len(counts) * least <= int(counts.sum())) or self.count == 1

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        """Every non-empty segment, grouped with others of similar length."""
        if self.in_order:
            places = torch.arange(self.total, device=self.offsets.device)
            lengths, counts = self.runs
            if not len(lengths):
                return (Bucket(places.view(1, 0), None),)
            parts = torch.split(places, (lengths * counts).tolist())
            return tuple(Bucket(part.view(-1, n), None) for part, n in zip(parts, lengths.tolist(), strict=True))
        return self._padded.buckets

    @cached_property
    def _padded(self) -> "_Padded":
        """Buckets of sequences in the order of their lengths, laid out by NumPy: it spends less on small arrays."""
        lengths = self.host_lengths.numpy()
        order = np.argsort(lengths, kind="stable")
        order = order[np.searchsorted(lengths[order], 1) :]
        lengths, device = lengths[order], self.offsets.device
        bounds = _bucket_bounds(lengths, _BUCKET_RATIO.get(device.type, 0.6))
        counts, widths = np.diff(bounds), lengths[np.array(bounds[1:], dtype=np.int64) - 1]
        width = np.repeat(widths, counts)
        place = np.arange(width.sum()) - np.repeat(np.cumsum(width) - width, width)
        inside = place < np.repeat(lengths, width)
        rows = np.repeat(self.host.numpy()[order], width) + place * inside
        back = np.empty(self.total, dtype=np.int64)
        back[rows[inside]] = np.flatnonzero(inside)
        there, mask = to_device(torch.from_numpy(rows), device), to_device(torch.from_numpy(inside), device)
        sizes = (counts * widths).tolist()
        # The shortest sequence of a bucket comes first.
        uniform = (lengths[bounds[:-1]] == widths).tolist()
        buckets = tuple(
            Bucket(part.view(-1, wide), None if alike else kept.view(-1, wide))
            for part, kept, wide, alike in zip(
                torch.split(there, sizes), torch.split(mask, sizes), widths.tolist(), uniform, strict=True
            )
        )
        padding = torch.from_numpy(np.flatnonzero(~inside))
        return _Padded(buckets, there, to_device(torch.from_numpy(back), device), to_device(padding, device))

    @cached_property
    def bucket_shapes(self) -> list[tuple[int, int]]:
        """How many sequences every bucket has, and the width that they are padded to."""
        return [(bucket.rows.shape[0], bucket.rows.shape[1]) for bucket in self.buckets]

    def bucket_biases(self, dtype: torch.dtype) -> list[Tensor | None]:
        """What attention adds to the scores of every bucket: minus infinity at padding; None where nothing is padded.

        Kept for the last type asked for, because all layers of a model ask for the same.
        """
        if self._biases is None or self._biases[0] != dtype:
            self._biases = (
                dtype,
                [None if b.mask is None else as_bias(b.mask[:, None, None, :], dtype) for b in self.buckets],
            )
        return self._biases[1]

    @property
    def padding(self) -> Int[Tensor, " padded"]:
        """The slots of the flattened, concatenated :attr:`buckets` that hold no element."""
        return self.to_buckets[:0] if self.in_order else self._padded.padding

    @cached_property
    def to_buckets(self) -> Int[Tensor, " slots"]:
        """The packed row behind every slot of the flattened, concatenated :attr:`buckets`."""
        return torch.arange(self.total, device=self.offsets.device) if self.in_order else self._padded.there

    @property
    def from_buckets(self) -> Int[Tensor, " rows"]:
        """Where every packed row lies in the flattened, concatenated :attr:`buckets`."""
        return self.to_buckets if self.in_order else self._padded.back


@dataclass(frozen=True, eq=False)
class _Padded:
    """Buckets with the rows behind all their slots, the slots of all rows, and the slots that are padding."""

    buckets: tuple[Bucket, ...]
    there: Int[Tensor, " slots"]
    back: Int[Tensor, " rows"]
    padding: Int[Tensor, " padded"]


def _bucket_bounds(lengths: NDArray[np.int64], ratio: float) -> list[int]:
    """Where buckets of ascending lengths begin, and the end."""
    bounds = [0]
    while bounds[-1] < len(lengths):
        # In float32, so that on no account a sequence moves to another bucket than it was in before.
        widest = int(np.float32(lengths[bounds[-1]]) / np.float32(ratio))
        bounds.append(int(np.searchsorted(lengths, widest, side="right")))
    return bounds


def searched_ids(offsets: Int[Tensor, " bounds"], total: int) -> Int[Tensor, " rows"]:
    """:attr:`Segments.ids` with half the launches of repeat_interleave."""
    return torch.searchsorted(offsets[1:], torch.arange(total, device=offsets.device), right=True)


def as_bias(mask: Bool[Tensor, "*shape"], dtype: torch.dtype) -> Float[Tensor, "*shape"]:
    """What is added to scores so that ``mask`` says which of them count: 0, or minus infinity."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)


class _Reorder(torch.autograd.Function):
    """``rows[there]`` with the gradient ``grad[back]``, which is right when slots that ``back`` leaves out get none.

    The gradient of index_select would add rows up in a zeroed copy, which costs as much time as attention itself.
    """

    @staticmethod
    def forward(rows: Tensor, there: Tensor, back: Tensor) -> Tensor:
        return rows.index_select(0, there)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return grad.index_select(0, back), None, None


def reorder(
    rows: Float[Tensor, "rows *rest"], there: Int[Tensor, " slots"], back: Int[Tensor, " rows"]
) -> Float[Tensor, "slots *rest"]:
    """``rows[there]``, where row i is slot ``back[i]`` and no other slot gets a gradient."""
    slots: Tensor = _Reorder.apply(rows, there, back)  # type: ignore[no-untyped-call]
    return slots


def into_buckets(rows: Float[Tensor, "tokens *rest"], segments: Segments) -> list[Float[Tensor, "_ _ *rest"]]:
    """Packed rows as one [sequences, width, ...] tensor per bucket. Padding is not zero: callers must mask it out."""
    shapes = [bucket.rows.shape for bucket in segments.buckets]
    if segments.in_order:
        parts = torch.split(rows, [shape.numel() for shape in shapes])
        return [part.view(*shape, *rows.shape[1:]) for part, shape in zip(parts, shapes, strict=True)]
    slots = reorder(rows, segments.to_buckets, segments.from_buckets)
    parts = torch.split(slots, [shape.numel() for shape in shapes])
    return [part.view(*shape, *rows.shape[1:]) for part, shape in zip(parts, shapes, strict=True)]


def out_of_buckets(parts: Sequence[Float[Tensor, "_ _ *rest"]], segments: Segments) -> Float[Tensor, "tokens *rest"]:
    """The inverse of :func:`into_buckets`; padding falls away."""
    flat = [part.flatten(0, 1) for part in parts]
    together = flat[0] if len(flat) == 1 else torch.cat(flat)
    return together if segments.in_order else together.index_select(0, segments.from_buckets)


def interleave(parts: Sequence[Segments]) -> tuple[Segments, list[Int[Tensor, " _"]]]:
    """Segments whose run s holds run s of every part, one part after another; and each part's rows in them."""
    # Offsets are sums of lengths, so those of all parts together are sums of the parts' offsets.
    host = torch.stack([part.host for part in parts]).sum(0)
    on_host = all(part.offsets is part.host for part in parts)
    together = Segments(host if on_host else torch.stack([part.offsets for part in parts]).sum(0), host)
    start, rows = together.starts, []
    for part in parts:
        rows.append(part.placed(start))
        start = start + part.lengths
    return together, rows


def take_rows(values: Float[Tensor, "rows dim"], index: Int[Tensor, " taken"]) -> Float[Tensor, "taken dim"]:
    """``values[index]``, whose gradient has the same bits every time on a GPU too.

    There the gradient of ``index_select`` adds rows in the order in which they happen to come.
    """
    if not values.is_cuda:
        return values.index_select(0, index)
    taken: Tensor = _TakeRows.apply(values, index)  # type: ignore[no-untyped-call]
    return taken


class _TakeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.rows = len(values)
        return values.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        ordered, order = torch.sort(index, stable=True)
        offsets = torch.searchsorted(ordered, torch.arange(ctx.rows + 1, device=index.device))
        # Added up in float32 at least: a row may be taken many times.
        exact = grad.index_select(0, order).to(torch.promote_types(grad.dtype, torch.float32))
        return torch.segment_reduce(exact, "sum", offsets=offsets, unsafe=True).to(grad.dtype), None


def segment_sum(values: Float[Tensor, "rows dim"], segments: Segments) -> Float[Tensor, "segments dim"]:
    """Sum of the rows of every segment; an empty segment gives zeros."""
    if values.is_cuda:
        # Row after row: ``index_add`` would add them in the order in which they happen to come, with other last bits
        # every time.
        return torch.segment_reduce(values, "sum", offsets=segments.offsets, unsafe=True)
    out = values.new_zeros(segments.count, values.shape[1])
    return out.index_add(0, segments.ids, values)
