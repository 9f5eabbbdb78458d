"""Pickles of tensors, arrays and plain values, read without running anything else that they ask for."""

import io
import pickle
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tokengt.data._text import check_regular


def load_torch(source: Path | io.BytesIO, safe: Sequence[Any] = ()) -> Any:
    """``torch.load`` that runs nothing; the classes ``safe`` are allowed for this one call.

    Those that somebody else allows anyway, as PyG does its own, are left out: torch takes back at the end all that it
    was told to allow.
    """
    allowed = torch.serialization.get_safe_globals()
    with torch.serialization.safe_globals([each for each in safe if each not in allowed]), warnings.catch_warnings():
        # What torch thinks of a file's age or protocol helps nobody: it is read or refused.
        warnings.simplefilter("ignore")
        return torch.load(source, map_location="cpu", weights_only=True)


def _storage(content: bytes) -> Any:
    """A tensor's numbers inside a plain pickle: a file of torch in itself, which is read as carefully."""
    return load_torch(io.BytesIO(content))


def _encode(text: str, encoding: str) -> bytes:
    """How Python 2 and old protocols wrote bytes."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"wants the encoding {encoding}")
    return text.encode("latin-1")


_reconstruct: Any = np.ndarray.__reduce__(np.zeros(0))[0]
_scalar: Any = np.float64(0).__reduce__()[0]
_SAFE: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("_codecs", "encode"): _encode,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
    ("torch.storage", "_load_from_bytes"): _storage,
}


class _Careful(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _SAFE:
            raise pickle.UnpicklingError(f"wants {module}.{name}")
        return _SAFE[module, name]


def read_pickle(content: bytes, name: str | Path) -> Any:
    """What a plain pickle of tensors, arrays, lists, dicts and numbers holds.

    Raises:
        ValueError: one sentence: it asks for anything else, or is torn.
    """
    try:
        return _Careful(io.BytesIO(content)).load()
    except pickle.UnpicklingError as error:
        what = str(error)
        if what.startswith("wants "):
            raise ValueError(f"{name} {what}, which is refused for safety: only tensors and arrays are read") from None
        raise ValueError(f"{name} cannot be read: {what}") from None
    except Exception as error:  # a torn file can fail in any way
        raise ValueError(f"{name} cannot be read: {str(error) or type(error).__name__}") from None


def read_torch(path: Path, content: bytes | None = None) -> Any:
    """What ``torch.save`` wrote of tensors, arrays, lists, dicts and numbers: to a path, or as its ``content``.

    Raises:
        ValueError: one sentence: it asks for anything else, or is torn.
    """
    if content is None:
        check_regular(path)
    dtypes = [type(np.dtype(kind)) for kind in ("i1", "i2", "i4", "i8", "u1", "f4", "f8")]
    arrays: list[Any] = [np.ndarray, np.dtype, *dtypes]
    arrays += [(_reconstruct, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    try:
        return load_torch(path if content is None else io.BytesIO(content), arrays)
    except pickle.UnpicklingError:
        raise ValueError(
            f"{path} holds more than tensors, arrays and plain values, which is refused for safety"
        ) from None
    except Exception as error:  # a torn file can fail in any way
        reason = str(error).strip().split("\n")[0]
        raise ValueError(f"{path} cannot be read as a file of torch: {reason or type(error).__name__}") from None
