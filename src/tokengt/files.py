"""Files written whole: a reader sees the old file or the new one, never half of one. Folders held by one process.

While a file is written, its bytes lie in a temporary neighbour ``.NAME.RANDOM.part``, which its process keeps locked.
A kill leaves the neighbour behind without its lock: so a later process knows that it may remove it. What long work has
finished of a file lies in the folder ``.NAME.parts`` beside it, which is to survive a kill (:func:`parts_folder`).
"""

import errno
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from tokengt.locking import is_still_at, try_lock, wait_for_lock

_SUFFIX, _SCRATCH = ".part", "tokengt-scratch-"
# What mkstemp makes of a name: eight letters, digits or underscores.
_TEMPORARY = re.compile(rf"\.(?P<name>.+)\.[a-z0-9_]{{8}}{re.escape(_SUFFIX)}", re.DOTALL)
_KINDS: dict[int, str] = {
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


@contextmanager
def writing(path: Path, *, sweep: bool = True) -> Iterator[BinaryIO]:
    """A file to write to piece by piece: it appears as ``path`` at the end of the block, or not at all.

    The bytes go to a temporary neighbour, which is flushed to disk and then renamed over ``path``; when anything
    fails it is removed. A link is followed, a device or a pipe refused. An error of the disk names ``path``.

    Args:
        path: the file.
        sweep: remove what killed processes left of their attempts to write it. A folder of very many files is better
            swept once than at every file.
    """
    place = check_place(path)
    with _naming(path):
        make_folder(place.parent)
        if sweep:
            remove_leftovers(place)
        with _temporary(place) as (file, name):
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, place)
        _sync_folder(place.parent)


def write_whole(path: Path, content: bytes, *, sweep: bool = True) -> None:
    """Write to a temporary neighbour, flush it to disk, then rename it over ``path``; see :func:`writing`."""
    with writing(path, sweep=sweep) as file:
        file.write(content)


def check_place(path: Path) -> Path:
    """The file that ``path`` leads to, through links; there may be none yet.

    Raises:
        OSError: a folder, a device, a pipe or a socket has this name.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return Path(os.path.realpath(path))
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(f"{path} is a folder; expected the name of a file")
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "no regular file")
        raise OSError(f"{path} is {kind}; expected the name of a regular file")
    return Path(os.path.realpath(path))


def ready_to_write(path: Path) -> None:
    """Refuse and remove at once what :func:`writing` would, for those who write only after long work."""
    place = check_place(path)
    folder = next(each for each in place.parents if each.exists())
    if not folder.is_dir():
        raise NotADirectoryError(f"{path} cannot be written: {folder} is no folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    remove_leftovers(place)


def make_folder(folder: Path) -> list[Path]:
    """Make a folder and those above it, through links; returns the folders that were not there, outermost first.

    Raises:
        OSError: a file is in the way.
    """
    missing, place = [], Path(os.path.realpath(folder))
    while not place.exists():
        missing.append(place)
        place = place.parent
    made = []
    for each in (place, *reversed(missing)):
        # Another process may make the same folder at this moment.
        with suppress(FileExistsError):
            if each is not place:
                each.mkdir()
                made.append(each)
        if not each.is_dir():
            raise NotADirectoryError(f"{folder} cannot be made: {each} is no folder")
    return made


def remove_empty(*folders: Path) -> None:
    """Remove those folders that are there and hold nothing, in this order."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


@contextmanager
def folder_lock(folder: Path, when_taken: Callable[[], None]) -> Iterator[list[Path]]:
    """Have a folder to oneself; it is made where there is none. Gives the folders that were made, outermost first.

    ``when_taken`` is called when another process has the folder: unless it raises, that process is waited for.
    """
    made: list[Path] = []
    while True:
        made += make_folder(folder)
        try:
            descriptor = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue  # Another process has just removed it, empty.
        try:
            try:
                try_lock(descriptor)
            except BlockingIOError:
                when_taken()
                wait_for_lock(descriptor)
            # The process that had it may have removed the folder: then what is locked is no longer the one we want.
            if is_still_at(descriptor, folder):
                yield made
                return
        finally:
            os.close(descriptor)


def remove_leftovers(path: Path) -> None:
    """Remove what killed processes left of their attempts to write ``path``; those at work keep theirs."""
    _sweep(path.parent, path.name)


def sweep_folder(folder: Path) -> None:
    """Remove what killed processes left of their attempts to write any file of a folder."""
    _sweep(folder, None)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder among the system's temporary ones, which goes at the end; those that killed processes left go first."""
    home = Path(tempfile.gettempdir())
    for left in home.glob(f"{_SCRATCH}*{_SUFFIX}"):
        with suppress(OSError), _opened(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY) as descriptor:
            if os.fstat(descriptor).st_uid == os.getuid() and try_lock(descriptor):
                shutil.rmtree(left)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_SCRATCH, suffix=_SUFFIX))
        with folder_lock(folder, lambda: None) as made:
            # Made anew, it was swept away before it was locked, and anybody may read it: then another one is taken.
            if made:
                remove_empty(folder)
                continue
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return


def parts_folder(path: Path) -> Path:
    """Where finished parts of a file are kept until it is whole: a folder beside it, which its process holds."""
    place = Path(os.path.realpath(path))
    return place.with_name(f".{place.name}.parts")


def is_temporary(name: str) -> bool:
    """Whether a file of this name is one that :func:`writing` writes to before it has its own."""
    return _TEMPORARY.fullmatch(name) is not None


def _sweep(folder: Path, name: str | None) -> None:
    # A folder that may not be listed or written to is left as it is.
    with suppress(OSError):
        for file in list(folder.iterdir()):
            found = _TEMPORARY.fullmatch(file.name)
            if found is not None and name in (None, found["name"]):
                _remove_if_left(file)


def _remove_if_left(file: Path) -> None:
    """Remove a temporary file that no process keeps locked."""
    with suppress(OSError), _opened(file, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK) as descriptor:
        if stat.S_ISREG(os.fstat(descriptor).st_mode) and try_lock(descriptor):
            file.unlink()


@contextmanager
def _temporary(place: Path) -> Iterator[tuple[BinaryIO, str]]:
    """A locked temporary file beside ``place`` and its name; the lock is kept until the file has its own name."""
    while True:
        handle, name = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.", suffix=_SUFFIX)
        file = os.fdopen(handle, "wb")
        wait_for_lock(handle)
        # Another process that sweeps the folder may have found the file before it was locked.
        if is_still_at(handle, name):
            break
        file.close()
    try:
        with file:
            yield file, name
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _umask() -> int:
    """The user's mask for new files, which mkstemp ignores; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Puts the file's name into errors of the disk, in which there is none or that of the temporary file."""
    try:
        yield
    except OSError as error:
        unnamed = error.filename is None or is_temporary(Path(os.fsdecode(error.filename)).name)
        if error.errno is None or not unnamed:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    with _opened(folder, os.O_RDONLY) as descriptor:
        os.fsync(descriptor)


def checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def file_checksum(path: Path) -> str:
    """The file's SHA-256, read piece by piece so that files of any size fit in memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
