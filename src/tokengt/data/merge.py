"""Shards on disk merged into one store, tensor by tensor and shard by shard, so that memory holds one piece at a time.

A *shard* is the converted form of some thousand rows of a table, a *store* the finished data set. This module does not
import torch.
"""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from tokengt.data.cells import sorted_classes
from tokengt.data.manifest import GRAPHS, MANIFEST, REJECTED, Manifest
from tokengt.data.shards import Rejected, ShardFile
from tokengt.data.tables import TableWriter
from tokengt.data.tensorfile import Array, TensorStream, widest, write_tensors
from tokengt.files import file_checksum, write_whole, writing

_OFFSETS = {"node_offsets": "node_counts", "edge_offsets": "edge_counts", "text_offsets": "text_counts"}
_ROWS = ("node_features", "edge_features", "texts", "lines", "graph_features", "split", "weights", "bounds")


@dataclass(frozen=True, eq=False)
class Merged:
    """What the shards hold together: ``streams`` are the store's tensors, ``classes`` those of a multiclass target.

    ``censored`` are the bounds among the labels of each target.
    """

    streams: Mapping[str, TensorStream]
    classes: tuple[str, ...]
    graphs: int
    nodes: int
    edges: int
    rejected: int
    censored: tuple[int, ...]


def merged(shards: Sequence[ShardFile]) -> Merged:
    """The store's tensors, described from the shards' headers; their rows are read when they are written."""
    headers = [shard.header() for shard in shards]
    total = {name: sum(header[name].shape[0] for header in headers) for name in headers[0]}
    graphs, edges = total["lines"], total["edge_features"]
    labels = [shard.classes() for shard in shards]
    classes = sorted_classes(set().union(*labels))
    streams = {
        name: TensorStream(np.dtype("i8"), (graphs + 1,), partial(_offsets, shards, counts))
        for name, counts in _OFFSETS.items()
    }
    for name in _ROWS:
        if name in headers[0]:
            dtype, shape = headers[0][name]
            streams[name] = TensorStream(dtype, (total[name], *shape[1:]), partial(_rows, shards, name))
    narrow = widest(header["edge_index"].dtype for header in headers)
    streams["edge_index"] = TensorStream(narrow, (2, edges), partial(_edge_index, shards))
    targets = (graphs, headers[0]["targets"].shape[1])
    streams["targets"] = TensorStream(np.dtype("f8"), targets, partial(_targets, shards, labels, classes))
    return Merged(
        streams,
        classes,
        graphs,
        total["node_features"],
        edges,
        sum(len(shard.rejected()) for shard in shards),
        tuple(sum(counts) for counts in zip(*(shard.censored() for shard in shards), strict=True)),
    )


def _offsets(shards: Sequence[ShardFile], counts: str) -> Iterator[Array]:
    end = np.zeros(1, dtype=np.int64)
    yield end
    for shard in shards:
        offsets = end[-1] + np.cumsum(shard.read(counts), dtype=np.int64)
        yield offsets
        end = offsets if len(offsets) else end


def _rows(shards: Sequence[ShardFile], name: str) -> Iterator[Array]:
    return (shard.read(name) for shard in shards)


def _edge_index(shards: Sequence[ShardFile]) -> Iterator[Array]:
    """All first ends, then all second ends: [2, edges] lies row after row."""
    return (shard.read("edge_index")[end] for end in range(2) for shard in shards)


def _targets(shards: Sequence[ShardFile], labels: Sequence[Sequence[str]], classes: tuple[str, ...]) -> Iterator[Array]:
    """With classes, places in a shard's own labels become places among all."""
    codes = {label: float(code) for code, label in enumerate(classes)}
    for shard, own in zip(shards, labels, strict=True):
        targets = shard.read("targets")
        if classes:
            # The last entry of the table stands for a missing label.
            table = np.array([*(codes[label] for label in own), np.nan])
            targets = table[np.where(np.isnan(targets), len(own), targets).astype(np.int64)]
        yield targets


def write_store(
    folder: Path,
    manifest: Manifest,
    tensors: Mapping[str, TensorStream],
    columns: Sequence[str],
    rejected: Iterable[Rejected],
) -> Manifest:
    """Write a store's files, the manifest last: a folder with a manifest is complete. Returns it with checksums.

    Every row of the source is in it, as a graph (or a pair of nodes) or as a rejected row.
    """
    files = {GRAPHS: write_tensors(folder / GRAPHS, tensors)}
    place = "line" if manifest.by_line else "graph"
    count = _write_rejected(folder / REJECTED, [place, "reason", *columns], rejected)
    assert manifest.source.rows == manifest.readable + count, f"{manifest.source.rows} rows, {count} rejected"
    files[REJECTED] = file_checksum(folder / REJECTED)
    manifest = replace(manifest, rejected=count, files=files)
    write_whole(folder / MANIFEST, manifest.to_json())
    return manifest


def _write_rejected(path: Path, head: Sequence[str], rejected: Iterable[Rejected]) -> int:
    count = 0
    with writing(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        writer = TableWriter(text)
        writer.writerow(head)
        for row in rejected:
            writer.writerow([row.line, row.reason, *row.cells])
            count += 1
        text.detach()
    return count
