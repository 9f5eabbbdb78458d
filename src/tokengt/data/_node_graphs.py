"""Public data sets of one graph whose nodes are to be classified: one reader for every layout of their files.

All of them are read as undirected: both directions of every edge are listed, each once and in order, and self-loops are
left out. The files of Wikipedia's pages list some links in both directions and most in one; their authors call them
mutual. Words of a page or a paper are 0 or 1, as in PyTorch Geometric, and stay sparse.
"""

import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Int8
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.data._labelled import LabelledGraphs
from tokengt.data.manifest import NO_PART, PARTS
from tokengt.graph import Graph
from tokengt.ragged import Segments
from tokengt.sparse import SparseRows

GraphsReader = Callable[[Sequence[Path]], LabelledGraphs]
TARGET = "class"
# The places in log10 of the monthly traffic at which pages are cut into six classes.
TRAFFIC = {"chameleon": (2.5, 3.0, 3.5, 4.0, 4.5), "crocodile": (2.0, 2.5, 3.0, 3.5, 4.0)}
# Features of which at most this share is not zero are kept sparse.
_SPARSE_SHARE = 0.05


@contextmanager
def _arrays(path: Path, names: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """The arrays of an npz file, none of which may be a pickle."""
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in names if name not in file]
            if missing:
                raise ValueError(f"{path} has no array {missing[0]!r}; expected {', '.join(names)}")
            yield file
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise ValueError(f"{path} is torn: {error}") from None


def labelled_graph(
    features: Tensor | SparseRows,
    edges: Int[Tensor, "2 edges"],
    labels: Int[Tensor, " nodes"],
    split: Int8[Tensor, "nodes *splits"] | None = None,
) -> LabelledGraphs:
    """One graph with a class for every node; 0 and 1 alone are a binary task."""
    batch = GraphBatch.collate([Graph(features, edges, num_nodes=len(labels))])
    count = int(labels.max()) + 1
    classes = tuple(map(str, range(count))) if count > 2 else None
    values = labels.double()[:, None]
    return LabelledGraphs(batch, values, "node", (TARGET,), split, torch.tensor([1]), (), classes=classes)


def both_directions(edges: Int[Tensor, "2 edges"], nodes: int) -> Int[Tensor, "2 both"]:
    """Every edge and its reverse, each once, in the order of their ends; self-loops are left out."""
    edges = edges[:, edges[0] != edges[1]]
    keys = torch.unique(torch.cat([edges[0] * nodes + edges[1], edges[1] * nodes + edges[0]]))
    return torch.stack([keys // nodes, keys % nodes])


def compact(files: Sequence[Path]) -> LabelledGraphs:
    """Edges, words as CSR and labels in one npz, as they lie under ``TOKENGT_DATA``."""
    names = ("edge_index", "num_nodes", "x_indptr", "x_indices", "x_shape", "y")
    with _arrays(files[0], names) as file:
        edges, nodes = torch.from_numpy(file["edge_index"].astype(np.int64)), int(file["num_nodes"])
        words = _words(file["x_indptr"], file["x_indices"], file["x_shape"])
        labels = torch.from_numpy(file["y"].astype(np.int64))
    return labelled_graph(words, both_directions(edges, nodes), labels)


def benchmark(files: Sequence[Path]) -> LabelledGraphs:
    """An npz of Shchur et al. (2018), which PyG's ``Coauthor`` and ``Amazon`` read: two CSR matrices and labels."""
    names = [f"{what}_{part}" for what in ("adj", "attr") for part in ("indptr", "indices", "shape")]
    with _arrays(files[0], [*names, "labels"]) as file:
        nodes = int(file["adj_shape"][0])
        source = np.repeat(np.arange(nodes), np.diff(file["adj_indptr"]))
        edges = torch.from_numpy(np.stack([source, file["adj_indices"].astype(np.int64)]))
        words = _words(file["attr_indptr"], file["attr_indices"], file["attr_shape"])
        labels = torch.from_numpy(file["labels"].astype(np.int64))
    return labelled_graph(words, both_directions(edges, nodes), labels)


def _words(bounds: Any, columns: Any, shape: Any) -> SparseRows:
    """Which word each row has, whatever number stands there."""
    row = np.repeat(np.arange(int(shape[0])), np.diff(bounds))
    found = torch.from_numpy(np.stack([row, columns.astype(np.int64)]))
    return SparseRows.from_entries(found[0], found[1], torch.ones(found.shape[1]), int(shape[0]), int(shape[1]))


def wikipedia(files: Sequence[Path], *, name: str) -> LabelledGraphs:
    """SNAP's archive of Wikipedia's pages: links, words and monthly traffic, here in six classes."""
    with zipfile.ZipFile(files[0]) as archive:
        links = _table(archive, files[0], f"musae_{name}_edges.csv")
        traffic = _table(archive, files[0], f"musae_{name}_target.csv")
        words = json.loads(_member(archive, files[0], f"musae_{name}_features.json"))
    nodes = len(traffic)
    lists = [np.asarray(words.get(str(node), []), dtype=np.int64) for node in range(nodes)]
    entries = Segments.from_lengths(torch.tensor([len(listed) for listed in lists]))
    columns = torch.from_numpy(np.concatenate(lists))
    width = int(columns.max()) + 1
    rows = SparseRows.from_entries(entries.ids, columns, torch.ones(len(columns)), nodes, width)
    rows = SparseRows(rows.entries, rows.columns, torch.ones(len(rows.values)), width)
    visits = np.empty(nodes)
    visits[traffic[:, 0]] = traffic[:, 1]
    labels = torch.from_numpy(np.digitize(np.log10(visits.clip(min=1)), TRAFFIC[name]))
    return labelled_graph(rows, both_directions(torch.from_numpy(links.T.copy()), nodes), labels)


def _member(archive: zipfile.ZipFile, path: Path, name: str) -> bytes:
    """The file of this name, in whichever folder of the archive it lies."""
    found = [member for member in archive.namelist() if member.rpartition("/")[2] == name]
    if not found:
        raise ValueError(f"{path} holds no {name}; expected the archive as it is published")
    return archive.read(found[0])


def _table(archive: zipfile.ZipFile, path: Path, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A CSV of whole numbers, without its header."""
    try:
        return np.loadtxt(io.BytesIO(_member(archive, path, name)), delimiter=",", skiprows=1, dtype=np.int64, ndmin=2)
    except ValueError as error:
        raise ValueError(f"{path}, {name}: {error}") from None


def heterophilous(files: Sequence[Path]) -> LabelledGraphs:
    """An npz of Platonov et al. (2023): features, labels, every edge once, and the masks of ten splits."""
    names = ("node_features", "node_labels", "edges", "train_masks", "val_masks", "test_masks")
    with _arrays(files[0], names) as file:
        dense = torch.from_numpy(file["node_features"].astype(np.float32))
        labels = torch.from_numpy(file["node_labels"].astype(np.int64))
        edges = torch.from_numpy(file["edges"].astype(np.int64)).T
        masks = [torch.from_numpy(file[f"{part}_masks"]).T for part in ("train", "val", "test")]
    codes = torch.full(masks[0].shape, NO_PART, dtype=torch.int8)
    for code, mask in zip(range(len(PARTS)), masks, strict=True):
        codes[mask] = code
    sparse = float((dense != 0).double().mean()) <= _SPARSE_SHARE
    features = SparseRows.of(dense) if sparse else dense
    return labelled_graph(features, both_directions(edges, len(labels)), labels, codes)


def reader(read: Callable[..., LabelledGraphs], **wishes: Any) -> GraphsReader:
    return partial(read, **wishes)
