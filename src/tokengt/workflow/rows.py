"""Whatever is to be predicted, as chunks: some thousand rows of a table, a store or a file of graphs, made into graphs.

The rows of a table are read by one process and made into graphs by others, while this one runs the model; at most two
chunks per worker are on the way, so that memory does not grow with the file. A store holds graphs already, and is
mapped from disk.
"""

from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.data import engines, pool
from tokengt.data.links import LINK_ENDS
from tokengt.data.prepare import rdkit_version
from tokengt.data.shards import (
    ShardArrays,
    ShardRecipe,
    ShownShard,
    convert_shown,
    looks_like_row,
    visible_columns,
)
from tokengt.data.sheets import Numbers, PackedCells, Texts
from tokengt.data.tables import Table, open_table
from tokengt.data.tensorfile import Array
from tokengt.inference import Predictor
from tokengt.interop.descriptors import are_slow
from tokengt.level import Level
from tokengt.ragged import Segments

# Usual rows of a chunk: what a CPU is given at a time is cut from one chunk by tokens, so more would help nobody.
CHUNK_ROWS = 2048
# The arrays of a shard that make up its graphs.
_GRAPHS = ("node_counts", "edge_counts", "node_features", "edge_index", "edge_features", "graph_features")


@dataclass(frozen=True)
class Workers:
    """Where the rows of a table become graphs: ``count`` processes (all cores if None), or tasks of Ray."""

    count: int | None = None
    engine: engines.Engine = "processes"
    shown: bool = True

    def __post_init__(self) -> None:
        engines.check_workers(self.count)
        engines.check(self.engine)


@dataclass(frozen=True, eq=False)
class Chunk:
    """Rows of an output, in order: those that can be predicted, as graphs, and the reasons of the others.

    Args:
        number: which chunk of its source it is.
        front: what says of every row which one it is.
        lines: [rows] where each stands in its source.
        graphs: those that can be predicted; None where there is none.
        kept: [rows of ``graphs``] their places among the rows.
        problems: why the others have no graph, by their places.
        without: the same chunk without some of its graphs, whose reasons are given; None where none may be refused.
    """

    number: int
    front: PackedCells | Numbers | Texts
    lines: NDArray[np.int64]
    graphs: GraphBatch | None
    kept: NDArray[np.int64]
    problems: dict[int, str]
    without: "Callable[[Mapping[int, str]], Chunk] | None" = None

    def __len__(self) -> int:
        return len(self.lines)

    def told(self, predictor: Predictor, values: Float[Tensor, "kept out"] | None, level: Level) -> dict[int, str]:
        """The reasons of all rows without a value: those that could not be read, and those that overflowed."""
        if self.graphs is None or values is None:
            return self.problems
        overflowed = predictor.reasons(self.graphs, values, level)
        return self.problems | {int(self.kept[row]): reason for row, reason in overflowed.items()}

    def spread_out(self, values: Float[Tensor, "kept out"] | None, width: int) -> Float[Tensor, "rows out"]:
        """Values of the kept rows at their places, NaN elsewhere."""
        out = torch.full((len(self), width), torch.nan, dtype=torch.float64)
        if values is not None:
            out[torch.from_numpy(self.kept)] = values.double()
        return out


# Whoever takes chunks closes them at the end: then the processes that read for them end too.
Chunks = Generator[Chunk, None, None]


@dataclass(frozen=True, eq=False)
class Source:
    """Rows to predict.

    Args:
        name: what it is called.
        head: the columns that say which row it is.
        key: what tells these rows, and how they are read, from any others.
        most: at most so many rows are in it.
        chunks: those whose numbers are not among the given ones, in any order.
        example: any one graph like those of the rows.
        chunk_rows: the rows of a chunk.
        featurised: whether rows become graphs on the way.
        workers: how many processes do that beside the model; 0 where this one does.
    """

    name: Path
    head: tuple[str, ...]
    key: str
    most: int
    chunks: Callable[[Collection[int]], Chunks]
    example: Callable[[], GraphBatch]
    chunk_rows: int
    featurised: bool
    workers: int = 0


def chunk_rows(predictor: Predictor, rows: int) -> int:
    """How many of ``rows`` make up a chunk for this run.

    A table and the store that was made from it are cut alike, so that both give the same numbers.
    """
    policy = predictor.spec.molecules
    return engines.rows_per_shard(rows, CHUNK_ROWS, slow=policy is not None and are_slow(policy.features))


def table_source(predictor: Predictor, path: Path, smiles: str | None, workers: Workers) -> Source:
    """The rows of a table of molecules.

    Raises:
        ValueError: one sentence: the run was trained on other graphs, or a column is missing.
    """
    table = open_table(path)
    recipe = recipe_of(predictor, table, smiles)
    # The table notices a quote that takes in whole rows.
    table = table.guarded(partial(looks_like_row, recipe=recipe))
    head, blocks = visible_columns(table)
    most, sha256 = table.survey()
    size = chunk_rows(predictor, most)
    work = partial(convert_shown, recipe=recipe, blocks=blocks)

    def chunks(done: Collection[int]) -> Chunks:
        with closing(converted(table, work, most, size, workers, done, sha256)) as shards:
            for number, shown in shards:
                yield table_chunk(number, shown)

    def methane() -> GraphBatch:
        graphs, _, _ = predictor.read_texts(["C"])
        names = predictor.spec.descriptors.names
        return graphs.with_graph_features(torch.zeros(1, len(names))) if names else graphs

    key = f"{sha256} read by RDKit {rdkit_version()} as {recipe}"
    beside = processes(most, size, workers)
    return Source(path, head, key, most, chunks, methane, size, featurised=True, workers=beside)


