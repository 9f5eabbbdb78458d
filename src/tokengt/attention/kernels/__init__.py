"""Attention kernels for packed rows. Importing this needs no Triton; calling it does."""

import importlib.util
import warnings
from collections.abc import Callable
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from tokengt.attention.kernels.cuts import find_cuts
from tokengt.attention.kernels.plan import Plan, choose_tiling, make_plan
from tokengt.ragged import Segments
from tokengt.tracing import eager_only

__all__ = ["Plan", "keep_plan", "kernel_plan", "kernels_fit", "packed_attention", "packed_favor", "planned_attention"]

_TYPES = (torch.bfloat16, torch.float16, torch.float32)
_WIDEST_HEAD = 128
# Where sequences are usually longer than this, flash attention's larger tiles pay.
_LONGEST = 512
_OLDEST_GPU = (8, 0)
# Where sequences are usually shorter than this, the tables of FAVOR+ are not small beside its rows.
_SHORTEST_FAVOR = 1024
# Its widest heads by type; sums over many keys are beyond the range of half precision.
_WIDEST_FAVOR = {torch.bfloat16: 128, torch.float32: 64}


def packed_attention(
    qkv: Float[Tensor, "tokens width"],
    segments: Segments,
    *,
    num_heads: int,
    head_dim: int,
    value_dim: int,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> Float[Tensor, "tokens {num_heads} {value_dim}"]:
    """Exact softmax attention of every sequence to itself, from rows [queries | keys | values] of all heads.

    ``dropout`` zeroes attention weights with that probability; ``seed`` (one int64, where the data lies) decides which,
    and is drawn from PyTorch's generator when it is None. Two calls with the same seed drop the same weights.
    """
    plan = kernel_plan(segments, "triton", dtype=qkv.dtype, head_dim=head_dim, value_dim=value_dim)
    assert plan is not None
    return planned_attention(
        qkv, plan, num_heads=num_heads, head_dim=head_dim, value_dim=value_dim, dropout=dropout, seed=seed
    )


def planned_attention(
    qkv: Float[Tensor, "tokens width"],
    plan: Plan,
    *,
    num_heads: int,
    head_dim: int,
    value_dim: int,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> Float[Tensor, "tokens {num_heads} {value_dim}"]:
    """:func:`packed_attention` by a plan that :func:`kernel_plan` has made."""
    from tokengt.attention.kernels.op import packed_attention_op

    if dropout == 0:
        seed = None
    elif seed is None:
        seed = torch.randint(2**62, (), device=qkv.device)
    out, _ = packed_attention_op(qkv, plan.items, plan.buckets, seed, num_heads, head_dim, value_dim, dropout)
    assert isinstance(out, Tensor)
    return out


@eager_only
def packed_favor(
    qkv: Float[Tensor, "tokens width"],
    segments: Segments,
    projection: Float[Tensor, "features head_dim"],
    *,
    num_heads: int,
    value_dim: int,
    eps: float,
    backend: str,
) -> Float[Tensor, "tokens {num_heads} {value_dim}"] | None:
    """FAVOR+ from rows [queries | keys | values] of all heads; None where plain PyTorch has to take it.

    That is: short sequences, or many beside a long one; half and double precision; a projection that is trained; wide
    heads; no GPU; another backend.
    """
    sizes = (num_heads, projection.shape[1], value_dim)
    fits = max(sizes[1:]) <= _WIDEST_FAVOR.get(qkv.dtype, 0) and not projection.requires_grad
    # Without a GPU the answer is known before anything is counted.
    possible = qkv.is_cuda or (backend == "triton" and _interpreted())
    if backend not in ("auto", "triton") or not fits or not possible or not takes_favor(segments, len(projection)):
        return None
    if qkv.is_cuda and not _favor_works(qkv.device, qkv.dtype, *sizes, len(projection)):
        return None
    return _favor(qkv, segments, projection, *sizes, eps)


def _favor(
    qkv: Tensor, segments: Segments, projection: Tensor, num_heads: int, head_dim: int, value_dim: int, eps: float
) -> Tensor:
    from tokengt.attention.kernels.favor_launch import favor_rows
    from tokengt.attention.kernels.launch import Heads

    cuts = find_cuts(segments, num_heads, len(projection))
    return favor_rows(qkv, projection, cuts, Heads(num_heads, head_dim, value_dim), eps)


def takes_favor(segments: Segments, features: int) -> bool:
    """Whether sequences are long, and few enough that their tables are no larger than their rows."""
    count = int((segments.host_lengths > 0).sum())
    return _usual_length(segments) >= _SHORTEST_FAVOR and count * features <= segments.total


def kernel_plan(segments: Segments, backend: str, *, dtype: torch.dtype, head_dim: int, value_dim: int) -> Plan | None:
    """How our kernels take these sequences; None where another backend does.

    Decided at the first call and kept with the segments, as their buckets are: compiled code finds it there and does
    not stop to decide.

    Raises:
        ImportError: the backend is "triton", and it is not installed.
        ValueError: the backend is "triton", and its kernels cannot take this.
    """
    if backend not in ("auto", "triton"):
        return None
    known: Plan | bool | None = getattr(segments, _name(backend, dtype, head_dim, value_dim), None)
    if known is None:
        known = _decide(segments, backend, dtype, head_dim, value_dim)
    return known if isinstance(known, Plan) else None


def kernels_fit(dtype: torch.dtype, head_dim: int, value_dim: int) -> bool:
    """Whether the kernels take such rows, on a GPU where they work."""
    return dtype in _TYPES and max(head_dim, value_dim) <= _WIDEST_HEAD


def keep_plan(
    segments: Segments, plan: Plan | bool, backend: str, *, dtype: torch.dtype, head_dim: int, value_dim: int
) -> None:
    """Have :func:`kernel_plan` find this plan, or False for another backend."""
    object.__setattr__(segments, _name(backend, dtype, head_dim, value_dim), plan)


def _name(backend: str, dtype: torch.dtype, head_dim: int, value_dim: int) -> str:
    return f"kernels_{backend}_{dtype.itemsize}_{head_dim}_{value_dim}"


@eager_only
def _decide(segments: Segments, backend: str, dtype: torch.dtype, head_dim: int, value_dim: int) -> Plan | bool:
    """The plan, or False for another backend."""
    device = segments.offsets.device
    fits = kernels_fit(dtype, head_dim, value_dim)
    if backend == "triton":
        _refuse_unfit(device, dtype, head_dim, value_dim, fits)
        apply = True
    else:
        apply = fits and 0 < _usual_length(segments) <= _LONGEST and device.type == "cuda" and _works(device)
    plan = apply and make_plan(segments, choose_tiling(head_dim, value_dim, dtype.itemsize))
    keep_plan(segments, plan, backend, dtype=dtype, head_dim=head_dim, value_dim=value_dim)
    return plan


def _usual_length(segments: Segments) -> float:
    """The mean over rows, not over sequences: where the work is."""
    lengths = segments.host_lengths.double()
    return float(lengths.square().sum() / lengths.sum().clamp(min=1))


def _refuse_unfit(device: torch.device, dtype: torch.dtype, head_dim: int, value_dim: int, fits: bool) -> None:
    if importlib.util.find_spec("triton") is None:
        raise ImportError("attention backend 'triton' needs the package triton, which is not installed")
    if not fits:
        raise ValueError(
            f"attention backend 'triton' needs bf16, fp16 or fp32 and head sizes up to {_WIDEST_HEAD}; "
            f"got {dtype}, sizes {head_dim} and {value_dim}"
        )
    if (device.type == "cuda") == _interpreted():
        raise ValueError(
            f"attention backend 'triton' needs a GPU (or, for tests on a CPU, TRITON_INTERPRET=1 in the environment); "
            f"got a tensor on {device.type}"
        )


def _interpreted() -> bool:
    if importlib.util.find_spec("triton") is None:
        return False
    from tokengt.attention.kernels.launch import interpreted

    return interpreted()


@cache
def _works(device: torch.device) -> bool:
    """Whether the kernels run on this GPU, tried once: Triton needs a compiler, and an NVIDIA GPU that is not old."""
    if torch.version.cuda is None or torch.cuda.get_device_capability(device) < _OLDEST_GPU:
        return False
    if importlib.util.find_spec("triton") is None:
        return False
    return _tried(
        lambda rows, segments: packed_attention(rows, segments, num_heads=1, head_dim=16, value_dim=16),
        torch.zeros(3, 48, dtype=torch.bfloat16, device=device),
    )


@cache
def _favor_works(
    device: torch.device, dtype: torch.dtype, num_heads: int, head_dim: int, value_dim: int, features: int
) -> bool:
    """Whether those of FAVOR+ do at these sizes, which are then built: wide heads may want more than a GPU has."""

    def attend(rows: Tensor, segments: Segments) -> Tensor:
        projection = torch.zeros(features, head_dim, device=device)
        return _favor(rows, segments, projection, num_heads, head_dim, value_dim, 1e-4)

    width = num_heads * (2 * head_dim + value_dim)
    return _works(device) and _tried(attend, torch.zeros(3, width, dtype=dtype, device=device))


def _tried(attend: Callable[[Tensor, Segments], Tensor], rows: Float[Tensor, "3 width"]) -> bool:
    """Whether attention of two sequences has a gradient; if not, a warning says why."""
    device = rows.device
    try:
        # Whoever asks first may be in a mode without gradients; the answer is for all.
        with torch.inference_mode(False), torch.enable_grad():
            rows = rows.clone().requires_grad_()
            segments = Segments.from_lengths(torch.tensor([1, 2]), device)
            torch.autograd.grad(attend(rows, segments).sum(), rows)
        torch.cuda.synchronize(device)
    except Exception as error:  # Its toolchain fails in ways of its own; PyTorch's kernels do the same, slower.
        reason = str(error).splitlines()[0] if str(error) else ""
        warnings.warn(
            f"Triton's attention kernels do not run on {device} ({type(error).__name__}: {reason}); "
            "using PyTorch's, which are slower",
            stacklevel=2,
        )
        return False
    return True
