"""Trainings as processes of their own: started, watched and stopped."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tokengt.experiments.molecules.plan import Job, Plan
from tokengt.experiments.molecules.worker import order_of

_MODULE = "tokengt.experiments.molecules.worker"
# How many seconds a training that is told to stop may take to write down where it is.
_PATIENCE = 60.0


@dataclass
class Training:
    """A training at work; ``log`` is what it writes beside its result."""

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


def started(plan: Plan, job: Job) -> Training:
    """The training in a session of its own, so that Ctrl-C reaches it through this process alone.

    Where several run side by side, each has one thread: they would only wait for each other's.
    """
    threads = {"OMP_NUM_THREADS": "1"} if plan.config.at_once > 1 else {}
    folder = plan.folder(job)
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.with_suffix(".log").open("w+", encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-m", _MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        start_new_session=True,
        env={**os.environ, **threads},
    )
    assert process.stdin is not None
    process.stdin.write(order_of(plan, job) + "\n")
    process.stdin.flush()
    return Training(job, process, log, time.monotonic())


def stop(trainings: Sequence[Training]) -> None:
    """Trainings whose input ends write down where they are, and end."""
    for training in trainings:
        assert training.process.stdin is not None
        training.process.stdin.close()
    deadline = time.monotonic() + _PATIENCE
    for training in trainings:
        try:
            training.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            training.process.kill()
            training.process.wait()
        training.problem()
