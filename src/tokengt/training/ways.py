"""The ways in which training steps are taken: whether by row kernels, and all of it in words."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from tokengt.models.contract import Model
from tokengt.training.config import TrainingConfig
from tokengt.training.memory import is_short
from tokengt.training.parts import Parts
from tokengt.training.processes import shards_weights

# Tokens of a step in which a GPU is busy for longer than the host needs to call its kernels.
_LARGE_STEP = 2**16


def takes_row_kernels(
    fabric: Any, model: Model, parts: Parts, config: TrainingConfig, steps: Sequence[Int[Tensor, " _"]]
) -> bool:
    """Whether blocks use row kernels though nothing is compiled: where calling them costs the host no time.

    So it is in steps that are recorded, and in large ones, unless memory is short: what kernels keep is not computed
    again. Nor do they go with FSDP: a block leaves its bias to the next one, by when it would be freed.

    Kernels drop other numbers than plain blocks do, so that a resumed run and all processes must decide alike: by all
    that the device has, and by the ``steps`` of all processes, each the graphs that one of them runs at once.
    """
    if shards_weights(fabric) or config.recompute == "always":
        return False
    if model.sequence_rule() is not None:
        return True
    largest = max((int(parts.costs[step].sum()) for step in steps), default=0)
    return largest >= _LARGE_STEP and not is_short(model.config, parts.graphs, steps, config, fabric.device)


def in_words(config: TrainingConfig, device: torch.device, *, kernels: bool, why_not: str | None) -> str:
    """How steps are taken, for people to read.

    ``kernels``: whether blocks run in a faster way than plain ones; ``why_not``: why steps are not recorded, None where
    they are.
    """
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    size = f"{config.batch_tokens:,} tokens" if config.batch_tokens else f"{config.batch_size:,} graphs"
    mixed = device.type == "cuda" if config.precision == "auto" else config.precision == "bfloat16"
    precision = "bfloat16" if mixed else "float32" if config.precision == "auto" else config.precision
    compiled = "blocks compiled" if config.compile else "nothing compiled"
    if why_not is None and config.cuda_graphs:
        graphs = "whole steps recorded as CUDA graphs and replayed"
    elif why_not is None:
        graphs = "no CUDA graphs because training.cuda_graphs is false"
    else:
        graphs = f"no CUDA graphs because {why_not}"
        if kernels and not config.compile:
            compiled = "row kernels between products, nothing compiled"
    return f"{name}: {size} per step in {precision}, {compiled}, {graphs}"
