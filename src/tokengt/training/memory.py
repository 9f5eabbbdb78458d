"""How much memory a training step may take, and what is done where it would take more.

Whether a step fits is worked out before the first one: a model says about how many bytes it keeps
(:meth:`tokengt.models.contract.ModelConfig.step_bytes`). Where keeping them would take more than half of what there is,
they are computed again for the gradient instead; a model that cannot do that is refused if it does not fit.
"""

import os
from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.models.contract import Model, ModelConfig
from tokengt.training.config import TrainingConfig

GIB = 2**30


class TooLarge(ValueError):
    """A training step that does not fit into memory: one sentence, with the memory that it would need."""


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


def refuse_too_large(
    config: ModelConfig,
    graphs: GraphBatch,
    pieces: Sequence[Int[Tensor, " _"]],
    training: TrainingConfig,
    device: torch.device,
) -> None:
    """Refuse steps that do not fit, before anything is worked out for them; those that can be recomputed are tried.

    Raises:
        TooLarge: one sentence, with the memory that the largest step would need.
    """
    needed, limit = _needed(config, graphs, pieces, training, device), memory_limit(training, device)
    if needed > limit and not (config.recomputes and training.recompute != "never"):
        raise TooLarge(
            f"a training step of {config.describe().name} would need about {needed / GIB:,.1f} GiB for graphs of up to "
            f"{graphs.nodes.max_length:,} nodes and {graphs.edges.host_lengths.max():,} edges, and there are "
            f"{limit / GIB:,.1f} GiB; take smaller graphs, a smaller model, or one that is linear in nodes and edges"
        )


def settle_memory(
    model: Model,
    graphs: GraphBatch,
    pieces: Sequence[Int[Tensor, " _"]],
    training: TrainingConfig,
    device: torch.device,
    *,
    blocks: bool = True,
) -> str | None:
    """Make the model recompute where its steps ask for it; a sentence for the person who trains it, if there is one.

    ``pieces`` are the graphs of some usual steps, as they run at once. ``blocks``: whether the model's own blocks run,
    and no faster twins of them, which keep what they keep.
    """
    if training.recompute == "always":
        able = blocks and model.set_recompute(True)
        return None if able else "training.recompute does nothing for this model or its compiled blocks: all is kept"
    needed, limit = _needed(model.config, graphs, pieces, training, device), memory_limit(training, device)
    if _asks_to_recompute(training, needed, limit) and blocks and model.set_recompute(True):
        shown = f"about {needed / GIB:,.1f} of {limit / GIB:,.1f} GiB"
        return f"activations are computed again for the gradient: keeping them would take {shown}"
    return None


def is_short(
    config: ModelConfig,
    graphs: GraphBatch,
    pieces: Sequence[Int[Tensor, " _"]],
    training: TrainingConfig,
    device: torch.device,
) -> bool:
    """Whether a step would keep more than half of what the device has at all, and may compute it again instead."""
    if training.memory or device.type != "cuda":
        limit = memory_limit(training, device)
    else:
        limit = torch.cuda.get_device_properties(device).total_memory
    return _asks_to_recompute(training, _needed(config, graphs, pieces, training, device), limit)


def _asks_to_recompute(training: TrainingConfig, needed: int, limit: int) -> bool:
    return training.recompute == "auto" and 2 * needed > limit


def _needed(
    config: ModelConfig,
    graphs: GraphBatch,
    pieces: Sequence[Int[Tensor, " _"]],
    training: TrainingConfig,
    device: torch.device,
) -> int:
    """Bytes of the largest step; 0 where the model does not say."""
    needs = [config.step_bytes(graphs, places, _itemsize(training, device)) for places in pieces]
    return max((need for need in needs if need is not None), default=0)


def _itemsize(config: TrainingConfig, device: torch.device) -> int:
    """How many bytes a number of a matrix product has."""
    mixed = device.type == "cuda" if config.precision == "auto" else config.precision == "bfloat16"
    return 8 if config.precision == "float64" else 2 if mixed else 4
