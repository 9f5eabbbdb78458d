"""Tables that name nodes, read as a whole: their cells by column, ids as they are compared, ends and parts of rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch
from jaxtyping import Int8, Int64
from torch import Tensor

from tokengt.data import cells
from tokengt.data.manifest import NO_PART
from tokengt.data.tables import Table, open_table

T = TypeVar("T")
# Names that people give to the two ends of an edge; else they are the first two columns.
_ENDS = (("source", "target"), ("src", "dst"), ("from", "to"), ("u", "v"), ("id1", "id2"), ("node1", "node2"))


@dataclass(frozen=True, eq=False)
class TableRows:
    """A table that was read: the cells of every column, and where each row stands.

    ``problems`` are the reasons of the rows that do not fit the columns, by their places.
    """

    table: Table
    columns: dict[str, tuple[str, ...]]
    lines: list[int]
    problems: dict[int, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "TableRows":
        """A table of which every row is needed.

        Raises:
            ValueError: one sentence: there is no row, or one does not fit the columns.
        """
        rows = cls.read_all(path)
        for place, problem in rows.problems.items():
            raise ValueError(f"{rows.where(place)}: {problem}")
        return rows

    @classmethod
    def read_all(cls, path: Path) -> "TableRows":
        """A table of which rows may be bad."""
        table = open_table(path)
        rows = list(table.rows())
        if not rows:
            raise ValueError(f"{path} has a header but no rows; expected at least one")
        columns = dict(zip(table.columns, zip(*(row.cells for row in rows), strict=True), strict=True))
        problems = {place: row.problem for place, row in enumerate(rows) if row.problem is not None}
        return cls(table, columns, [row.line for row in rows], problems)

    @property
    def cells(self) -> list[tuple[str, ...]]:
        """Row by row."""
        return list(zip(*self.columns.values(), strict=True))

    def where(self, place: int) -> str:
        return f"{self.table.path}, {self.table.unit} {self.lines[place]}"

    def without(self, bad: Mapping[int, str]) -> "TableRows":
        """The rows whose places are not among the bad ones."""
        kept = [place for place in range(len(self.lines)) if place not in bad]
        columns = {name: tuple(column[place] for place in kept) for name, column in self.columns.items()}
        return TableRows(self.table, columns, [self.lines[place] for place in kept])

    def unreadable(self, column: str, read: Callable[[str], object]) -> dict[int, str]:
        """What ``read`` says of the cells of a column that it cannot read, by their places."""
        found: dict[int, str] = {}
        for place, text in enumerate(self.columns[column]):
            try:
                read(text)
            except cells.BadCell as error:
                found[place] = f"column {column!r} {error}"
        return found

    def values(self, column: str, read: Callable[[str], T]) -> list[T]:
        """What ``read`` makes of every cell of a column.

        Raises:
            ValueError: one sentence: the first cell that it cannot read.
        """
        for place, problem in self.unreadable(column, read).items():
            raise ValueError(f"{self.where(place)}: {problem}")
        return [read(text) for text in self.columns[column]]

    def unknown_ids(self, ends: Sequence[str], numbers: Mapping[str, int], nodes: Path) -> dict[int, str]:
        """Of the rows that name a node which is not among those of ``nodes``: what was expected, by their places."""
        return {
            place: f"{column} is {cells.shown(text)}, which is no id of {nodes}; expected one of its "
            f"{len(numbers):,} ids"
            for column in reversed(ends)
            for place, text in enumerate(self.columns[column])
            if plain_id(text) not in numbers
        }

    def numbers_of(self, ends: tuple[str, str], numbers: Mapping[str, int], nodes: Path) -> Int64[Tensor, "2 rows"]:
        """The numbers of the two nodes that every row names by their ids.

        Raises:
            ValueError: one sentence: an id is not among those of ``nodes``.
        """
        unknown = self.unknown_ids(ends, numbers, nodes)
        if unknown:
            place = min(unknown)
            raise ValueError(f"{self.where(place)}: {unknown[place]}")
        found = [[numbers[plain_id(text)] for text in self.columns[column]] for column in ends]
        return torch.tensor(found, dtype=torch.int64)

    def split(self, column: str | None) -> Int8[Tensor, " rows"] | None:
        """The code of every row's part; None where no column says it."""
        if column is None:
            return None
        self.table.place(column, "the split")
        return torch.tensor(self.values(column, part_code), dtype=torch.int8)


def part_code(text: str) -> int:
    """The code of the part that a cell names; that of no part for a blank."""
    return NO_PART if cells.is_missing(text) else cells.split_code(text)


def plain_id(cell: str) -> str:
    """An id as it is compared: ``7.0``, which other programs make of 7 where some ids are blank, is 7."""
    text = cell.strip()
    head, dot, tail = text.partition(".")
    return head if dot and tail.strip("0") == "" and head.lstrip("-").isdigit() else text


def end_columns(table: Table, what: str) -> tuple[str, str]:
    """The columns that name the two nodes of every row: those with a usual name, else the first two."""
    if len(table.columns) < 2:
        raise ValueError(f"{table.path} has one column; expected two that name the nodes of each {what}")
    there = {column.lower(): column for column in table.columns}
    usual = ((there[one], there[other]) for one, other in _ENDS if one in there and other in there)
    return next(usual, (table.columns[0], table.columns[1]))
