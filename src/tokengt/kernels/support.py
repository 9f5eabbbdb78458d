"""Which rows the kernels take, and whether they run here. Importing this needs no Triton."""

import importlib.util
import os
import warnings
from collections.abc import Callable
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from tokengt.kernels.attend import cut_favor, edge_attention, sums_of_rows, tiled_attention
from tokengt.kernels.cuts import make_cuts
from tokengt.kernels.edge_orders import order_with_loops
from tokengt.kernels.heads import Heads
from tokengt.kernels.runs import Runs
from tokengt.kernels.tiles import choose_tiling, make_tiles
from tokengt.ragged import Segments

TYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDEST_HEAD = 128
# The widest heads of FAVOR+ by type. Half precision is missing: sums over many keys are beyond its range.
_WIDEST_FAVOR = {torch.bfloat16: 128, torch.float32: 64}
# The widest heads of attention to neighbours: a program has a few rows of one head in registers.
_WIDEST_NEIGHBOUR = 1024
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


def edges_fit(dtype: torch.dtype, channels: int) -> bool:
    """Whether the kernels of attention to neighbours take heads of so many channels, on a GPU where they work."""
    return dtype in TYPES and 1 <= channels <= _WIDEST_NEIGHBOUR


@cache
def edges_work(device: torch.device, dtype: torch.dtype, heads: int, channels: int) -> bool:
    """Whether those of attention to neighbours run here at these sizes, which are then built.

    On a CPU they do where tests ask for Triton's interpreter.
    """
    if device.type != "cuda":
        return _asked_for(device)
    return softmax_works(device) and _edges_tried(device, dtype, heads, channels)


def _edges_tried(device: torch.device, dtype: torch.dtype, heads: int, channels: int) -> bool:
    index = torch.tensor([[0, 1], [1, 2]], device=device)

    def attend(rows: Tensor, segments: Segments) -> Tensor:
        left, right = rows.view(3, 2, heads, channels).unbind(1)
        return edge_attention(left, right, torch.zeros(heads, channels, device=device), order_with_loops(index, 3))

    return _tried(attend, torch.zeros(3, 2 * heads * channels, dtype=dtype, device=device))


def sums_fit(dtype: torch.dtype) -> bool:
    """Whether the kernel of sparse sums takes such rows, on a GPU where it works."""
    return dtype in TYPES


@cache
def sums_work(device: torch.device) -> bool:
    """Whether that of sparse sums runs here; on a CPU as :func:`edges_work`."""
    if device.type != "cuda":
        return _asked_for(device)
    return softmax_works(device) and _sums_tried(device)


def _sums_tried(device: torch.device) -> bool:
    def multiply(rows: Tensor, segments: Segments) -> Tensor:
        places, factors = torch.arange(3, device=device), torch.ones(3, device=device)
        runs = Runs(segments.offsets, None)
        return rows[:2] * sums_of_rows(rows.detach(), places, factors, runs, torch.float32)

    return _tried(multiply, torch.zeros(3, 4, device=device))


def _asked_for(device: torch.device) -> bool:
    """Whether tests ask for Triton's interpreter on a CPU; Triton is not imported to find out that nobody did."""
    return device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1" and interpreted()


def _tried(act: Callable[[Tensor, Segments], Tensor], rows: Float[Tensor, "3 width"]) -> bool:
    """Whether what is made of two sequences has a gradient; if not, a warning says why."""
    device = rows.device
    try:
        # The first caller may be in a mode without gradients, but the answer is cached for all callers.
        with torch.inference_mode(False), torch.enable_grad():
            rows = rows.clone().requires_grad_()
            segments = Segments.from_lengths(torch.tensor([1, 2]), device)
            torch.autograd.grad(act(rows, segments).sum(), rows)
        torch.cuda.synchronize(device)
    except Exception as error:  # A broken Triton raises errors of many kinds; PyTorch computes the same, slower.
        reason = str(error).splitlines()[0] if str(error) else ""
        warnings.warn(
            f"Triton's kernels do not run on {device} ({type(error).__name__}: {reason}); "
            "using PyTorch's own, which are slower",
            stacklevel=2,
        )
        return False
    return True
