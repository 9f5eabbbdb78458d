"""Processes that do what a client's input might make endless: they are asked one thing at a time, and can be killed.

The process of the server never shows RDKit a client's text. A process that takes too long, or that its input ends, is
replaced by a new one, and the request that it worked on is told so. They are the workers of
:mod:`tokengt.data.pool`: plain interpreters that end with this process however it ends.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tokengt.data.pool import answer_of, ask_worker, end_worker, start_worker
from tokengt.serve.problems import Problem

T = TypeVar("T")
# A busy machine may take so long to start Python and import what is needed.
_START_SECONDS = 120.0


class Readers:
    """``count`` processes; to be used in one event loop, and closed in it.

    Args:
        count: how many there are.
        seconds: how long one may work for a request.
        what: the work, as it stands in the sentences of requests that fail.
        setup: what each is to call when it is started, with ``given``: it gets slow imports over with.
        given: the arguments of ``setup``.
    """

    def __init__(self, count: int, seconds: float, what: str, setup: Callable[..., object], *given: Any) -> None:
        self._seconds, self._what = seconds, what
        self._setup = (setup, given)
        # None stands for a process that is still to be started.
        self._idle: asyncio.LifoQueue[_Reader | None] = asyncio.LifoQueue()
        for _ in range(count):
            self._idle.put_nowait(None)
        self._threads = ThreadPoolExecutor(count, "tokengt-readers")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._readers: set[_Reader] = set()

    async def ask(self, work: Callable[..., T], *arguments: Any) -> T:
        """What ``work(*arguments)`` gives in one of the processes.

        It is finished, or killed when its time is over, also where whoever asked no longer waits.

        Raises:
            Problem: it took too long, or ended the process.
            Exception: whatever ``work`` raises.
        """
        task = asyncio.create_task(self._ask(work, arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Where nobody waits any more, nobody is told that it failed.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def close(self) -> None:
        """End the processes; what they work on is given up."""
        for task in self._tasks:
            task.cancel()
        for reader in self._readers:
            reader.process.kill()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._threads.shutdown()
        for reader in self._readers:
            end_worker(reader.process)

    async def _ask(self, work: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        reader = await self._idle.get()
        try:
            reader = reader or await self._started()
            return await self._called(reader, self._seconds, work, arguments)
        except ChildProcessError:
            late = reader is not None and reader.late
            if reader is not None:
                self._forget(reader)
                reader = None
            if late:
                raise Problem(
                    504, f"{self._what} took longer than {self._seconds:g} seconds; it was given up"
                ) from None
            raise Problem(422, f"{self._what} ended the process that did it; nothing more is known of it") from None
        finally:
            self._idle.put_nowait(reader)

    async def _started(self) -> "_Reader":
        """A new process, ready. That takes time, which is not counted as that of the request."""
        reader = _Reader()
        self._readers.add(reader)
        try:
            await self._called(reader, _START_SECONDS, *self._setup)
        except BaseException:
            self._forget(reader)
            raise
        return reader

    def _forget(self, reader: "_Reader") -> None:
        self._readers.discard(reader)
        reader.process.kill()
        end_worker(reader.process)

    async def _called(self, reader: "_Reader", seconds: float, work: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(seconds, reader.give_up)
        try:
            return await loop.run_in_executor(self._threads, reader.call, work, arguments)
        finally:
            timer.cancel()


class _Reader:
    """One process."""

    def __init__(self) -> None:
        self.process = start_worker()
        self.late = False

    def call(self, work: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        """What it answers; to be called by one thread at a time."""
        ask_worker(self.process, "worked for a request", work, arguments)
        answer: T = answer_of(self.process, "worked for a request")
        return answer

    def give_up(self) -> None:
        self.late = True
        self.process.kill()
