"""Which implementation attends to a batch: decided here and nowhere else, once per batch, before the first layer.

A decision reads the lengths of the sequences on the host. Code that ``torch.compile`` has made would stop for that in
every layer. So the decision is made before, in plain Python, and passed to every layer as a plan, an
:class:`AttentionPlan`.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Int32
from torch import Tensor

from tokengt.attention.marks import bucket_masks
from tokengt.kernels import support
from tokengt.kernels.cuts import Cuts, make_cuts
from tokengt.kernels.heads import Heads
from tokengt.kernels.tiles import Tiles, choose_tiling, make_tiles, padded_width
from tokengt.ragged import Segments
from tokengt.tracing import eager_only

SoftmaxBackend = Literal["auto", "bucketed", "varlen", "triton"]
FavorBackend = Literal["auto", "bucketed", "triton"]

# Where sequences are usually longer than this, PyTorch's kernels are faster, because their tiles are larger. It depends
# on the width that our kernels round heads up to. benchmarks/crossing.py measures it and prints the two lines: the one
# beside flash attention over packed rows, the other beside padded buckets, because flash attention has no dropout.
LONGEST_TILED = {16: 1088, 32: 1088, 64: 1088, 128: 512}
LONGEST_TILED_DROPPING = {16: 1088, 32: 1088, 64: 1088, 128: 512}
# Where sequences are usually shorter than this, our kernels do not pay: the tables of FAVOR+, one per sequence, are not
# small beside its rows.
_SHORTEST_CUT = 1024


@dataclass(frozen=True, eq=False)
class AttentionPlan:
    """How every layer attends to the sequences of one batch.

    Args:
        segments: the sequences.
        tiles: how our softmax kernels take them; None where PyTorch attends.
        cuts: how our FAVOR+ kernels take them; None where PyTorch attends.
        dtype: the type of rows that tiles or cuts were made for; None without them.
        marks: which rows may attend to which, see :mod:`tokengt.attention.marks`; None where all may.
        masks: the same written out for the buckets of sequences, where PyTorch attends.
        masked: how masked layers attend, where there are any; all else here is of the other layers.
    """

    segments: Segments
    tiles: Tiles | None = None
    cuts: Cuts | None = None
    dtype: torch.dtype | None = None
    marks: Int32[Tensor, "tokens 2"] | None = None
    masks: tuple[Bool[Tensor, "_ 1 _ _"], ...] | None = None
    masked: "AttentionPlan | None" = None


@eager_only
def plan_softmax(
    segments: Segments,
    heads: Heads,
    dtype: torch.dtype,
    backend: SoftmaxBackend,
    dropout: float = 0.0,
    marks: Int32[Tensor, "tokens 2"] | None = None,
) -> AttentionPlan:
    """Tiles where our own kernels are asked for, or apply on this GPU and are the fastest at this ``dropout``.

    With ``marks`` also a plan for masked layers. There our kernels attend wherever they run, however long the sequences
    are: PyTorch's kernels for packed rows take no mask, and its other ones want it written out.

    Raises:
        ImportError: the backend is "triton", and it is not installed.
        ValueError: the backend is "triton", and its kernels cannot take this.
    """
    device = segments.offsets.device
    if backend == "triton":
        _refuse_unfit(device, dtype, heads)
        takes = applies = True
    else:
        takes = (
            backend == "auto"
            and device.type == "cuda"
            and support.softmax_fits(dtype, heads)
            and 0 < _usual_length(segments) <= (longest_tiled(heads, dropout) if marks is None else math.inf)
            and support.softmax_works(device)
        )
        applies = takes and _usual_length(segments) <= longest_tiled(heads, dropout)
    ours = AttentionPlan(segments)
    if takes:
        tiles = make_tiles(segments, choose_tiling(heads.key, heads.value, dtype.itemsize))
        ours = AttentionPlan(segments, tiles=tiles, dtype=dtype)
    plan = ours if applies else AttentionPlan(segments)
    if marks is None:
        return plan
    masks = None if takes else bucket_masks(marks, segments, dtype)
    return replace(plan, masked=replace(ours, marks=marks, masks=masks))


def longest_tiled(heads: Heads, dropout: float) -> int:
    """The usual length of sequences up to which our softmax kernels are the fastest, where they take such heads."""
    return (LONGEST_TILED_DROPPING if dropout else LONGEST_TILED)[padded_width(max(heads.key, heads.value))]


def takes_varlen(
    backend: SoftmaxBackend, heads: Heads, dtype: torch.dtype, device: torch.device, dropout: float
) -> bool:
    """Whether PyTorch's kernel for packed rows attends, where our own do not.

    Raises:
        ValueError: the backend is "varlen", and it cannot take this.
    """
    half = dtype in (torch.bfloat16, torch.float16)
    same = heads.key == heads.value and heads.key % 8 == 0 and heads.key <= 256
    fits = device.type == "cuda" and half and same and dropout == 0
    if backend == "varlen" and not fits:
        raise ValueError(
            f"attention backend 'varlen' needs a GPU, bf16 or fp16, head sizes that are equal multiples of 8 up to 256 "
            f"and no dropout; got {dtype} on {device.type}, sizes {heads.key} and {heads.value}, dropout {dropout}"
        )
    return fits and backend in ("auto", "varlen")


@eager_only
def plan_favor(
    segments: Segments, heads: Heads, dtype: torch.dtype, backend: FavorBackend, projection: Tensor
) -> AttentionPlan:
    """Cuts where our own kernels apply.

    Plain PyTorch takes what they do not: short sequences, or many beside a long one; half and double precision; a
    projection that is trained; wide heads.
    """
    device, features = segments.offsets.device, len(projection)
    applies = (
        backend in ("auto", "triton")
        and (device.type == "cuda" or (backend == "triton" and support.interpreted()))
        and support.favor_fits(dtype, heads)
        and not projection.requires_grad
        and _long_and_few(segments, features)
        and (device.type != "cuda" or support.favor_works(device, dtype, heads, features))
    )
    if not applies:
        return AttentionPlan(segments)
    return AttentionPlan(segments, cuts=make_cuts(segments, heads.count, features), dtype=dtype)


def _usual_length(segments: Segments) -> float:
    """The mean length over rows, not over sequences: long sequences have more rows, and most of the work."""
    lengths = segments.host_lengths.double()
    return float(lengths.square().sum() / lengths.sum().clamp(min=1))


def _long_and_few(segments: Segments, features: int) -> bool:
    """Whether sequences are long, and few enough that FAVOR+'s tables are no larger than its rows."""
    count = int((segments.host_lengths > 0).sum())
    return _usual_length(segments) >= _SHORTEST_CUT and count * features <= segments.total


def _refuse_unfit(device: torch.device, dtype: torch.dtype, heads: Heads) -> None:
    if not support.installed():
        raise ImportError("attention backend 'triton' needs the package triton, which is not installed")
    if not support.softmax_fits(dtype, heads):
        raise ValueError(
            f"attention backend 'triton' needs bf16, fp16 or fp32 and head sizes up to {support.WIDEST_HEAD}; "
            f"got {dtype}, sizes {heads.key} and {heads.value}"
        )
    if (device.type == "cuda") == support.interpreted():
        raise ValueError(
            f"attention backend 'triton' needs a GPU (or, for tests on a CPU, TRITON_INTERPRET=1 in the environment); "
            f"got a tensor on {device.type}"
        )
