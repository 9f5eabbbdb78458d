"""What happens when the memory of a device does not suffice for a system."""

import gc

import torch
from torch import nn

# A full CPU raises a plain RuntimeError, known by the allocator that its text names.
_CPU_ALLOCATOR = "DefaultCPUAllocator"


def is_full(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or _CPU_ALLOCATOR in str(error)


def let_go(model: nn.Module, device: torch.device) -> None:
    """Give back what a step that failed has left: gradients, and what torch keeps for the next allocation."""
    for parameter in model.parameters():
        parameter.grad = None
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def sentence(device: torch.device) -> str:
    """What a row says of a system that memory did not suffice for: how much of it there was, on a GPU."""
    if device.type != "cuda":
        return "out of memory"
    free, _ = torch.cuda.mem_get_info(device)
    return f"out of memory: it needs more than the {free / 2**30:.0f} GiB that were free for it"
