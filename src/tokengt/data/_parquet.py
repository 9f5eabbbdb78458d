"""Parquet files through pyarrow, a batch of rows at a time.

Pages that were written with a checksum are compared with it, and the rows with the number that the footer says. Most
writers leave checksums out unless they are asked (``write_page_checksum=True`` of pyarrow); of their files a changed
page is noticed only where it cannot be decoded. Parquet has no checksum of the footer.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# How many rows are turned into text at a time, to save memory.
_BATCH = 4096


def parquet_columns(path: Path) -> list[str]:
    with _opened(path) as file:
        return list(file.schema_arrow.names)


def parquet_count(path: Path) -> int:
    """How many rows there are, by the footer."""
    with _opened(path) as file:
        return int(file.metadata.num_rows)


def parquet_rows(path: Path) -> Iterator[tuple[str, ...]]:
    """Every row as text: numbers as Python writes them, nothing for null."""
    with _opened(path) as file:
        rows = 0
        for batch in file.iter_batches(batch_size=_BATCH):
            columns = [_texts(column) for column in batch.columns]
            yield from zip(*columns, strict=True) if columns else iter([()] * batch.num_rows)
            rows += batch.num_rows
        # A page whose header is damaged may be of no kind that pyarrow knows, and those it leaves out.
        if rows != file.metadata.num_rows:
            raise ValueError(f"{rows} rows are found where its footer says {file.metadata.num_rows}")


def _texts(column: Any) -> list[str]:
    """A column's cells. A value that Python has no object for, such as a date after 9999, costs the others nothing."""
    try:
        return [_text(value) for value in column.to_pylist()]
    except Exception:  # A column of any type can hold such a value, and every type fails in its own way.
        return [_text_alone(value) for value in column]


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _text_alone(scalar: Any) -> str:
    """One value as Python writes it, else as Arrow does, else what it is."""
    ways = (scalar.as_py, lambda: scalar.cast("binary").as_py(), lambda: scalar.cast("string").as_py())
    for way in ways:
        try:
            return _text(way())
        except Exception:  # As above.
            continue
    return f"<{scalar.type} out of range>"


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError("reading Parquet needs pyarrow: pip install 'tokengt[parquet]'") from error
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            yield file
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist") from None
    except Exception as error:  # A damaged file can fail in any way.
        reason = str(error).strip().split("\n")[0]
        raise ValueError(f"{path} cannot be read as Parquet: {reason or type(error).__name__}") from None
