"""Batches of a few fixed sizes: what lets a GPU repeat the kernels of a training step as they were.

Recorded kernels have the addresses and shapes of the step that they were recorded in. So a step's graphs are filled up
with others that nothing reads, to one of few *frames*: so many graphs, so many rows of each kind (nodes, edges, ...).
What differs between two steps of one frame is then numbers alone: which graphs, and where the rows of each lie. These
are worked out on the host for many steps at once (:class:`Steps`), and a frame's batch is made of them by the device
(:func:`framed`), without a copy from the host.

The frame of a step depends on its own size and on how the steps of this training vary, so that a step computes the same
whether it is recorded or not, and whether the run was resumed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Int, Shaped
from numpy.typing import NDArray
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.facts import Cut
from tokengt.level import Level
from tokengt.numbering import LocalIndex
from tokengt.ragged import Segments
from tokengt.sparse import SparseRows

# The frames' sizes are the mean of the steps' sizes plus one standard deviation, three, five and so on: most steps fit
# into the first, nearly all others into the second, and each takes a recording of its own.
_APART = 2
# The deviation is taken for at least this many rows of a kind, and sizes are multiples of it.
_LEAST_ROWS = 16


@dataclass(frozen=True)
class Frame:
    """How many graphs a batch is filled up to, and how many rows of every kind; see :func:`row_kinds`."""

    graphs: int
    rows: tuple[int, ...]


def row_kinds(graphs: GraphBatch) -> tuple[Segments, ...]:
    """Where the rows of each kind lie: nodes, edges, and undirected edges where both directions were paired."""
    merged = graphs.merged
    return (graphs.nodes, graphs.edges) if merged is None else (graphs.nodes, graphs.edges, merged.segments)


def can_be_framed(graphs: GraphBatch) -> bool:
    """Whether batches of this data can be filled up: no hyperedges, no facts of pairs of nodes, dense features."""
    per_pair = any(getattr(fact, "per", "node") == "pair" for fact in graphs.facts.values())
    return not (graphs.hyperedges.total or per_pair or isinstance(graphs.node_features, SparseRows))


class Frames:
    """The frames of one training.

    Args:
        kinds: of the data's rows, see :func:`row_kinds`.
        usual: the graphs of some usual steps, such as those of one epoch.
    """

    def __init__(self, kinds: Sequence[Segments], usual: Sequence[Int[Tensor, " _"]]) -> None:
        self._lengths = np.stack([kind.host_lengths.numpy() for kind in kinds])
        totals = self._totals(usual)
        whole = totals[totals[:, 0] >= np.median(totals[:, 0])]
        self._mean, deviation = whole.mean(0), np.maximum(whole.std(0), [1, *([_LEAST_ROWS] * len(kinds))])
        # A kind that no graph has any row of gets none by filling either.
        self._deviation = deviation * np.append(1, self._lengths.any(1))
        # As many graphs fill as make them about as large as the others: attention treats them alike.
        self._fillers = 1 + int(self._deviation[1:].sum() / max(1.0, self._mean[1:].sum() / self._mean[0]))

    def levels(self, steps: Sequence[Int[Tensor, " _"]]) -> list[int]:
        """Which frame every step takes: 0 is the smallest, for steps of up to one deviation above the mean."""
        above = (self._totals(steps) - self._mean) / np.maximum(self._deviation, 1)
        levels: list[int] = np.maximum(np.ceil((above.max(1) - 1) / _APART - 1e-9), 0).astype(int).tolist()
        return levels

    def frame(self, level: int) -> Frame:
        most = np.ceil(self._mean + (1 + _APART * level) * self._deviation).astype(int)
        rows = tuple(-(-count // _LEAST_ROWS) * _LEAST_ROWS for count in most[1:].tolist())
        return Frame(int(most[0]) + self._fillers, rows)

    def fill(self, frame: Frame, steps: Sequence[Int[Tensor, " _"]]) -> "Steps":
        """Steps that all fit into the frame."""
        counts = np.array([len(step) for step in steps])
        place = np.arange(frame.graphs)
        real = place < counts[:, None]
        places = np.zeros(real.shape, dtype=np.int64)
        places[real] = torch.cat(list(steps)).numpy()
        offsets = np.zeros((len(self._lengths), len(steps), frame.graphs + 1), dtype=np.int64)
        totals = [counts]
        for kind, (lengths, most) in enumerate(zip(self._lengths, frame.rows, strict=True)):
            taken = lengths[places] * real
            totals.append(taken.sum(1))
            # What is missing is dealt out evenly to the graphs that fill.
            missing, fillers = most - totals[-1], frame.graphs - counts
            assert (missing >= 0).all(), "a step does not fit into its frame"
            assert (fillers > 0).all(), "a frame has no graph left to fill"
            share, rest = missing // fillers, missing % fillers
            filling = share[:, None] + (place - counts[:, None] < rest[:, None])
            np.cumsum(np.where(real, taken, filling), 1, out=offsets[kind, :, 1:])
        return Steps(frame, np.stack(totals, 1), places, offsets)

    def _totals(self, steps: Sequence[Int[Tensor, " _"]]) -> NDArray[np.int64]:
        """[steps, 1 + kinds]: graphs and rows of every kind."""
        counts = np.array([len(step) for step in steps])
        step = np.repeat(np.arange(len(steps)), counts)
        places = torch.cat(list(steps)).numpy()
        rows = [np.bincount(step, lengths[places], minlength=len(steps)) for lengths in self._lengths]
        return np.stack([counts, *rows], 1).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Steps:
    """Steps of one frame: all that differs between them, on the host.

    Args:
        frame: their size.
        totals: [steps, 1 + kinds] how many graphs and rows are the step's own.
        places: [steps, graphs] of the graphs in the data, 0 for those that fill.
        offsets: [kinds, steps, graphs + 1] where every graph's rows begin.
    """

    frame: Frame
    totals: NDArray[np.int64]
    places: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """[steps, columns] all of it, one row per step, as :class:`Placement` reads it."""
        return np.concatenate([self.totals, self.places, *self.offsets], 1)


@dataclass(frozen=True, eq=False)
class Placement:
    """One step's row of :attr:`Steps.numbers`, on the device.

    ``example`` holds such a row on the host too. Only the sizes of what it says are read, and they are those of every
    step of the frame.
    """

    frame: Frame
    row: Int[Tensor, " columns"]
    example: Int[Tensor, " columns"]

    def totals(self) -> Int[Tensor, " kinds"]:
        """How many graphs and rows of every kind are the step's own."""
        return self.row[: 1 + len(self.frame.rows)]

    def places(self, row: Tensor) -> Int[Tensor, " graphs"]:
        start = 1 + len(self.frame.rows)
        return row[start : start + self.frame.graphs]

    def segments(self, kind: int) -> Segments:
        start = 1 + len(self.frame.rows) + self.frame.graphs + kind * (self.frame.graphs + 1)
        columns = slice(start, start + self.frame.graphs + 1)
        return Segments(self.row[columns], self.example[columns])


