"""Locks that the operating system releases however a process ends, so that a lock of a dead process cannot exist.

A lock belongs to an open file or folder. Where a platform or a file system has no such locks, everybody goes on as if
alone.
"""

import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # Not a Unix system.
    fcntl = None  # type: ignore[assignment]


def try_lock(descriptor: int) -> bool:
    """Take the lock of an open file or folder at once; False where there are no locks.

    Raises:
        BlockingIOError: somebody else has it.
    """
    return _lock(descriptor, wait=False)


def wait_for_lock(descriptor: int) -> bool:
    """Take the lock of an open file or folder, however long somebody else keeps it; False where there are no locks."""
    return _lock(descriptor, wait=True)


def _lock(descriptor: int, wait: bool) -> bool:
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def is_still_at(descriptor: int, path: str | Path) -> bool:
    """Whether what was opened still has this name: somebody may have removed it before it was locked."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
