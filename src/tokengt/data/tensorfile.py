"""A safetensors file written piece by piece, for tensors that do not fit in memory together.

This module does not import torch.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokengt.files import writing

Array = NDArray[Any]
# The types that are written, in the order in which safetensors' own writer sorts tensors.
DTYPES: Mapping[str, np.dtype[Any]] = {
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "I16": np.dtype("i2"),
    "I32": np.dtype("i4"),
    "F32": np.dtype("f4"),
    "F64": np.dtype("f8"),
    "I64": np.dtype("i8"),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_NARROW = tuple(np.dtype(name) for name in ("u1", "i2", "i4", "i8"))


class TensorType(NamedTuple):
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class TensorStream:
    """A tensor that comes in pieces: consecutive rows of ``shape``, in order."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    pieces: Callable[[], Iterable[Array]]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @classmethod
    def whole(cls, array: Array) -> "TensorStream":
        return cls(array.dtype, array.shape, lambda: (array,))


def write_tensors(path: Path, tensors: Mapping[str, TensorStream]) -> str:
    """Write the file whole and return its SHA-256.

    As safetensors' own writer does, wide types come first, so that every tensor is aligned and can be mapped.
    """
    widths = list(DTYPES.values())
    ordered = dict(sorted(tensors.items(), key=lambda item: (-widths.index(item[1].dtype), item[0])))
    digest = hashlib.sha256()
    with writing(path) as file:
        start = _header(ordered)
        file.write(start)
        digest.update(start)
        for name, tensor in ordered.items():
            written = 0
            for piece in tensor.pieces():
                data = np.ascontiguousarray(piece, dtype=tensor.dtype).reshape(-1).view(np.uint8).data
                file.write(data)
                digest.update(data)
                written += len(data)
            assert written == tensor.nbytes, f"{name}: {written} bytes came, {tensor.nbytes} were announced"
    return digest.hexdigest()


def _header(tensors: Mapping[str, TensorStream]) -> bytes:
    entries, place = {}, 0
    for name, tensor in tensors.items():
        entries[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [place, place + tensor.nbytes],
        }
        place += tensor.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    # The format wants the tensors to begin at a multiple of eight bytes.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def narrowed(values: Array) -> Array:
    """Integers in the narrowest of uint8, int16, int32 and int64 that holds them."""
    if values.size == 0:
        return values.astype(np.uint8)
    low, high = int(values.min()), int(values.max())
    for dtype in _NARROW:
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return values.astype(dtype)
    raise AssertionError("int64 holds every integer array")


def widest(dtypes: Iterable[np.dtype[Any]]) -> np.dtype[Any]:
    """The narrow type that holds the values of all the given ones: each type holds those before it."""
    return max(dtypes, key=_NARROW.index, default=_NARROW[0])
