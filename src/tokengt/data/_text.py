"""Text files from elsewhere, plain or compressed, line by line; every failure is one sentence that names the file."""

import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
COMPRESSED = tuple(_OPENERS)
_BLOCK = 1 << 20
# Takes the bytes of a file while it is read, such as the ``update`` of a checksum.
Sink = Callable[[bytes | memoryview], object]


def split_suffix(path: Path) -> tuple[str, str]:
    """The suffix that tells a file's kind and the one that tells its compression ("" for none), in lower case."""
    outer = path.suffix.lower()
    return (path.with_suffix("").suffix.lower(), outer) if outer in COMPRESSED else (outer, "")


@contextmanager
def lines_of(path: Path, sink: Sink | None = None) -> Iterator[Iterator[str]]:
    """The file's lines with their ends as they are (LF, CRLF or CR), a byte order mark left out.

    Every byte of the file that is read goes to ``sink`` too, so that nobody reads the file again for its checksum.

    Raises:
        ValueError: the file is torn or not UTF-8, when that line is reached; names the file and the line.
    """
    with _named(path), _Raw(path, sink) as raw:
        unpacked = _OPENERS[path.suffix.lower()](raw) if path.suffix.lower() in _OPENERS else raw
        with io.TextIOWrapper(unpacked, encoding="utf-8-sig", newline="") as file:
            yield iter(file)
            if sink is not None:
                # Bytes that follow a compressed stream belong to the file, and so to its checksum.
                while raw.read(_BLOCK):
                    pass


class _Raw(io.BufferedReader):
    """A file whose bytes go to a sink as they are read, in large blocks."""

    def __init__(self, path: Path, sink: Sink | None) -> None:
        super().__init__(_Told(str(path), sink), _BLOCK)


class _Told(io.FileIO):
    """A file that passes on every byte that is read from it."""

    def __init__(self, path: str, sink: Sink | None) -> None:
        super().__init__(path, "rb")
        self._sink = sink

    def readinto(self, buffer: Any) -> int | None:
        count = super().readinto(buffer)
        if self._sink is not None and count:
            self._sink(memoryview(buffer)[:count])
        return count


def check_regular(path: Path) -> None:
    """Refuse what is there but is no file, before anything waits for its first byte: a folder, a pipe, a device."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; expected a file")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no regular file; expected one on disk, and no pipe, socket or device")


def check_begun(path: Path) -> None:
    """Refuse a file without a single byte of text."""
    with _named(path), _OPENERS.get(path.suffix.lower(), open)(path, "rb") as file:
        if not file.read(1):
            raise ValueError(f"{path} is empty; expected at least one row")


def _line_not_utf8(path: Path) -> int:
    """The number of the first line that is not UTF-8, found by reading the file again, which only a bad file costs."""
    decoder, lines = codecs.getincrementaldecoder("utf-8")(), 0
    with _OPENERS.get(path.suffix.lower(), open)(path, "rb") as file:
        for block in iter(lambda: file.read(_BLOCK), b""):
            try:
                decoder.decode(block)
            except UnicodeDecodeError as error:
                return lines + 1 + int(error.object.count(b"\n", 0, error.start))
            lines += block.count(b"\n")
    return lines + 1


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turns whatever goes wrong while reading into one sentence that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist") from None
    except IsADirectoryError:
        raise ValueError(f"{path} is a folder; expected a file") from None
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"{path} cannot be unpacked, it is torn or not what its name says: {error}") from None
    except UnicodeDecodeError:
        line = _line_not_utf8(path)
        raise ValueError(f"{path} line {line} holds bytes that are not UTF-8; save the file as UTF-8") from None
