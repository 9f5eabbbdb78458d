"""What a person sees while a model trains: a bar with an ETA on a terminal, a few lines in a log file."""

import sys
import time
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Progress:
    """Counts steps of one training run. ``quiet`` says nothing at all.

    ``nodes``: where training sees one graph alone, the number of its nodes: the speed is then told in nodes, because
    the one graph is seen less than once in a second.
    """

    total_epochs: int
    quiet: bool = False
    name: str = "training"
    nodes: int | None = None
    _bar: Any = field(default=None, init=False)
    _started: float = field(default_factory=time.perf_counter, init=False)
    _spoken: float = field(default=-1e9, init=False)
    _graphs: int = field(default=0, init=False)
    _resumed: int = field(default=0, init=False)
    _notes: dict[str, str] = field(default_factory=dict, init=False)

    def start(self, done: int) -> None:
        """``done``: epochs already behind us when a run resumes."""
        self._started, self._resumed = time.perf_counter(), done
        if not self.quiet and sys.stderr.isatty():
            from tqdm import tqdm

            layout = "{l_bar}{bar}| epoch {n:.1f}/{total} [{elapsed}<{remaining}{postfix}]"
            self._bar = tqdm(total=self.total_epochs, initial=done, desc=self.name, bar_format=layout, file=sys.stderr)

    @property
    def wants_numbers(self) -> bool:
        """Asking a GPU for its loss makes it wait: do so only when a person would see it."""
        return self._bar is not None and time.perf_counter() - self._spoken > 0.5

    def advance(self, epochs: float, graphs: int) -> None:
        self._graphs += graphs
        if self._bar is not None:
            self._bar.update(epochs)

    def show(self, **notes: str) -> None:
        self._spoken = time.perf_counter()
        self._notes |= notes
        if self._bar is not None:
            self._bar.set_postfix_str(", ".join(f"{k} {v}" for k, v in {**self._notes, **self._speed()}.items()))

    def epoch(self, epoch: int, last: bool, **notes: str) -> None:
        """The end of an epoch; without a terminal, a line at most every ten seconds and one for the last."""
        quiet_for = time.perf_counter() - self._spoken
        self._notes |= notes
        if self._bar is not None:
            self.show()
        elif not self.quiet and (last or quiet_for > 10):
            self._spoken = time.perf_counter()
            seconds = self._spoken - self._started
            numbers = ", ".join(f"{k} {v}" for k, v in {**self._notes, **self._speed()}.items())
            left = "" if last else f", about {self._left(epoch, seconds):,.0f} s left"
            line = f"{self.name}: epoch {epoch}/{self.total_epochs}, {numbers}, {seconds:.0f} s{left}"
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def _speed(self) -> dict[str, str]:
        if not self._graphs:
            return {}
        speed = self._graphs * (self.nodes or 1) / (time.perf_counter() - self._started)
        return {"graphs/s" if self.nodes is None else "nodes/s": f"{speed:,.0f}" if speed >= 10 else f"{speed:.2g}"}

    def _left(self, epoch: int, seconds: float) -> float:
        """Seconds to the end, if the epochs to come take as long as those of this start."""
        return (self.total_epochs - epoch) * seconds / max(epoch - self._resumed, 1)
