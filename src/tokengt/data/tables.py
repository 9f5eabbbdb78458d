"""Tables of molecules: CSV, TSV, Parquet, SDF and SMILES files as rows of text cells, streamed.

Cells are text exactly as the file has it. A row that does not fit the columns comes with ``problem`` set and does not
affect the others; a file that cannot be read at all raises a ValueError of one sentence.

* ``.csv``, ``.tsv`` (also ``.gz``, ``.xz``): the first line that is not blank is the header. Quotes, line breaks
  in quoted cells, any line ends and a byte order mark are understood. When the header holds no comma (tab) but a
  semicolon, tab or comma, that separates the cells. A column without a name is ``column N``, counted from 1. Quoting
  is strict: a line whose quote is not closed, or is closed in the middle of a cell, is a row with a problem, and
  reading goes on with the line after it, so that a stray quote takes no other row with it.
* ``.smi``, ``.txt`` (also compressed): on each line a SMILES, a blank and a name; the columns are ``smiles`` and
  ``name``. A first line that begins with the word SMILES is a header and left out.
* ``.sdf`` (also compressed): the mol block is the column :data:`MOLBLOCK`, beside one column per data field.
* ``.parquet``: every value as Python writes it; nothing for null.
"""

import csv
import hashlib
import io
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from tokengt.config import near
from tokengt.data._parquet import parquet_columns, parquet_count, parquet_rows
from tokengt.data._sdf import MOLBLOCK, sdf_fields, sdf_records
from tokengt.data._text import COMPRESSED, Sink, check_begun, check_regular, lines_of, split_suffix
from tokengt.files import file_checksum
from tokengt.interop.molecules import TextKind

_NUL = "the row holds a NUL byte; expected text"
# Longer than any real cell: in a large file, a quote that is never closed is noticed after this many characters.
_LONGEST_CELL = 1 << 24
# A file may have thousands of columns; a sentence names this many.
_LISTED = 20
_SEPARATORS = {".csv": ",;\t", ".tsv": "\t,;"}
_SMILES_LISTS = (".smi", ".txt")
_SUFFIXES = (*_SEPARATORS, *_SMILES_LISTS, ".sdf", ".parquet")
# Tells whether these cells, one per column, make sense as a row.
Likeness = Callable[[tuple[str, ...]], bool]


@dataclass(frozen=True)
class Row:
    """``line``: where the row begins, counted from 1 in the table's unit; ``problem``: why it cannot be used."""

    line: int
    cells: tuple[str, ...]
    problem: str | None = None


class Survey(NamedTuple):
    """At most so many rows are in a file of this SHA-256."""

    most_rows: int
    sha256: str


@dataclass(frozen=True, eq=False)
class Table:
    """A file of rows. ``unit`` says what ``Row.line`` counts: "line", "row" or "record".

    ``text_kind`` is how molecules are written in it, ``text_column`` the column they must be in when the file
    fixes it (SDF), else None.
    """

    path: Path
    columns: tuple[str, ...]
    unit: str
    text_kind: TextKind
    text_column: str | None
    _read: Callable[[Sink | None, Likeness | None], Iterator[Row]]
    _like: Likeness | None = None

    def guarded(self, like: Likeness) -> "Table":
        """The same table with a notion of what its rows look like.

        A quote that is opened by mistake and closed by another mistake lines later makes a cell that holds whole rows,
        which no rule of quoting forbids. Where a line inside a quoted cell is such a row, the quote is the problem of
        the line that opens it, and the lines after it are read as rows.
        """
        return replace(self, _like=like)

    def rows(self, sink: Sink | None = None) -> Iterator[Row]:
        """All rows from the first, one at a time; every row has one cell per column.

        When the last one has been read, ``sink`` has been given all bytes of the file.

        Raises:
            ValueError: the file is torn or not UTF-8, when that line is reached; names the file and the line.
        """
        return self._read(sink, self._like)

    def survey(self) -> "Survey":
        """What can be known of the file without looking at its cells, which is much quicker than reading its rows.

        Raises:
            ValueError: the file is torn or not UTF-8; names the file and the line.
        """
        digest = hashlib.sha256()
        kind, _ = split_suffix(self.path)
        if kind == ".parquet":
            return Survey(parquet_count(self.path), file_checksum(self.path))
        # What follows the last record of an SDF file may be one more, and the first line of a delimited file is none.
        end, more = ("$$$$", 1) if kind == ".sdf" else ("", -1 if kind in _SEPARATORS else 0)
        with lines_of(self.path, digest.update) as lines:
            most = sum(1 for line in lines if line.startswith(end)) + more
        return Survey(most, digest.hexdigest())

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.columns)}

    def place(self, column: str, option: str) -> int:
        """Where ``column``, which the user named with ``option``, stands.

        Raises:
            ValueError: there is no such column; says which there are.
        """
        if column not in self._places:
            raise ValueError(
                f"{self.path} has no column {column!r}, which {option} names; the columns are {listed(self.columns)}"
                f"{near(column, self.columns)}"
            )
        return self._places[column]


