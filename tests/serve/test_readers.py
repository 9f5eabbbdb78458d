"""Processes that read: a text that is endless, or that ends its process, costs its own request alone."""

import asyncio
import os
import time

import pytest

from tests.serve.client import run_async
from tokengt.serve import reading
from tokengt.serve.problems import Problem
from tokengt.serve.readers import Readers


def test_what_is_endless_or_deadly_is_given_up_and_the_next_is_answered() -> None:
    async def scene() -> None:
        readers = Readers(1, 1.0, "reading the input", reading.warm)
        first = await readers.ask(os.getpid)
        with pytest.raises(ValueError, match="invalid literal"):
            await readers.ask(int, "x")
        assert await readers.ask(os.getpid) == first != os.getpid()
        with pytest.raises(Problem, match="took longer than 1 seconds"):
            await readers.ask(time.sleep, 60)
        with pytest.raises(Problem) as deadly:
            await readers.ask(os.abort)
        assert deadly.value.status == 422
        assert await readers.ask(os.getpid) != first
        # Whoever goes away while it is read leaves the process to be used again.
        task = asyncio.create_task(readers.ask(time.sleep, 0.2))
        await asyncio.sleep(0.05)
        task.cancel()
        last = await readers.ask(os.getpid)
        assert last != first
        await readers.close()
        with pytest.raises(ProcessLookupError):
            os.kill(last, 0)

    run_async(scene())
