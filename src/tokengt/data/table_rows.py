"""Tables that name nodes, read as a whole: their cells by column, ids as they are compared, ends and parts of rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int8, Int64
from torch import Tensor

from tokengt.data import cells
from tokengt.data.manifest import NO_PART
from tokengt.data.tables import Table, open_table

# Names that people give to the two ends of an edge; else they are the first two columns.
_ENDS = (("source", "target"), ("src", "dst"), ("from", "to"), ("u", "v"), ("id1", "id2"), ("node1", "node2"))


@dataclass(frozen=True, eq=False)
class TableRows:
    """A table that was read: the cells of every column, and where each row stands."""

    table: Table
    columns: dict[str, tuple[str, ...]]
    lines: list[int]

    @classmethod
    def read(cls, path: Path) -> "TableRows":
        table = open_table(path)
        rows = list(table.rows())
        for row in rows:
            if row.problem is not None:
                raise ValueError(f"{path}, {table.unit} {row.line}: {row.problem}")
        if not rows:
            raise ValueError(f"{path} has a header but no rows; expected at least one")
        columns = dict(zip(table.columns, zip(*(row.cells for row in rows), strict=True), strict=True))
        return cls(table, columns, [row.line for row in rows])

    @property
    def cells(self) -> list[tuple[str, ...]]:
        """Row by row."""
        return list(zip(*self.columns.values(), strict=True))

    def where(self, place: int) -> str:
        return f"{self.table.path}, {self.table.unit} {self.lines[place]}"

    def numbers_of(self, ends: tuple[str, str], numbers: Mapping[str, int], nodes: Path) -> Int64[Tensor, "2 rows"]:
        """The numbers of the two nodes that every row names by their ids.

        Raises:
            ValueError: one sentence: an id is not among those of ``nodes``.
        """
        found = []
        for column in ends:
            own = [numbers.get(plain_id(cell), -1) for cell in self.columns[column]]
            if -1 in own:
                place = own.index(-1)
                raise ValueError(
                    f"{self.where(place)}: {column} is {cells.shown(self.columns[column][place])}, which is no id of "
                    f"{nodes}; expected one of its {len(numbers):,} ids"
                )
            found.append(own)
        return torch.tensor(found, dtype=torch.int64)

    def split(self, column: str | None) -> Int8[Tensor, " rows"] | None:
        """The code of every row's part; None where no column says it."""
        if column is None:
            return None
        self.table.place(column, "the split")
        codes = []
        for place, text in enumerate(self.columns[column]):
            try:
                codes.append(NO_PART if cells.is_missing(text) else cells.split_code(text))
            except cells.BadCell as error:
                raise ValueError(f"{self.where(place)}: column {column!r} {error}") from None
        return torch.tensor(codes, dtype=torch.int8)


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
