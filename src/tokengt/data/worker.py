"""A worker process: calls come in on stdin, their answers go out on stdout, until stdin ends.

It is started as ``python -m tokengt.data.worker`` by :mod:`tokengt.data.pool`. A call is a function with its
arguments; its answer is what the function returns (or, item by item, what it yields), or the exception that was raised
instead. Pickles are exchanged with the parent process only, never with anybody else. Nothing here imports torch, so a
worker starts quickly and stays small.
"""

import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from tokengt.data.pool import End


def main() -> None:
    # The parent reads answers from stdout, so everything else that is printed, by C libraries too, goes to stderr.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            work, arguments, many = pickle.load(sys.stdin.buffer)
        except (EOFError, pickle.UnpicklingError):  # the parent has finished, or was killed
            return
        for answer in _answers(work, arguments, many):
            try:
                pickle.dump(answer, answers, protocol=5)
                answers.flush()
            except BrokenPipeError:
                # The parent is gone: nobody waits for the rest, and closing the file would fail again.
                os._exit(1)


def _answers(work: Callable[..., Any], arguments: tuple[Any, ...], many: bool) -> Iterator[Any]:
    try:
        if many:
            yield from work(*arguments)
            yield End()
        else:
            yield work(*arguments)
    except Exception as error:
        error.add_note(traceback.format_exc())
        yield error


if __name__ == "__main__":
    main()
