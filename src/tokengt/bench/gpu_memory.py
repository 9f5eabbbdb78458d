"""How full a GPU is, asked of its driver: what another process takes can be seen from outside, without torch."""

import ctypes
import os
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"


class _Memory(ctypes.Structure):
    """``nvmlMemory_t``: bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class GpuMemory:
    """Bytes that programs hold on the first GPU that torch would take, at the fullest moment that was looked at."""

    def __init__(self, library: Any, handle: ctypes.c_void_p) -> None:
        self._library, self._handle = library, handle
        self._before = self._now()
        self._most = self._before

    @classmethod
    def watch(cls) -> "GpuMemory | None":
        """None where there is no driver to ask."""
        try:
            library = ctypes.CDLL(_LIBRARY)
        except OSError:
            return None
        handle = ctypes.c_void_p()
        if library.nvmlInit_v2() != 0 or _find(library, handle) != 0:
            return None
        return cls(library, handle)

    def look(self) -> None:
        self._most = max(self._most, self._now())

    @property
    def gib(self) -> float:
        """What came on top of what was there when the watch began."""
        return (self._most - self._before) / 2**30

    def _now(self) -> int:
        memory = _Memory()
        failed = self._library.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory))
        return 0 if failed else int(memory.used)


def _find(library: Any, handle: ctypes.c_void_p) -> int:
    """The driver numbers all GPUs; torch takes the first of those that the environment shows it."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if first.isdigit():
        return int(library.nvmlDeviceGetHandleByIndex_v2(int(first), ctypes.byref(handle)))
    return int(library.nvmlDeviceGetHandleByUUID(first.encode(), ctypes.byref(handle)))
