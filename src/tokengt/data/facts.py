"""Facts of a store's graphs that are worth keeping: computed in chunks, kept beside the store, checked when read."""

import errno
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tokengt.data.packed import PackedGraphs
from tokengt.data.progress import progress_bar
from tokengt.data.tensorfile import Array, TensorStream, write_tensors
from tokengt.files import file_checksum, write_whole
from tokengt.structure.laplacian import Which, laplacian_eigenvectors, laplacian_fact

_CHUNK = 4096
_FACT = "fact"


def laplacian_vectors(
    graphs: PackedGraphs, count: int, which: Which, tick: Callable[[int], None] = lambda _: None
) -> Iterator[Float32[Tensor, "nodes count"]]:
    """Canonical eigenvectors of all graphs, a chunk of graphs at a time."""
    for start in range(0, len(graphs), _CHUNK):
        chunk = torch.arange(start, min(start + _CHUNK, len(graphs)))
        yield laplacian_eigenvectors(graphs.gather(chunk), count, which).vectors.float()
        tick(len(chunk))


def laplacian_of(
    graphs: PackedGraphs, count: int, which: Which, cache: Path | None, owner: str, shown: bool
) -> Float32[Tensor, "nodes count"]:
    """The eigenvectors of every node, from the folder ``cache`` when they are there for the graphs ``owner`` names.

    A file that is torn, changed or of other graphs is computed again; a folder nobody may write to is left alone.
    """
    name = laplacian_fact(count, which)
    path = None if cache is None else cache / f"{name}.safetensors"
    known = None if path is None else _read(path, owner)
    if known is not None:
        return known
    with progress_bar(len(graphs), "graphs", "Laplacian eigenvectors", shown=shown) as tick:

        def pieces() -> Iterator[Array]:
            return (part.numpy() for part in laplacian_vectors(graphs, count, which, tick))

        if path is not None and _writable(path.parent):
            stream = TensorStream(np.dtype("f4"), (graphs.nodes.total, count), pieces)
            digest = write_tensors(path, {_FACT: stream})
            write_whole(_note(path), json.dumps({"sha256": digest, "graphs": owner}).encode() + b"\n")
            return _mapped(path)
        return torch.from_numpy(np.concatenate(list(pieces())))


def _read(path: Path, owner: str) -> Float32[Tensor, "nodes count"] | None:
    try:
        if json.loads(_note(path).read_bytes()) != {"sha256": file_checksum(path), "graphs": owner}:
            return None
        return _mapped(path)
    except (FileNotFoundError, ValueError, SafetensorError):
        return None


def _mapped(path: Path) -> Float32[Tensor, "nodes count"]:
    with safe_open(path, "pt") as file:
        fact: Tensor = file.get_tensor(_FACT)
    return fact


def _note(path: Path) -> Path:
    return path.with_suffix(".json")


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return False
        raise
    return True
