"""AdamW, its learning rate over time, and the moving average of the weights."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tokengt.training.config import TrainingConfig


def rate_at(progress: float, config: TrainingConfig) -> float:
    """The learning rate when this share of the training (0 to 1) is done: linear warm-up, then the schedule."""
    if progress < config.warmup:
        return config.learning_rate * progress / config.warmup
    rest = (progress - config.warmup) / (1 - config.warmup)
    falls = {"cosine": 0.5 * (1 + math.cos(math.pi * rest)), "linear": 1 - rest, "constant": 1.0}
    return config.learning_rate * falls[config.schedule]


def make_optimizer(parameters: Sequence[nn.Parameter], config: TrainingConfig) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        parameters,
        lr=config.learning_rate,
        betas=(0.9, config.beta2),
        weight_decay=config.weight_decay,
        # On a GPU one kernel updates all weights. On a CPU the default keeps the bits of earlier runs.
        fused=True if parameters and parameters[0].is_cuda else None,
    )


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


class MovingAverage:
    """w_avg <- d w_avg + (1 - d) w after every step, with d smaller at first: min(decay, (1 + t) / (10 + t))."""

    def __init__(self, parameters: Sequence[nn.Parameter], decay: float) -> None:
        self.parameters, self.decay = parameters, decay
        self.values = [parameter.detach().clone() for parameter in parameters]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """``step`` counts from 0."""
        decay = min(self.decay, (1 + step) / (10 + step))
        for value, parameter in zip(self.values, self.parameters, strict=True):
            _local(value).lerp_(_local(parameter.detach()), 1 - decay)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """The averaged weights in the model, for the time of the block."""
        # Copies, not references: the weights of the model are overwritten by the averaged ones.
        own = [parameter.detach().clone() for parameter in self.parameters]
        self._load(self.values)
        try:
            yield
        finally:
            self._load(own)

    @torch.no_grad()
    def _load(self, values: Sequence[Tensor]) -> None:
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.copy_(value)


def _local(tensor: Tensor) -> Tensor:
    """This process's part of a sharded tensor (FSDP); a plain tensor as it is."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part
