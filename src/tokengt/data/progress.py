"""How far a long job is, on stderr: a bar with the time left on a terminal, a few lines elsewhere.

This module does not import torch.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_SECONDS_BETWEEN_LINES = 10.0


def say(message: str, shown: bool = True) -> None:
    if shown:
        print(message, file=sys.stderr, flush=True)


@contextmanager
def progress_bar(
    total: int, unit: str, label: str, *, done: int = 0, shown: bool = True
) -> Iterator[Callable[[int], None]]:
    """A function to call with every amount of work that is done; ``done`` was finished before this run."""
    if not shown:
        yield lambda _: None
    elif sys.stderr.isatty() and (tqdm := _tqdm()) is not None:
        with tqdm(total=total, initial=done, unit=f" {unit}", desc=label, file=sys.stderr, unit_scale=True) as bar:
            yield bar.update
    else:
        yield _Lines(total, unit, label, done).update


class _Lines:
    """Prints a line at every quarter of the way, unless the last line is only seconds old."""

    def __init__(self, total: int, unit: str, label: str, done: int) -> None:
        self._total, self._unit, self._label = total, unit, label
        self._start, self._done = done, done
        self._began = self._said = time.monotonic()

    def update(self, amount: int) -> None:
        before, self._done = self._done, self._done + amount
        now = time.monotonic()
        quarter = 4 * self._done // self._total > 4 * before // self._total
        if quarter and self._done < self._total and now - self._said >= _SECONDS_BETWEEN_LINES:
            self._said = now
            left = (self._total - self._done) * (now - self._began) / (self._done - self._start)
            say(f"{self._label}: {self._done:,} of {self._total:,} {self._unit}, about {left:.0f} s left")


def _tqdm() -> Any:
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm
