"""A store to predict: its graphs in chunks, with the rows that could not be read when it was prepared at their places.

A *store* is a data set that was read and checked once. It is cut where the file that it was made from would be cut, so
that both give the same numbers.
"""

import csv
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tokengt.batch import GraphBatch
from tokengt.data.manifest import GRAPHS, REJECTED
from tokengt.data.progress import say
from tokengt.data.sheets import Texts
from tokengt.data.store import Store
from tokengt.files import file_checksum
from tokengt.inference import Predictor
from tokengt.interop.reading import differences
from tokengt.level import Level
from tokengt.training.resolve import policy_of
from tokengt.training.spec import RunSpec
from tokengt.workflow.inputs import as_floats
from tokengt.workflow.rows import Chunks, Source, chunk_rows, graph_chunk, graph_head

# Nodes and edges of a chunk: graphs far larger than molecules come fewer at a time.
_LARGEST_CHUNK = 1 << 22
_LONGEST_CELL = 1 << 24


class RejectedRow(NamedTuple):
    """A row or graph that could not be read when the store was made; ``text`` is its molecule as it was written."""

    line: int
    reason: str
    text: str


def store_source(predictor: Predictor, store: Store, level: Level, shown: bool) -> Source:
    """The rows of a store: one per graph (or node or edge, as the level says), in the order of its source.

    Molecules come with the columns ``line`` and the one that their SMILES had, other graphs as a file of them does.

    Raises:
        ValueError: the store holds other molecules, descriptors or features than the run was trained on.
    """
    check_alike(store, predictor.spec)
    if level == "link" and store.manifest.level != level:
        raise ValueError(
            f"{store.folder or store.manifest.source.name} names no pairs of nodes; expected a store of links"
        )
    cuts = cuts_for(predictor, store, shown)
    rejected = sum(len(cut.rejected) for cut in cuts)
    texts = store.each_text is not None and level == "graph"
    if texts:
        head: tuple[str, ...] = ("line", store.manifest.columns.get("smiles") or "smiles")
    else:
        head = graph_head(level)

    def chunks(done: Collection[int]) -> Chunks:
        for cut in cuts:
            if cut.number not in done:
                graphs = graphs_at(store, cut, predictor.spec)
                lines = store.lines[cut.places].numpy()
                own = [(row.line, row.reason) for row in cut.rejected]
                chunk = graph_chunk(cut.number, graphs, lines, own, level)
                yield replace(chunk, front=_texts(store, cut), without=None) if texts else chunk

    owner = store.manifest.files.get(GRAPHS) or store.data_checksum()
    rows = store.graphs.level_rows(level).total + rejected
    size = chunk_rows(predictor, len(store) + rejected)
    name = store.folder or Path(store.manifest.source.name)
    key = f"{owner} with {rejected} rejected"
    return Source(name, head, key, rows, chunks, lambda: store.graphs.select([0]), size, featurised=False)


@dataclass(frozen=True, eq=False)
class Cut:
    """Some graphs of a store, a range of places, and the rejected rows that stand among them."""

    number: int
    places: slice
    rejected: tuple[RejectedRow, ...] = ()


def cuts_for(predictor: Predictor, store: Store, shown: bool = False) -> list[Cut]:
    """The chunks in which a run answers the rows of a store."""
    rejected = rejected_of(store, shown)
    return cuts_of(store, rejected, chunk_rows(predictor, len(store) + len(rejected)))


def cuts_of(store: Store, rejected: Collection[RejectedRow], size: int) -> list[Cut]:
    """Where the rows of a store are cut into chunks of ``size``; rejected rows count, as they do in the file.

    Where lines do not ascend, because the store was made from several files, the rejected rows come last.
    """
    lines, count = store.lines.numpy(), len(store)
    bad = sorted(rejected, key=lambda row: row.line)
    before = _graphs_before(lines, np.array([row.line for row in bad], dtype=np.int64))
    # The place of each rejected row among all rows.
    at = before + np.arange(len(bad))
    rows = count + len(bad)
    ends = [*range(size, rows, size), rows]
    cuts: list[Cut] = []
    start = taken = 0
    for end in ends:
        stop = int(np.searchsorted(at, end))
        own, last = tuple(bad[taken:stop]), end - stop
        for first, until in _by_size(store.graphs, start, last):
            cuts.append(Cut(len(cuts), slice(first, until), own))
            own = ()
        start, taken = last, stop
    return cuts


def _graphs_before(lines: NDArray[np.int64], rejected: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many graphs stand before each rejected row: all of them, where lines do not ascend."""
    ascending = bool((np.diff(lines) > 0).all())
    return np.searchsorted(lines, rejected) if ascending else np.full(len(rejected), len(lines))


def _by_size(graphs: GraphBatch, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The range as it is, or in pieces of at most so many nodes and edges; a larger graph is a piece of its own."""
    sizes = (graphs.nodes.host[start : stop + 1] + graphs.edges.host[start : stop + 1]).numpy()
    first = 0
    while first < stop - start and sizes[-1] - sizes[first] > _LARGEST_CHUNK:
        until = max(first + 1, int(np.searchsorted(sizes, sizes[first] + _LARGEST_CHUNK, side="right")) - 1)
        yield start + first, start + until
        first = until
    if first < stop - start or start == stop:
        yield start + first, stop


def graphs_at(store: Store, cut: Cut, spec: RunSpec) -> GraphBatch:
    """The graphs of a cut, with floats where the run was trained on floats."""
    places = torch.arange(cut.places.start, cut.places.stop)
    return as_floats(store.graphs.select(places), spec.model.float_features)


def _texts(store: Store, cut: Cut) -> Texts:
    """Line and SMILES of every row of a cut, in order; no loop over the graphs."""
    assert store._texts is not None
    offsets = store._texts.offsets[cut.places.start : cut.places.stop + 1].numpy()
    data = store._texts.data[int(offsets[0]) : int(offsets[-1])].numpy()
    lines, counts = store.lines[cut.places].numpy(), np.diff(offsets)
    if not cut.rejected:
        return Texts(lines, np.array(data), counts)
    encoded = [row.text.encode() for row in cut.rejected]
    own = np.array([row.line for row in cut.rejected], dtype=np.int64)
    before = _graphs_before(lines, own)
    starts = offsets[before] - offsets[0]
    # Every byte of a rejected row's text is put in front of the text that follows it.
    at = np.repeat(starts, [len(text) for text in encoded])
    return Texts(
        np.insert(lines, before, own),
        np.insert(data, at, np.frombuffer(b"".join(encoded), dtype=np.uint8)),
        np.insert(counts, before, [len(text) for text in encoded]),
    )


def rejected_of(store: Store, shown: bool) -> list[RejectedRow]:
    """The rows that could not be read, as ``rejected.csv`` lists them; none where that file is not as it was written.

    The list is there to be read and edited, so it may be gone or say anything by now.
    """
    count = store.manifest.rejected
    if not count or store.folder is None:
        return []
    path = store.folder / REJECTED
    if store.manifest.pairs:
        # A store knows nodes by their numbers alone, and these rows name some that are not there.
        say(f"{count:,} pairs could not be read when {store.folder} was made, and are left out: see {path}", shown)
        return []
    if not path.is_file() or file_checksum(path) != store.manifest.files.get(REJECTED):
        say(f"{path} is gone or was changed: the {count:,} rows that it listed are left out", shown)
        return []
    return list(_listed(path, store.manifest.columns.get("smiles") or "smiles"))


def _listed(path: Path, column: str) -> Iterator[RejectedRow]:
    csv.field_size_limit(max(_LONGEST_CELL, csv.field_size_limit()))
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        columns = next(rows)[2:]
        for line, reason, *cells in rows:
            yield RejectedRow(int(line), reason, dict(zip(columns, cells, strict=False)).get(column, ""))


def check_alike(store: Store, spec: RunSpec) -> None:
    """Refuse a store whose features and descriptors mean something else than those the run was trained on."""
    policy, wanted = policy_of(store), spec.molecules
    if policy is None or wanted is None:
        if policy is not wanted:
            held, trained = ("graphs" if each is None else "molecules" for each in (policy, wanted))
            raise ValueError(f"the store holds {held}; this run was trained on {trained}")
    elif policy != wanted:
        held, trained = differences(policy, wanted)
        raise ValueError(
            f"the store holds molecules with {held}; this run was trained on those with {trained}: prepare the table "
            "so, or predict from the table itself"
        )
    names = store.manifest.descriptors
    if names != spec.descriptors.names:
        raise ValueError(
            f"the store has the descriptors {', '.join(names) or 'none'}; this run was trained with "
            f"{', '.join(spec.descriptors.names) or 'none'}, in that order"
        )
    ours, theirs = spec.attributes, store.manifest.attributes
    if ours is not None and theirs is not None and (ours.nodes, ours.edges) != (theirs.nodes, theirs.edges):
        raise ValueError(f"the store has features {theirs}; this run was trained on {ours}")
