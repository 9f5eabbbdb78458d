"""Work of an experiment in processes of its own: started, watched and stopped; on a GPU side by side.

A worker is a module that serves orders (:mod:`tokengt.experiments.worker`). It runs in a session of its own, so that
Ctrl-C reaches it through this process alone.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Generic, TypeVar

Job = TypeVar("Job")
# How many seconds work that is told to stop may take to write down where it is.
_PATIENCE = 60.0
# Seconds between two looks at work.
_PAUSE = 0.1
_MPS = "nvidia-cuda-mps-control"


@dataclass
class Work(Generic[Job]):
    """A job at work; ``log`` is what it writes beside its result."""

    job: Job
    process: "subprocess.Popen[str]"
    log: IO[str]
    began: float

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def problem(self) -> str | None:
        """Why it failed, in a sentence; None where it did not. Called once, when it has ended."""
        assert self.process.stdout is not None
        said = self.process.stdout.read().strip().splitlines()
        self.log.seek(0)
        last = next(iter(self.log.read().strip().splitlines()[::-1]), "it said nothing")
        self._close()
        if self.process.returncode == 0:
            Path(self.log.name).unlink(missing_ok=True)
            return None
        return said[-1] if said else f"the training ended with status {self.process.returncode}: {last}"

    def _close(self) -> None:
        self.log.close()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def started(module: str, job: Job, order: str, log: Path, environment: Mapping[str, str] | None = None) -> Work[Job]:
    """``order`` given to a worker of this module; ``environment`` is added to that of this process."""
    log.parent.mkdir(parents=True, exist_ok=True)
    written = log.open("w+", encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=written,
        text=True,
        start_new_session=True,
        env={**os.environ, **(environment or {})},
    )
    assert process.stdin is not None
    process.stdin.write(order + "\n")
    process.stdin.flush()
    return Work(job, process, written, time.monotonic())


def as_ended(at_work: list[Work[Job]], start: Callable[[], bool]) -> Iterator[Work[Job]]:
    """Work in the order of its ends, until none is left; whatever still runs is stopped when the caller fails.

    ``start`` puts more into ``at_work`` as far as there is room, and says whether some still waits.
    """
    try:
        while start() or at_work:
            for work in [each for each in at_work if each.has_ended]:
                at_work.remove(work)
                yield work
            if at_work:
                time.sleep(_PAUSE)
    finally:
        stop(at_work)


def stop(works: Sequence[Work[Job]]) -> None:
    """Work whose input ends writes down where it is, and ends."""
    for work in works:
        assert work.process.stdin is not None
        work.process.stdin.close()
    deadline = time.monotonic() + _PATIENCE
    for work in works:
        try:
            work.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            work.process.kill()
            work.process.wait()
        work.problem()


@contextmanager
def side_by_side(at_once: int, device: str) -> Iterator[dict[str, str]]:
    """What is added to the environment of processes of which several work at once; nothing where it is one.

    One thread each, or they would wait for each other's; and on a GPU NVIDIA's MPS (:func:`shared_gpu`).
    """
    with shared_gpu(at_once > 1 and device == "cuda") as environment:
        yield {"OMP_NUM_THREADS": "1", **environment} if at_once > 1 else {}


@contextmanager
def shared_gpu(wanted: bool) -> Iterator[dict[str, str]]:
    """An environment in which several processes run on one GPU at the same time, and not in turns (NVIDIA's MPS).

    The service is started for the block and ended after it. Where there is none, or one of somebody else's is set up
    already, the environment is empty: processes then take turns, or share by that one.
    """
    command = shutil.which(_MPS)
    if not wanted or command is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="tokengt-mps-") as home:
        settings = {"CUDA_MPS_PIPE_DIRECTORY": f"{home}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{home}/log"}
        for folder in settings.values():
            Path(folder).mkdir()
        environment = {**os.environ, **settings}
        begun = subprocess.run([command, "-d"], env=environment, capture_output=True, check=False).returncode == 0
        try:
            yield settings if begun else {}
        finally:
            if begun:
                with suppress(subprocess.TimeoutExpired):
                    subprocess.run(
                        [command], env=environment, input=b"quit\n", capture_output=True, check=False, timeout=_PATIENCE
                    )
