"""The finished parts of a file that takes long to write: kept beside it, so that a killed run goes on where it was.

They lie in ``.NAME.parts/FINGERPRINT`` beside the file, one for each shard of rows, and the process at work holds that
folder. The fingerprint is of everything that decides their bytes. When the last one is done they are joined into the
file, which appears whole, and then removed. This module does not import torch.
"""

import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tokengt.data.pool import Pool
from tokengt.data.progress import say
from tokengt.data.sheets import Answers, Sheet
from tokengt.files import checksum, file_checksum, folder_lock, parts_folder, remove_empty, write_whole, writing

_NAME = re.compile(r"(\d+)-(\d+)-(\d+)-(\d+)-([0-9a-f]{16})\.piece")
# Pieces that wait to be written: while one is written the next one is computed.
_WAITING = 4
_WRITERS = 2
_KEPT = "what is done is kept: run the same again"


class Counts(NamedTuple):
    """How many rows there are, how many of them have no answer, and how many of those only for being no finite one."""

    rows: int = 0
    bad: int = 0
    overflowed: int = 0

    def plus(self, other: "Counts") -> "Counts":
        return Counts(*(ours + theirs for ours, theirs in zip(self, other, strict=True)))


class Piece(NamedTuple):
    """A finished part; its name says which one it is, what it counts, and its checksum."""

    number: int
    counts: Counts
    path: Path


def put_piece(folder: Path, number: int, sheet: Sheet, answers: Answers, counts: Counts) -> Piece:
    """Write the rows of one shard as one part; runs in whichever process has time for it."""
    content = sheet.piece(answers)
    path = folder / f"{number:06d}-{counts.rows}-{counts.bad}-{counts.overflowed}-{checksum(content)[:16]}.piece"
    # Parts may be many; what a kill left among them was removed when they were listed.
    write_whole(path, content, sweep=False)
    return Piece(number, counts, path)


class Parts:
    """The parts of one file, by number: ``done`` are those that are finished.

    Args:
        folder: where they lie.
        sheet: which kind of file they are parts of.
        apart: write them in processes of their own, because this one has other work.
    """

    def __init__(self, folder: Path, sheet: Sheet, apart: bool) -> None:
        self.folder, self.sheet, self.apart = folder, sheet, apart
        self.done = _whole(folder)
        self._waiting: set[Future[Piece]] = set()
        self._pool: Pool | None = None

    @property
    def counts(self) -> Counts:
        total = Counts()
        for piece in self.done.values():
            total = total.plus(piece.counts)
        return total

    def put(self, number: int, answers: Answers, counts: Counts) -> None:
        """Have a part written; waits while too many are on the way."""
        given = (self.folder, number, self.sheet, answers, counts)
        if not self.apart:
            self._keep(put_piece(*given))
            return
        self._pool = self._pool or Pool(_WRITERS)
        self._waiting.add(self._pool.submit(f"wrote part {number}; {_KEPT}", put_piece, *given))
        while len(self._waiting) >= _WAITING:
            self._take()

    def finish(self) -> None:
        """Wait until every part is written."""
        while self._waiting:
            self._take()

    def join(self, out: Path) -> None:
        """Write the file of all parts; every part must be there."""
        self.finish()
        pieces = [self.done[number] for number in sorted(self.done)]
        assert [piece.number for piece in pieces] == list(range(len(pieces))), "every part is there"
        with writing(out) as file:
            self.sheet.join((piece.path for piece in pieces), file)

    def close(self) -> None:
        """End the processes; what they have not finished is not kept."""
        if self._pool is not None:
            self._pool.__exit__()

    def _take(self) -> None:
        done, self._waiting = wait(self._waiting, return_when=FIRST_COMPLETED)
        for future in done:
            self._keep(future.result())

    def _keep(self, piece: Piece) -> None:
        self.done[piece.number] = piece


@contextmanager
def kept_parts(
    out: Path, fingerprint: str, sheet: Sheet, *, apart: bool, shown: bool, check: Callable[[], None]
) -> Iterator[Parts]:
    """Have the parts of ``out`` to oneself, and those that an earlier run with the same fingerprint finished.

    They are removed at the end of the block, and where it refuses the input (a ValueError): then they are of no use.
    Whatever else ends it leaves them. ``check`` is called when the folder is had: it may refuse to go on.
    """
    folder = parts_folder(out)
    waiting = f"{out}: waiting for another process that writes it"
    with folder_lock(folder, lambda: say(waiting, shown)) as made:
        home = folder / fingerprint
        try:
            check()
            if _cleared(folder, home):
                say(f"{out}: a stopped run with other inputs or options left parts; they are removed", shown)
            home.mkdir(exist_ok=True)
            parts = Parts(home, sheet, apart)
            if parts.done:
                say(f"{out}: {parts.counts.rows:,} rows are there from an earlier run, which goes on", shown)
            try:
                yield parts
            finally:
                parts.close()
            shutil.rmtree(folder)
        except ValueError:
            shutil.rmtree(home, ignore_errors=True)
            raise
        finally:
            # Where nothing came of it, no empty folder stays behind.
            remove_empty(home, folder, *reversed(made))


def _cleared(folder: Path, home: Path) -> bool:
    """Remove parts of other files than ours, and say whether there were any."""
    others = [path for path in folder.iterdir() if path != home]
    for path in others:
        shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):
            path.unlink()
    return bool(others)


def _whole(folder: Path) -> dict[int, Piece]:
    """The parts that are whole, by number; what is damaged or half written is removed."""
    done = {}
    for path in sorted(folder.iterdir()):
        found = _NAME.fullmatch(path.name)
        if found is not None and file_checksum(path)[:16] == found[5]:
            number, *counts = map(int, found.groups()[:4])
            done[number] = Piece(number, Counts(*counts), path)
        else:
            path.unlink()
    return done
