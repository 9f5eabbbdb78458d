"""When the epochs of a training run ended, seen from outside by the file that it writes after each of them."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Epochs:
    """When the training loop began (by the clock of the wall), and for some moments how many epochs had ended then."""

    began: float
    marks: tuple[tuple[float, int], ...]

    @property
    def count(self) -> int:
        return self.marks[-1][1]

    @property
    def first_end(self) -> float:
        """When the first epoch ended that was seen to end."""
        return self.marks[0][0]

    @property
    def end(self) -> float:
        return self.marks[-1][0]

    @property
    def seconds_each(self) -> float:
        """Of an epoch after the first, validation and all that happens between two epochs included.

        Where there was only one, it is that one's.
        """
        (first, before), (last, after) = self.marks[0], self.marks[-1]
        return (last - first) / (after - before) if after > before else (last - self.began) / after


class EpochWatch:
    """Looks at ``metrics.jsonl`` as often as it is told to.

    The file is there, empty, when the loop begins; it is written whole after an epoch, and its time of change is that
    epoch's end. A run that writes down the seconds of its epochs itself is believed.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._changed = file, 0
        self._began: float | None = None
        self._marks: list[tuple[float, int]] = []
        self._records: list[dict[str, Any]] = []

    def look(self) -> None:
        try:
            if self._file.stat().st_mtime_ns == self._changed:
                return
            with self._file.open("rb") as opened:
                # Asked of what was opened: the name may belong to a newer file by now.
                self._changed, content = os.fstat(opened.fileno()).st_mtime_ns, opened.read()
        except FileNotFoundError:
            return
        when, lines = self._changed / 1e9, content.splitlines()
        if self._began is None:
            self._began = when
        if len(lines) > len(self._records):
            self._records = [json.loads(line) for line in lines]
            self._marks.append((when, len(lines)))

    def epochs(self) -> Epochs:
        """All that was seen.

        Raises:
            ValueError: no epoch ended.
        """
        if self._began is None or not self._marks:
            raise ValueError(f"no epoch of {self._file.parent} was seen to end; there is nothing to time")
        epochs = Epochs(self._began, tuple(_by_the_run(self._began, self._records) or self._marks))
        if epochs.seconds_each <= 0:
            raise ValueError(f"the epochs of {self._file.parent} were too short to be timed; take more data")
        return epochs


def _by_the_run(began: float, records: Sequence[dict[str, Any]]) -> list[tuple[float, int]]:
    """The moments that the run itself wrote down; none where it did not."""
    if not all("seconds" in record for record in records):
        return []
    return [(began + float(record["seconds"]), place) for place, record in enumerate(records, 1)]