class _FramedCut(Cut):
    """A cut whose graphs are followed by others that fill its frame up, and point anywhere."""

    def __init__(self, kinds: Sequence[Segments], placement: Placement) -> None:
        super().__init__(placement.places(placement.example), placement.places(placement.row))
        self._segments = {kind: placement.segments(number) for number, kind in enumerate(kinds)}

    def _taken_from(self, segments: Segments) -> tuple[Int[Tensor, " rows"], Segments]:
        packed = self._segments[segments]
        rows = packed.placed(segments.starts.index_select(0, self.there))
        return rows.clamp_(max=max(segments.total - 1, 0)), packed

    def numbers(self, index: LocalIndex) -> LocalIndex:
        entries, rows = self.packed(index.entries), self.packed(index.rows)
        return index.take(self.rows(index.entries), entries, rows, clamped=True)


def framed(graphs: GraphBatch, placement: Placement, level: Level) -> tuple[GraphBatch, Int[Tensor, " rows"], Tensor]:
    """The batch of a frame; the rows of the data's table of labels that go with it; and which of them are its own."""
    kinds = row_kinds(graphs)
    cut = _FramedCut(kinds, placement)
    # Extras are lists on the host that no model reads, and that graphs which only fill would need too.
    batch = replace(graphs, extras=()).cut(cut)
    kind = {"graph": None, "node": 0, "edge": 1}[level]
    rows = cut.there if kind is None else cut.rows(kinds[kind])
    own = placement.totals()[0 if kind is None else 1 + kind]
    return batch, rows, torch.arange(len(rows), device=rows.device) < own


def on_device(
    numbers: NDArray[np.int64] | NDArray[np.float64], device: torch.device
) -> Shaped[Tensor, "steps columns"]:
    """A table of the host on a device, without waiting for the work queued there."""
    table = torch.from_numpy(numbers)
    return table.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else table
