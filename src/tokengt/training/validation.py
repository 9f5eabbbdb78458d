"""What a model says of a part of the data, and which epoch of a run is the best one by it."""

import math
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tokengt.accelerate import Recorder
from tokengt.data.batching import evaluation_batches, tokens_at_once
from tokengt.models.contract import Model
from tokengt.models.passes import keep_norms
from tokengt.training.metrics import metrics
from tokengt.training.objective import Objective
from tokengt.training.parts import Part, Parts
from tokengt.training.processes import Envelope, share_buffers, summed
from tokengt.training.tasks import Task


def set_training(forward: nn.Module, model: Model) -> None:
    """Training mode, but for batch norms that are frozen."""
    forward.train()
    keep_norms(model, frozen_only=True)


def is_better(
    task: Task | Objective,
    value: float | None,
    loss: float | None,
    best: float | None,
    least: float | None,
    *,
    asked: bool,
) -> bool:
    """By the metric, and where that cannot decide by the loss; ``best`` and ``least`` are those of the best epoch.

    A few validation rows tie often (every ROC-AUC of 1 is alike). The mean error of several targets is that of the one
    with the largest numbers; their scaled loss is not, so it decides unless a metric was ``asked`` for.
    """
    falls = loss is not None and least is not None and loss < least
    of_many = isinstance(task, Task) and task.kind == "regression" and len(task.names) > 1
    if value is None or (of_many and not asked):
        return value is None or falls
    tied = value == best or (math.isnan(value) and (best is None or math.isnan(best)))
    return task.is_better(value, best) or (tied and falls)


class Evaluator:
    """A model over parts of the data, shared by all processes.

    Args:
        fabric: a launched Fabric.
        forward: the model as Fabric wraps it.
        model: the model itself.
        parts: the data.
        task: its metrics.
        recorder: that of recorded steps, which hold memory; None where there are none.
    """

    def __init__(
        self,
        fabric: Any,
        forward: nn.Module,
        model: Model,
        parts: Parts,
        task: Task | Objective,
        recorder: Recorder | None,
    ) -> None:
        self.fabric, self.forward, self.model, self.parts, self.task = fabric, forward, model, parts, task
        self.recorder = recorder

    def validated(self) -> dict[str, Any]:
        """Loss and metrics of the validation part, as a record of an epoch has them; empty where it has no graph."""
        part = self.parts.valid
        if not len(part.places):
            return {}
        output = self.outputs(part)
        targets = self.parts.targets(part, part.places).cpu()
        if not isinstance(self.task, Task):
            return self.task.validated(output, targets)
        # Auxiliary numbers are there to be learned from, not to be right about.
        task = replace(self.task, auxiliary_weight=0.0)
        loss = float(task.loss_sum(output, targets)) / max(task.label_count(targets), 1)
        exact = self.task.table.exact(targets)
        return {"valid_loss": loss, "valid": metrics(self.task, self.task.predictions(output), exact)}

    @torch.no_grad()
    def outputs(self, part: Part) -> Float[Tensor, "rows out"]:
        """The model's outputs for the rows of a part's graphs, in their order, on the CPU of every process."""
        self.forward.eval()
        share_buffers(self.model, self.fabric.world_size)
        batches = evaluation_batches(part.places, self.parts.costs, tokens_at_once(self.fabric.device))
        world, rank = self.fabric.world_size, self.fabric.global_rank
        _, rows = self.parts.rows.take(part.places)
        out = torch.zeros(rows.total, self.task.out_dim, dtype=torch.float64, device=self.fabric.device)
        # Every process makes the same number of calls, because the processes of a sharded model meet in each of them
        # to put its weights together; one that has no batch left repeats the last and throws the result away.
        for first in range(0, len(batches), world):
            mine = batches[min(first + rank, len(batches) - 1)]
            values = self._evaluated(mine)
            if first + rank < len(batches):
                index, _ = rows.take(torch.searchsorted(part.places, mine))
                out.index_copy_(0, index.to(out.device), values.double())
        set_training(self.forward, self.model)
        # A row is written by one process and zero in all others, so that the sum is the whole table.
        return summed(self.fabric, out).cpu()

    def _evaluated(self, places: Int[Tensor, " graphs"]) -> Float[Tensor, "rows out"]:
        """A batch's outputs. Recordings hold memory that evaluation may need: then they give it up."""
        try:
            return self._run(places)
        except torch.OutOfMemoryError as error:
            if self.recorder is None or not self.recorder.holds_memory:
                raise
            reason = str(error)
        self.recorder.give_up(reason)
        return self._run(places)

    def _run(self, places: Int[Tensor, " graphs"]) -> Float[Tensor, "rows out"]:
        out: Tensor = self.forward(Envelope(self.parts.batch(places, self.fabric.device)))
        return out
