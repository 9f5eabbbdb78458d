"""Where a step's time goes: the profiler's operators (CPU) or kernels (GPU) summed into a handful of kinds."""

import os
import re
import time
import warnings
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from tokengt.bench.counting import wait

KINDS = ("matrix products", "attention", "elementwise and norms", "feed and copies", "identifiers", "optimizer")
REST = {"cpu": "Python and the rest", "cuda": "idle"}
STEPS = 3

# The first pattern that is found in the name of a kernel decides its kind; the last one fits every name.
_KERNELS = (
    (
        "attention",
        r"flash|fmha|attn|attention|softmax|(forward|backward)_(whole|looped)|"
        r"sum_tables|over_pieces|answer_queries|(queries|keys)_backward",
    ),
    ("elementwise and norms", r"^triton_"),
    ("optimizer", r"multi_tensor|adam"),
    ("matrix products", r"gemm|gemv|cutlass|cublas|nvjet|xmma|splitk"),
    ("identifiers", r"syev|jacobi|geqr|orgqr|larf|householder"),
    ("feed and copies", r"memcpy|memset|copy|index|gather|scatter|catarray|arange|fill|scan|sort|embedding"),
    ("elementwise and norms", r""),
)
_OPERATORS = (
    ("optimizer", r"^optimizer|_foreach_|_fused_adam|linalg_vector_norm"),
    ("attention", r"scaled_dot_product|flash_attention|softmax|aten::bmm|packed_attention"),
    ("matrix products", r"aten::(addmm|mm|linear|matmul|_addmm_activation)$|mkl"),
    ("identifiers", r"linalg_eigh|linalg_qr|geqrf|orgqr"),
    (
        "feed and copies",
        r"copy|clone|index|gather|scatter|aten::cat|repeat|cumsum|arange|fill_|zero|empty|sort|searchsorted|embedding",
    ),
    ("elementwise and norms", r"^aten::|fused|compiled"),
)


def kind_of(name: str, device: str) -> str | None:
    """The kind of an operator (``device`` "cpu") or kernel ("cuda"); None for what only calls others."""
    patterns = _KERNELS if device == "cuda" else _OPERATORS
    return next((kind for kind, pattern in patterns if re.search(pattern, name.lower())), None)


def breakdown(step: Callable[[], object], device: torch.device, seconds: float | None = None) -> dict[str, float]:
    """Milliseconds of one step by kind, the rest last; all together are the step's time.

    ``seconds``: how long a step takes without the profiler, for a GPU: kernels take as long as ever under the
    profiler, launching them does not. On a CPU the profiled steps themselves are divided up.
    """
    _recorded(step, 1, device)  # The first use of the profiler costs as much as a step, so it is not counted.
    events, profiled = _recorded(step, STEPS, device)
    milliseconds = dict.fromkeys(KINDS, 0.0)
    for event in events:
        kind, microseconds = _cost(event, device.type)
        if kind is not None:
            milliseconds[kind] += microseconds / 1e3 / STEPS
    whole = 1e3 * (seconds if seconds is not None and device.type == "cuda" else profiled / STEPS)
    return {**milliseconds, REST[device.type]: max(0.0, whole - sum(milliseconds.values()))}


def launches(step: Callable[[], object], device: torch.device) -> dict[str, float]:
    """What a step asks of a GPU: kernels, copies and fills that ran, and by how many calls of the host they came.

    A replayed recording is one call for all its kernels. All are zero on a CPU.
    """
    _recorded(step, 1, device)
    events, _ = _recorded(step, STEPS, device)
    return count_launches(events, STEPS)


def count_launches(events: Sequence[Any], steps: int) -> dict[str, float]:
    """The counts of :func:`launches`, from the profiler's events of so many steps."""
    counts = dict.fromkeys(("kernels", "copies", "launches", "replays"), 0)
    for event in events:
        if event.device_type == DeviceType.CUDA:
            if not event.is_user_annotation:
                counts["copies" if re.match(r"mem(cpy|set)", event.name.lower()) else "kernels"] += 1
        elif re.match(r"cu(da)?GraphLaunch", event.name):
            counts["replays"] += 1
        elif re.match(r"cu(da)?(LaunchKernel|Memcpy|Memset)", event.name):
            counts["launches"] += 1
    return {name: count / steps for name, count in counts.items()}


def allocated_at_most(work: Callable[[], object]) -> int:
    """Bytes in tensors on a CPU that ``work`` has allocated when there are most, by torch's own count."""
    _quiet()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work()
    assert recorded.profiler is not None
    events: Any = recorded.profiler.kineto_results
    blocks = sorted((each.start_ns(), each.nbytes()) for each in events.events() if each.name() == "[memory]")
    return int(max(accumulate((size for _, size in blocks), initial=0)))


def _quiet() -> None:
    """Otherwise the profiler reports every start and stop on stderr."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def _recorded(step: Callable[[], object], steps: int, device: torch.device) -> tuple[Sequence[Any], float]:
    """The profiler's events, and the seconds between the first and the last."""
    _quiet()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=activities, acc_events=True) as recorded:
        wait(device)
        start = time.perf_counter()
        for _ in range(steps):
            step()
        wait(device)
        seconds = time.perf_counter() - start
    return recorded.events() or (), seconds


def _cost(event: Any, device: str) -> tuple[str | None, float]:
    if device == "cuda":
        kernel = event.device_type == DeviceType.CUDA and not event.is_user_annotation
        return (kind_of(event.name, device) if kernel else None), event.time_range.elapsed_us()
    if _inside_optimizer(event):
        return "optimizer", event.self_cpu_time_total
    return kind_of(event.name, device), event.self_cpu_time_total


def _inside_optimizer(event: Any) -> bool:
    while event is not None:
        if event.name.startswith("Optimizer.step"):
            return True
        event = event.cpu_parent
    return False


def synchronisations(step: Callable[[], object], device: torch.device) -> int | None:
    """How often a step makes the host wait for the GPU; None on a CPU."""
    if device.type != "cuda":
        return None
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    return sum("called a synchronizing" in str(warning.message) for warning in caught)


def compiled_graphs() -> int:
    """How many graphs ``torch.compile`` has made in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
