"""Where a run stands, taken down in checkpoints and put back from them.

A checkpoint holds all that training changes (:class:`Learned`), the best weights so far and the :class:`State`. With
these a run goes on exactly: no generator has a state that would have to be kept.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tokengt.models.contract import Model
from tokengt.training.checkpoint import Checkpoint, CheckpointWriter, read_newest
from tokengt.training.optim import MovingAverage
from tokengt.training.processes import environment, load_into, whole


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

    @property
    def is_best(self) -> bool:
        """Whether the best weights are those of this moment."""
        return self.step_in_epoch == 0 and self.best_epoch == self.epoch > 0


@dataclass(frozen=True, eq=False)
class Learned:
    """All that training changes; parameters and their averages may be sharded over processes."""

    model: Model
    parameters: Sequence[nn.Parameter]
    optimizer: Any
    average: MovingAverage | None

    def weights(self) -> dict[str, Tensor]:
        """A copy of the model's weights, put together where they are sharded."""
        return {name: whole(tensor).clone() for name, tensor in self.model.state_dict().items()}

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        for name, tensor in self.model.state_dict().items():
            load_into(tensor, weights[name])

    @contextmanager
    def kept_weights(self) -> Iterator[None]:
        """The weights that are validated and kept: the moving average where there is one."""
        with self.average.swapped_in() if self.average is not None else nullcontext():
            yield

    def tensors(self) -> dict[str, Tensor]:
        """Everything by its name in a checkpoint; every process must call this."""
        tensors = {f"model.{name}": whole(tensor) for name, tensor in self.model.state_dict().items()}
        for number, parameter in enumerate(self.parameters):
            for name, value in self.optimizer.state[parameter].items():
                tensors[f"optimizer.{number}.{name}"] = whole(value)
        if self.average is not None:
            tensors |= {f"average.{number}": whole(value) for number, value in enumerate(self.average.values)}
        return tensors

    def load(self, checkpoint: Checkpoint) -> None:
        """Put back what :meth:`tensors` gave."""
        self.load_weights(checkpoint.under("model"))
        for number, parameter in enumerate(self.parameters):
            self._load_optimizer(parameter, checkpoint.under(f"optimizer.{number}"))
        if self.average is not None:
            for number, value in enumerate(self.average.values):
                load_into(value, checkpoint.tensors[f"average.{number}"])

    def _load_optimizer(self, parameter: nn.Parameter, saved: dict[str, Tensor]) -> None:
        state = self.optimizer.state[parameter]
        for name, value in saved.items():
            if value.ndim == 0:
                # A single number is the count of steps, which the optimizer of a GPU keeps on the GPU.
                state[name] = value.to(parameter.device if parameter.is_cuda else "cpu", copy=True)
            else:
                state[name] = torch.zeros_like(parameter)
                load_into(state[name], value)


class Snapshots:
    """The checkpoints of one run, by the clock.

    Args:
        fabric: a launched Fabric.
        learned: what is taken down.
        folder: where they lie; None keeps nothing.
        fingerprint: what a checkpoint must have been made with to be put back.
        seconds: between two of them.
        warn: told every sentence that a person should read.
    """

    def __init__(
        self,
        fabric: Any,
        learned: Learned,
        folder: Path | None,
        fingerprint: str,
        seconds: float,
        warn: Callable[[str], None],
    ) -> None:
        self.fabric, self.learned, self.folder = fabric, learned, folder
        self.fingerprint, self.seconds, self.warn = fingerprint, seconds, warn
        self._writer = CheckpointWriter(folder) if folder is not None and fabric.is_global_zero else None
        self._saved_at = time.monotonic()

    def overdue(self) -> bool:
        """Whether the last checkpoint is old and written; all processes hear what the first one says."""
        late = time.monotonic() - self._saved_at > self.seconds
        late = late and not (self._writer is not None and self._writer.busy)
        return bool(self.fabric.broadcast(late)) if self.fabric.world_size > 1 else late

    def save(self, state: State, best: dict[str, Tensor]) -> None:
        """Take down where the run stands; best weights that are those of this moment are not kept twice."""
        # Putting a sharded tensor together needs every process; only the first one writes.
        tensors = self.learned.tensors()
        if not state.is_best:
            tensors |= {f"best.{name}": tensor for name, tensor in best.items()}
        told = asdict(state) | {"fingerprint": self.fingerprint, "environment": self._environment}
        if self._writer is not None:
            self._writer.put(Checkpoint(tensors, told))
        self._saved_at = time.monotonic()

    def restore(self) -> tuple[State, dict[str, Tensor]] | None:
        """Put the newest whole checkpoint back; where the run stood, and its best weights. None where there is none.

        Raises:
            ValueError: it was written with other data or settings.
        """
        checkpoint, problems = (None, []) if self.folder is None else read_newest(self.folder)
        for problem in problems:
            self.warn(f"{problem}; " + ("going back to the one before" if checkpoint else "starting anew"))
        if checkpoint is None:
            return None
        told = dict(checkpoint.state)
        if told.pop("fingerprint") != self.fingerprint:
            raise ValueError(f"{self.folder} was written with other data or settings; resume with those it had")
        then, now = told.pop("environment"), self._environment
        changed = [f"{key} was {then.get(key)} and is {now[key]}" for key in now if then.get(key) != now[key]]
        if changed:
            self.warn(f"resumed elsewhere ({'; '.join(changed)}): the last bits may differ from an unbroken run")
        self.learned.load(checkpoint)
        state = State(**told)
        if not state.is_best:
            return state, checkpoint.under("best")
        with self.learned.kept_weights():
            return state, self.learned.weights()

    def wait(self) -> None:
        """Until what was taken down is on the disk."""
        if self._writer is not None:
            self._writer.wait()

    def close(self) -> None:
        """Nothing more will be taken down."""
        if self._writer is not None:
            self._writer.close()

    @property
    def _environment(self) -> dict[str, Any]:
        return environment(self.fabric.world_size) | {"device": self.fabric.device.type}
