"""One forward and backward of an encoder as CUDA graphs: kernels that are launched again with other numbers in them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from tokengt.accelerate.sizes import Size
from tokengt.attention import AttentionPlan
from tokengt.kernels.tiles import Tiles
from tokengt.ragged import Segments

# Takes rows, the plan of attention for their sequences, and the rows asked for (None: all); returns encoded rows.
Run = Callable[[Tensor, AttentionPlan, Tensor | None], Tensor]


@runtime_checkable
class Tape(Protocol):
    """Kernels that were recorded: ``torch.cuda.CUDAGraph``."""

    def replay(self) -> None:
        """Launch them all."""


@dataclass(frozen=True, eq=False)
class Recording:
    """Kernels of a forward and a backward, and the memory that they read and write."""

    x: Float[Tensor, "rows dim"]
    plan: AttentionPlan
    rows: Int[Tensor, " read"] | None
    out: Float[Tensor, "read dim"]
    grad_out: Float[Tensor, "read dim"]
    grad_x: Float[Tensor, "rows dim"] | None
    forward: Tape
    backward: Tape

    @property
    def tiles(self) -> Tiles:
        assert self.plan.tiles is not None
        return self.plan.tiles

    def fits(self, x: Float[Tensor, "tokens dim"], tiles: Tiles) -> bool:
        """Whether there is room for such entries, and a gradient for such rows."""
        return tiles.fit_into(self.tiles.sizes) and x.dtype == self.x.dtype and x.requires_grad == self.x.requires_grad

    def replay_forward(
        self, x: Float[Tensor, "tokens dim"], plan: AttentionPlan, rows: Int[Tensor, " chosen"] | None
    ) -> Float[Tensor, "_ dim"]:
        """A copy of the rows asked for. Others of ``self.x`` keep what an earlier batch left, which nothing reads."""
        assert plan.tiles is not None
        self.x.detach()[: len(x)].copy_(x)
        self.plan.segments.ids.copy_(plan.segments.ids)
        self.tiles.items.copy_(plan.tiles.with_room(self.tiles.sizes), non_blocking=True)
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


def with_room(plan: AttentionPlan, room: Sequence[int]) -> AttentionPlan:
    """The same plan in memory of its own, with so many entries in every bucket of its tiles."""
    assert plan.tiles is not None
    segments = Segments(plan.segments.offsets, plan.segments.host)
    _ = segments.ids
    return replace(plan, segments=segments, tiles=plan.tiles.in_room(room))


def run_filled(
    run: Run, size: Size, x: Float[Tensor, "tokens dim"], plan: AttentionPlan, rows: Int[Tensor, " chosen"] | None
) -> Float[Tensor, "_ dim"]:
    """What a recording of this size computes, once and as usual."""
    wide = F.pad(x, (0, 0, 0, size.rows - len(x)))
    chosen = None if rows is None or size.read is None else F.pad(rows, (0, size.read - len(rows)))
    return run(wide, plan, chosen)[: len(x) if rows is None else len(rows)]


def record(
    run: Run,
    size: Size,
    x: Float[Tensor, "tokens dim"],
    plan: AttentionPlan,
    parameters: Sequence[nn.Parameter],
    gradients: list[Tensor],
    pool: Any,
) -> Recording:
    """A forward and a backward at this size, recorded; draws go on as if nothing had been run.

    Args:
        run: what is recorded.
        size: of the filled batch.
        x: rows of such a batch: their type and width, and whether they want a gradient.
        plan: the recording's own, which it writes other batches' into.
        parameters: what the backward has gradients for,
        gradients: and where it writes them.
        pool: memory to work in.
    """
    static = x.new_zeros(size.rows, x.shape[1]).requires_grad_(x.requires_grad)
    rows = None if size.read is None else torch.zeros(size.read, dtype=torch.int64, device=x.device)
    inputs = [*([static] if x.requires_grad else []), *parameters]
    with torch.enable_grad(), torch.random.fork_rng([x.device.index]):
        # Run it once before: what is done only in a first call (compiling, allocating) cannot be recorded.
        out = run(static, plan, rows)
        torch.autograd.grad(out, inputs, torch.zeros_like(out))
        del out
        # Otherwise the bfloat16 copies of the weights would come from autocast's cache, and a replay would not make
        # them anew from the weights that have changed.
        torch.clear_autocast_cache()
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(forward, pool=pool):
            out = run(static, plan, rows)
        grad_out = torch.zeros_like(out)
        with torch.cuda.graph(backward, pool=pool):
            grads = torch.autograd.grad(out, inputs, grad_out)
            torch._foreach_copy_(gradients, grads[-len(gradients) :])
        torch.clear_autocast_cache()
    grad_x = grads[0] if x.requires_grad else None
    return Recording(static, plan, rows, out.detach(), grad_out, grad_x, forward, backward)
