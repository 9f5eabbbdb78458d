"""Files written whole: a reader sees the old file or the new one, never half of one."""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to piece by piece: it appears as ``path`` at the end of the block, or not at all.

    The bytes go to a temporary neighbour, which is flushed to disk and then renamed over ``path``; when anything
    fails it is removed. An error of the disk names ``path``.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; expected the name of a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    with _naming(path):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def write_whole(path: Path, content: bytes) -> None:
    """Write to a temporary neighbour, flush it to disk, then rename it over ``path``."""
    with writing(path) as file:
        file.write(content)


def remove_leftovers(path: Path) -> None:
    """Remove what a killed process left of its attempts to write ``path``."""
    for leftover in path.parent.glob(f".{path.name}.*"):
        leftover.unlink(missing_ok=True)


def _umask() -> int:
    """The user's mask for new files, which mkstemp ignores; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Adds the file's name to errors of write and fsync, in which Python leaves it out."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def file_checksum(path: Path) -> str:
    """The file's SHA-256, read piece by piece so that files of any size fit in memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