def listed(names: Sequence[str]) -> str:
    """The names of columns for a person: all of them, or the first and how many more there are."""
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more:,} more" if more > 0 else "")


class TableWriter:
    """Writes CSV that :func:`open_table` and everybody else read back as the same rows.

    Python's own writer leaves a carriage return inside a cell unquoted when lines end otherwise, and readers then see
    two rows; such a row is quoted as a whole.
    """

    def __init__(self, file: io.TextIOBase) -> None:
        self._plain = csv.writer(file, lineterminator="\n")
        self._quoted = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)

    def writerow(self, row: Iterable[Any]) -> None:
        cells = list(row)
        returns = any(isinstance(cell, str) and "\r" in cell for cell in cells)
        (self._quoted if returns else self._plain).writerow(cells)

    def writerows(self, rows: Iterable[Iterable[Any]]) -> None:
        for row in rows:
            self.writerow(row)


def is_table(path: Path) -> bool:
    """Whether the name is that of a table that :func:`open_table` reads."""
    kind, packing = split_suffix(path)
    return kind in _SUFFIXES and not (kind == ".parquet" and packing) and not path.is_dir()


def open_table(path: Path) -> Table:
    """Look at the file's header. What is wrong further down is said by :meth:`Table.rows`, when it comes to that.

    Raises:
        ValueError: one sentence that names the file and what was expected.
        ImportError: a Parquet file, and pyarrow is not installed.
    """
    check_regular(path)
    if not is_table(path):
        expected = ", ".join(_SUFFIXES)
        raise ValueError(
            f"{path} is of an unknown kind; expected a name that ends in {expected} (or {', '.join(COMPRESSED)} after)"
        )
    kind, _ = split_suffix(path)
    if kind == ".parquet":
        columns = _checked_names(path, parquet_columns(path))
        return Table(path, columns, "row", "smiles", None, partial(_parquet, path))
    check_begun(path)
    if kind == ".sdf":
        columns = _checked_names(path, [MOLBLOCK, *sdf_fields(path)])
        return Table(path, columns, "record", "molblock", MOLBLOCK, partial(_sdf, path, columns))
    if kind in _SMILES_LISTS:
        return Table(path, ("smiles", "name"), "line", "smiles", None, partial(_smiles_list, path))
    separator = _separator(path, _SEPARATORS[kind])
    columns = _checked_names(path, _header(path, separator))
    return Table(path, columns, "line", "smiles", None, partial(_delimited, path, separator, len(columns)))


def _checked_names(path: Path, names: Sequence[str]) -> tuple[str, ...]:
    columns = tuple(name.strip() or f"column {place}" for place, name in enumerate(names, 1))
    seen: set[str] = set()
    for name in columns:
        if "\0" in name:
            raise ValueError(f"{path} holds NUL bytes in its header; expected a text file: save it as UTF-8")
        if name in seen:
            raise ValueError(f"{path} has two columns named {name!r}; expected every name once")
        seen.add(name)
    return columns


def _header(path: Path, separator: str) -> list[str]:
    for line, cells, problem in _records(path, separator):
        if problem is not None:
            raise ValueError(f"{path} line {line}, the header, cannot be read as cells: {problem}")
        return cells
    raise ValueError(f"{path} holds only blank lines; expected a header")


def _separator(path: Path, candidates: str) -> str:
    """The first candidate that stands in the header outside quotes; else the first of all."""
    header = ""
    with lines_of(path) as lines:
        # Names may hold line breaks, and blank lines may come before the header.
        for line in islice(lines, 100):
            header += line
            if header.strip() and header.count('"') % 2 == 0:
                break
    bare = re.sub('"[^"]*"', "", header)
    return next((candidate for candidate in candidates if candidate in bare), candidates[0])


