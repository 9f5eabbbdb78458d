"""Whatever a person has, as a store to train on or as graphs to predict.

A store is a data set that was read and checked once, with all its graphs packed into one batch.
"""

import csv
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jaxtyping import Int64
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.config import near
from tokengt.data.graph_sources import (
    LabelledGraphs,
    graph_format,
    is_graph_source,
    read_pyg_list,
)
from tokengt.data.joined import SplitFiles
from tokengt.data.manifest import FILE_PART, MANIFEST, REJECTED, Recipe
from tokengt.data.prepare import prepare
from tokengt.data.progress import say
from tokengt.data.store import Store
from tokengt.data.tables import is_table, listed, open_table
from tokengt.data.targets import ALL, expanded
from tokengt.data.workspace import SHARDS
from tokengt.files import write_whole
from tokengt.interop.molecules import MoleculePolicy
from tokengt.training.resolve import policy_of
from tokengt.training.spec import RunSpec


def open_data(
    data: Any, recipe: Recipe, home: Path, *, workers: int | None = None, quiet: bool = False, kept: bool = True
) -> Store:
    """A store as it is, or one made in ``home`` from a file, a DataFrame or PyG graphs.

    If rows could not be read, a sentence says how many, where the first stands and why; and where all of them are
    listed, if ``home`` is ``kept``.
    """
    if isinstance(data, Store):
        return _chosen_targets(data, recipe)
    if isinstance(data, SplitFiles):
        return _prepared(data, recipe, home, workers, quiet, kept)
    if hasattr(data, "to_csv"):
        data = _written(data.to_csv(index=False).encode(), home.with_name("data.csv"))
    if not isinstance(data, (str, Path)):
        return _in_memory(data, recipe)
    path = Path(data)
    if (path / MANIFEST).is_file():
        return _chosen_targets(Store.open(path), recipe)
    if is_graph_source(path):
        recipe = replace(recipe, split=None)  # Graphs have no columns: their masks or files say the split.
    return _prepared(path, recipe, home, workers, quiet, kept)


def _prepared(
    source: Path | SplitFiles, recipe: Recipe, home: Path, workers: int | None, quiet: bool, kept: bool
) -> Store:
    store = prepare(source, home, recipe, workers=workers, progress=not quiet)
    if set(recipe.targets) - set(store.manifest.target_names) and not quiet:
        say(f"targets: {listed(store.manifest.target_names)}")
    if store.manifest.rejected and not quiet:
        say(_rejected(store, home / REJECTED, source) + (f"; all are in {home / REJECTED}" if kept else ""))
    return store


def refuse_without_target(data: Any, recipe: Recipe) -> None:
    """A table to train on has several columns: without a target, say at once which there are to choose from."""
    data = data.train if isinstance(data, SplitFiles) else data
    if recipe.targets or not isinstance(data, (str, Path)) or not Path(data).is_file() or not is_table(Path(data)):
        return
    raise ValueError(
        f"{data}: there is no target to learn; name a column, a pattern of names or {ALL!r} as the target; the columns "
        f"are {listed(open_table(Path(data)).columns)}"
    )


def _written(table: bytes, file: Path) -> Path:
    """Write a DataFrame as a file beside its store; a file with another table is never overwritten."""
    if file.exists() and file.read_bytes() != table:
        raise ValueError(f"{file} holds another table; choose another folder for this one")
    write_whole(file, table)
    return file


def _rejected(store: Store, file: Path, source: Path | SplitFiles) -> str:
    with file.open(encoding="utf-8", newline="") as lines:
        first = next(csv.DictReader(lines))
    count = f"{store.manifest.rejected:,} of {store.manifest.source.rows:,} rows could not be read"
    where = f"{source.parts[first[FILE_PART]]} line" if isinstance(source, SplitFiles) else "line"
    return f"{count} (the first on {where} {first['line']}: {first['reason']})"


def remove_store(folder: Path, data: Any) -> None:
    """Remove a store of ours, unless it is the very data that is asked for."""
    asked = isinstance(data, (str, Path)) and Path(data).resolve() == folder.resolve()
    if not asked and ((folder / MANIFEST).is_file() or (folder / SHARDS).is_dir()):
        shutil.rmtree(folder)


def _chosen_targets(store: Store, recipe: Recipe) -> Store:
    """A store prepared with more targets than are asked for; what else is asked for must be what it has."""
    for option, asked, kept in (
        ("--descriptors", recipe.descriptors, store.manifest.descriptors),
        ("--level", recipe.level, store.manifest.level),
        ("the molecule policy", recipe.policy if recipe.policy != MoleculePolicy() else None, policy_of(store)),
    ):
        if asked and asked != kept:
            raise ValueError(f"{option} is {asked}, but the store was prepared with {kept or 'none'}; prepare it anew")
    names = store.manifest.target_names
    asked = expanded(recipe.targets, names, lambda: names, f"the store was prepared with {listed(names) or 'none'}")
    if not asked or asked == names:
        return store
    for name in asked:
        if name not in names:
            raise ValueError(
                f"the store has no target {name!r}{near(name, names)}; it was prepared with {listed(names) or 'none'}"
            )
    places = [names.index(name) for name in asked]
    manifest = replace(store.manifest, targets=tuple(store.manifest.targets[place] for place in places))
    return replace(store, manifest=manifest, targets=store.targets[:, places])


def _in_memory(data: Any, recipe: Recipe) -> Store:
    if hasattr(data, "edge_index") and not isinstance(data, Sequence):
        data = [data]
    if not isinstance(data, Sequence):
        raise ValueError(
            f"data is a {type(data).__name__}; expected a file, a store, a DataFrame or a list of PyG graphs"
        )
    if len(recipe.targets) > 1:
        raise ValueError(f"PyG graphs have one attribute of labels; target names {', '.join(recipe.targets)}")
    labelled = read_pyg_list(data, recipe.targets[0] if recipe.targets else None, recipe.level)
    _refuse_rejected(labelled)
    return Store.from_memory(
        labelled.graphs,
        labelled.targets,
        target_names=labelled.target_names,
        level=labelled.level,
        task=recipe.task,
        split=labelled.split,
        lines=labelled.lines,
    )


def _refuse_rejected(found: LabelledGraphs) -> None:
    if found.rejected:
        number, reason = found.rejected[0]
        raise ValueError(f"graph {number} of the list cannot be used: {reason}")


@dataclass(frozen=True, eq=False)
class UnlabelledGraphs:
    """Graphs to predict, where each stands in its source, and what could not be read."""

    graphs: GraphBatch
    lines: Int64[Tensor, " graphs"]
    rejected: tuple[tuple[int, str], ...]


def unlabelled_graphs(spec: RunSpec, source: Path) -> UnlabelledGraphs:
    """The graphs of a PyG file or a folder of NetworkX JSON; labels may be there or not."""
    if spec.molecules is not None:
        raise ValueError(f"{source} holds graphs, but this run was trained on molecules; expected a table of them")
    known = graph_format(source)
    assert known is not None, "asked for sources of graphs only"
    read = known.alone(source, spec.task.names, spec.level)
    return UnlabelledGraphs(_as_floats(read.graphs, spec.model.float_features), read.lines, read.rejected)


def _as_floats(graphs: GraphBatch, names: Iterable[str]) -> GraphBatch:
    """Numbers that happen to be whole, where the model was trained on floats."""
    changed = {}
    for name in names:
        features = getattr(graphs, name)
        if features is not None and not features.is_floating_point():
            changed[name] = features.float()
    return replace(graphs, **changed)
