"""The encoder on one GPU, recorded once per size and replayed: two launches per training step instead of a thousand.

A recording (a CUDA graph) repeats kernels as they were: same addresses, same shapes, same grids. So a batch is filled
up with sequences that nothing reads to one of few sizes; what a size is depends on the batch alone, and a step computes
the same whether it is recorded or not. The rows that fill it get no gradient and give none: every other row and every
weight's gradient is what it would be without them.

A size is recorded when it comes a second time. All recordings work in the same memory, so the one backward of each
must follow its own forward, as it does in training. The weights get their gradients from ``backward()`` alone, not from
``torch.autograd.grad``, in memory that the next backward writes again.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tokengt.accelerate.recording import Recording, Run, record, run_filled, with_room
from tokengt.accelerate.sizes import Size, with_margin
from tokengt.attention import AttentionPlan
from tokengt.kernels.tiles import Tiles
from tokengt.ragged import Segments

# The most recordings that are made, because making one takes as long as several steps; other sizes are run as usual.
_MOST = 32


class Replayer:
    """Calls ``run`` (an encoder's forward) through recordings, where attention is our own kernels.

    Args:
        run: rows, how to attend to their sequences, and the rows asked for, to encoded rows.
        plan: how to attend to sequences; nothing is recorded where that is not by tiles.
        parameters: the encoder's that are trained. Their values may change, their memory may not.
    """

    def __init__(self, run: Run, plan: Callable[[Segments], AttentionPlan], parameters: Sequence[nn.Parameter]) -> None:
        self.run, self.plan, self.parameters = run, plan, list(parameters)
        # One set of gradients serves all recordings. It lies outside the memory that they work in, because gradients
        # must survive the next forward.
        self.gradients = [torch.empty_like(parameter) for parameter in self.parameters]
        self.recordings: dict[Size, Recording] = {}
        self.replays = 0
        self.turn = 0
        # An input that asks for a gradient, so that autograd calls the backward even where the rows need none.
        self._anchor = torch.zeros((), device=self.gradients[0].device, requires_grad=True)
        self._seen: set[Size] = set()
        self._room: list[int] = []
        self._records = True

    def __call__(
        self, x: Float[Tensor, "tokens dim"], segments: Segments, rows: Int[Tensor, " chosen"] | None
    ) -> Float[Tensor, "_ dim"] | None:
        """Encoded rows; None where another way of attention has to take these sequences."""
        size = Size.of(segments, rows)
        plan = self.plan(size.fill(segments))
        if plan.tiles is None:
            return None
        room = self._make_room(plan.tiles)
        recording = self._recording(size, x, plan, plan.tiles, room)
        if recording is None:
            return run_filled(self.run, size, x, with_room(plan, room), rows)
        self.replays += 1
        self.turn += 1
        out: Tensor = _Replay.apply(_Step(self, recording, plan, rows, self.turn), x, self._anchor)  # type: ignore[no-untyped-call]
        return out

    def give_up(self, reason: str) -> bool:
        """Free what recordings hold and make no more; whether there was anything to free."""
        held, self._records = bool(self.recordings), False
        self.recordings.clear()
        torch.cuda.empty_cache()
        warnings.warn(f"training goes on without CUDA graphs, slower: {reason.splitlines()[0]}", stacklevel=2)
        return held

    def _make_room(self, tiles: Tiles) -> list[int]:
        """How many entries to allow in every bucket: the most, with a margin, that any batch has had so far."""
        needed = [with_margin(entries) for entries in tiles.sizes]
        # Rows of another type have other tile sizes, so that the room of earlier batches says nothing about them.
        before = self._room if len(self._room) == len(needed) else needed
        self._room = [max(pair) for pair in zip(needed, before, strict=True)]
        return self._room

    def _recording(
        self, size: Size, x: Tensor, plan: AttentionPlan, tiles: Tiles, room: Sequence[int]
    ) -> Recording | None:
        recording = self.recordings.get(size)
        if recording is not None and recording.fits(x, tiles):
            return recording
        if recording is None and (size not in self._seen or len(self.recordings) >= _MOST):
            self._seen.add(size)
            return None
        if not self._records:
            return None
        reason = ""
        try:
            # The old recording is kept until the new one is made: PyTorch frees a pool of memory that no CUDA graph
            # uses, and cannot go on with it.
            self.recordings[size] = record(
                self.run, size, x, with_room(plan, room), self.parameters, self.gradients, self.pool
            )
        except RuntimeError as error:  # There is no memory left, or a kernel cannot be recorded.
            reason = str(error) or type(error).__name__
        if reason:  # Not inside ``except``, where the error still holds the memory that is to be freed.
            self.give_up(reason)
        return self.recordings.get(size)

    @cached_property
    def pool(self) -> Any:
        """The memory that all recordings work in."""
        return torch.cuda.graph_pool_handle()


@dataclass(eq=False)
class _Step:
    """One forward and its backward."""

    replayer: Replayer
    recording: Recording
    plan: AttentionPlan
    rows: Tensor | None
    turn: int
    tokens: int = 0

    def forward(self, x: Tensor) -> Tensor:
        self.tokens = len(x)
        return self.recording.replay_forward(x, self.plan, self.rows)

    def backward(self, grad: Tensor) -> Tensor | None:
        """The gradient of x; the weights get theirs here, past autograd, which takes 10 us for each."""
        replayer = self.replayer
        if self.turn != replayer.turn:
            raise RuntimeError("a recorded forward has one backward, and no other forward may come between them")
        replayer.turn += 1
        # Gradients of earlier parts of this step (accumulation) may lie where the replay writes, so they are copied.
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
