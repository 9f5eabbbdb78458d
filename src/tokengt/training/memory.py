"""How much memory a training step may take, and what is done where it would take more.

Whether a step fits is worked out before the first one: a model says about how many bytes it keeps
(:meth:`tokengt.models.contract.Model.step_bytes`). Where keeping them would take more than half of what there is, they
are computed again for the gradient instead; a model that cannot do that is refused if it does not fit.
"""

import os
from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.models.contract import Model
from tokengt.training.config import TrainingConfig

GIB = 2**30


def memory_limit(config: TrainingConfig, device: torch.device) -> int:
    """Bytes that a step may take: as ``training.memory`` says, else what is free on the device now."""
    if config.memory:
        return round(config.memory * GIB)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    return _available()


def _available() -> int:
    """Bytes of this machine's memory that can be had without moving any to disk."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            found = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(found.split()[1]) * 1024
    except (OSError, StopIteration, ValueError, IndexError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def settle_memory(
    model: Model,
    graphs: GraphBatch,
    pieces: Sequence[Int[Tensor, " _"]],
    config: TrainingConfig,
    device: torch.device,
    *,
    blocks: bool = True,
) -> str | None:
    """Make the model recompute where its steps ask for it; a sentence for the person who trains it, if there is one.

    ``pieces`` are the graphs of some usual steps, as they run at once. ``blocks``: whether the model's own blocks run,
    and no faster twins of them, which keep what they keep.

    Raises:
        ValueError: one sentence: the largest step does not fit, with the memory that it would need.
    """
    if config.recompute == "always":
        able = blocks and model.set_recompute(True)
        return None if able else "training.recompute does nothing for this model or its compiled blocks: all is kept"
    itemsize = _itemsize(config, device)
    needs = [model.step_bytes(graphs, places, itemsize) for places in pieces]
    needed = max((need for need in needs if need is not None), default=0)
    limit = memory_limit(config, device)
    if 2 * needed <= limit:
        return None
    if config.recompute == "auto" and blocks and model.set_recompute(True):
        return f"activations are computed again for the gradient: keeping them would take {_shown(needed, limit)}"
    if needed > limit and blocks:
        name = model.config.describe().name
        raise ValueError(
            f"a training step of {name} would need about {needed / GIB:,.1f} GiB for {_largest(graphs)}, and there are "
            f"{limit / GIB:,.1f} GiB; take smaller graphs, a smaller model, or one that is linear in nodes and edges"
        )
    return None


def _itemsize(config: TrainingConfig, device: torch.device) -> int:
    """How many bytes a number of a matrix product has."""
    mixed = device.type == "cuda" if config.precision == "auto" else config.precision == "bfloat16"
    return 8 if config.precision == "float64" else 2 if mixed else 4


def _shown(needed: int, limit: int) -> str:
    return f"about {needed / GIB:,.1f} of {limit / GIB:,.1f} GiB"


def _largest(graphs: GraphBatch) -> str:
    return f"graphs of up to {graphs.nodes.max_length:,} nodes and {graphs.edges.max_length:,} edges"
