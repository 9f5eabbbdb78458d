"""How the benchmarks take times on a GPU: by its own events, with the host out of the way where that can be."""

import statistics
from collections.abc import Callable

import torch


def milliseconds(call: Callable[[], object], repeats: int = 20) -> tuple[float, float]:
    """The median time of a call and half its interquartile range, by device events."""
    for _ in range(3):
        call()
    taken = []
    for _ in range(repeats):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        stop.record()
        torch.cuda.synchronize()
        taken.append(start.elapsed_time(stop))
    low, middle, high = statistics.quantiles(taken, n=4)
    return middle, (high - low) / 2


def replayed(call: Callable[[], object]) -> Callable[[], object]:
    """The same work as one captured sequence of launches: what the kernels take when the host is not in the way."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        call()
    return captured.replay
