"""Rows with their answers, predictions or vectors, as files: CSV, Parquet or npz.

A *sheet* is the kind of file. It is written in two steps: each *piece*, the rows of one shard, becomes bytes by itself,
in any process and in any order; then the pieces are joined into the file, one at a time, so that memory holds one of
them however many there are. This module does not import torch.
"""

import io
import json
import pickle
import shutil
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokengt.data.tables import TableWriter

_BLOCK = 1 << 20


class PackedCells(NamedTuple):
    """The cells of a table's rows, packed by the process that read them."""

    data: bytes

    def cells(self) -> list[Sequence[str]]:
        rows: list[Sequence[str]] = pickle.loads(self.data)
        return rows


class Numbers(NamedTuple):
    """Whole numbers, such as those of a graph and of its node; -1 is a blank cell."""

    values: NDArray[np.int64]  # [rows, columns]

    def cells(self) -> list[Sequence[str]]:
        return [["" if value < 0 else str(value) for value in row] for row in self.values.tolist()]


class Texts(NamedTuple):
    """The line of each row and its text, UTF-8 end to end."""

    lines: NDArray[np.int64]  # [rows]
    data: NDArray[np.uint8]  # [bytes]
    counts: NDArray[np.int64]  # [rows] bytes of each text

    def cells(self) -> list[Sequence[str]]:
        data, ends = self.data.tobytes(), np.cumsum(self.counts).tolist()
        starts = [0, *ends[:-1]]
        texts = (data[start:end].decode() for start, end in zip(starts, ends, strict=True))
        return [[str(line), text] for line, text in zip(self.lines.tolist(), texts, strict=True)]


@dataclass(frozen=True, eq=False)
class Answers:
    """What is known of some rows, in order.

    Args:
        front: says which row it is, as the cells that come first.
        lines: [rows] where it stands in its source.
        values: [rows, out] the answer; NaN where there is none.
        spread: [rows, out] its standard deviation; None where there is a single pass.
        reasons: why a row has no answer, by its place.
        beside: further columns [rows], of numbers or of yes and no; blank where a row has no answer.
    """

    front: PackedCells | Numbers | Texts
    lines: NDArray[np.int64]
    values: NDArray[Any]
    reasons: Mapping[int, str]
    spread: NDArray[np.float64] | None = None
    beside: tuple[NDArray[Any], ...] = ()

    @property
    def each_reason(self) -> list[str]:
        return [self.reasons.get(place, "") for place in range(len(self.values))]


class Sheet(ABC):
    """One kind of file. It is frozen and holds plain values only, so that it travels to a worker process."""

    # Whether there is such a file of no rows.
    may_be_empty: ClassVar[bool] = False

    @abstractmethod
    def piece(self, answers: Answers) -> bytes:
        """The rows of one shard."""

    @abstractmethod
    def join(self, pieces: Iterable[Path], file: BinaryIO) -> None:
        """All pieces, in the order of their rows, as the content of the file."""


@dataclass(frozen=True)
class PredictionSheet(Sheet):
    """CSV: the columns of ``head``, the predictions called ``names``, the reason of a row without one.

    ``classes`` are the names of the classes, where a class is predicted.
    """

    head: tuple[str, ...]
    names: tuple[str, ...]
    classes: tuple[str, ...] | None
    may_be_empty: ClassVar[bool] = True

    def piece(self, answers: Answers) -> bytes:
        predictions = prediction_cells(answers.values, answers.spread, self.classes)
        answered = ~np.isnan(answers.values).any(1)
        columns = [_beside_cells(column, answered) for column in answers.beside]
        beside = list(zip(*columns, strict=True)) if columns else [()] * len(predictions)
        rows = zip(answers.front.cells(), predictions, beside, answers.each_reason, strict=True)
        return _csv([*front, *cells, *more, reason] for front, cells, more, reason in rows)

    def header(self) -> bytes:
        """The first line of the file."""
        return _csv([[*self.head, *self.names]])

    def join(self, pieces: Iterable[Path], file: BinaryIO) -> None:
        file.write(self.header())
        _copied(pieces, file)


@dataclass(frozen=True)
class VectorCsv(Sheet):
    """The columns of ``head``, ``vector_0`` and so on, ``reason``; blank cells where there is no vector."""

    head: tuple[str, ...]
    width: int

    def piece(self, answers: Answers) -> bytes:
        rows = zip(answers.front.cells(), answers.values.tolist(), answers.each_reason, strict=True)
        # Nine digits are all that float32 has.
        return _csv([*front, *("" if why else f"{value:.9g}" for value in values), why] for front, values, why in rows)

    def join(self, pieces: Iterable[Path], file: BinaryIO) -> None:
        file.write(_csv([[*self.head, *_vector_columns(self.head, self.width)]]))
        _copied(pieces, file)


@dataclass(frozen=True)
class VectorParquet(Sheet):
    """As :class:`VectorCsv`, with numbers in float32 and nulls for blanks; a piece is a table of Arrow."""

    head: tuple[str, ...]
    width: int

    def piece(self, answers: Answers) -> bytes:
        arrow, reasons, cells = pyarrow(), answers.each_reason, answers.front.cells()
        missing = np.array([bool(reason) for reason in reasons], dtype=bool)
        fronts = [[row[place] for row in cells] for place in range(len(self.head))]
        arrays = [arrow.array(front, arrow.string()) for front in fronts]
        arrays += [arrow.array(column, arrow.float32(), mask=missing) for column in answers.values.T]
        arrays.append(arrow.array([reason or None for reason in reasons], arrow.string()))
        table = arrow.table(arrays, names=[*self.head, *_vector_columns(self.head, self.width)])
        content = io.BytesIO()
        with arrow.ipc.new_stream(content, table.schema) as stream:
            stream.write_table(table)
        return content.getvalue()

    def join(self, pieces: Iterable[Path], file: BinaryIO) -> None:
        arrow, writer = pyarrow(), None
        from pyarrow import parquet

        for path in pieces:
            with arrow.ipc.open_stream(path.read_bytes()) as stream:
                table = stream.read_all()
            writer = writer or parquet.ParquetWriter(file, table.schema, write_page_checksum=True)
            writer.write_table(table)
        assert writer is not None, "there is a piece at least"
        writer.close()


