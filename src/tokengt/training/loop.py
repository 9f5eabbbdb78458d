"""The training loop: any number of processes, exact when resumed.

Every random choice is a function of (seed, step, process), never of the numbers that were drawn before it: an epoch is
shuffled by a key made of the seed and its number, and the generators are re-seeded at each step for dropout and for
the draws of the model (its random identifiers and sign flips). So a run that was killed and resumed, at any step,
repeats the uninterrupted one bit for bit, and no generator state has to be saved.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tokengt.accelerate import accelerate
from tokengt.data.batching import epoch_steps, evaluation_batches, tokens_at_once
from tokengt.draws import chain_of, seed_generators
from tokengt.models.contract import Model
from tokengt.models.passes import keep_norms
from tokengt.training.checkpoint import Checkpoint, CheckpointWriter, read_newest
from tokengt.training.config import TrainingConfig
from tokengt.training.metrics import metrics
from tokengt.training.optim import MovingAverage, make_optimizer, planned_epochs, rate_at, rate_groups, set_rate
from tokengt.training.parts import Part, Parts
from tokengt.training.processes import (
    Envelope,
    Enveloped,
    deterministic,
    environment,
    load_into,
    shards_weights,
    share_buffers,
    whole,
)
from tokengt.training.progress import Progress
from tokengt.training.recorded import RecordedSteps, why_not
from tokengt.training.stopping import Stop, stopping
from tokengt.training.tasks import Task

# Steps between two looks at the clock: all processes must agree on when to save, and to agree they must wait.
_CLOCK_STEPS = 20


@dataclass
class State:
    """Where a run stands; with the tensors of a checkpoint, all that is needed to go on."""

    epoch: int = 0
    step_in_epoch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    label_count: int = 0
    best_epoch: int = 0
    best_value: float | None = None
    best_loss: float | None = None
    finished: bool = False
    # Seconds of training so far, where there is a limit to them; otherwise 0, so that the same run has the same bytes.
    seconds: float = 0.0
    records: list[dict[str, Any]] = field(default_factory=list)


class Trainer:
    """Trains one model on one split.

    Args:
        fabric: a launched Fabric.
        model: the model, its first weights in place; parameters without ``requires_grad`` stay as they are.
        parts: the data.
        task: loss and metrics.
        config: the recipe.
        seed: of shuffling, dropout and identifier draws.
        folder: where ``checkpoints/`` go; None keeps nothing.
        fingerprint: what a checkpoint must have been made with to be resumed.
        warn: told every sentence that a person should read.
    """

    def __init__(
        self,
        fabric: Any,
        model: Model,
        parts: Parts,
        task: Task,
        config: TrainingConfig,
        *,
        seed: int = 0,
        folder: Path | None = None,
        fingerprint: str = "",
        progress: Progress | None = None,
        on_epoch: Callable[[list[dict[str, Any]]], None] = lambda records: None,
        warn: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        config = config.for_graphs(len(parts.train.places))
        self.fabric, self.task, self.config, self.seed = fabric, task, config, seed
        self.folder = None if folder is None else folder / "checkpoints"
        self._writer = CheckpointWriter(self.folder) if self.folder is not None and fabric.is_global_zero else None
        self.fingerprint, self.on_epoch, self.warn = fingerprint, on_epoch, warn
        self.progress = progress or Progress(config.epochs, quiet=True)
        self.model = model.double() if config.precision == "float64" else model
        # The same weights run in a faster way where there is one; otherwise this is the model itself. Row kernels
        # outside of compiled code are for recorded steps: there a block leaves its bias to the next one, by when FSDP
        # would have freed it.
        kernels = self.model.sequence_rule() is not None and not shards_weights(fabric)
        self.fast = accelerate(self.model, device=fabric.device, compile=config.compile, kernels=kernels)
        self.forward = fabric.setup_module(Enveloped(self.fast, several=fabric.world_size > 1))
        if config.compile and self.fast is self.model:
            self.warn("training.compile does nothing for this model: it compiles the blocks of a plain Transformer")
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        if not self.parameters:
            raise ValueError(f"{type(self.model).__name__} has no weights to train; expected parameters with gradients")
        groups = rate_groups(self.model, config)
        self.optimizer = fabric.setup_optimizers(make_optimizer(self.parameters, config, groups))
        self.average = MovingAverage(self.parameters, config.ema) if config.ema else None
        self.parts = on_device(parts, fabric.device)
        self.parts = replace(self.parts, graphs=model.prepared(self.parts.graphs))
        self.labels = parts.labels_per_graph(parts.train, task.table)
        self._train_mode()  # Which kernels attend depends on dropout.
        self.recorded, self._why_not = self._make_recorded()
        self.state = State()
        self.best: dict[str, Tensor] = {}
        self._saved_at = self._counted_at = time.monotonic()
        self._stop = Stop()

    def run(self, resume: bool = False) -> State:
        """Train to the end; leaves the best weights of the run in the model.

        Raises:
            KeyboardInterrupt: a person has pressed Ctrl-C; what was done until then is written down.
        """
        if resume:
            self._restore()
        self.on_epoch(self.state.records)
        # Of several processes each would hear it at another step: there Ctrl-C ends all of them at once.
        heard = stopping() if self.fabric.world_size == 1 else nullcontext(Stop())
        with deterministic(self.fabric.device), torch.random.fork_rng(self._cuda_devices), heard as self._stop:
            self.progress.start(self.state.epoch)
            self._counted_at = time.monotonic()
            try:
                while not self.state.finished and not self._stop.asked:
                    self._epoch()
                if self._writer is not None:
                    self._writer.wait()
            finally:
                if self._writer is not None:
                    self._writer.close()
                self.progress.close()
                if self.recorded is not None:
                    self.recorded.recorder.forget()
        if self._stop.asked:
            raise KeyboardInterrupt
        self._load_weights(self.best)
        return self.state

    def _epoch(self) -> None:
        state, config = self.state, self.config
        steps = self._steps_of(state.epoch)
        first = state.step_in_epoch
        self._train_mode()
        epochs = max(planned_epochs(state.epoch, state.seconds, config), state.epoch + 1)
        progress = [(state.epoch + (place + 0.5) / len(steps)) / epochs for place in range(first, len(steps))]
        rates = [rate_at(share, config) for share in progress]
        for place, count in enumerate(self.take(steps[first:], rates, progress), first):
            state.label_count += count
            state.step, state.step_in_epoch = state.step + 1, place + 1
            self.progress.advance(1 / len(steps), sum(map(len, steps[place])))
            if self.progress.wants_numbers:
                self.progress.show(loss=f"{self.last_loss() / max(count, 1):.3g}")
            late = self._stop.asked or (state.step % _CLOCK_STEPS == 0 and self._overdue())
            if place + 1 < len(steps) and late:
                self._add_losses()
                self._save()
                if self._stop.asked:
                    return
        self._add_losses()
        self._end_epoch()

    def _steps_of(self, epoch: int) -> list[list[Tensor]]:
        """The steps of an epoch, each in as many pieces as processes and accumulated parts take."""
        pieces = self.fabric.world_size * self.config.accumulate
        places, costs = self.parts.train.places, self.parts.costs
        return epoch_steps(places, costs, self.config.batching, seed=self.seed, epoch=epoch, pieces=pieces)

    def _make_recorded(self) -> tuple[RecordedSteps | None, str]:
        """Steps that are replayed, where they can be; else why not."""
        reason = why_not(self.fast, self.parts, self.fabric)
        if reason is not None:
            return None, reason
        recorded = RecordedSteps(
            self.fabric,
            self.fast,
            self.parts,
            self.task,
            self.config,
            self.parameters,
            self.optimizer,
            self.average,
            usual=[piece for step in self._steps_of(0) for piece in self._mine(step)],
        )
        return (recorded, "") if recorded.applies else (None, "PyTorch attends to graphs as large as these")

    @property
    def how(self) -> str:
        """How steps are taken, for people to read."""
        device, config = self.fabric.device, self.config
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
        size = f"{config.batch_tokens:,} tokens" if config.batch_tokens else f"{config.batch_size:,} graphs"
        mixed = device.type == "cuda" if config.precision == "auto" else config.precision == "bfloat16"
        precision = "bfloat16" if mixed else "float32" if config.precision == "auto" else config.precision
        compiled = "blocks compiled" if config.compile else "nothing compiled"
        if self.recorded is None:
            graphs = f"no CUDA graphs because {self._why_not}"
        elif config.cuda_graphs:
            graphs = "whole steps recorded as CUDA graphs and replayed"
        else:
            graphs = "no CUDA graphs because training.cuda_graphs is false"
        return f"{name}: {size} a step in {precision}, {compiled}, {graphs}"

    def _mine(self, pieces: list[Tensor]) -> list[Tensor]:
        return pieces[self.fabric.global_rank :: self.fabric.world_size]

    def take(self, steps: list[list[Tensor]], rates: list[float], progress: list[float] | None = None) -> Iterator[int]:
        """Take steps one after another; yields how many labels each one had.

        ``progress`` is the share of the training that is done at each of them; without it all weights learn.
        """
        first, progress = self.state.step, progress or [1.0] * len(steps)
        if self.recorded is not None:
            counts = [self._label_count(step) for step in steps]
            seeds = step_seeds(self.seed, first, len(steps), self.fabric.global_rank)
            mine = [self._mine(step) for step in steps]
            yield from self.recorded.run(mine, counts, rates, progress, seeds, first)
            return
        # Losses are added up on the device, because reading one at every step would make the host wait for a GPU.
        self._loss = torch.zeros((), dtype=torch.float64, device=self.fabric.device)
        self._loss += self.state.loss_sum
        for step, rate, share in zip(steps, rates, progress, strict=True):
            set_rate(self.optimizer, rate, share)
            self._last, count = self.step(step)
            self._loss += self._last
            yield count

    def last_loss(self) -> float:
        """The loss of the step before, for people to see; of several processes the first one's, times their number."""
        return float(self._last) if self.recorded is None else self.recorded.last_loss() * self.fabric.world_size

    def _add_losses(self) -> None:
        """The losses of the steps so far, in their order: a resumed run adds up the same numbers."""
        if self.recorded is None:
            self.state.loss_sum = float(self._loss)
            return
        for loss in self.recorded.take_losses():
            self.state.loss_sum += loss

    def _label_count(self, pieces: list[Tensor]) -> int:
        return int(sum(int(self.labels[piece].sum()) for piece in pieces))

    def step(self, pieces: list[Tensor]) -> tuple[Float[Tensor, ""], int]:
        """One optimizer step: the summed loss over all processes, and how many labels it was summed over.

        Every process weighs its labels by the global count, so that any number of processes takes the same step; but
        for batch norm, which takes its moments over the rows of each process.
        """
        world = self.fabric.world_size
        (seed,) = step_seeds(self.seed, self.state.step, 1, self.fabric.global_rank)
        seed_generators(seed, self.fabric.device)
        count, mine = self._label_count(pieces), self._mine(pieces)
        total = torch.zeros((), dtype=torch.float64, device=self.fabric.device)
        self.optimizer.zero_grad()
        for number, piece in enumerate(mine):
            with self.fabric.no_backward_sync(self.forward, enabled=number + 1 < len(mine)):
                # A process without a graph of its own runs another one at weight zero: the processes exchange their
                # gradients in the backward pass, and would wait for one that skipped it.
                places, weight = (piece, 1.0) if len(piece) else (self.parts.train.places[:1], 0.0)
                output = self.forward(self._batch(places))
                loss = weight * self.task.loss_sum(output, self._targets(self.parts.train, places))
                # DDP averages the gradients of the processes; the factor makes that average their sum.
                self.fabric.backward(loss * (world / max(count, 1)))
                total += loss.detach()
        for parameter in self.parameters:
            # AdamW skips a parameter without a gradient, and so would not decay it. With several processes it always
            # has one (zero), and any number of processes must take the same step.
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        if self.config.clip:
            nn.utils.clip_grad_norm_(self.parameters, self.config.clip)
        self.optimizer.step()
        if self.average is not None:
            self.average.update(self.state.step)
        return self._summed(total), count

    def _end_epoch(self) -> None:
        state = self.state
        mean_loss = state.loss_sum / max(state.label_count, 1)
        if not math.isfinite(mean_loss):
            raise ValueError(
                f"the training loss became {mean_loss} in epoch {state.epoch + 1}; "
                "lower training.learning_rate, or set training.precision=float32"
            )
        state.epoch, state.step_in_epoch = state.epoch + 1, 0
        record: dict[str, Any] = {
            "epoch": state.epoch,
            "step": state.step,
            # Groups come from the head downwards, and the head learns at the full rate.
            "learning_rate": float(self.optimizer.param_groups[0]["lr"]),
            "train_loss": mean_loss,
        }
        state.loss_sum, state.label_count = 0.0, 0
        with self._kept_weights():
            record |= self._validation()
            value, loss = record.get("valid", {}).get(self.task.metric), record.get("valid_loss")
            better = not self.best or self._is_better(value, loss)
            if better:
                state.best_epoch, state.best_value, state.best_loss = state.epoch, value, loss
                self.best = self._weights()
        if state.epoch == 1 and value is not None and math.isnan(value):
            self.warn(
                f"{self.task.metric} is not defined on the validation part, such as where its labels are all alike; "
                "the epoch with the lowest validation loss is kept instead"
            )
        state.records.append(record)
        patient = not self.config.patience or state.epoch - state.best_epoch < self.config.patience
        self._count_seconds()
        state.finished = state.epoch >= planned_epochs(state.epoch, state.seconds, self.config) or not patient
        if state.finished and patient and state.epoch < self.config.epochs:
            self.warn(
                f"training ends after {state.epoch} of {self.config.epochs} epochs: another one would end after the "
                f"{self.config.minutes:g} minutes that it has"
            )
        if self._overdue() or state.finished or self._stop.asked:
            self._save()
        self.on_epoch(state.records)
        notes = {"loss": f"{mean_loss:.3g}"} | (
            {} if value is None else {self.task.metric: f"{value:.4g} (best {state.best_value:.4g})"}
        )
        self.progress.epoch(state.epoch, state.finished, **notes)

    def _is_better(self, value: float | None, loss: float | None) -> bool:
        """By the metric, and where that cannot decide by the loss.

        A few validation rows tie often (every ROC-AUC of 1 is alike). The mean error of several targets is that of
        the one with the largest numbers; their scaled loss is not, so it decides unless a metric was asked for.
        """
        best, least = self.state.best_value, self.state.best_loss
        falls = loss is not None and least is not None and loss < least
        of_many = self.task.kind == "regression" and len(self.task.names) > 1
        if value is None or (of_many and self.config.metric is None):
            return value is None or falls
        tied = value == best or (math.isnan(value) and (best is None or math.isnan(best)))
        return self.task.is_better(value, best) or (tied and falls)

    def _validation(self) -> dict[str, Any]:
        part = self.parts.valid
        if not len(part.places):
            return {}
        output = self.outputs(part)
        targets = part.targets.cpu()
        count = self.task.label_count(self._of(part, targets))
        loss = self.task.loss_sum(output, self._of(part, targets))
        exact = self.task.table.exact(self._of(part, targets))
        values = metrics(self.task, self.task.predictions(output), exact)
        return {"valid_loss": float(loss) / max(count, 1), "valid": values}

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
        self._train_mode()
        # A row is written by one process and zero in all others, so that the sum is the whole table.
        return self._summed(out).cpu()

    def _evaluated(self, places: Int[Tensor, " graphs"]) -> Float[Tensor, "rows out"]:
        """A batch's outputs. Recordings hold memory that evaluation may need: then they give it up."""
        try:
            out: Tensor = self.forward(self._batch(places))
        except torch.OutOfMemoryError as error:
            if self.recorded is None or not self.recorded.recorder.holds_memory:
                raise
            reason = str(error)
        else:
            return out
        self.recorded.recorder.give_up(reason)
        again: Tensor = self.forward(self._batch(places))
        return again

    def _train_mode(self) -> None:
        self.forward.train()
        keep_norms(self.model, frozen_only=True)

    def _of(self, part: Part, table: Float[Tensor, "rows columns"]) -> Float[Tensor, "chosen columns"]:
        """The rows of a table that belong to a part's graphs."""
        index, _ = self.parts.rows.take(part.places)
        return table.index_select(0, index.cpu())

    def _targets(self, part: Part, places: Int[Tensor, " graphs"]) -> Float[Tensor, "rows targets"]:
        index, _ = self.parts.rows.take(places)
        return part.targets.index_select(0, index).to(self.fabric.device)

    def _batch(self, places: Int[Tensor, " graphs"]) -> Envelope:
        batch = self.parts.graphs.select(places)
        return Envelope(batch if batch.device == self.fabric.device else batch.to(self.fabric.device))

    def _summed(self, tensor: Tensor) -> Tensor:
        if self.fabric.world_size == 1:
            return tensor
        total: Tensor = self.fabric.all_reduce(tensor, reduce_op="sum")
        return total

    @contextmanager
    def _kept_weights(self) -> Iterator[None]:
        """The weights that are validated and kept: the moving average where there is one."""
        with self.average.swapped_in() if self.average is not None else nullcontext():
            yield

    def _overdue(self) -> bool:
        """Whether the last checkpoint is old and written; all processes hear what the first one says."""
        late = time.monotonic() - self._saved_at > self.config.checkpoint_seconds
        late = late and not (self._writer is not None and self._writer.busy)
        return bool(self.fabric.broadcast(late)) if self.fabric.world_size > 1 else late

    def _count_seconds(self) -> None:
        """Add the time since the last call to that of the run; all processes take the first one's."""
        now = time.monotonic()
        if self.config.minutes:
            self.state.seconds += now - self._counted_at
            if self.fabric.world_size > 1:
                self.state.seconds = float(self.fabric.broadcast(self.state.seconds))
        self._counted_at = now

    def _save(self) -> None:
        self._count_seconds()
        # Putting a sharded tensor together needs every process; only the first one writes.
        tensors = {f"model.{name}": whole(tensor) for name, tensor in self.model.state_dict().items()}
        for number, parameter in enumerate(self.parameters):
            for name, value in self.optimizer.state[parameter].items():
                tensors[f"optimizer.{number}.{name}"] = whole(value)
        if self.average is not None:
            tensors |= {f"average.{number}": whole(value) for number, value in enumerate(self.average.values)}
        if not self._best_is_here:
            tensors |= {f"best.{name}": tensor for name, tensor in self.best.items()}
        state = asdict(self.state) | {"fingerprint": self.fingerprint, "environment": self._environment}
        if self._writer is not None:
            self._writer.put(Checkpoint(tensors, state))
        self._saved_at = time.monotonic()

    @property
    def _best_is_here(self) -> bool:
        """Whether the best weights are those of this moment, so that a checkpoint holds them already."""
        return self.state.step_in_epoch == 0 and self.state.best_epoch == self.state.epoch > 0

    def _restore(self) -> None:
        if self.folder is None:
            return
        checkpoint, problems = read_newest(self.folder)
        for problem in problems:
            self.warn(f"{problem}; " + ("going back to the one before" if checkpoint else "starting anew"))
        if checkpoint is None:
            return
        state = dict(checkpoint.state)
        if state.pop("fingerprint") != self.fingerprint:
            raise ValueError(f"{self.folder} was written with other data or settings; resume with those it had")
        then, now = state.pop("environment"), self._environment
        changed = [f"{key} was {then.get(key)} and is {now[key]}" for key in now if then.get(key) != now[key]]
        if changed:
            self.warn(f"resumed elsewhere ({'; '.join(changed)}): the last bits may differ from an unbroken run")
        self.state = State(**state)
        self._load_weights(checkpoint.under("model"))
        for number, parameter in enumerate(self.parameters):
            self._load_optimizer(parameter, checkpoint.under(f"optimizer.{number}"))
        if self.average is not None:
            for number, value in enumerate(self.average.values):
                load_into(value, checkpoint.tensors[f"average.{number}"])
        self.best = checkpoint.under("best")
        if self._best_is_here:
            with self._kept_weights():
                self.best = self._weights()

    def _weights(self) -> dict[str, Tensor]:
        """A copy of the model's weights, put together where they are sharded."""
        return {name: whole(tensor).clone() for name, tensor in self.model.state_dict().items()}

    def _load_weights(self, weights: dict[str, Tensor]) -> None:
        for name, tensor in self.model.state_dict().items():
            load_into(tensor, weights[name])

    def _load_optimizer(self, parameter: nn.Parameter, saved: dict[str, Tensor]) -> None:
        state = self.optimizer.state[parameter]
        for name, value in saved.items():
            if value.ndim == 0:
                # A single number is the count of steps, which the optimizer of a GPU keeps on the GPU.
                state[name] = value.to(parameter.device if parameter.is_cuda else "cpu", copy=True)
            else:
                state[name] = torch.zeros_like(parameter)
                load_into(state[name], value)

    @property
    def _environment(self) -> dict[str, Any]:
        return environment(self.fabric.world_size) | {"device": self.fabric.device.type}

    @property
    def _cuda_devices(self) -> list[int]:
        return [self.fabric.device.index or 0] if self.fabric.device.type == "cuda" else []


def on_device(parts: Parts, device: torch.device) -> Parts:
    """The data in the device's memory when it takes less than half of what is free there; else batches travel."""
    if device.type != "cuda":
        return parts
    free, _ = torch.cuda.mem_get_info(device)
    if parts.graphs.nbytes + parts.train.targets.nbytes * 3 > free // 2:
        return parts
    moved = {
        name: Part(getattr(parts, name).places, getattr(parts, name).targets.to(device))
        for name in ("train", "valid", "test")
    }
    return Parts(parts.graphs.to(device), parts.level, parts.costs, **moved)


def step_seeds(seed: int, first: int, count: int, rank: int) -> list[int]:
    """Seeds for torch's generators, 0 to 2^63 - 1, of ``count`` steps from ``first`` on."""
    return [chain_of(seed, step, rank) & (2**63 - 1) for step in range(first, first + count)]
