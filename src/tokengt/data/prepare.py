"""Turns a file of molecules or graphs into a store: shard by shard, restartable, the same bytes every time.

A *store* is a folder with a prepared data set (:mod:`tokengt.data.store`), a *shard* the converted form of some
thousand rows. Shards are kept in ``STORE/.shards`` under a fingerprint of everything that decides their content, so a
run that was killed continues where it stopped. The manifest is written last, and the shards are removed after it.
"""

import hashlib
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from tokengt.data import cells, engines
from tokengt.data.graph_sources import is_graph_source
from tokengt.data.graph_store import read_graphs, source_checksum
from tokengt.data.joined import SplitFiles
from tokengt.data.manifest import FILE_PART, Manifest, Recipe, Source, TargetColumn, featurisation
from tokengt.data.merge import Merged, merged, write_store
from tokengt.data.progress import progress_bar, say
from tokengt.data.shards import Column, Rejected, ShardFile, ShardRecipe, convert_shard, looks_like_row
from tokengt.data.store import Store
from tokengt.data.tables import Table, listed, open_table
from tokengt.data.targets import with_targets
from tokengt.data.workspace import Origin, Shelf, at_work, clear_shards, holds_store, is_finished, refuse_other_shards
from tokengt.interop.descriptors import are_slow, feature_names

# Usual rows per shard: enough that handing one to a worker costs little, few enough that a killed run loses little.
SHARD_ROWS = 4096
# When more than this share of the rows cannot be read, the columns or the task are more likely wrong than the rows.
MAX_REJECTED = 0.5


def prepare(
    source: Path | SplitFiles,
    out: Path,
    recipe: Recipe,
    *,
    workers: int | None = None,
    engine: engines.Engine = "processes",
    progress: bool = True,
    shard_rows: int | None = None,
    takes_over: bool = True,
    max_rejected: float = MAX_REJECTED,
) -> Store:
    """Make the store ``out`` of a table of molecules, a PyG data set or a folder of NetworkX JSON, and open it.

    Rows that cannot be read are listed in ``out/rejected.csv`` with their line and reason. A run that was stopped
    goes on where it was; a store that is finished is opened as it is.

    Args:
        source: .csv, .tsv (both also .gz, .xz), .parquet, .sdf, .smi; a PyG file or folder; a folder of .json. Or a
            table for each part of a split.
        out: the folder to make.
        recipe: which columns mean what, and how molecules become graphs.
        workers: processes on this machine, all its cores if None; with Ray, tasks at a time.
        engine: "processes", or "ray" for a cluster.
        progress: say on stderr how far it is.
        shard_rows: rows per shard, by themselves as many as suit the features; the store's bytes do not depend on it.
        takes_over: throw away what a stopped run with other settings left in ``out``; otherwise it is refused.
        max_rejected: when a larger share of the rows than this (0 to 1) is rejected, no store is made.

    Raises:
        ValueError: one sentence about the file, the recipe or the folder.
        OSError: the disk is full or a worker died; what was done is kept for the next run.
    """
    out = Path(out)
    for name, value in (("workers", workers), ("shard_rows", shard_rows)):
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; expected at least 1")
    check_limit(max_rejected)
    engines.check(engine)
    if isinstance(source, SplitFiles):
        recipe, table = replace(recipe, split=FILE_PART), source.table()
    else:
        source = Path(source)
        if not source.exists():
            raise ValueError(f"{source} does not exist")
        if is_graph_source(source):
            return _prepare_graphs(source, out, recipe, progress, takes_over, max_rejected)
        table = open_table(source)
    recipe, shard_recipe, table = in_table(recipe, table)
    made_by = {**featurisation(recipe.policy), "rdkit": rdkit_version()}
    if holds_store(out) and is_finished(out, Origin(_name(source), _checksum(source), recipe, made_by)):
        return _as_it_is(out, progress)
    # The file is read from front to back twice: once to find what is wrong with it as a whole, and once to convert it.
    rows, sha256 = survey(table, shard_recipe)
    origin = Origin(_name(source), sha256, recipe, made_by)
    shard_rows = shard_rows or engines.rows_per_shard(rows, SHARD_ROWS, slow=are_slow(recipe.policy.features))
    with at_work(out, progress):
        if is_finished(out, origin):
            return _as_it_is(out, progress)
        fingerprint = origin.fingerprint(shard_rows)
        if not takes_over:
            refuse_other_shards(out, fingerprint)
        shelf = Shelf.of(out, fingerprint)
        shards = _converted(table, shard_recipe, shelf, rows, shard_rows, engine, workers, progress)
        _merge(out, origin, table, shard_recipe, rows, shards, max_rejected)
        clear_shards(out)
    return Store.open(out, verify=False)


