"""How fast rows came through a model, and what kept it from being faster."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from tokengt.data.engines import available_cores

Doing = Literal["reading", "model", "writing"]
# Below so many seconds a start is not worth a word.
_LONG_START = 1.0


@dataclass
class Pace:
    """A clock that knows what the process of the model did: waited for rows, ran the model, waited for the disk.

    ``source`` is where rows come from: "featurisation" of a file's rows, or "reading" of graphs that are there already.
    ``workers`` processes do it beside the model; none where everything is done in one process. ``starting`` is how long
    the first rows took a GPU, whose kernels are built by them: no share of the time says anything about that.
    """

    source: Literal["featurisation", "reading"] = "featurisation"
    workers: int = 0
    rows: int = 0
    spent: dict[Doing, float] = field(default_factory=lambda: {"reading": 0.0, "model": 0.0, "writing": 0.0})
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    starting: float = 0.0

    def has_started(self) -> None:
        """What the model did so far was its start; its shares are of the time after that."""
        self.starting, self.spent["model"] = self.starting + self.spent["model"], 0.0

    @contextmanager
    def of(self, doing: Doing) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.spent[doing] += time.monotonic() - start

    def stop(self) -> "Pace":
        self.ended = time.monotonic()
        return self

    @property
    def seconds(self) -> float:
        return max((self.ended or time.monotonic()) - self.began, 1e-9)

    @property
    def cores(self) -> int:
        return available_cores()

    @property
    def rate(self) -> float:
        """Rows per second of wall clock, reading and writing included."""
        return self.rows / self.seconds

    @property
    def limit(self) -> Doing:
        """What took most of the time."""
        return max(self.spent, key=lambda doing: self.spent[doing])

    @property
    def waited(self) -> float:
        """The share of the time in which the model had nothing to do, 0 to 1."""
        return max(0.0, 1.0 - self.spent["model"] / max(self.seconds - self.starting, 1e-9))

    def __str__(self) -> str:
        """One line, whose beginning ``tokengt bench`` reads."""
        share = f"the model waited {self.waited:.0%} of the time"
        if self.limit == "model":
            why = f"the model was the limit: it worked {1 - self.waited:.0%} of the time"
        elif self.limit == "writing":
            why = f"writing was the limit: {share}"
        else:
            why = f"{self.source} was the limit: {share}"
        start = f" ({self.starting:.0f} s of them to start the model)" if self.starting >= _LONG_START else ""
        return f"{self.rows:,} rows in {self.seconds:.1f} s{start}, {self.rate:,.0f} rows/s; {why}"
