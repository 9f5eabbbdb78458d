"""Tables of molecules: CSV, TSV, Parquet, SDF and SMILES files as rows of text cells, streamed.

Cells are text exactly as the file has it. A row that does not fit the columns comes with ``problem`` set and does not
affect the others; a file that cannot be read at all raises a ValueError of one sentence.

* ``.csv``, ``.tsv`` (also ``.gz``, ``.xz``): the first line that is not blank is the header. Quotes, line breaks
  in quoted cells, any line ends and a byte order mark are understood. When the header holds no comma (tab) but a
  semicolon, tab or comma, that separates the cells. A column without a name is ``column N``, counted from 1.
* ``.smi``, ``.txt`` (also compressed): on each line a SMILES, a blank and a name; the columns are ``smiles`` and
  ``name``. A first line that begins with the word SMILES is a header and left out.
* ``.sdf`` (also compressed): the mol block is the column :data:`MOLBLOCK`, beside one column per data field.
* ``.parquet``: every value as Python writes it; nothing for null.
"""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from tokengt.config import near
from tokengt.data._parquet import parquet_columns, parquet_rows
from tokengt.data._sdf import MOLBLOCK, sdf_fields, sdf_records
from tokengt.data._text import COMPRESSED, Sink, check_begun, lines_of, split_suffix
from tokengt.interop.molecules import TextKind

_NUL = "the row holds a NUL byte; expected text"
# Longer than any real cell: in a large file, a quote that is never closed is noticed after this many characters.
_LONGEST_CELL = 1 << 24
# A file may have thousands of columns; a sentence names this many.
_LISTED = 20
_SEPARATORS = {".csv": ",;\t", ".tsv": "\t,;"}
_SMILES_LISTS = (".smi", ".txt")
_SUFFIXES = (*_SEPARATORS, *_SMILES_LISTS, ".sdf", ".parquet")


@dataclass(frozen=True)
class Row:
    """``line``: where the row begins, counted from 1 in the table's unit; ``problem``: why it cannot be used."""

    line: int
    cells: tuple[str, ...]
    problem: str | None = None


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
    _read: Callable[[Sink | None], Iterator[Row]]

    def rows(self, sink: Sink | None = None) -> Iterator[Row]:
        """All rows from the first, one at a time; every row has one cell per column.

        When the last one has been read, ``sink`` has been given all bytes of the file.

        Raises:
            ValueError: the file is torn or not UTF-8, when that line is reached; names the file and the line.
        """
        return self._read(sink)

    def place(self, column: str, option: str) -> int:
        """Where ``column``, which the user named with ``option``, stands.

        Raises:
            ValueError: there is no such column; says which there are.
        """
        if column not in self.columns:
            raise ValueError(
                f"{self.path} has no column {column!r}, which {option} names; the columns are {listed(self.columns)}"
                f"{near(column, self.columns)}"
            )
        return self.columns.index(column)


def listed(names: Sequence[str]) -> str:
    """The names of columns for a person: all of them, or the first and how many more there are."""
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more:,} more" if more > 0 else "")


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
    if path.is_dir():
        raise ValueError(f"{path} is a folder; expected a file")
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
    for place, name in enumerate(columns):
        if "\0" in name:
            raise ValueError(f"{path} holds NUL bytes in its header; expected a text file: save it as UTF-8")
        if name in columns[:place]:
            raise ValueError(f"{path} has two columns named {name!r}; expected every name once")
    return columns


def _header(path: Path, separator: str) -> list[str]:
    for _, cells in _records(path, separator):
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


def _records(path: Path, separator: str, sink: Sink | None = None) -> Iterator[tuple[int, list[str]]]:
    """First line and cells of every record that is not blank."""
    csv.field_size_limit(max(_LONGEST_CELL, csv.field_size_limit()))
    with lines_of(path, sink) as lines:
        source = _Lines(lines)
        reader = csv.reader(source, delimiter=separator)
        while True:
            start = reader.line_num + 1
            try:
                cells = next(reader, None)
            except csv.Error as error:
                hint = "; is a quote left open there?" if "limit" in str(error) else ""
                raise ValueError(f"{path} line {start} cannot be read as cells: {error}{hint}") from None
            if cells is None:
                return
            if source.exhausted:
                raise ValueError(f"{path} line {start} opens a quote that is never closed")
            if len(cells) > 1 or (cells and cells[0].strip()):
                yield start, cells


class _Lines:
    """Lines for csv.reader; ``exhausted`` tells whether it asked for more than there are."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self.exhausted = False

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        for line in self._lines:
            return line
        self.exhausted = True
        raise StopIteration


def _delimited(path: Path, separator: str, width: int, sink: Sink | None) -> Iterator[Row]:
    records = _records(path, separator, sink)
    next(records)
    for line, cells in records:
        count = len(cells)
        # Separators at the end of a line make empty cells, which are not counted.
        if count > width and not any(cells[width:]):
            count = width
        problem = None
        if count != width:
            problem = f"the row has {count} cell{'s' * (count != 1)}; expected {width}"
        elif any("\0" in cell for cell in cells):
            problem = _NUL
        yield Row(line, tuple(cells[:width]) + ("",) * (width - count), problem)


def _smiles_list(path: Path, sink: Sink | None) -> Iterator[Row]:
    with lines_of(path, sink) as lines:
        words = ((number, line.split(maxsplit=1)) for number, line in enumerate(lines, 1))
        for place, (number, cells) in enumerate((number, cells) for number, cells in words if cells):
            if place or cells[0].lower() != "smiles":
                smiles, name = cells[0], cells[1].rstrip() if len(cells) > 1 else ""
                yield Row(number, (smiles, name), _NUL if "\0" in smiles + name else None)


def _sdf(path: Path, columns: tuple[str, ...], sink: Sink | None) -> Iterator[Row]:
    for number, (block, fields) in enumerate(sdf_records(path, sink), 1):
        yield Row(number, (block, *(fields.get(name, "") for name in columns[1:])))


def _parquet(path: Path, sink: Sink | None) -> Iterator[Row]:
    # Parquet is not read from front to back, so the bytes for the sink are read separately.
    if sink is not None:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                sink(block)
    for number, cells in enumerate(parquet_rows(path), 1):
        yield Row(number, cells)
