"""The encoder on one GPU, recorded once a size and replayed: two launches a training step instead of a thousand.

A recording (a CUDA graph) repeats kernels as they were: same addresses, same shapes, same grids. So a batch is filled
up with sequences that nothing reads to one of few sizes; what a size is depends on the batch alone, and a step computes
the same whether it is recorded or not. The rows that fill it get no gradient and give none: every other row and every
weight's gradient is what it would be without them.

A size is recorded when it comes a second time. All recordings work in the same memory, so the one backward of each
must follow its own forward, as it does in training. The weights get their gradients from ``backward()`` alone, not from
``torch.autograd.grad``, in memory that the next backward writes again.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tokengt.attention.kernels import Plan
from tokengt.ragged import Segments

# Rows of one sequence that fills up.
_FILLING = 64
# Sizes lie at least so many rows, sequences and rows read apart: batches of a few graphs differ in all three.
_LEAST_ROWS, _LEAST_SEQUENCES = 64, 16
# Recordings made; whatever other sizes come is run as usual. Making one takes as long as several steps.
_MOST = 32

Run = Callable[[Tensor, Segments, Tensor | None], Tensor]


@runtime_checkable
class Planner(Protocol):
    """What multi-head attention knows of our kernels."""

    def prepare(self, segments: Segments) -> Plan | None:
        """How they take these sequences; None where they do not."""

    def use_plan(self, segments: Segments, plan: Plan) -> None:
        """Have them take these sequences so."""


@runtime_checkable
class Tape(Protocol):
    """Kernels that were recorded: ``torch.cuda.CUDAGraph``."""

    def replay(self) -> None:
        """Launch them all."""


def rounded(count: int, least: int = 1) -> int:
    """Up to a multiple of a 64th of the power of two below, or of ``least``: 64 sizes at most between n and 2 n."""
    step = max(least, (1 << max(count, 1).bit_length() - 1) // 64)
    return -(-count // step) * step


def with_margin(entries: int) -> int:
    """Room for a number that varies as counts do, by its root: four deviations more, and none where there are none."""
    return -(-(entries + 4 * math.isqrt(entries)) // 16) * 16


@dataclass(frozen=True)
class Size:
    """Rows, sequences and rows read (None: all) of a batch that was filled up."""

    rows: int
    sequences: int
    read: int | None

    @classmethod
    def of(cls, segments: Segments, rows: Int[Tensor, " read"] | None) -> "Size":
        total = rounded(segments.total, _LEAST_ROWS)
        # So many whatever is missing, not only what is: the number is to be one of few.
        filling = -(-(rounded(total + 1, _LEAST_ROWS) - total) // _FILLING)
        read = None if rows is None else rounded(len(rows), _LEAST_ROWS)
        return cls(total, rounded(segments.count + filling, _LEAST_SEQUENCES), read)

    def fill(self, segments: Segments) -> Segments:
        return segments.filled(self.rows, self.sequences, _FILLING)


@dataclass(frozen=True, eq=False)
class Recording:
    """Kernels of a forward and a backward, and the memory that they read and write."""

    x: Float[Tensor, "rows dim"]
    segments: Segments
    plan: Plan
    rows: Int[Tensor, " read"] | None
    out: Float[Tensor, "read dim"]
    grad_out: Float[Tensor, "read dim"]
    grad_x: Float[Tensor, "rows dim"] | None
    forward: Tape
    backward: Tape

    def fits(self, x: Float[Tensor, "tokens dim"], plan: Plan) -> bool:
        """Whether there is room for such entries, and a gradient for such rows."""
        sizes, rooms = plan.sizes, self.plan.sizes
        roomy = len(sizes) == len(rooms) and all(size <= room for size, room in zip(sizes, rooms, strict=True))
        return roomy and x.dtype == self.x.dtype and x.requires_grad == self.x.requires_grad

    def replay_forward(
        self, x: Float[Tensor, "tokens dim"], filled: Segments, plan: Plan, rows: Int[Tensor, " chosen"] | None
    ) -> Float[Tensor, "_ dim"]:
        """A copy of the rows asked for. Others of ``self.x`` keep what an earlier batch left, which nothing reads."""
        self.x.detach()[: len(x)].copy_(x)
        self.segments.ids.copy_(filled.ids)
        self.plan.items.copy_(plan.with_room(self.plan.sizes), non_blocking=True)
        if rows is not None and self.rows is not None:
            self.rows[: len(rows)].copy_(rows)
        self.forward.replay()
        return self.out[: len(x) if rows is None else len(rows)].clone()

    def replay_backward(self, grad: Float[Tensor, "read dim"], rows: int) -> Float[Tensor, "{rows} dim"] | None:
        """The gradient of x; those of the weights are where they were recorded to be."""
        self.grad_out[: len(grad)].copy_(grad)
        self.grad_out[len(grad) :].zero_()
        self.backward.replay()
        return None if self.grad_x is None else self.grad_x[:rows]


class Replayer:
    """Calls ``run`` (an encoder's forward) through recordings, where attention is our own kernels.

    Args:
        run: rows, their sequences and the rows asked for to encoded rows.
        attention: plans for all of the encoder's attention.
        parameters: the encoder's that are trained. Their values may change, their memory may not.
    """

    def __init__(self, run: Run, attention: Planner, parameters: Sequence[nn.Parameter]) -> None:
        self.run, self.attention, self.parameters = run, attention, list(parameters)
        # One set for all recordings, in memory of its own: what a step has summed up outlives the next forward.
        self.gradients = [torch.empty_like(parameter) for parameter in self.parameters]
        self.recordings: dict[Size, Recording] = {}
        self.replays = 0
        self.turn = 0
        # Asks for a gradient, so that there is a backward even where the rows do not need one.
        self._anchor = torch.zeros((), device=self.gradients[0].device, requires_grad=True)
        self._seen: set[Size] = set()
        self._room: list[int] = []
        self._records = True

    def __call__(
        self, x: Float[Tensor, "tokens dim"], segments: Segments, rows: Int[Tensor, " chosen"] | None
    ) -> Float[Tensor, "_ dim"] | None:
        """Encoded rows; None where another way of attention has to take these sequences."""
        size = Size.of(segments, rows)
        filled = size.fill(segments)
        _ = filled.ids  # known before compiled code asks: it would stop to work them out
        plan = self.attention.prepare(filled)
        if plan is None:
            return None
        recording = self._recording(size, x, filled, plan)
        if recording is None:
            return as_filled(self.run, size, x, filled, rows)
        self.replays += 1
        self.turn += 1
        step = _Step(self, recording, filled, plan, rows, self.turn)
        out: Tensor = _Replay.apply(step, x, self._anchor)  # type: ignore[no-untyped-call]
        return out

    def give_up(self, reason: str) -> bool:
        """Free what recordings hold and make no more; whether there was anything to free."""
        held, self._records = bool(self.recordings), False
        self.recordings.clear()
        torch.cuda.empty_cache()
        warnings.warn(f"training goes on without CUDA graphs, slower: {reason.splitlines()[0]}", stacklevel=2)
        return held

    def _recording(self, size: Size, x: Tensor, filled: Segments, plan: Plan) -> Recording | None:
        # Batches of every size tell how many entries the next ones may have.
        needed = [with_margin(entries) for entries in plan.sizes]
        before = self._room if len(self._room) == len(needed) else needed  # another type has other tiles
        self._room = [max(pair) for pair in zip(needed, before, strict=True)]
        known = self.recordings.get(size)
        if known is not None and known.fits(x, plan):
            return known
        if known is None and (size not in self._seen or len(self.recordings) >= _MOST):
            self._seen.add(size)
            return None
        if not self._records:
            return None
        reason = ""
        try:
            # The old recording stays until there is another: PyTorch cannot go on with a pool that no graph holds.
            self.recordings[size] = record(self, size, x, filled, plan, self._room)
        except RuntimeError as error:  # No memory left, or a kernel that cannot be recorded.
            reason = str(error) or type(error).__name__
        if reason:  # Not above: there the error still holds the memory that is to be freed.
            self.give_up(reason)
        return self.recordings.get(size)

    @cached_property
    def pool(self) -> Any:
        """The memory that all recordings work in."""
        return torch.cuda.graph_pool_handle()


def as_filled(run: Run, size: Size, x: Tensor, filled: Segments, rows: Tensor | None) -> Tensor:
    """What a recording of this size computes, once and as usual."""
    wide = F.pad(x, (0, 0, 0, size.rows - len(x)))
    chosen = None if rows is None or size.read is None else F.pad(rows, (0, size.read - len(rows)))
    return run(wide, filled, chosen)[: len(x) if rows is None else len(rows)]


def record(replayer: Replayer, size: Size, x: Tensor, filled: Segments, plan: Plan, room: Sequence[int]) -> Recording:
    """A forward and a backward at this size, recorded; draws go on as if nothing had been run."""
    static = x.new_zeros(size.rows, x.shape[1]).requires_grad_(x.requires_grad)
    rows = None if size.read is None else torch.zeros(size.read, dtype=torch.int64, device=x.device)
    # The recording owns its segments and plan; the batch's are others with the same numbers.
    segments = Segments(filled.offsets, filled.host)
    _ = segments.ids
    roomy = plan.in_room(room)
    replayer.attention.use_plan(segments, roomy)
    inputs = [*([static] if x.requires_grad else []), *replayer.parameters]
    with torch.enable_grad(), torch.random.fork_rng([x.device.index]):
        # What is done at a first call only cannot be recorded.
        out = replayer.run(static, segments, rows)
        torch.autograd.grad(out, inputs, torch.zeros_like(out))
        del out
        torch.clear_autocast_cache()  # else a weight's copy in bfloat16 would be remembered, not made
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(forward, pool=replayer.pool):
            out = replayer.run(static, segments, rows)
        grad_out = torch.zeros_like(out)
        with torch.cuda.graph(backward, pool=replayer.pool):
            grads = torch.autograd.grad(out, inputs, grad_out)
            torch._foreach_copy_(replayer.gradients, grads[-len(replayer.gradients) :])
        torch.clear_autocast_cache()
    grad_x = grads[0] if x.requires_grad else None
    return Recording(static, segments, roomy, rows, out.detach(), grad_out, grad_x, forward, backward)


@dataclass(eq=False)
class _Step:
    """One forward and its backward."""

    replayer: Replayer
    recording: Recording
    filled: Segments
    plan: Plan
    rows: Tensor | None
    turn: int
    tokens: int = 0

    def forward(self, x: Tensor) -> Tensor:
        self.tokens = len(x)
        return self.recording.replay_forward(x, self.filled, self.plan, self.rows)

    def backward(self, grad: Tensor) -> Tensor | None:
        """The gradient of x; the weights get theirs here, past autograd, which takes 10 us for each."""
        replayer = self.replayer
        if self.turn != replayer.turn:
            raise RuntimeError("a recorded forward has one backward, and no other forward may come between them")
        replayer.turn += 1
        # What earlier parts of a step have summed up may lie where this one writes.
        sums = [None if parameter.grad is None else parameter.grad.clone() for parameter in replayer.parameters]
        out = self.recording.replay_backward(grad, self.tokens)
        for parameter, gradient, part in zip(replayer.parameters, replayer.gradients, sums, strict=True):
            parameter.grad = gradient if part is None else gradient.add_(part)
        return out


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, step: _Step, x: Tensor, anchor: Tensor) -> Tensor:
        ctx.step = step
        return step.forward(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None, None]:
        return None, ctx.step.backward(grad), None
