"""Processes beside this one that are asked to call functions by their names, and that end with it however it ends.

They are plain interpreters that import this package and nothing of the caller's, and answer over a pipe
(:mod:`tokengt.data.worker`). This module does not import torch.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Pool:
    """Worker processes that are asked to call functions, and that end with this process however it ends.

    They are plain interpreters that import this package and nothing of the caller's, so it works from a script
    without ``if __name__ == "__main__"``, from a notebook and beside the threads of torch.
    """

    def __init__(self, workers: int) -> None:
        self._workers = [start_worker() for _ in range(workers)]
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(workers)

    def submit(self, doing: str, work: Callable[..., T], *arguments: Any) -> Future[T]:
        """Have ``work(*arguments)`` called; ``doing`` completes the sentence that says at what a worker died."""
        return self._threads.submit(self._call, doing, work, arguments)

    def _call(self, doing: str, work: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        worker = self._idle.get()
        try:
            ask_worker(worker, doing, work, arguments)
            answer: T = answer_of(worker, doing)
            return answer
        finally:
            self._idle.put(worker)

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *error: object) -> None:
        # Workers are killed first, so that a thread that waits for an answer sees the end of the pipe and returns.
        for worker in self._workers:
            worker.kill()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            end_worker(worker)


class End(NamedTuple):
    """What a worker answers when a stream is over."""


def stream(doing: str, work: Callable[..., Iterator[T]], *arguments: Any) -> Generator[T, None, None]:
    """What ``work(*arguments)`` yields in a process of its own, which is one item ahead of whoever takes them.

    ``doing`` completes the sentence that says at what the process died.
    """
    worker = start_worker()
    try:
        ask_worker(worker, doing, work, arguments, many=True)
        while not isinstance(answer := answer_of(worker, doing), End):
            yield answer
    finally:
        worker.kill()
        end_worker(worker)


def start_worker() -> subprocess.Popen[bytes]:
    """A process that calls functions by their names, one after another, until its pipe is closed."""
    # The worker finds the same packages as this process, and none from the folder in which the user happens to be.
    path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "tokengt.data.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        # A group of its own keeps Ctrl-C from the workers: this process gets it and ends them.
        process_group=0,
    )


def ask_worker(
    worker: subprocess.Popen[bytes],
    doing: str,
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
    many: bool = False,
) -> None:
    """Have ``work(*arguments)`` called; with ``many`` it yields, and what it yields is answered item by item."""
    message = (work, arguments, many)
    assert worker.stdin is not None
    with _noticed(worker, doing):
        pickle.dump(message, worker.stdin, protocol=5)
        worker.stdin.flush()


def answer_of(worker: subprocess.Popen[bytes], doing: str) -> Any:
    """What the worker answers; the exception that was raised there is raised here.

    Raises:
        ChildProcessError: the worker died.
    """
    assert worker.stdout is not None
    with _noticed(worker, doing):
        answer = pickle.load(worker.stdout)
    if isinstance(answer, Exception):
        raise answer
    return answer


@contextmanager
def _noticed(worker: subprocess.Popen[bytes], doing: str) -> Iterator[None]:
    """Turns the end of a worker's pipe into one sentence."""
    try:
        yield
    except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
        raise ChildProcessError(f"a worker process died ({_last_words(worker)}) while it {doing}") from error


def end_worker(worker: subprocess.Popen[bytes]) -> None:
    """Close the pipes of a worker and wait for its end.

    Its answers are not read to their end: a process that was forked here meanwhile has the pipe open as well, and
    nobody would wait for that one to end.
    """
    assert worker.stdin is not None
    assert worker.stdout is not None
    with suppress(BrokenPipeError):
        worker.stdin.close()
    worker.stdout.close()
    worker.wait()


def _last_words(worker: subprocess.Popen[bytes]) -> str:
    with suppress(subprocess.TimeoutExpired):
        status = worker.wait(timeout=5)
        return f"signal {-status}" if status < 0 else f"exit status {status}"
    return "without an answer"
