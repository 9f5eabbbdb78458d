"""Vectors of many rows as a file: .npz, .csv or .parquet, by its ending."""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from jaxtyping import Float32, Int64

from tokengt.data.tables import TableWriter
from tokengt.files import writing
from tokengt.training import outputs


@dataclass(frozen=True, eq=False)
class Vectors:
    """Vectors of some rows, in order.

    Args:
        front: the cells that say which row it is.
        lines: where it stands in its source.
        values: its vector; NaN where there is none.
        reasons: why there is none; blank where there is one.
    """

    front: Sequence[Sequence[str]]
    lines: Int64[np.ndarray, " rows"]
    values: Float32[np.ndarray, "rows width"]
    reasons: Sequence[str]


class _Sheet(Protocol):
    def add(self, piece: Vectors) -> None: ...

    def close(self) -> None: ...


def check_ending(out: Path) -> None:
    """Refuse a name that does not say which kind of file is wanted, or one that cannot be written here."""
    if out.suffix.lower() not in _SHEETS:
        raise ValueError(f"{out} has an ending of no known kind; expected one of {', '.join(_SHEETS)}")
    if out.suffix.lower() == ".parquet":
        _pyarrow()


@contextmanager
def writing_vectors(out: Path, head: Sequence[str]) -> Iterator[Callable[[Vectors], None]]:
    """A function that takes pieces, one after the other; the file appears at the end of the block, or not at all.

    ``head`` names the columns of ``front``.
    """
    with writing(out) as file:
        sheet = _SHEETS[out.suffix.lower()](file, head)
        yield sheet.add
        sheet.close()


def _columns(head: Sequence[str], width: int) -> list[str]:
    return outputs.unused([*(f"vector_{place}" for place in range(width)), "reason"], head)


class _Npz:
    """Arrays: ``vectors``, ``valid``, ``lines``, and the ``reasons`` of the rows that are not valid."""

    def __init__(self, file: BinaryIO, head: Sequence[str]) -> None:
        self.file = file
        self.pieces: list[Vectors] = []

    def add(self, piece: Vectors) -> None:
        self.pieces.append(piece)

    def close(self) -> None:
        reasons = [reason for piece in self.pieces for reason in piece.reasons]
        np.savez_compressed(
            self.file,
            vectors=np.concatenate([piece.values for piece in self.pieces]),
            valid=np.array([not reason for reason in reasons], dtype=bool),
            lines=np.concatenate([piece.lines for piece in self.pieces]),
            reasons=np.array([reason for reason in reasons if reason], dtype=np.str_),
        )


class _Csv:
    """The columns of ``head``, ``vector_0`` and so on, ``reason``; blank cells where there is no vector."""

    def __init__(self, file: BinaryIO, head: Sequence[str]) -> None:
        self.text = io.TextIOWrapper(file, "utf-8", newline="")
        self.writer = TableWriter(self.text)
        self.head, self.begun = head, False

    def add(self, piece: Vectors) -> None:
        if not self.begun:
            self.writer.writerow([*self.head, *_columns(self.head, piece.values.shape[1])])
            self.begun = True
        for front, values, reason in zip(piece.front, piece.values.tolist(), piece.reasons, strict=True):
            # Nine digits are all that float32 has.
            self.writer.writerow([*front, *("" if reason else f"{value:.9g}" for value in values), reason])

    def close(self) -> None:
        self.text.flush()
        # Otherwise the wrapper would close the file, which ``writing`` still has to move to its name.
        self.text.detach()


class _Parquet:
    """As :class:`_Csv`, with numbers in float32 and nulls for blanks."""

    def __init__(self, file: BinaryIO, head: Sequence[str]) -> None:
        self.file, self.head = file, head
        self.writer: Any = None

    def add(self, piece: Vectors) -> None:
        arrow = _pyarrow()
        missing = np.array([bool(reason) for reason in piece.reasons], dtype=bool)
        fronts = [[cells[place] for cells in piece.front] for place in range(len(self.head))]
        arrays = [arrow.array(front, arrow.string()) for front in fronts]
        arrays += [arrow.array(column, arrow.float32(), mask=missing) for column in piece.values.T]
        arrays.append(arrow.array([reason or None for reason in piece.reasons], arrow.string()))
        table = arrow.table(arrays, names=[*self.head, *_columns(self.head, piece.values.shape[1])])
        if self.writer is None:
            from pyarrow import parquet

            self.writer = parquet.ParquetWriter(self.file, table.schema, write_page_checksum=True)
        self.writer.write_table(table)

    def close(self) -> None:
        self.writer.close()


_SHEETS: dict[str, Callable[[BinaryIO, Sequence[str]], _Sheet]] = {".npz": _Npz, ".csv": _Csv, ".parquet": _Parquet}


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError("writing Parquet needs pyarrow: pip install 'tokengt[parquet]'") from error
    return pyarrow
