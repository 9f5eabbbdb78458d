"""How much memory a piece of work takes at most."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

_STATUS, _FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass
class Peak:
    """GiB, once the block has ended; None where the machine does not say."""

    gib: float | None = None


@contextmanager
def peak_memory(device: torch.device) -> Iterator[Peak]:
    """Watch a block: on a GPU what torch allocates there, on a CPU all memory that the process has (Linux alone)."""
    peak = Peak()
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with suppress(OSError):
            _FORGET.write_text("5")  # The kernel forgets the highest mark of this process.
    yield peak
    peak.gib = torch.cuda.max_memory_allocated(device) / 2**30 if on_gpu else _highest()


def _highest() -> float | None:
    with suppress(OSError, ValueError, StopIteration):
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 2**20
    return None
