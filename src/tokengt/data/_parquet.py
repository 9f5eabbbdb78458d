"""Parquet files through pyarrow, a batch of rows at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# How many rows are turned into text at a time, to save memory.
_BATCH = 4096


def parquet_columns(path: Path) -> list[str]:
    with _opened(path) as file:
        return list(file.schema_arrow.names)


def parquet_rows(path: Path) -> Iterator[tuple[str, ...]]:
    """Every row as text: numbers as Python writes them, nothing for null."""
    with _opened(path) as file:
        for batch in file.iter_batches(batch_size=_BATCH):
            columns = [[_text(value) for value in column.to_pylist()] for column in batch.columns]
            yield from zip(*columns, strict=True) if columns else iter([()] * batch.num_rows)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError("reading Parquet needs pyarrow: pip install 'tokengt[parquet]'") from error
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist") from None
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(f"{path} cannot be read as Parquet: {reason}") from None
