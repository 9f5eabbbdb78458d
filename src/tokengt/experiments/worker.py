"""One worker of an experiment: it reads an order, does it, and says in a sentence what went wrong.

The first line of its input is the order, as JSON. The input stays open while the process that asked for it lives; when
it ends, however that was, the work writes down where it is and stops.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from tokengt.workflow.comparing import sentence_of


def serve(act: Callable[[dict[str, Any]], None]) -> NoReturn:
    """Read one order, do it, and end the process with a status: 0, 1 after a sentence on stdout, 130 when stopped."""
    status = _status(act)
    sys.stdout.flush()
    # The thread that reads the input must not keep the process from ending.
    os._exit(status)


def _status(act: Callable[[dict[str, Any]], None]) -> int:
    # A shell lets its background processes ignore Ctrl-C, which is how work is told to stop.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_stop_when_alone, daemon=True).start()
    try:
        act(order)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # Whatever a system can raise costs this system alone.
        print(sentence_of(error), flush=True)
        return 1
    return 0


def _stop_when_alone() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGINT)
