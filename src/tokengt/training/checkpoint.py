"""Checkpoints: one safetensors file each, written whole, with a checksum over everything it says.

``last`` is the newest and ``previous`` the one before it, which is used when the newest was only half written (torn).
Safetensors and JSON hold numbers and text only: unlike a pickle, a checkpoint cannot run code when it is read.
Training goes on while one is hashed and written (:class:`CheckpointWriter`).
"""

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from tokengt.files import write_whole

_FORMAT = "tokengt-checkpoint-1"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Tensors by name, and everything else as JSON."""

    tensors: Mapping[str, Tensor]
    state: Mapping[str, Any]

    def under(self, prefix: str) -> dict[str, Tensor]:
        """The tensors called ``prefix.*``, without the prefix."""
        return {name.removeprefix(f"{prefix}."): t for name, t in self.tensors.items() if name.startswith(f"{prefix}.")}


def write_checkpoint(file: Path, checkpoint: Checkpoint) -> None:
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
    state = json.dumps(checkpoint.state)
    # All metadata goes under one key: safetensors writes several keys in an order that changes between processes.
    about = json.dumps({"format": _FORMAT, "sha256": _digest(tensors, state), "state": state})
    write_whole(file, save(tensors, metadata={"tokengt": about}))


def read_checkpoint(file: Path) -> Checkpoint:
    """Read and verify.

    Raises:
        ValueError: one sentence that names the file: torn, changed, or no checkpoint of ours.
    """
    try:
        with safe_open(file, framework="pt") as opened:
            about = (opened.metadata() or {}).get("tokengt", "{}")
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118, no dict
    except (SafetensorError, OSError) as error:
        raise ValueError(f"checkpoint {file} cannot be read ({error}): it is torn or was changed") from error
    try:
        metadata = json.loads(about)
    except ValueError as error:
        raise ValueError(f"checkpoint {file} cannot be read ({error}): it is torn or was changed") from error
    written = metadata.get("format") if isinstance(metadata, dict) else None
    if written != _FORMAT:
        raise ValueError(f"checkpoint {file} has format {written!r}; expected {_FORMAT!r}")
    if _digest(tensors, str(metadata.get("state"))) != metadata.get("sha256"):
        raise ValueError(f"checkpoint {file} does not match its checksum: it is torn or was changed")
    return Checkpoint(tensors, json.loads(metadata["state"]))


class CheckpointWriter:
    """Writes ``last`` and ``previous`` of one folder in a thread of its own, so that training does not wait for a disk.

    One checkpoint is written at a time. An error of the thread, such as a full disk, is raised by the next call.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self._copies: dict[str, Tensor] = {}
        # Whether ``last`` is known to be whole, because this process wrote it: it need not be read again to be sure.
        self._last_is_whole = False

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is still being written."""
        if self._writing is not None and self._writing.done():
            self.wait()
        return self._writing is not None

    def put(self, checkpoint: Checkpoint) -> None:
        """Copy the tensors, which training changes at its next step, and write the copies beside it."""
        self.wait()
        copied = self._copied(checkpoint.tensors)
        self._writing = self._thread.submit(self._write, Checkpoint(copied, checkpoint.state))

    def wait(self) -> None:
        """Until the checkpoint that was put last is on the disk."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Let the thread end; what it was given is written first."""
        self._thread.shutdown()

    def _copied(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies on the CPU, in the memory of the copies before: a GPU fills pinned memory at the full rate of its bus.

        That memory is free again whenever this is called, because the checkpoint before is on the disk by then.
        """
        for name in self._copies.keys() - tensors.keys():
            del self._copies[name]
        for name, tensor in tensors.items():
            copy = self._copies.get(name)
            if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
                copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._copies[name] = copy.copy_(tensor.detach(), non_blocking=True)
        if any(tensor.is_cuda for tensor in tensors.values()):
            torch.cuda.synchronize()
        return dict(self._copies)

    def _write(self, checkpoint: Checkpoint) -> None:
        """Write ``last``; the one it replaces stays as ``previous``."""
        last = self.folder / "last.safetensors"
        # A torn ``last`` must not take the place of a whole ``previous``: then no checkpoint would be left.
        if last.is_file() and (self._last_is_whole or _is_whole(last)):
            last.replace(self.folder / "previous.safetensors")
        self._last_is_whole = False
        write_checkpoint(last, checkpoint)
        self._last_is_whole = True


def _is_whole(file: Path) -> bool:
    try:
        read_checkpoint(file)
    except ValueError:
        return False
    return True


def read_newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole (None without any), and a sentence for every one that is not."""
    problems: list[str] = []
    for name in ("last.safetensors", "previous.safetensors"):
        if (folder / name).is_file():
            try:
                return read_checkpoint(folder / name), problems
            except ValueError as error:
                problems.append(str(error))
    return None, problems


def _digest(tensors: Mapping[str, Tensor], state: str) -> str:
    digest = hashlib.sha256(state.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