def _records(
    path: Path, separator: str, sink: Sink | None = None, like: Likeness | None = None, width: int = 0
) -> Iterator[tuple[int, list[str], str | None]]:
    """First line, cells and problem of every record that is not blank; with ``width``, it must have so many cells.

    With ``like`` a cell that takes in whole rows is a problem too. The first record is the header, and not judged.
    """
    csv.field_size_limit(max(_LONGEST_CELL, csv.field_size_limit()))
    with lines_of(path, sink) as lines:
        source = _Lines(lines)
        reader = csv.reader(source, delimiter=separator, strict=True)
        header = True
        while True:
            start, problem = source.begin(), None
            try:
                cells = next(reader, None)
            except csv.Error as error:
                cells, problem = _plain_cells(source.taken[0], separator), _misquoted(str(error))
            if cells is None:
                return
            if problem is None and width and not header:
                problem = _misfit(cells, width)
            if problem is None and like is not None and not header and len(source.taken) > 1:
                problem = _swallowed(source.taken, separator, like, width, start)
            if problem is not None and len(source.taken) > 1:
                # What follows the line of the quote is read again, as rows of their own.
                cells = _plain_cells(source.taken[0], separator)
                source.give_back()
            if len(cells) > 1 or (cells and cells[0].strip()):
                header = False
                yield start, cells, problem


def _misfit(cells: Sequence[str], width: int) -> str | None:
    count = len(cells)
    # Separators at the end of a line make empty cells, which are not counted.
    if count != width and (count < width or any(cells[width:])):
        return f"the row has {count} cell{'s' * (count != 1)}; expected {width}"
    return _NUL if any("\0" in cell for cell in cells) else None


def _misquoted(error: str) -> str:
    """What csv has to say, in words that say what to do."""
    if "limit" in error:
        return f"a cell is longer than {csv.field_size_limit():,} characters; is a quote left open there?"
    if "unexpected end" in error:
        return 'it opens a quote that is never closed; write a quote that belongs to the text twice ("")'
    return 'a quote stands inside a quoted cell; write a quote that belongs to the text twice ("")'


def _swallowed(lines: Sequence[str], separator: str, like: Likeness, width: int, start: int) -> str | None:
    """The problem of a record of these lines, if each of the first and another is a row; None if they are text."""
    if len(_plain_cells(lines[0], separator)) != width:
        return None
    for number, line in enumerate(lines[1:], start + 1):
        cells = tuple(cell.strip('"') for cell in _plain_cells(line, separator))
        # In running text a blank follows a comma.
        if len(cells) == width and not any(cell.startswith(" ") for cell in cells) and like(cells):
            return (
                f"it opens a quote that takes in line {number}, which is a row of its own; write a quote that belongs "
                'to the text twice ("")'
            )
    return None


def _plain_cells(line: str, separator: str) -> list[str]:
    """The cells of a line whose quotes mean nothing."""
    return line.rstrip("\r\n").split(separator)


class _Lines:
    """Lines for csv.reader; those that it took for a record can be given back."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self._back: deque[str] = deque()
        self._count = 0
        self.taken: list[str] = []

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        line = self._back.popleft() if self._back else next(self._lines)
        self.taken.append(line)
        return line

    def begin(self) -> int:
        """The number of the next line, where a record begins."""
        self._count += len(self.taken)
        self.taken = []
        return self._count + 1

    def give_back(self) -> None:
        """All lines of the record but the first are still to come."""
        self._back.extendleft(reversed(self.taken[1:]))
        del self.taken[1:]


def _delimited(path: Path, separator: str, width: int, sink: Sink | None, like: Likeness | None) -> Iterator[Row]:
    records = _records(path, separator, sink, like, width)
    next(records)
    for line, cells, problem in records:
        yield Row(line, tuple(cells[:width]) + ("",) * (width - len(cells)), problem)


def _smiles_list(path: Path, sink: Sink | None, _: Likeness | None) -> Iterator[Row]:
    with lines_of(path, sink) as lines:
        words = ((number, line.split(maxsplit=1)) for number, line in enumerate(lines, 1))
        for place, (number, cells) in enumerate((number, cells) for number, cells in words if cells):
            if place or cells[0].lower() != "smiles":
                smiles, name = cells[0], cells[1].rstrip() if len(cells) > 1 else ""
                yield Row(number, (smiles, name), _NUL if "\0" in smiles + name else None)


def _sdf(path: Path, columns: tuple[str, ...], sink: Sink | None, _: Likeness | None) -> Iterator[Row]:
    for number, (block, fields, problem) in enumerate(sdf_records(path, sink), 1):
        cells = (block, *(fields.get(name, "") for name in columns[1:]))
        yield Row(number, cells, _NUL if problem is None and any("\0" in cell for cell in cells) else problem)


def _parquet(path: Path, sink: Sink | None, _: Likeness | None) -> Iterator[Row]:
    # Parquet is not read from front to back, so the bytes for the sink are read separately.
    if sink is not None:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                sink(block)
    for number, cells in enumerate(parquet_rows(path), 1):
        yield Row(number, cells)
