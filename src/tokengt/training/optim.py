"""AdamW, its learning rate over time and over the depth of a model, and the moving average of the weights."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tokengt.models.contract import Model
from tokengt.training.config import TrainingConfig


def rate_at(progress: float, config: TrainingConfig) -> float:
    """The learning rate when this share of the training (0 to 1) is done: linear warm-up, then the schedule."""
    if progress < config.warmup:
        return config.learning_rate * progress / config.warmup
    rest = (progress - config.warmup) / (1 - config.warmup)
    falls = {
        "cosine": 0.5 * (1 + math.cos(math.pi * rest)),
        "linear": 1 - rest,
        "steps": 0.25 ** int(rest / 0.3),
        "constant": 1.0,
    }
    return config.learning_rate * falls[config.schedule]


def planned_epochs(done: int, seconds: float, config: TrainingConfig) -> int:
    """How many epochs a run comes to that has ``done`` of them behind it after so many ``seconds`` of training.

    Without ``config.minutes`` that is the number of the config. Otherwise it is at most as many as end in time if they
    last as long as those before did; how long one lasts is not known before the first.
    """
    if not config.minutes or not done:
        return config.epochs
    in_time = done * (60 * config.minutes) / max(seconds, 1e-9)
    return int(min(config.epochs, max(done, in_time)))


@dataclass(frozen=True, eq=False)
class RateGroup:
    """Weights of one depth: their rate is ``factor`` times the schedule's, and zero before ``start`` (a share)."""

    parameters: tuple[nn.Parameter, ...]
    factor: float = 1.0
    start: float = 0.0


def rate_groups(model: Model, config: TrainingConfig) -> list[RateGroup]:
    """The trained weights of a model by their depth: its head, its last piece, ..., its first piece, all before them.

    The rate falls by ``config.layer_decay`` from each to the next, and each begins to learn later than the one above
    it: the head at once, the deepest when ``config.unfreeze`` of the training is done. Without either, and for a model
    that tells no head and no pieces, all weights are one group.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if config.layer_decay == 1 and config.unfreeze == 0:
        return [RateGroup(tuple(trained))]
    head = getattr(model, "head", None)
    above = ([head] if isinstance(head, nn.Module) else []) + list(reversed(model.pieces()))
    owned: dict[nn.Parameter, int] = {}
    for depth, part in enumerate(above):
        for parameter in part.parameters():
            owned.setdefault(parameter, depth)
    depths = [owned.get(parameter, len(above)) for parameter in trained]
    deepest = max(depths, default=0) or 1
    groups = []
    for depth in sorted(set(depths)):
        own = tuple(parameter for parameter, at in zip(trained, depths, strict=True) if at == depth)
        groups.append(RateGroup(own, config.layer_decay**depth, config.unfreeze * depth / deepest))
    return groups


def make_optimizer(
    parameters: Sequence[nn.Parameter], config: TrainingConfig, groups: Sequence[RateGroup] = ()
) -> torch.optim.AdamW:
    """AdamW over these parameters, or over those of the groups, which are the same in another order."""
    # On a GPU one kernel updates all weights, and the rate lies there too, so that a recorded step can have another one
    # every time. On a CPU the default keeps the bits of earlier runs.
    on_gpu = bool(parameters) and parameters[0].is_cuda

    def rate() -> Any:
        return torch.tensor(config.learning_rate, device=parameters[0].device) if on_gpu else config.learning_rate

    parts = [
        {"params": list(group.parameters), "lr": rate(), "factor": group.factor, "start": group.start}
        for group in groups or (RateGroup(tuple(parameters)),)
    ]
    return torch.optim.AdamW(
        parts,
        lr=rate(),
        betas=(0.9, config.beta2),
        weight_decay=config.weight_decay,
        fused=True if on_gpu else None,
        capturable=on_gpu,
    )


def set_rate(
    optimizer: torch.optim.Optimizer, rate: float | Float[Tensor, ""], progress: float | Float[Tensor, ""] = 1.0
) -> None:
    """The rate of the schedule when this share of the training is done; numbers, or such as lie on the optimizer's GPU.

    Every group takes its own share of it.
    """
    for group in optimizer.param_groups:
        factor, start = group.get("factor", 1.0), group.get("start", 0.0)
        own = rate * factor * (progress >= start)
        if not isinstance(group["lr"], Tensor):
            group["lr"] = own
        elif isinstance(own, Tensor):
            group["lr"].copy_(own)
        else:
            group["lr"].fill_(own)


def clip_flat(gradient: Float[Tensor, " all"], most: float) -> None:
    """Scale all gradients, which lie in one tensor, to a norm of at most ``most``."""
    norm = torch.linalg.vector_norm(gradient)
    gradient.mul_((most / (norm + 1e-6)).clamp(max=1.0))


class MovingAverage:
    """w_avg <- d w_avg + (1 - d) w after every step, with d smaller at first: min(decay, (1 + t) / (10 + t))."""

    def __init__(self, parameters: Sequence[nn.Parameter], decay: float) -> None:
        self.parameters, self.decay = parameters, decay
        self.values = [parameter.detach().clone() for parameter in parameters]

    def weight(self, step: int) -> float:
        """1 - d at this step, counted from 0."""
        return 1 - min(self.decay, (1 + step) / (10 + step))

    @torch.no_grad()
    def update(self, step: int) -> None:
        for value, parameter in zip(self.values, self.parameters, strict=True):
            _local(value).lerp_(_local(parameter.detach()), self.weight(step))

    @torch.no_grad()
    def update_by(self, weight: Float[Tensor, ""]) -> None:
        """The same with a weight that lies on the GPU, all weights of the model at once."""
        away = torch._foreach_sub(list(self.parameters), self.values)
        torch._foreach_mul_(away, weight)
        torch._foreach_add_(self.values, away)

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
