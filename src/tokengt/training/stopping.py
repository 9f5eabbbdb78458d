"""Ctrl-C as a training takes it: the step at hand is finished and written down first."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Stop:
    """Whether a person has asked to stop."""

    asked = False


@contextmanager
def stopping() -> Iterator[Stop]:
    """Within the block the first Ctrl-C only asks; the second raises KeyboardInterrupt at once, as it always does.

    Python hands signals to its main thread alone, and another program's own handling of Ctrl-C is left as it is.
    """
    stop, usual = Stop(), signal.default_int_handler

    def ask(*_: Any) -> None:
        stop.asked = True
        signal.signal(signal.SIGINT, usual)

    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is usual
    if ours:
        signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        if ours:
            signal.signal(signal.SIGINT, usual)
