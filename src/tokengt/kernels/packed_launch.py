"""From tiles to kernel launches: one launch for every bucket that holds anything. Needs Triton to be imported."""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import triton
from jaxtyping import Float, Float32, Int, Int32
from torch import Tensor

from tokengt.dropout import dropout_threshold
from tokengt.kernels import packed, packed_parts
from tokengt.kernels.heads import Heads
from tokengt.kernels.tiles import padded_width, tile_parts


@dataclass(frozen=True)
class Launch:
    """How a bucket's kernel runs.

    Warps per program, stages in which the loop loads its rows ahead, and, in tiles of two parts, how many queries are
    attended to the keys at a time.
    """

    warps: int
    stages: int = 1
    queries: int = 0


# Settings by (backward, loops, tile size). Those of tiles of 32 and 64 were the fastest of 15 settings each on an H200
# (heads of 24, bf16, dropout, 1,024 sequences); for a tile of 96 five were timed forward and six backward. Several
# sequences per program were tried too, and were slower. The others were chosen by how many registers the sm_90 build
# uses and how many it spills to memory.
LAUNCHES: dict[tuple[bool, bool, int], Launch] = {
    (False, False, 16): Launch(1),
    (False, False, 32): Launch(1),
    (False, False, 64): Launch(4),
    (False, False, 96): Launch(1, queries=16),
    (False, False, 128): Launch(8),
    (True, False, 16): Launch(1),
    (True, False, 32): Launch(2),
    (True, False, 64): Launch(4),
    (True, False, 96): Launch(2, queries=32),
    (True, False, 128): Launch(8),
    (False, True, 16): Launch(1, 2),
    (False, True, 32): Launch(2, 2),
    (False, True, 64): Launch(4, 2),
    (True, True, 16): Launch(1, 1),
    (True, True, 32): Launch(2, 1),
    (True, True, 64): Launch(4, 1),
}


def choose_launch(heads: Heads, tile: int, *, backward: bool, loops: bool) -> Launch:
    """The table's entry; twice the warps where wide heads would not fit into the registers of one set."""
    launch = LAUNCHES[backward, loops, tile]
    return replace(launch, warps=2 * launch.warps) if loops and max(heads.key, heads.value) > 64 else launch


def interpreted() -> bool:
    """Whether the kernels were made for Triton's interpreter, which runs them on CPU tensors."""
    return not isinstance(packed.forward_whole, triton.JITFunction)


def run_forward(
    qkv: Float[Tensor, "tokens width"],
    items: Int[Tensor, "3 entries"],
    buckets: Int[Tensor, "buckets 4"],
    seed: Int[Tensor, ""] | None,
    heads: Heads,
    dropout: float,
    out: Float[Tensor, "tokens heads value_dim"],
    log_sums: Float32[Tensor, "heads tokens"],
    marks: Int32[Tensor, "tokens 2"] | None = None,
) -> None:
    """Write attention into ``out`` and its base-2 log-sum-exps into ``log_sums``, every element."""
    tensors = (qkv, out, log_sums)
    kernels = _Kernels(
        whole=_Kernel(packed.forward_whole, tensors),
        looped=_Kernel(packed.forward_looped, tensors),
        parts=_Kernel(packed_parts.forward_parts, tensors),
    )
    _run(kernels, items, buckets, seed, marks, heads, dropout, len(qkv), backward=False)


def run_backward(
    qkv: Float[Tensor, "tokens width"],
    out: Float[Tensor, "tokens heads value_dim"],
    grad_out: Float[Tensor, "tokens heads value_dim"],
    log_sums: Float32[Tensor, "heads tokens"],
    items: Int[Tensor, "3 entries"],
    buckets: Int[Tensor, "buckets 4"],
    seed: Int[Tensor, ""] | None,
    heads: Heads,
    dropout: float,
    grad_qkv: Float[Tensor, "tokens width"],
    marks: Int32[Tensor, "tokens 2"] | None = None,
) -> None:
    """Write the gradient of every row into ``grad_qkv``, every element."""
    with_output = (qkv, out, grad_out, log_sums, grad_qkv)
    kernels = _Kernels(
        whole=_Kernel(packed.backward_whole, (qkv, grad_out, log_sums, grad_qkv)),
        looped=_Kernel(packed.backward_looped, with_output),
        parts=_Kernel(packed_parts.backward_parts, with_output),
    )
    _run(kernels, items, buckets, seed, marks, heads, dropout, len(qkv), backward=True)


class _Kernel(NamedTuple):
    """A kernel and the tensors that it reads and writes."""

    function: Any
    tensors: tuple[Tensor, ...]


class _Kernels(NamedTuple):
    """Of sequences in one tile, of those that a program goes through tile by tile, and of tiles of two parts."""

    whole: _Kernel
    looped: _Kernel
    parts: _Kernel


def _run(
    kernels: _Kernels,
    items: Tensor,
    buckets: Tensor,
    seed: Tensor | None,
    marks: Tensor | None,
    heads: Heads,
    dropout: float,
    tokens: int,
    *,
    backward: bool,
) -> None:
    scale = heads.key**-0.5 * math.log2(math.e)
    threshold, kept = dropout_threshold(dropout)
    constants = {
        "HEADS": heads.count,
        "KEY": heads.key,
        "VALUE": heads.value,
        "KEY_PAD": padded_width(heads.key),
        "VALUE_PAD": padded_width(heads.value),
        "DROPOUT": seed is not None,
        "MASKED": marks is not None,
        # This matters for float32 only. Triton's default, TF32, keeps ten bits of a factor; with "ieee" the kernels
        # need thousands of registers more than there are.
        "PRECISION": "tf32x3",
    }
    with torch.cuda.device_of(items):  # type: ignore[no-untyped-call]
        for tile, loops, begin, end in buckets.tolist():
            if begin == end:
                continue
            launch = choose_launch(heads, tile, backward=backward, loops=bool(loops))
            first, second = tile_parts(tile)
            kernel = kernels.parts if second else kernels.looped if loops else kernels.whole
            shape = {"FIRST": first, "SECOND": second, "QUERIES": launch.queries} if second else {"TILE": tile}
            kernel.function[((end - begin) * heads.count,)](
                *kernel.tensors, items, seed, marks, begin, items.shape[1], tokens, scale, threshold, 1 / kept,
                **constants, **shape, num_warps=launch.warps, num_stages=launch.stages,
            )  # fmt: skip