def in_table(recipe: Recipe, table: Table) -> tuple[Recipe, ShardRecipe, Table]:
    """A recipe with all its columns named, their places in a table, and that table, which knows what a row looks like.

    Raises:
        ValueError: one sentence: a column is not there, or is asked to mean two things.
    """
    recipe = _distinct(with_targets(_resolved(recipe, table), table), table)
    shard_recipe = ShardRecipe.of(recipe, table)
    return recipe, shard_recipe, table.guarded(partial(looks_like_row, recipe=shard_recipe))


def _name(source: Path | SplitFiles) -> str:
    """The file's name as text; bytes in it that are no text are written as escapes."""
    return source.name.encode("utf-8", "backslashreplace").decode()


def check_limit(max_rejected: float) -> None:
    if not 0 <= max_rejected <= 1:
        raise ValueError(f"max_rejected is {max_rejected}; expected a share of the rows, from 0 to 1")


def check_rejected(source: Path, things: str, total: int, rejected: int, limit: float, first: str) -> None:
    """Refuse a source of which a larger share than ``limit`` is rejected; ``first`` is the reason of the first."""
    if rejected > limit * total:
        raise ValueError(
            f"{rejected:,} of the {total:,} {things} of {source} are rejected, more than the limit of {limit:g} allows "
            f"({first}); choose other columns or another task, or raise the limit (max_rejected in Python, "
            "--max-rejected in the command)"
        )


def _checksum(source: Path | SplitFiles) -> str:
    return source.checksum() if isinstance(source, SplitFiles) else source_checksum(source)


def _as_it_is(out: Path, shown: bool) -> Store:
    try:
        store = Store.open(out)
    except ValueError as error:
        raise ValueError(f"{error}; remove the folder {out} and prepare it again") from error
    clear_shards(out)
    say(f"{out} was prepared before from the same source with the same settings: opened as it is", shown)
    return store


def _resolved(recipe: Recipe, table: Table) -> Recipe:
    """The recipe with the column of SMILES named, where the table does not fix it."""
    if recipe.level not in (None, "graph"):
        raise ValueError(f"{table.path} is a table of molecules with one target per molecule; the level must be graph")
    if recipe.smiles is not None or table.text_column is not None:
        return replace(recipe, level="graph")
    named = [column for column in table.columns if column.lower() == "smiles"]
    if len(named) != 1:
        columns = listed(table.columns)
        raise ValueError(f"{table.path}: name the column that holds the SMILES; the columns are {columns}")
    return replace(recipe, level="graph", smiles=named[0])


def _distinct(recipe: Recipe, table: Table) -> Recipe:
    """One column cannot be the molecule and what is learned of it, nor the split and either of them."""
    text = recipe.smiles or table.text_column
    named = [("the target option", name) for name in recipe.targets] + [
        ("the descriptors option", name) for name in recipe.descriptors
    ]
    named += [("the weights option", recipe.weights)] if recipe.weights is not None else []
    for option, name in named:
        if name in (text, recipe.split):
            what = "the molecules" if name == text else "the split"
            raise ValueError(f"{table.path}: {option} names column {name!r}, which holds {what}; choose another")
    return recipe


def rdkit_version() -> str:
    try:
        import rdkit
    except ImportError as error:
        raise ImportError("reading molecules needs RDKit: pip install 'tokengt[chem]'") from error
    return str(rdkit.__version__)


def survey(table: Table, shard_recipe: ShardRecipe) -> tuple[int, str]:
    """The number of rows and the file's SHA-256.

    A file that is wrong as a whole, or a target column without a single number, is refused here and not only after
    hours of work.
    """
    read = cells.binary if shard_recipe.task == "binary" else cells.number
    waiting: dict[Column, str | None] = {} if shard_recipe.multiclass else dict.fromkeys(shard_recipe.targets)
    rows, digest = 0, hashlib.sha256()
    for row in table.rows(digest.update):
        rows += 1
        for column in tuple(waiting):
            text = row.cells[column.place]
            try:
                value = read(text)
            except cells.BadCell:
                waiting[column] = waiting[column] or f"{cells.shown(text)} on {table.unit} {row.line}"
            else:
                # A NaN, a missing value, is not equal to itself; one real number is enough for the column.
                if value == value:
                    del waiting[column]
    if rows == 0:
        raise ValueError(f"{table.path} has a header but no rows; expected at least one molecule")
    for column, example in waiting.items():
        if example is not None:
            expected = "0 or 1" if shard_recipe.task == "binary" else "number"
            raise ValueError(
                f"{table.path}: target {column.name!r} holds no {expected} but text such as {example}; "
                "for classes that are text choose the task multiclass"
            )
    return rows, digest.hexdigest()


