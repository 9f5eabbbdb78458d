"""Where shards are converted: in this process, in worker processes of this machine, or on a Ray cluster.

A *shard* is some thousand rows of a table, the unit of parallel work. Every engine takes shards as they are read and
yields what ``work`` makes of each as it is ready, in any order, with at most two shards per worker on the way. The
results do not depend on the engine: all call the same function. ``work`` is a function of a module that needs no torch,
or a ``partial`` of one, because it travels to the workers by its name. This module does not import torch.
"""

import hashlib
import os
import pickle
import sys
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from tokengt.data.pool import Pool
from tokengt.data.progress import say
from tokengt.data.tables import Row, Table

Engine = Literal["processes", "ray"]
T = TypeVar("T")
# Shards per worker that are on the way: while one is converted the next one waits, so that no worker is idle.
_IN_FLIGHT = 2
# Of rows that take milliseconds each, a shard has so few that all the cores of a large machine have some, but at least
# as many as make up for the start of a worker.
_SLOW_SHARDS, _FEWEST_SLOW_ROWS = 64, 128
_MEANWHILE: ContextVar[Callable[[], None] | None] = ContextVar("meanwhile", default=None)
_KEPT = "the shards that are done are kept: run the same again, with fewer workers if memory ran out"


class PackedRows(NamedTuple):
    """Rows on their way from the process that reads them to the one that converts them.

    Whoever passes them on does not look at each row, which would take it longer than all the rest that it does.
    """

    first: int
    last: int
    data: bytes

    @classmethod
    def of(cls, rows: list[Row]) -> "PackedRows":
        return cls(rows[0].line, rows[-1].line, pickle.dumps(rows, protocol=5))


class Job(NamedTuple):
    """Shard ``number`` of a table."""

    number: int
    rows: list[Row] | PackedRows

    def __str__(self) -> str:
        packed = isinstance(self.rows, PackedRows)
        first, last = self.rows[:2] if packed else (self.rows[0].line, self.rows[-1].line)  # type: ignore[union-attr]
        return f"rows from line {first} to {last}"


Jobs = Generator[Job, None, None]
Work = Callable[[list[Row]], T]
Results = Generator[tuple[int, T], None, None]


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


def check_workers(workers: int | None) -> None:
    if workers is not None and workers < 1:
        raise ValueError(f"workers is {workers}; expected at least 1")


