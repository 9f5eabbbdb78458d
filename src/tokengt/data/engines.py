"""Where shards are converted: in this process, in worker processes of this machine, or on a Ray cluster.

A *shard* is some thousand rows of a table, the unit of parallel work. Every engine takes shards as they are read and
yields their arrays as they are ready, in any order, with at most two shards per worker on the way. The arrays do not
depend on the engine: all run :func:`tokengt.data.shards.convert_shard`. This module does not import torch.
"""

import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, NamedTuple, get_args

from tokengt.data.progress import say
from tokengt.data.shards import ShardArrays, ShardRecipe, convert_shard
from tokengt.data.tables import Row

Engine = Literal["processes", "ray"]
# Shards per worker that are on the way: while one is converted the next one waits, so that no worker is idle.
_IN_FLIGHT = 2
_KEPT = "the shards that are done are kept: run the same again, with fewer workers if memory ran out"


class Job(NamedTuple):
    """Shard ``number`` of a table."""

    number: int
    rows: list[Row]

    def __str__(self) -> str:
        return f"rows from line {self.rows[0].line} to {self.rows[-1].line}"


Jobs = Iterator[Job]
Results = Generator[tuple[int, ShardArrays], None, None]


def available_cores() -> int:
    """The cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def check(engine: str) -> None:
    """Refuse an engine that is unknown or not installed before any work is done.

    Raises:
        ValueError, ImportError: says what there is, or what to install.
    """
    if engine not in get_args(Engine):
        raise ValueError(f"engine is {engine!r}; expected {' or '.join(get_args(Engine))}")
    if engine == "ray":
        _ray()


def results(engine: Engine, jobs: Jobs, recipe: ShardRecipe, workers: int | None, shards: int, shown: bool) -> Results:
    """Number and arrays of every shard of ``jobs``, of which there are ``shards``."""
    if engine == "ray":
        return on_ray(jobs, recipe, workers, shown)
    processes = min(workers or available_cores(), shards)
    # Where Python is embedded in another program there is no interpreter to start, and this process does the work.
    return in_processes(jobs, recipe, processes) if processes > 1 and sys.executable else in_this_process(jobs, recipe)


def in_this_process(jobs: Jobs, recipe: ShardRecipe) -> Results:
    for job in jobs:
        yield job.number, convert_shard(job.rows, recipe)


def in_processes(jobs: Jobs, recipe: ShardRecipe, workers: int) -> Results:
    """``workers`` processes, which end with this one however it ends.

    They are plain interpreters that import this package and nothing of the caller's, so it works from a script
    without ``if __name__ == "__main__"``, from a notebook and beside the threads of torch.

    Raises:
        ChildProcessError: a worker died; the shards that came before are not lost.
    """
    pool = [_start_worker() for _ in range(workers)]
    idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
    for worker in pool:
        idle.put(worker)

    def convert(job: Job) -> ShardArrays:
        worker = idle.get()
        try:
            return _ask(worker, job, recipe)
        finally:
            idle.put(worker)

    threads = ThreadPoolExecutor(workers)
    pending: dict[Future[ShardArrays], int] = {}
    try:
        for job in jobs:
            pending[threads.submit(convert, job)] = job.number
            if len(pending) >= _IN_FLIGHT * workers:
                yield from _finished(pending)
        while pending:
            yield from _finished(pending)
    finally:
        # Workers are killed first, so that a thread that waits for an answer sees the end of the pipe and returns.
        for worker in pool:
            worker.kill()
        threads.shutdown(cancel_futures=True)
        for worker in pool:
            with suppress(BrokenPipeError):
                worker.communicate()


def _finished(pending: dict[Future[ShardArrays], int]) -> Iterator[tuple[int, ShardArrays]]:
    done, _ = wait(pending, return_when=FIRST_COMPLETED)
    for future in done:
        number = pending.pop(future)
        yield number, future.result()


def _start_worker() -> subprocess.Popen[bytes]:
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


def _ask(worker: subprocess.Popen[bytes], job: Job, recipe: ShardRecipe) -> ShardArrays:
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        pickle.dump((job.rows, recipe), worker.stdin, protocol=5)
        worker.stdin.flush()
        answer = pickle.load(worker.stdout)
    except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
        raise ChildProcessError(
            f"a worker process died ({_last_words(worker)}) while it converted {job}; {_KEPT}"
        ) from error
    if isinstance(answer, Exception):
        raise answer
    assert isinstance(answer, ShardArrays)
    return answer


def _last_words(worker: subprocess.Popen[bytes]) -> str:
    with suppress(subprocess.TimeoutExpired):
        status = worker.wait(timeout=5)
        return f"signal {-status}" if status < 0 else f"exit status {status}"
    return "without an answer"


def on_ray(jobs: Jobs, recipe: ShardRecipe, workers: int | None, shown: bool) -> Results:
    """Tasks on the Ray cluster of ``RAY_ADDRESS``, else on the one that runs here, else on one started for this.

    This package travels with the tasks, so the nodes need its dependencies but not the package itself; a caller who
    has connected to Ray before has seen to that.

    Raises:
        ImportError: Ray is not installed.
        ChildProcessError: the cluster lost a task for good.
    """
    ray = _ray()
    started_here = not ray.is_initialized()
    if started_here:
        package = str(Path(__file__).parents[1])
        travels = {"py_modules": [package], "env_vars": {"OMP_NUM_THREADS": "1"}}
        ray.init(log_to_driver=False, logging_level="ERROR", runtime_env=travels)
    shares: Counter[str] = Counter()
    try:
        yield from _ray_results(ray, jobs, recipe, workers, shares)
        counts = ", ".join(map(str, sorted(shares.values(), reverse=True)))
        say(f"Ray converted {shares.total()} shards on {len(shares)} nodes: {counts}", shown)
    finally:
        if started_here:
            ray.shutdown()


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ImportError("the engine ray needs Ray: pip install 'tokengt[ray]'") from error
    return ray


def _ray_results(ray: Any, jobs: Jobs, recipe: ShardRecipe, workers: int | None, shares: Counter[str]) -> Results:
    """``shares`` counts the shards of each node."""
    task = ray.remote(_on_node).options(num_cpus=1, scheduling_strategy="SPREAD")
    limit = workers or _IN_FLIGHT * max(1, int(ray.cluster_resources().get("CPU", 1)))
    pending: dict[Any, Job] = {}

    def finished() -> Iterator[tuple[int, ShardArrays]]:
        for reference in ray.wait(list(pending), num_returns=1)[0]:
            job = pending.pop(reference)
            node, arrays = _ray_answer(ray, reference, job)
            shares[node] += 1
            yield job.number, arrays

    for job in jobs:
        pending[task.remote(job.rows, recipe)] = job
        if len(pending) >= limit:
            yield from finished()
    while pending:
        yield from finished()


def _on_node(rows: list[Row], recipe: ShardRecipe) -> tuple[str, ShardArrays]:
    return _ray().get_runtime_context().get_node_id(), convert_shard(rows, recipe)


def _ray_answer(ray: Any, reference: Any, job: Job) -> tuple[str, ShardArrays]:
    try:
        node, arrays = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayError as error:
        first = str(error).strip().split("\n")[0]
        raise ChildProcessError(f"Ray lost the task that converted {job} ({first}); {_KEPT}") from error
    return node, arrays
