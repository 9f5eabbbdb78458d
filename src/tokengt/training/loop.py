"""The training loop: any number of processes, exact when resumed.

Every random choice is a function of (seed, step, process), never of the numbers that were drawn before it: an epoch is
shuffled by a key made of the seed and its number, and the generators are re-seeded at each step for dropout and for
the draws of the model (its random identifiers and sign flips). So a run that was killed and resumed, at any step,
repeats the uninterrupted one bit for bit, and no generator state has to be saved.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tokengt.accelerate import accelerate
from tokengt.batch import GraphBatch
from tokengt.data.batching import epoch_steps
from tokengt.data.facts import fact_of_all
from tokengt.draws import chain_of, seed_generators
from tokengt.models.contract import Model
from tokengt.training.config import TrainingConfig
from tokengt.training.memory import settle_memory
from tokengt.training.objective import Objective
from tokengt.training.optim import MovingAverage, make_optimizer, planned_epochs, rate_at, rate_groups, set_rate
from tokengt.training.parts import Part, Parts
from tokengt.training.processes import Envelope, Enveloped, deterministic, set_up, summed
from tokengt.training.progress import Progress
from tokengt.training.recorded import RecordedSteps, why_not
from tokengt.training.snapshots import Learned, Snapshots, State
from tokengt.training.stopping import Stop, stopping
from tokengt.training.tasks import Task
from tokengt.training.validation import Evaluator, is_better, set_training
from tokengt.training.ways import in_words, takes_row_kernels

# Steps between two looks at the clock: all processes must agree on when to save, and to agree they must wait.
_CLOCK_STEPS = 20


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
        task: Task | Objective,
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
        self.on_epoch, self.warn = on_epoch, warn
        self.progress = progress or Progress(config.epochs, quiet=True)
        self.model = model.double() if config.precision == "float64" else model
        self.parts = on_device(parts, fabric.device)
        self.parts = replace(self.parts, graphs=model.prepared(self.parts.graphs))
        # The same weights run in a faster way where there is one; otherwise this is the model itself.
        steps = [piece for step in self._steps_of(0) for piece in step]
        kernels = takes_row_kernels(fabric, self.model, self.parts, config, steps)
        self.fast = accelerate(self.model, device=fabric.device, compile=config.compile, kernels=kernels)
        self.forward = set_up(fabric, Enveloped(self.fast, several=fabric.world_size > 1))
        if config.compile and self.fast is self.model:
            self.warn("training.compile does nothing for this model: it compiles the blocks of a plain Transformer")
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        if not self.parameters:
            raise ValueError(f"{type(self.model).__name__} has no weights to train; expected parameters with gradients")
        groups = rate_groups(self.model, config)
        self.optimizer = fabric.setup_optimizers(make_optimizer(self.parameters, config, groups))
        self.average = MovingAverage(self.parameters, config.ema) if config.ema else None
        # How many labels every graph holds for training; of links it depends on the epoch.
        self.labels = parts.labels_per_graph(parts.train, task.table)
        if self.parts.links is not None:
            links = replace(self.parts.links, ready=partial(_ready, model), device=self.parts.graphs.device)
            self.parts = replace(self.parts, links=links)
        set_training(self.forward, self.model)  # Which kernels attend depends on dropout.
        usual = [piece for step in self._steps_of(0) for piece in self._mine(step)]
        # Before steps are recorded, which does not go with activations that are computed again.
        plain = self.fast is self.model
        sentence = settle_memory(self.model, self.parts.graphs, usual, config, fabric.device, blocks=plain)
        if sentence is not None:
            self.warn(sentence)
        self.recorded, self._why_not = self._make_recorded(usual)
        recorder = None if self.recorded is None else self.recorded.recorder
        self._evaluator = Evaluator(fabric, self.forward, self.model, self.parts, task, recorder)
        self._learned = Learned(self.model, self.parameters, self.optimizer, self.average)
        checkpoints = None if folder is None else folder / "checkpoints"
        self._snapshots = Snapshots(fabric, self._learned, checkpoints, fingerprint, config.checkpoint_seconds, warn)
        self.state = State()
        self.best: dict[str, Tensor] = {}
        self._counted_at = time.monotonic()
        self._stop = Stop()

    def run(self, resume: bool = False) -> State:
        """Train to the end; leaves the best weights of the run in the model.

        Raises:
            KeyboardInterrupt: a person has pressed Ctrl-C; what was done until then is written down.
        """
        before = self._snapshots.restore() if resume else None
        if before is not None:
            self.state, self.best = before
        self.on_epoch(self.state.records)
        # Of several processes each would hear it at another step: there Ctrl-C ends all of them at once.
        heard = stopping() if self.fabric.world_size == 1 else nullcontext(Stop())
        with deterministic(self.fabric.device), torch.random.fork_rng(self._cuda_devices), heard as self._stop:
            self.progress.start(self.state.epoch)
            self._counted_at = time.monotonic()
            try:
                while not self.state.finished and not self._stop.asked:
                    self._epoch()
                if self._stop.asked and self.state.step and not self.state.finished:
                    self._save()
                self._snapshots.wait()
            finally:
                self._snapshots.close()
                self.progress.close()
                if self.recorded is not None:
                    self.recorded.recorder.forget()
        if self._stop.asked:
            raise KeyboardInterrupt
        self._learned.load_weights(self.best)
        return self.state

    def _epoch(self) -> None:
        state, config = self.state, self.config
        steps = self._steps_of(state.epoch)
        first = state.step_in_epoch
        set_training(self.forward, self.model)
        epochs = max(planned_epochs(state.epoch, state.seconds, config), state.epoch + 1)
        progress = [(state.epoch + (place + 0.5) / len(steps)) / epochs for place in range(first, len(steps))]
        rates = [rate_at(share, config) for share in progress]
        for place, count in enumerate(self.take(steps[first:], rates, progress), first):
            state.label_count += count
            state.step, state.step_in_epoch = state.step + 1, place + 1
            self.progress.advance(1 / len(steps), sum(map(len, steps[place])))
            if self.progress.wants_numbers:
                self.progress.show(loss=f"{self.last_loss() / max(count, 1):.3g}")
            within = place + 1 < len(steps)
            if within and self._stop.asked:
                self._add_losses()
                return
            if within and state.step % _CLOCK_STEPS == 0 and self._snapshots.overdue():
                self._add_losses()
                self._save()
        self._add_losses()
        self._end_epoch()

    def _steps_of(self, epoch: int) -> list[list[Tensor]]:
        """The steps of an epoch, each in as many pieces as processes and accumulated parts take."""
        pieces = self.fabric.world_size * self.config.accumulate
        places, costs = self.parts.train.places, self.parts.costs
        return epoch_steps(places, costs, self.config.batching, seed=self.seed, epoch=epoch, pieces=pieces)

    def _make_recorded(self, usual: list[Tensor]) -> tuple[RecordedSteps | None, str]:
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
            usual=usual,
        )
        return (recorded, "") if recorded.applies else (None, "PyTorch attends to graphs as large as these")

    @property
    def how(self) -> str:
        """How steps are taken, for people to read."""
        why = self._why_not if self.recorded is None else None
        return in_words(self.config, self.fabric.device, kernels=self.fast is not self.model, why_not=why)

    def _mine(self, pieces: list[Tensor]) -> list[Tensor]:
        return pieces[self.fabric.global_rank :: self.fabric.world_size]

    def take(self, steps: list[list[Tensor]], rates: list[float], progress: list[float] | None = None) -> Iterator[int]:
        """Take steps one after another; yields how many labels each one had.

        ``progress`` is the share of the training that is done at each of them; without it all weights learn.
        """
        first, progress = self.state.step, progress or [1.0] * len(steps)
        if self.recorded is not None:
            counts = [self._label_count(step, self.state.epoch) for step in steps]
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

    def _label_count(self, pieces: list[Tensor], epoch: int) -> int:
        links = self.parts.links
        labels = self.labels if links is None else links.labels(epoch)
        return int(sum(int(labels[piece].sum()) for piece in pieces))

    def step(self, pieces: list[Tensor]) -> tuple[Float[Tensor, ""], int]:
        """One optimizer step: the summed loss over all processes, and how many labels it was summed over.

        Every process weighs its labels by the global count, so that any number of processes takes the same step; but
        for batch norm, which takes its moments over the rows of each process.
        """
        world = self.fabric.world_size
        (seed,) = step_seeds(self.seed, self.state.step, 1, self.fabric.global_rank)
        seed_generators(seed, self.fabric.device)
        epoch, mine = self.state.epoch, self._mine(pieces)
        count = self._label_count(pieces, epoch)
        total = torch.zeros((), dtype=torch.float64, device=self.fabric.device)
        self.optimizer.zero_grad()
        for number, piece in enumerate(mine):
            with self.fabric.no_backward_sync(self.forward, enabled=number + 1 < len(mine)):
                # A process without a graph of its own runs another one at weight zero: the processes exchange their
                # gradients in the backward pass, and would wait for one that skipped it.
                places, weight = (piece, 1.0) if len(piece) else (self.parts.train.places[:1], 0.0)
                batch, targets = self.parts.asked(places, epoch, self.fabric.device)
                output = self.forward(Envelope(batch))
                loss = weight * self.task.loss_sum(output, targets)
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
        return summed(self.fabric, total), count

    def outputs(self, part: Part) -> Float[Tensor, "rows out"]:
        """The model's outputs for the rows of a part's graphs, in their order, on the CPU of every process."""
        return self._evaluator.outputs(part)

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
        with self._learned.kept_weights():
            record |= self._evaluator.validated()
            value, loss = record.get("valid", {}).get(self.task.metric), record.get("valid_loss")
            asked = self.config.metric is not None
            if not self.best or is_better(self.task, value, loss, state.best_value, state.best_loss, asked=asked):
                state.best_epoch, state.best_value, state.best_loss = state.epoch, value, loss
                self.best = self._learned.weights()
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
        if self._snapshots.overdue() or state.finished:
            self._save()
        self.on_epoch(state.records)
        notes = {"loss": f"{mean_loss:.3g}"}
        if value is not None and not math.isnan(value):
            notes[self.task.metric] = f"{value:.4g} (best {state.best_value:.4g})"
        self.progress.epoch(state.epoch, state.finished, **notes)

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
        self._snapshots.save(self.state, self.best)

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
    train, valid, test = (Part(p.places, p.targets.to(device)) for p in (parts.train, parts.valid, parts.test))
    return replace(parts, graphs=parts.graphs.to(device), train=train, valid=valid, test=test)


def _ready(model: Model, graphs: GraphBatch) -> GraphBatch:
    """Graphs with all that a model asks of them, worked out once for all steps."""
    for fact in model.config.facts():
        if graphs.fact(fact.name) is None:
            graphs = graphs.with_fact(fact.name, fact_of_all(graphs, fact), fact.per)
    return model.prepared(graphs)


def step_seeds(seed: int, first: int, count: int, rank: int) -> list[int]:
    """Seeds for torch's generators, 0 to 2^63 - 1, of ``count`` steps from ``first`` on."""
    return [chain_of(seed, step, rank) & (2**63 - 1) for step in range(first, first + count)]
