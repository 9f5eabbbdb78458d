"""Text files from elsewhere, plain or compressed, line by line; every failure is one sentence that names the file."""

import codecs
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
COMPRESSED = tuple(_OPENERS)
_BLOCK = 1 << 20


def split_suffix(path: Path) -> tuple[str, str]:
    """The suffix that tells a file's kind and the one that tells its compression ("" for none), in lower case."""
    outer = path.suffix.lower()
    return (path.with_suffix("").suffix.lower(), outer) if outer in COMPRESSED else (outer, "")


@contextmanager
def lines_of(path: Path) -> Iterator[Iterator[str]]:
    """The file's lines with their ends as they are (LF, CRLF or CR), a byte order mark left out."""
    with _named(path), _open(path, "rt", encoding="utf-8-sig", newline="") as file:
        yield iter(file)


def check_text(path: Path) -> None:
    """Refuse a file that is empty, torn or not UTF-8, before hours are spent on its first half.

    Raises:
        ValueError: one sentence that names the file and, where there is one, the line.
    """
    decoder, lines, size = codecs.getincrementaldecoder("utf-8")(), 0, 0
    with _named(path), _open(path, "rb") as file:
        while True:
            block = file.read(_BLOCK)
            try:
                decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                line = 1 + lines + error.object.count(b"\n", 0, error.start)
                raise ValueError(f"{path} line {line} holds bytes that are not UTF-8; save the file as UTF-8") from None
            if not block:
                break
            lines, size = lines + block.count(b"\n"), size + len(block)
    if size == 0:
        raise ValueError(f"{path} is empty; expected at least one row")


def _open(path: Path, mode: str, **options: Any) -> Any:
    return _OPENERS.get(path.suffix.lower(), open)(path, mode, **options)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist") from None
    except IsADirectoryError:
        raise ValueError(f"{path} is a folder; expected a file") from None
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"{path} cannot be unpacked, it is torn or not what its name says: {error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text; save the file as UTF-8") from None