def _converted(
    table: Table,
    shard_recipe: ShardRecipe,
    shelf: Shelf,
    rows: int,
    shard_rows: int,
    engine: engines.Engine,
    workers: int | None,
    shown: bool,
) -> list[ShardFile]:
    """All shards in order: those on the shelf, and the others converted and put there."""
    done = shelf.done()
    total = -(-rows // shard_rows)
    if done:
        say(f"{len(done)} of {total} shards are there from an earlier run", shown)
    ready = sum(min(shard_rows, rows - number * shard_rows) for number in done)
    jobs, work = engines.jobs_of(table, shard_rows, done), partial(convert_shard, recipe=shard_recipe)
    results = engines.results(engine, jobs, work, workers, total - len(done), shown)
    with progress_bar(rows, "rows", "prepare", done=ready, shown=shown) as tick, closing(results):
        for number, arrays in results:
            done[number] = shelf.put(number, arrays)
            tick(len(arrays.arrays["lines"]) + len(arrays.rejected))
    if sorted(done) != list(range(total)):
        raise ValueError(f"{table.path} was changed while it was read; run the same again")
    return [done[number] for number in range(total)]


def _merge(
    out: Path,
    origin: Origin,
    table: Table,
    shard_recipe: ShardRecipe,
    rows: int,
    shards: list[ShardFile],
    max_rejected: float,
) -> None:
    whole = merged(shards)
    try:
        _check_whole(table, shard_recipe, rows, shards, whole, max_rejected)
    except ValueError:
        clear_shards(out)
        raise
    classes = whole.classes if shard_recipe.multiclass else None
    manifest = Manifest(
        source=Source(origin.name, origin.sha256, rows),
        rejected=0,
        featurisation=origin.featurisation,
        level="graph",
        task=shard_recipe.task,
        targets=tuple(
            TargetColumn(column.name, classes, censored)
            for column, censored in zip(shard_recipe.targets, whole.censored, strict=True)
        ),
        descriptors=(*origin.recipe.descriptors, *feature_names(origin.recipe.policy.features)),
        columns=origin.columns,
        counts={
            "graphs": whole.graphs,
            "nodes": whole.nodes,
            "edges": whole.edges,
            "hyperedges": 0,
            "rows": whole.graphs,
        },
    )
    rejected = (row for shard in shards for row in shard.rejected())
    write_store(out, manifest, whole.streams, table.columns, rejected)


def _check_whole(
    table: Table, recipe: ShardRecipe, rows: int, shards: list[ShardFile], whole: Merged, max_rejected: float
) -> None:
    """Refuse a table whose rows did not all come out as graphs or rejected rows, or of which too few are graphs."""
    if whole.graphs + whole.rejected != rows:
        raise ValueError(
            f"{table.path} was changed while it was read: it had {rows} rows, and {whole.graphs + whole.rejected} came "
            "out; run the same again"
        )
    if not whole.rejected:
        return
    bad = next(row for shard in shards for row in shard.rejected())
    if whole.graphs == 0:
        raise ValueError(none_readable(table, recipe, rows, bad))
    first = f"the first, {table.unit} {bad.line}: {bad.reason}"
    check_rejected(table.path, "rows", rows, whole.rejected, max_rejected, first)


def none_readable(table: Table, recipe: ShardRecipe, rows: int, first: Rejected) -> str:
    """The sentence about a table of which no row can be read."""
    return (
        f"none of the {rows} rows of {table.path} can be read with column {recipe.text.name!r} as molecules; "
        f"{table.unit} {first.line}: {first.reason}"
    )


def _prepare_graphs(
    source: Path, out: Path, recipe: Recipe, progress: bool, takes_over: bool, max_rejected: float
) -> Store:
    """Graphs are graphs already: read at once, in this process."""
    origin = Origin(_name(source), source_checksum(source), recipe, featurisation(None))
    if is_finished(out, origin):
        return _as_it_is(out, progress)
    manifest, tensors, rejected = read_graphs(source, origin, progress)
    if rejected:
        check_rejected(source, "graphs", manifest.source.rows, len(rejected), max_rejected, rejected[0].reason)
    with at_work(out, progress):
        if is_finished(out, origin):
            return _as_it_is(out, progress)
        if not takes_over:
            refuse_other_shards(out, None)
        write_store(out, manifest, tensors, (), rejected)
        clear_shards(out)
    return Store.open(out, verify=False)
