"""The encoder on one GPU, recorded once a size and replayed: two launches a training step instead of a thousand.

A recording (a CUDA graph) repeats kernels as they were: same addresses, same shapes, same grids. So a batch is filled
up with sequences that nothing reads, by at most a 64th of its rows, to one of few sizes; what a size is depends on the
batch alone, so that a run that was resumed computes what an unbroken one does. The rows that fill it get no gradient
and give none: every other row and every weight's gradient is what it would be without them.

A size is recorded when it comes a second time. All recordings work in the same memory, so the backward of one must
follow its own forward, as it does in training. The weights get their gradients from ``backward()`` alone, not from
``torch.autograd.grad``.
"""

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
# Recordings kept; of more sizes, the one that was not used for longest is recorded anew.
_MOST = 24

Run = Callable[[Tensor, Segments, Tensor | None], Tensor]


@runtime_checkable
class Planner(Protocol):
    """What multi-head attention knows of our kernels."""

    def prepare(self, segments: Segments) -> Plan | None:
        """How they take these sequences; None where they do not."""

    def use_plan(self, segments: Segments, plan: Plan) -> None:
        """Have them take these sequences so."""


def rounded(count: int) -> int:
    """Up to a multiple of a 64th of the power of two below: 64 sizes between a number and its double."""
    step = max(1, (1 << max(count, 1).bit_length() - 1) // 64)
    return -(-count // step) * step


@dataclass(frozen=True)
class Size:
    """Rows, sequences and rows read (None: all) of a batch that was filled up."""

    rows: int
    sequences: int
    read: int | None

    @classmethod
    def of(cls, segments: Segments, rows: Int[Tensor, " read"] | None) -> "Size":
        total = rounded(segments.total)
        # So many whatever is missing, not only what is: the number is to be one of few.
        filling = rounded(total + 1) - total
        return cls(
            total, rounded(segments.count - (-filling // _FILLING)), None if rows is None else rounded(len(rows))
        )

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
    grad_x: Float[Tensor, "rows dim"]
    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph

    def fits(self, plan: Plan) -> bool:
        return all(size <= room for size, room in zip(plan.sizes, self.plan.sizes, strict=True))

    def replay_forward(
        self, x: Float[Tensor, "tokens dim"], filled: Segments, plan: Plan, rows: Int[Tensor, " chosen"] | None
    ) -> Float[Tensor, "_ dim"]:
        """The rows asked for. Others of ``self.x`` keep what an earlier batch left there, which nothing reads."""
        self.x.detach()[: len(x)].copy_(x)
        self.segments.ids.copy_(filled.ids)
        self.plan.items.copy_(plan.with_room(self.plan.sizes).items)
        if rows is not None and self.rows is not None:
            self.rows[: len(rows)].copy_(rows)
        self.forward.replay()
        return self.out[: len(x) if rows is None else len(rows)]

    def replay_backward(self, grad: Float[Tensor, "read dim"], rows: int) -> Float[Tensor, "{rows} dim"]:
        """The gradient of x; those of the weights are where they were recorded to be."""
        self.grad_out[: len(grad)].copy_(grad)
        self.grad_out[len(grad) :].zero_()
        self.backward.replay()
        return self.grad_x[:rows]


class Replayer:
    """Calls ``run`` (an encoder's forward) through recordings, where attention is our own kernels.

    Args:
        run: rows, their sequences and the rows asked for to encoded rows.
        attention: plans for all of the encoder's attention.
        parameters: the encoder's that are trained.
    """

    def __init__(self, run: Run, attention: Planner, parameters: Sequence[nn.Parameter]) -> None:
        self.run, self.attention, self.parameters = run, attention, list(parameters)
        # One set for all recordings, in memory of its own: what a step has summed up outlives the next forward.
        self.gradients = [torch.empty_like(parameter) for parameter in self.parameters]
        self.recordings: dict[Size, Recording] = {}
        self.calls = 0
        # Asks for a gradient, so that there is a backward even where the rows do not need one.
        self._anchor = torch.zeros((), device=self.gradients[0].device, requires_grad=True)
        self._seen: set[Size] = set()
        self._works = True

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
        recording = self._recording(size, x, filled, plan, rows)
        if recording is None:
            return as_filled(self.run, size, x, filled, rows)
        self.calls += 1
        step = _Step(self, recording, filled, plan, rows, self.calls)
        out: Tensor = _Replay.apply(step, x, self._anchor)  # type: ignore[no-untyped-call]
        return out

    def _recording(self, size: Size, x: Tensor, filled: Segments, plan: Plan, rows: Tensor | None) -> Recording | None:
        known = self.recordings.pop(size, None)
        if known is None or not known.fits(plan):
            if not self._works or size not in self._seen:
                self._seen.add(size)
                return None
            # Room for what the next batches need, and for what the last ones did.
            room = [n + n // 8 for n in plan.sizes]
            if known is not None:  # It lives until there is another: PyTorch cannot reuse a pool that no graph holds.
                room = [max(pair) for pair in zip(room, known.plan.sizes, strict=True)]
            known = self._record(size, x, filled, plan.with_room([-(-n // 16) * 16 for n in room]), rows)
        if known is not None:
            self.recordings[size] = known  # the last one used comes last
            while len(self.recordings) > _MOST:
                del self.recordings[next(iter(self.recordings))]
        return known

    def _record(self, size: Size, x: Tensor, filled: Segments, plan: Plan, rows: Tensor | None) -> Recording | None:
        try:
            return record(self, size, x, filled, plan, rows)
        except RuntimeError as error:  # No memory left, or a kernel that cannot be recorded.
            self._works = False
            self.recordings.clear()
            torch.cuda.empty_cache()
            reason = str(error).splitlines()[0]
            warnings.warn(f"training goes on without CUDA graphs, slower: {reason}", stacklevel=2)
            return None

    @cached_property
    def pool(self) -> Any:
        """The memory that all recordings work in."""
        return torch.cuda.graph_pool_handle()


def as_filled(run: Run, size: Size, x: Tensor, filled: Segments, rows: Tensor | None) -> Tensor:
    """What a recording of this size computes, once and as usual."""
    wide = F.pad(x, (0, 0, 0, size.rows - len(x)))
    chosen = None if rows is None or size.read is None else F.pad(rows, (0, size.read - len(rows)))
    return run(wide, filled, chosen)[: len(x) if rows is None else len(rows)]


def record(replayer: Replayer, size: Size, x: Tensor, filled: Segments, plan: Plan, rows: Tensor | None) -> Recording:
    """A forward and a backward at this size, recorded; draws go on as if nothing had been run."""
    static = x.new_zeros(size.rows, x.shape[1]).requires_grad_()
    chosen = None if size.read is None else torch.zeros(size.read, dtype=torch.int64, device=x.device)
    # The recording owns its segments; the batch's own are another object with the same numbers.
    segments = Segments(filled.offsets, filled.host)
    _ = segments.ids
    replayer.attention.use_plan(segments, plan)
    inputs = (static, *replayer.parameters)
    with torch.enable_grad(), torch.random.fork_rng([x.device.index]):
        # What is done at a first call only cannot be recorded.
        out = replayer.run(static, segments, chosen)
        torch.autograd.grad(out, inputs, torch.zeros_like(out))
        del out
        torch.clear_autocast_cache()  # else a weight's copy in bfloat16 would be remembered, not made
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(forward, pool=replayer.pool):
            out = replayer.run(static, segments, chosen)
        grad_out = torch.zeros_like(out)
        with torch.cuda.graph(backward, pool=replayer.pool):
            grad_x, *grads = torch.autograd.grad(out, inputs, grad_out)
            torch._foreach_copy_(replayer.gradients, grads)
        torch.clear_autocast_cache()
    return Recording(static, segments, plan, chosen, out.detach(), grad_out, grad_x, forward, backward)


@dataclass(eq=False)
class _Step:
    """One forward and its backward."""

    replayer: Replayer
    recording: Recording
    filled: Segments
    plan: Plan
    rows: Tensor | None
    number: int
    tokens: int = 0

    def forward(self, x: Tensor) -> Tensor:
        self.tokens = len(x)
        return self.recording.replay_forward(x, self.filled, self.plan, self.rows)

    def backward(self, grad: Tensor) -> Tensor:
        """The gradient of x; the weights get theirs here, past autograd, which takes 10 us for each."""
        replayer = self.replayer
        if self.number != replayer.calls:
            raise RuntimeError("another forward came between a recorded forward and its backward")
        # What earlier parts of a step have summed up may lie where this one writes.
        sums = [parameter.grad for parameter in replayer.parameters]
        sums = [None if part is None else part.clone() for part in sums]
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
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None]:
        return None, ctx.step.backward(grad), None