def processes(most: int, size: int, workers: Workers) -> int:
    """How many processes beside this one make graphs of at most so many rows, ``size`` of them at a time; 0 where this
    one does."""
    chunks = -(-most // size)
    return min(workers.count or engines.available_cores(), chunks) if chunks > 1 else 0


def converted(
    table: Table,
    work: engines.Work[engines.T],
    most: int,
    size: int,
    workers: Workers,
    done: Collection[int] = (),
    sha256: str | None = None,
) -> engines.Results[engines.T]:
    """Number and result of every chunk of ``size`` rows of a table, as they are ready; few are on the way."""
    several = processes(most, size, workers) > 0
    given = (table, size, frozenset(done), sha256)
    reading = f"read {table.path}; what is done is kept: run the same again"
    jobs = pool.stream(reading, engines.packed_jobs, *given) if several else engines.jobs_of(*given)
    left = -(-most // size)
    results = engines.results(workers.engine, jobs, work, workers.count, left, workers.shown, beside=True)
    with closing(jobs), closing(results):
        yield from results


def table_chunk(number: int, shown: ShownShard) -> Chunk:
    """The rows of a shard, as they are to be predicted and given back."""
    graphs = batch_of_shard(shown.shard)
    return Chunk(number, PackedCells(shown.cells), shown.lines, graphs, shown.kept, shown.problems)


def batch_of_shard(shard: ShardArrays) -> GraphBatch | None:
    """The readable rows of a shard as one batch; None where there is none."""
    if not len(shard.arrays["lines"]):
        return None
    tensors = {name: writeable(shard.arrays[name]) for name in _GRAPHS if name in shard.arrays}
    offsets = {
        f"{what}_offsets": Segments.from_lengths(tensors.pop(f"{what}_counts")).host for what in ("node", "edge")
    }
    return GraphBatch.from_arrays({**offsets, **tensors})


def writeable(array: Array) -> Tensor:
    """The array as a tensor; torch wants one that may be written to, and those that came through Ray may not."""
    return torch.from_numpy(np.require(array, requirements="W"))


def recipe_of(predictor: Predictor, table: Table, smiles: str | None) -> ShardRecipe:
    """Where a run finds its inputs in a table."""
    spec = predictor.spec
    if spec.tables is not None:
        raise ValueError(
            f"{table.path} is one table, and this run was trained on a table of nodes and one of edges; give both "
            "(--nodes and --edges, in Python NodeFiles)"
        )
    if spec.molecules is None:
        raise ValueError(f"{table.path} is a table of molecules, but this run was trained on other graphs")
    named = spec.descriptors.columns
    return ShardRecipe.to_predict(table, spec.molecules, named, spec.text_column, smiles)


def graph_head(level: Level) -> tuple[str, ...]:
    """The columns that say which row of a graph it is: its number, and those of its node, edge or two nodes."""
    inside: dict[Level, tuple[str, ...]] = {"graph": (), "link": LINK_ENDS}
    return ("graph", *inside.get(level, (level,)))


def graph_chunk(
    number: int,
    graphs: GraphBatch,
    lines: NDArray[np.int64],
    rejected: Collection[tuple[int, str]],
    level: Level,
    named: Callable[[int, str], str] = lambda _, reason: reason,
) -> Chunk:
    """A chunk of graphs that are there already: one row per graph, node, edge or link, and one per rejected graph.

    Rows are in the order of ``lines``, which number the graphs in their source; where these do not ascend, because they
    are of several files, rejected graphs come last. ``named`` completes the reason why the model refuses a graph.
    """
    rows = graphs.level_rows(level)
    owners = rows.ids.cpu().numpy()
    front = lines[owners][:, None]
    if level == "link":
        assert graphs.link_numbers is not None
        front = np.concatenate([front, graphs.link_numbers.local.cpu().numpy().T.astype(np.int64)], 1)
    elif level != "graph":
        front = np.concatenate([front, rows.positions.cpu().numpy()[:, None]], 1)
    blank = np.full((len(rejected), front.shape[1]), -1, dtype=np.int64)
    blank[:, 0] = [line for line, _ in rejected]
    front = np.concatenate([front, blank])
    # Graphs that could not be read go back to their places among the others.
    ascending = bool((np.diff(lines) > 0).all())
    order = np.argsort(front[:, 0], kind="stable") if ascending else np.arange(len(front))
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    reasons = zip(places[rows.total :].tolist(), (reason for _, reason in rejected), strict=True)

    def without(refused: Mapping[int, str]) -> Chunk:
        kept = [place for place in range(len(graphs)) if place not in refused]
        more = [(int(lines[place]), named(int(lines[place]), reason)) for place, reason in refused.items()]
        return graph_chunk(number, graphs.select(kept), lines[kept], [*rejected, *more], level, named)

    return Chunk(
        number,
        Numbers(front[order]),
        front[order, 0],
        graphs if len(graphs) else None,
        places[: rows.total],
        dict(reasons),
        without,
    )


def answered(chunk: Chunk, ask: Callable[[GraphBatch], engines.T]) -> tuple[Chunk, engines.T | None]:
    """What the model says of a chunk, without graphs that it refuses, such as one of a category it does not know."""
    if chunk.graphs is None:
        return chunk, None
    try:
        return chunk, ask(chunk.graphs)
    except ValueError as error:
        if chunk.without is None:
            raise
        refused = refused_graphs(chunk.graphs, ask)
        # Where the model refuses all of the first chunk, it is the whole source that does not suit it.
        if not refused or (len(refused) == len(chunk.graphs) and chunk.number == 0):
            raise error
    usable = chunk.without(refused)
    return usable, None if usable.graphs is None else ask(usable.graphs)


def refused_graphs(graphs: GraphBatch, ask: Callable[[GraphBatch], object]) -> dict[int, str]:
    """The reasons of the graphs that the model refuses, by their places, found by halves."""
    return _refused(graphs, range(len(graphs)), ask)


def _refused(graphs: GraphBatch, places: range, ask: Callable[[GraphBatch], object]) -> dict[int, str]:
    """The reasons of the graphs among these places that the model refuses."""
    try:
        ask(graphs.select(places))
    except ValueError as error:
        if len(places) == 1:
            return {places[0]: str(error).removeprefix("graph 0: ")}
        half = len(places) // 2
        return _refused(graphs, places[:half], ask) | _refused(graphs, places[half:], ask)
    return {}
