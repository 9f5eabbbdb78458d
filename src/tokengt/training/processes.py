"""Devices and processes: one CPU or GPU by itself; ``torchrun``, DDP and FSDP through Lightning Fabric."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tokengt.batch import GraphBatch
from tokengt.models.contract import Model
from tokengt.training.config import Precision

Device = Literal["auto", "cpu", "cuda"]
Strategy = Literal["auto", "ddp", "fsdp"]
# How long processes wait for each other: while the first one prepares a large file, the others may wait for hours.
_PATIENCE = timedelta(hours=12)
# Lightning and Inductor advise everyone on a recent GPU to lower the precision of float32. Who trains in bfloat16, the
# default there, has no use for it, and who sets training.precision=float32 means float32.
_ADVISER, _ADVICE = "lightning_fabric.utilities.rank_zero", "set_float32_matmul_precision"
_COMPILER_ADVICE = "TensorFloat32 tensor cores for float32 matrix multiplication available but not enabled"


class Envelope:
    """A batch that Fabric hands on unopened: it would copy a dataclass field by field, and refuses a frozen one."""

    def __init__(self, batch: GraphBatch) -> None:
        self.batch = batch


class Enveloped(nn.Module):
    """The model as Fabric wraps it: takes an :class:`Envelope`.

    Some batches leave some weights without a gradient, but DDP waits for a gradient of every weight. So with
    ``several`` processes the output is made to depend, by a term of zero, on all weights that may be left out.
    """

    def __init__(self, model: Model, several: bool) -> None:
        super().__init__()
        self.model, self.several = model, several

    def forward(self, envelope: Envelope) -> Tensor:
        out: Tensor = self.model(envelope.batch)
        if not (self.training and self.several):
            return out
        # FSDP has taken the weights of its pieces apart again by now, and waits for no gradient of theirs.
        whole_here = (weight for weight in self.model.sometimes_unused() if not is_sharded(weight))
        return out + 0 * sum(weight.sum() for weight in whole_here)


@dataclass(frozen=True)
class DeviceConfig:
    """Where to train.

    Args:
        device: "auto" takes a GPU when there is one.
        devices: processes on this machine, one per GPU; under ``torchrun`` it starts them and this is read from it.
        strategy: how several processes share the model; "auto" is DDP.
    """

    device: Device = "auto"
    devices: int = 1
    strategy: Strategy = "auto"

    def __post_init__(self) -> None:
        if self.device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"device is {self.device!r}; expected 'auto', 'cpu' or 'cuda'")
        if self.strategy not in ("auto", "ddp", "fsdp"):
            raise ValueError(f"strategy is {self.strategy!r}; expected 'auto', 'ddp' or 'fsdp'")
        if self.devices < 1:
            raise ValueError(f"devices is {self.devices}; expected at least 1")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device is 'cuda' but torch finds no GPU; use the device cpu")

    @property
    def resolved(self) -> str:
        if self.device == "auto":
            return "cuda" if torch.cuda.is_available() else "cpu"
        return self.device


class Alone:
    """What the loop asks of a Fabric, for a single process on one device.

    Importing Lightning takes seconds, up to half of the time that fine-tuning on a small data set takes, and one
    process has nobody to talk to.
    """

    world_size, global_rank, is_global_zero = 1, 0, True

    def __init__(self, device: str, mixed: bool) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else torch.device(device)
        self._mixed = mixed

    def autocast(self) -> Any:
        """Matrix products in bfloat16, where that was asked for."""
        return torch.autocast(self.device.type, torch.bfloat16) if self._mixed else nullcontext()

    def setup_module(self, module: nn.Module) -> nn.Module:
        return _Autocast(module.to(self.device), self)

    def setup_optimizers(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        return optimizer

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def no_backward_sync(self, module: nn.Module, enabled: bool = True) -> Any:
        return nullcontext()

    def all_reduce(self, tensor: Tensor, reduce_op: str = "sum") -> Tensor:
        return tensor

    def broadcast(self, value: Any) -> Any:
        return value

    def barrier(self) -> None:
        return


class _Autocast(nn.Module):
    """A module that is called under autocast, and whose rows come back in the precision of its weights."""

    def __init__(self, module: nn.Module, alone: Alone) -> None:
        super().__init__()
        self.module, self._alone = module, alone

    def forward(self, *args: Any) -> Tensor:
        with self._alone.autocast():
            out: Tensor = self.module(*args)
        return out.float() if out.dtype in (torch.bfloat16, torch.float16) else out


def make_fabric(where: DeviceConfig, precision: Precision) -> Any:
    """A launched ``lightning_fabric.Fabric``, or :class:`Alone`; ``torchrun``'s processes are taken as they are."""
    started = int(os.environ.get("WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in os.environ else 0
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if started else where.devices
    nodes = max(1, started // local)
    mixed = precision == "bfloat16" or (precision == "auto" and where.resolved == "cuda")
    if nodes * local == 1 and where.strategy == "auto":
        return Alone(where.resolved, mixed)
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy

    strategy: Any = "auto"
    if where.strategy == "fsdp":
        strategy = ModelParallelStrategy(
            _shard, data_parallel_size=nodes * local, tensor_parallel_size=1, timeout=_PATIENCE
        )
    elif nodes * local > 1:
        strategy = DDPStrategy(timeout=_PATIENCE)
    with without_precision_advice():
        fabric = Fabric(
            accelerator=where.resolved,
            devices=local,
            num_nodes=nodes,
            strategy=strategy,
            precision="bf16-mixed" if mixed else "32-true",
        )
        fabric.launch()
    return fabric


def set_up(fabric: Any, module: nn.Module) -> nn.Module:
    """The module as this Fabric runs it.

    Lightning wraps it for DDP on a stream of its own, which recordings of steps that accumulate gradients need, and
    PyTorch then warns once of gradients that come from another stream. Ours, recorded or not, lose nothing by it.
    """
    if not isinstance(fabric, Alone):
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    wrapped: nn.Module = fabric.setup_module(module)
    return wrapped


@contextmanager
def without_precision_advice() -> Iterator[None]:
    """Leave out the two messages that advise another precision of float32, and nothing else that is said inside."""

    def is_other(record: logging.LogRecord) -> bool:
        return _ADVICE not in record.getMessage()

    adviser = logging.getLogger(_ADVISER)
    adviser.addFilter(is_other)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=_COMPILER_ADVICE, category=UserWarning)
            yield
    finally:
        adviser.removeFilter(is_other)


def _shard(wrapped: Enveloped, mesh: Any) -> Enveloped:
    """FSDP2: every piece that the model names is a unit of its own, then the rest."""
    from torch.distributed.fsdp import fully_shard

    for piece in wrapped.model.pieces():
        fully_shard(piece, mesh=mesh["data_parallel"])
    fully_shard(wrapped, mesh=mesh["data_parallel"])
    return wrapped


def whole(tensor: Tensor) -> Tensor:
    """A sharded tensor put together, on the CPU (every process must call this); a plain one as it is. Detached."""
    if not hasattr(tensor, "full_tensor"):
        return tensor.detach()
    # A model is sharded because it does not fit: put together it must not lie on a GPU.
    full: Tensor = tensor.full_tensor().detach().cpu()
    return full


def share_buffers(model: nn.Module, processes: int) -> None:
    """Give all processes the first one's buffers, such as batch norm's moments, before they evaluate together."""
    if processes > 1:
        for buffer in model.buffers():
            torch.distributed.broadcast(buffer, 0)


def summed(fabric: Any, tensor: Tensor) -> Tensor:
    """The sum over all processes."""
    if fabric.world_size == 1:
        return tensor
    total: Tensor = fabric.all_reduce(tensor, reduce_op="sum")
    return total


def shards_weights(fabric: Any) -> bool:
    """Whether models will lie in pieces on several devices: FSDP."""
    if isinstance(fabric, Alone):  # Where nothing of Lightning is imported.
        return False
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy

    return isinstance(fabric.strategy, ModelParallelStrategy)


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "device_mesh")


@torch.no_grad()
def load_into(target: Tensor, value: Tensor) -> None:
    """Copy a whole tensor into a parameter or state that may be sharded."""
    if is_sharded(target):
        from torch.distributed.tensor import DTensor, distribute_tensor

        assert isinstance(target, DTensor)
        value = distribute_tensor(value.to(target.device), target.device_mesh, target.placements)
    target.copy_(value)


@contextmanager
def deterministic(device: torch.device) -> Iterator[None]:
    """On a CPU, only algorithms that give the same bits every time (about 5% slower); a GPU keeps its fast ones."""
    settings: Any = torch.utils.deterministic
    before, fill = torch.are_deterministic_algorithms_enabled(), settings.fill_uninitialized_memory
    if device.type == "cpu":
        torch.use_deterministic_algorithms(True)
        settings.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        settings.fill_uninitialized_memory = fill


def environment(processes: int) -> dict[str, Any]:
    """What the last bits of a result depend on; stored with a checkpoint and compared when a run resumes."""
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processes": processes,
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }
