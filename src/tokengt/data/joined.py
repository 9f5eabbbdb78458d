"""Tables that are one data set together: a file to train on, and files of their own to validate and to test on."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tokengt.data._text import Sink
from tokengt.data.graph_sources import is_graph_source
from tokengt.data.manifest import FILE_PART, PARTS
from tokengt.data.tables import Likeness, Row, Table, listed, open_table

_BLOCK = 1 << 20


@dataclass(frozen=True)
class SplitFiles:
    """The files of the parts; without ``valid`` or ``test`` the data has no row of that part."""

    train: Path
    valid: Path | None = None
    test: Path | None = None

    @property
    def parts(self) -> dict[str, Path]:
        """The files that there are, by the name of their part."""
        paths = zip(PARTS, (self.train, self.valid, self.test), strict=True)
        return {part: path for part, path in paths if path is not None}

    @property
    def name(self) -> str:
        return ", ".join(f"{path.name} ({part})" for part, path in self.parts.items())

    def checksum(self) -> str:
        """The SHA-256 of the files' bytes, each behind its :func:`_mark`: what reading their rows passes on."""
        digest = hashlib.sha256()
        for part, path in self.parts.items():
            digest.update(_mark(part, path))
            with path.open("rb") as file:
                while block := file.read(_BLOCK):
                    digest.update(block)
        return digest.hexdigest()

    def table(self) -> Table:
        """All rows as one table with the columns of the first file, and the part of each row in one more.

        A row keeps the line that it has in its own file.

        Raises:
            ValueError: one sentence: a file is missing, is no table, or lacks a column of the first.
        """
        tables = {part: _opened(path, part) for part, path in self.parts.items()}
        first = tables[PARTS[0]]
        for table in tables.values():
            missing = [column for column in first.columns if column not in table.columns]
            if missing:
                raise ValueError(
                    f"{table.path} has no column {missing[0]!r}, which {first.path} has; the columns are "
                    f"{listed(table.columns)}"
                )
            if (table.text_kind, table.text_column) != (first.text_kind, first.text_column):
                raise ValueError(
                    f"{table.path} holds molecules in another way than {first.path}; expected one kind of file"
                )
        if FILE_PART in first.columns:
            raise ValueError(f"{first.path} has a column {FILE_PART!r}, a name that is taken; rename it")
        columns = (*first.columns, FILE_PART)
        return Table(first.path, columns, first.unit, first.text_kind, first.text_column, partial(_rows, tables))


def _opened(path: Path, part: str) -> Table:
    if not path.exists():
        raise ValueError(f"{path} does not exist; expected the file of the {part} part")
    if is_graph_source(path):
        raise ValueError(
            f"{path} holds graphs; files of their own for valid and test are for tables: give masks instead"
        )
    return open_table(path)


def _rows(tables: dict[str, Table], sink: Sink | None, like: Likeness | None) -> Iterator[Row]:
    order = tables[PARTS[0]].columns
    for part, table in tables.items():
        if sink is not None:
            sink(_mark(part, table.path))
        joined = partial(_joined, places=[table.columns.index(column) for column in order], part=part)
        guarded = table if like is None else table.guarded(partial(_like_joined, like=like, joined=joined))
        for row in guarded.rows(sink):
            yield Row(row.line, joined(row.cells), row.problem)


def _mark(part: str, path: Path) -> bytes:
    """Which part begins here, and how long it is: the same bytes cut elsewhere are other data."""
    return f"{part} {path.stat().st_size}\n".encode()


def _joined(cells: tuple[str, ...], places: Sequence[int], part: str) -> tuple[str, ...]:
    """A file's cells in the order of the first file's columns, and the file's part."""
    return (*(cells[place] for place in places), part)


def _like_joined(cells: tuple[str, ...], like: Likeness, joined: Callable[[tuple[str, ...]], tuple[str, ...]]) -> bool:
    return like(joined(cells))
