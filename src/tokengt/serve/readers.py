"""Processes that do what a client's input might make endless: they are asked one thing at a time, and can be killed.

The process of the server never shows RDKit a client's text. A process that takes too long, or that its input ends, is
replaced by a new one, and the request that it worked on is told so. They are the workers of
:mod:`tokengt.data.engines`: plain interpreters that end with this process however it ends.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tokengt.data.engines import answer_of, ask_worker, end_worker, start_worker
from tokengt.serve.problems import Problem

T = TypeVar("T")


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
        late = False
        try:
            if reader is None:
                reader = _Reader(*self._setup)
                self._readers.add(reader)

            def give_up(process: Any = reader.process) -> None:
                nonlocal late
                late = True
                process.kill()

            loop = asyncio.get_running_loop()
            timer = loop.call_later(self._seconds, give_up)
            try:
                answer: T = await loop.run_in_executor(self._threads, reader.call, work, arguments)
                return answer
            finally:
                timer.cancel()
        except ChildProcessError:
            assert reader is not None
            self._readers.discard(reader)
            end_worker(reader.process)
            reader = None
            if late:
                raise Problem(
                    504, f"{self._what} took longer than {self._seconds:g} seconds; it was given up"
                ) from None
            raise Problem(422, f"{self._what} ended the process that did it; nothing more is known of it") from None
        finally:
            self._idle.put_nowait(reader)


class _Reader:
    """One process, which begins with its setup."""

    def __init__(self, setup: Callable[..., object], given: tuple[Any, ...]) -> None:
        self.process = start_worker()
        self._ready = False
        ask_worker(self.process, "was started", setup, given)

    def call(self, work: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        """To be called by one thread at a time."""
        if not self._ready:
            answer_of(self.process, "was started")
            self._ready = True
        ask_worker(self.process, "read an input", work, arguments)
        answer: T = answer_of(self.process, "read an input")
        return answer