@dataclass(frozen=True)
class VectorNpz(Sheet):
    """Arrays: ``vectors``, ``valid``, ``lines``, and the ``reasons`` of the rows that are not valid."""

    head: tuple[str, ...]
    width: int

    def piece(self, answers: Answers) -> bytes:
        content, reasons = io.BytesIO(), answers.each_reason
        np.savez(
            content,
            vectors=answers.values,
            valid=np.array([not reason for reason in reasons], dtype=bool),
            lines=answers.lines,
            reasons=np.frombuffer(json.dumps([reason for reason in reasons if reason]).encode(), dtype=np.uint8),
        )
        return content.getvalue()

    def join(self, pieces: Iterable[Path], file: BinaryIO) -> None:
        paths = list(pieces)
        longest = rows = bad = 0
        for path in paths:
            reasons = _reasons_in(path)
            rows, bad = rows + len(_array_in(path, "valid")), bad + len(reasons)
            longest = max([longest, *map(len, reasons)])
        # As np.savez_compressed writes it, but one piece of an array at a time.
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, dtype, shape in (
                ("vectors", np.dtype(np.float32), (rows, self.width)),
                ("valid", np.dtype(bool), (rows,)),
                ("lines", np.dtype(np.int64), (rows,)),
            ):
                _stream_array(archive, name, dtype, shape, (_array_in(path, name) for path in paths))
            text = np.dtype(f"<U{max(longest, 1)}")
            told = (np.array(_reasons_in(path), dtype=text) for path in paths)
            _stream_array(archive, "reasons", text, (bad,), told)


def _array_in(path: Path, name: str) -> NDArray[Any]:
    with np.load(path, allow_pickle=False) as arrays:
        array: NDArray[Any] = arrays[name]
    return array


def _reasons_in(path: Path) -> list[str]:
    reasons: list[str] = json.loads(_array_in(path, "reasons").tobytes())
    return reasons


def _stream_array(
    archive: zipfile.ZipFile, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], parts: Iterator[NDArray[Any]]
) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(member, header)
        for part in parts:
            member.write(np.ascontiguousarray(part, dtype=dtype).tobytes())


VECTOR_SHEETS: Mapping[str, Callable[[tuple[str, ...], int], Sheet]] = {
    ".npz": VectorNpz,
    ".csv": VectorCsv,
    ".parquet": VectorParquet,
}


def check_vector_ending(out: Path) -> None:
    """Refuse a name that does not say which kind of file is wanted, or one that cannot be written here."""
    if out.suffix.lower() not in VECTOR_SHEETS:
        raise ValueError(f"{out} has an ending of no known kind; expected one of {', '.join(VECTOR_SHEETS)}")
    if out.suffix.lower() == ".parquet":
        pyarrow()


def prediction_cells(
    values: NDArray[np.float64], spread: NDArray[np.float64] | None, classes: Sequence[str] | None
) -> list[list[str]]:
    """The cells of every row's prediction: its numbers, or its class and the chances of all; blank where it is NaN."""
    numbers = [[number_cell(value) for value in row] for row in values.tolist()]
    none: list[str] = []
    stds = [none] * len(numbers) if spread is None else [[number_cell(v) for v in row] for row in spread.tolist()]
    if classes is None:
        return [row + std for row, std in zip(numbers, stds, strict=True)]
    best = np.nan_to_num(values, nan=-1.0).argmax(1).tolist() if len(values) else []
    names = [classes[place] if row[0] else "" for place, row in zip(best, numbers, strict=True)]
    return [[name, *row, *std] for name, row, std in zip(names, numbers, stds, strict=True)]


def _beside_cells(column: NDArray[Any], answered: NDArray[np.bool_]) -> list[str]:
    if column.dtype == np.bool_:
        return [("yes" if value else "no") if known else "" for value, known in zip(column, answered, strict=True)]
    return [number_cell(value) if known else "" for value, known in zip(column.tolist(), answered, strict=True)]


def number_cell(value: float) -> str:
    # More digits than float32 has: where the mean is large, a small standard deviation shows only in the last ones.
    return "" if value != value else f"{value:.12g}"


def unused(names: Sequence[str], taken: Sequence[str]) -> list[str]:
    """The names, each with as many underscores at its end as tell it from those already taken."""
    chosen: list[str] = []
    for name in names:
        while name in taken or name in chosen:
            name += "_"
        chosen.append(name)
    return chosen


def _vector_columns(head: Sequence[str], width: int) -> list[str]:
    return unused([*(f"vector_{place}" for place in range(width)), "reason"], head)


def _csv(rows: Iterable[Iterable[Any]]) -> bytes:
    text = io.StringIO(newline="")
    TableWriter(text).writerows(rows)
    return text.getvalue().encode()


def _copied(pieces: Iterable[Path], file: BinaryIO) -> None:
    for path in pieces:
        with path.open("rb") as piece:
            shutil.copyfileobj(piece, file, _BLOCK)


def pyarrow() -> Any:
    try:
        import pyarrow as arrow
    except ImportError as error:
        raise ImportError("writing Parquet needs pyarrow: pip install 'tokengt[parquet]'") from error
    return arrow
