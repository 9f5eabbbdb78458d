"""Which rows the kernels take, and whether they run here. Importing this needs no Triton."""

import importlib.util
import warnings
from collections.abc import Callable
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from tokengt.kernels.attend import cut_favor, tiled_attention
from tokengt.kernels.cuts import make_cuts
from tokengt.kernels.heads import Heads
from tokengt.kernels.tiles import choose_tiling, make_tiles
from tokengt.ragged import Segments

TYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDEST_HEAD = 128
# The widest heads of FAVOR+ by type. Half precision is missing: sums over many keys are beyond its range.
_WIDEST_FAVOR = {torch.bfloat16: 128, torch.float32: 64}
_OLDEST_GPU = (8, 0)


def installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Whether Triton runs its kernels in Python on CPU tensors, as tests ask it to (TRITON_INTERPRET=1)."""
    if not installed():
        return False
    from tokengt.kernels.packed_launch import interpreted as made_for_python

    return made_for_python()


def softmax_fits(dtype: torch.dtype, heads: Heads) -> bool:
    """Whether the softmax kernels take such rows, on a GPU where they work."""
    return dtype in TYPES and max(heads.key, heads.value) <= WIDEST_HEAD


def favor_fits(dtype: torch.dtype, heads: Heads) -> bool:
    """Whether the FAVOR+ kernels take such rows, on a GPU where they work."""
    return max(heads.key, heads.value) <= _WIDEST_FAVOR.get(dtype, 0)


@cache
def softmax_works(device: torch.device) -> bool:
    """Whether the kernels run on this GPU, tried once: Triton needs a compiler, and an NVIDIA GPU that is not old."""
    if torch.version.cuda is None or torch.cuda.get_device_capability(device) < _OLDEST_GPU or not installed():
        return False
    heads = Heads(1, 16, 16)

    def attend(rows: Tensor, segments: Segments) -> Tensor:
        tiles = make_tiles(segments, choose_tiling(heads.key, heads.value, rows.element_size()))
        return tiled_attention(rows, tiles, heads)

    return _tried(attend, torch.zeros(3, heads.width, dtype=torch.bfloat16, device=device))


@cache
def favor_works(device: torch.device, dtype: torch.dtype, heads: Heads, features: int) -> bool:
    """Whether those of FAVOR+ run at these sizes, which are then built: wide heads may want more than a GPU has."""

    def attend(rows: Tensor, segments: Segments) -> Tensor:
        projection = torch.zeros(features, heads.key, device=device)
        return cut_favor(rows, projection, make_cuts(segments, heads.count, features), heads, 1e-4)

    return softmax_works(device) and _tried(attend, torch.zeros(3, heads.width, dtype=dtype, device=device))


def _tried(attend: Callable[[Tensor, Segments], Tensor], rows: Float[Tensor, "3 width"]) -> bool:
    """Whether attention of two sequences has a gradient; if not, a warning says why."""
    device = rows.device
    try:
        # The first caller may be in a mode without gradients, but the answer is cached for all callers.
        with torch.inference_mode(False), torch.enable_grad():
            rows = rows.clone().requires_grad_()
            segments = Segments.from_lengths(torch.tensor([1, 2]), device)
            torch.autograd.grad(attend(rows, segments).sum(), rows)
        torch.cuda.synchronize(device)
    except Exception as error:  # A broken Triton raises errors of many kinds; PyTorch computes the same, slower.
        reason = str(error).splitlines()[0] if str(error) else ""
        warnings.warn(
            f"Triton's attention kernels do not run on {device} ({type(error).__name__}: {reason}); "
            "using PyTorch's, which are slower",
            stacklevel=2,
        )
        return False
    return True
