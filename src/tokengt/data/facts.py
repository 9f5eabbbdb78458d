"""Facts about a store's graphs, such as eigenvectors: computed in chunks, kept in its folder, checked when read.

A *fact* is something that the structure of a graph decides (:mod:`tokengt.structure.facts`).
"""

import errno
import json
import tempfile
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int, Shaped
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.data.progress import progress_bar
from tokengt.data.tensorfile import Array, TensorStream, write_tensors
from tokengt.files import file_checksum, write_whole
from tokengt.structure.distances import check_pairs
from tokengt.structure.facts import StructureFact

# How many graphs, and ordered pairs of nodes, one chunk may hold.
_GRAPHS_AT_ONCE, _PAIRS_AT_ONCE = 4096, 2**22
_FACT = "fact"


def fact_of_all(
    graphs: GraphBatch, fact: StructureFact, cache: Path | None = None, owner: str = "", shown: bool = False
) -> Shaped[Tensor, "rows *rest"]:
    """A fact about every graph, read from the folder ``cache`` if it was kept there for the graphs called ``owner``.

    A file that is torn, changed or about other graphs is computed again. A folder that may not be written to is left
    alone, and the fact stays in memory.
    """
    path = None if cache is None else cache / f"{fact.name}.safetensors"
    kept_rows = None if path is None else _read(path, owner)
    if kept_rows is not None:
        return kept_rows
    if fact.per == "pair":
        check_pairs(graphs.nodes)
    with progress_bar(len(graphs), "graphs", fact.name, shown=shown) as tick:
        pieces = _computed(graphs, fact, tick)
        # The type and width of the file's tensor are those of the first chunk.
        first = next(pieces)
        rows = chain((first,), pieces)
        if path is None or not _writable(path.parent):
            return torch.from_numpy(np.concatenate(list(rows)))
        stream = TensorStream(first.dtype, (graphs.fact_rows(fact.per), *first.shape[1:]), lambda: rows)
        digest = write_tensors(path, {_FACT: stream})
        write_whole(_note(path), json.dumps({"sha256": digest, "graphs": owner}).encode() + b"\n")
        return _mapped(path)


def _computed(graphs: GraphBatch, fact: StructureFact, tick: Callable[[int], None]) -> Iterator[Array]:
    """The fact's rows, some graphs at a time."""
    for chunk in _chunks(graphs, fact):
        yield fact.compute(graphs.select(chunk)).cpu().numpy()
        tick(len(chunk))


def _chunks(graphs: GraphBatch, fact: StructureFact) -> Iterator[Int[Tensor, " chosen"]]:
    """Consecutive places of graphs whose rows fit into memory together; a graph too large for that comes alone."""
    pairs = graphs.nodes.pairs.host if fact.per == "pair" else None
    first = 0
    while first < len(graphs):
        last = min(first + _GRAPHS_AT_ONCE, len(graphs))
        if pairs is not None:
            within = torch.searchsorted(pairs, int(pairs[first]) + _PAIRS_AT_ONCE, right=True)
            last = max(first + 1, min(last, int(within) - 1))
        yield torch.arange(first, last)
        first = last


def _read(path: Path, owner: str) -> Shaped[Tensor, "rows *rest"] | None:
    try:
        if json.loads(_note(path).read_bytes()) != {"sha256": file_checksum(path), "graphs": owner}:
            return None
        return _mapped(path)
    except (FileNotFoundError, ValueError, SafetensorError):
        return None


def _mapped(path: Path) -> Shaped[Tensor, "rows *rest"]:
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