def rows_per_shard(rows: int, usual: int, *, slow: bool) -> int:
    """How many of ``rows`` one worker takes at a time; ``slow`` where each of them takes milliseconds.

    It depends on the table alone, and not on the machine, because a call that was killed goes on shard by shard.
    """
    return min(usual, max(_FEWEST_SLOW_ROWS, -(-rows // _SLOW_SHARDS))) if slow else usual


def jobs_of(table: Table, shard_rows: int, done: Collection[int] = (), sha256: str | None = None) -> Jobs:
    """The shards of a table that are still to be converted.

    Raises:
        ValueError: the table cannot be read to its end, or is not the file that had this checksum.
    """
    digest = hashlib.sha256()
    number, rows = 0, list[Row]()
    for row in table.rows(None if sha256 is None else digest.update):
        rows.append(row)
        if len(rows) == shard_rows:
            if number not in done:
                yield Job(number, rows)
            number, rows = number + 1, []
    if sha256 not in (None, digest.hexdigest()):
        raise ValueError(f"{table.path} was changed while it was read; run the same again")
    if rows and number not in done:
        yield Job(number, rows)


def packed_jobs(table: Table, shard_rows: int, done: Collection[int] = (), sha256: str | None = None) -> Jobs:
    """:func:`jobs_of` with packed rows, for another process to pass on."""
    for job in jobs_of(table, shard_rows, done, sha256):
        assert isinstance(job.rows, list)
        yield Job(job.number, PackedRows.of(job.rows))


def results(
    engine: Engine,
    jobs: Iterator[Job],
    work: Work[T],
    workers: int | None,
    shards: int,
    shown: bool,
    *,
    beside: bool = False,
) -> Results[T]:
    """Number and result of every shard of ``jobs``, of which there are at most ``shards``.

    With ``beside`` even a single worker is a process of its own, because this process has other work meanwhile.
    """
    if engine == "ray":
        return on_ray(jobs, work, workers, shown)
    processes = min(workers or available_cores(), shards)
    # Where Python is embedded in another program there is no interpreter to start, and this process does the work.
    apart = sys.executable and (processes > 1 or (beside and shards > 1))
    return in_processes(jobs, work, processes) if apart else in_this_process(jobs, work)


def in_this_process(jobs: Iterator[Job], work: Work[T]) -> Results[T]:
    for job in jobs:
        yield job.number, _worked(work, job.rows)


def _worked(work: Work[T], rows: list[Row] | PackedRows) -> T:
    return work(pickle.loads(rows.data) if isinstance(rows, PackedRows) else rows)


@contextmanager
def meanwhile(act: Callable[[], None]) -> Iterator[None]:
    """Have ``act`` called, once, while worker processes that are started inside convert their first shards.

    This process would only wait for them. Where there are none it is not called.
    """
    token = _MEANWHILE.set(act)
    try:
        yield
    finally:
        _MEANWHILE.reset(token)


def in_processes(jobs: Iterator[Job], work: Work[T], workers: int) -> Results[T]:
    """``workers`` processes, which end with this one however it ends.

    Raises:
        ChildProcessError: a worker died; the shards that came before are not lost.
    """
    pending: dict[Future[T], int] = {}
    with Pool(workers) as pool:
        for job in jobs:
            doing = f"converted {job}; {_KEPT}"
            pending[pool.submit(doing, _worked, work, job.rows)] = job.number
            if len(pending) >= _IN_FLIGHT * workers:
                _act_meanwhile()
                yield from _finished(pending)
        _act_meanwhile()
        while pending:
            yield from _finished(pending)


def _act_meanwhile() -> None:
    act = _MEANWHILE.get()
    if act is not None:
        _MEANWHILE.set(None)
        act()


def _finished(pending: dict[Future[T], int]) -> Iterator[tuple[int, T]]:
    done, _ = wait(pending, return_when=FIRST_COMPLETED)
    for future in done:
        number = pending.pop(future)
        yield number, future.result()


def on_ray(jobs: Iterator[Job], work: Work[T], workers: int | None, shown: bool) -> Results[T]:
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
        yield from _ray_results(ray, jobs, work, workers, shares)
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


def _ray_results(ray: Any, jobs: Iterator[Job], work: Work[T], workers: int | None, shares: Counter[str]) -> Results[T]:
    """``shares`` counts the shards of each node."""
    task = ray.remote(_on_node).options(num_cpus=1, scheduling_strategy="SPREAD")
    limit = workers or _IN_FLIGHT * max(1, int(ray.cluster_resources().get("CPU", 1)))
    pending: dict[Any, Job] = {}

    def finished() -> Iterator[tuple[int, T]]:
        for reference in ray.wait(list(pending), num_returns=1)[0]:
            job = pending.pop(reference)
            node, result = _ray_answer(ray, reference, job)
            shares[node] += 1
            yield job.number, result

    for job in jobs:
        pending[task.remote(work, job.rows)] = job
        if len(pending) >= limit:
            yield from finished()
    while pending:
        yield from finished()


def _on_node(work: Work[T], rows: list[Row] | PackedRows) -> tuple[str, T]:
    return _ray().get_runtime_context().get_node_id(), _worked(work, rows)


def _ray_answer(ray: Any, reference: Any, job: Job) -> tuple[str, Any]:
    try:
        node, result = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayError as error:
        first = str(error).strip().split("\n")[0]
        raise ChildProcessError(f"Ray lost the task that converted {job} ({first}); {_KEPT}") from error
    return node, result
