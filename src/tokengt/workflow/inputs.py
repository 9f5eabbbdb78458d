"""Whatever a person has, as a store to train on or as graphs to predict.

A store is a data set that was read and checked once, with all its graphs packed into one batch.
"""

import csv
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from jaxtyping import Int64
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.data.graph_sources import (
    LabelledGraphs,
    as_numbers,
    graph_format,
    is_graph_source,
    read_pyg_list,
)
from tokengt.data.manifest import MANIFEST, REJECTED, Recipe
from tokengt.data.prepare import MAX_REJECTED, prepare
from tokengt.data.progress import say
from tokengt.data.store import Store
from tokengt.data.workspace import SHARDS
from tokengt.files import write_whole
from tokengt.interop.molecules import MoleculePolicy
from tokengt.training.resolve import policy_of
from tokengt.training.spec import RunSpec


def open_data(
    data: Any,
    recipe: Recipe,
    home: Path,
    *,
    workers: int | None = None,
    quiet: bool = False,
    kept: bool = True,
    max_rejected: float = MAX_REJECTED,
) -> Store:
    """A store as it is, or one made in ``home`` from a file, a DataFrame or PyG graphs.

    If rows could not be read, a sentence says how many, where the first stands and why; and where all of them are
    listed, if ``home`` is ``kept``. When they are a larger share than ``max_rejected``, the data is refused.
    """
    if isinstance(data, Store):
        return _chosen_targets(data, recipe)
    if hasattr(data, "to_csv"):
        data = _written(data.to_csv(index=False).encode(), home.with_name("data.csv"))
    if not isinstance(data, (str, Path)):
        return _in_memory(data, recipe, shown=not quiet)
    path = Path(data)
    if (path / MANIFEST).is_file():
        return _chosen_targets(Store.open(path), recipe)
    if is_graph_source(path):
        recipe = replace(recipe, split=None)  # Graphs have no columns: their masks or files say the split.
    store = prepare(path, home, recipe, workers=workers, progress=not quiet, max_rejected=max_rejected)
    if store.manifest.rejected and not quiet:
        say(_rejected(store, home / REJECTED) + (f"; all are in {home / REJECTED}" if kept else ""))
    return store


def _written(table: bytes, file: Path) -> Path:
    """Write a DataFrame as a file beside its store; a file with another table is never overwritten."""
    if file.exists() and file.read_bytes() != table:
        raise ValueError(f"{file} holds another table; choose another folder for this one")
    write_whole(file, table)
    return file


def _rejected(store: Store, file: Path) -> str:
    what = "rows" if store.is_molecules else "graphs"
    count = f"{store.manifest.rejected:,} of {store.manifest.source.rows:,} {what} could not be read"
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            _, (place, reason, *_) = islice(csv.reader(lines), 2)
    except (OSError, ValueError, csv.Error):
        # The list is there to be read and edited, and may be gone or say anything by now.
        return count
    return f"{count} (the first{f' on line {place}' if store.is_molecules else ''}: {reason})"


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
    store = _as_asked(store, recipe)
    names = store.manifest.target_names
    if not recipe.targets or recipe.targets == names:
        return store
    for name in recipe.targets:
        if name not in names:
            raise ValueError(f"the store has no target {name!r}; it was prepared with {', '.join(names) or 'none'}")
    places = [names.index(name) for name in recipe.targets]
    manifest = replace(store.manifest, targets=tuple(store.manifest.targets[place] for place in places))
    return replace(store, manifest=manifest, targets=store.targets[:, places])


def _as_asked(store: Store, recipe: Recipe) -> Store:
    """Classes that are numbers, such as those that integers became when the store was made, as numbers if asked for."""
    classes = store.manifest.targets[0].classes if store.manifest.targets else None
    if classes is None or recipe.task in (None, "multiclass"):
        return store
    numbers = as_numbers(store.targets, classes)
    if numbers is None:
        return store
    columns = tuple(replace(target, classes=None) for target in store.manifest.targets)
    return replace(store, manifest=replace(store.manifest, targets=columns, task=None), targets=numbers)


def _in_memory(data: Any, recipe: Recipe, shown: bool) -> Store:
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
    if not labelled.target_names:
        raise ValueError(
            'no graph of the list has labels; expected an attribute y, or the name of another as target="..."'
        )
    labelled, sentence = labelled.for_task(recipe.task)
    say(sentence or "", shown and sentence is not None)
    return Store.from_memory(
        labelled.graphs,
        labelled.targets,
        target_names=labelled.target_names,
        classes=None if labelled.classes is None else [labelled.classes],
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
    """Graphs to predict, where each stands in its source, and what could not be read.

    ``files`` has the name of each graph's file by its line, from 1, where each has its own.
    """

    graphs: GraphBatch
    lines: Int64[Tensor, " graphs"]
    rejected: tuple[tuple[int, str], ...]
    files: tuple[str, ...] = ()

    def without(self, refused: Mapping[int, str]) -> "UnlabelledGraphs":
        """The others of these places, which stand among the rejected with their reasons."""
        kept = [place for place in range(len(self.graphs)) if place not in refused]
        rejected = list(self.rejected)
        for place, reason in refused.items():
            line = int(self.lines[place])
            rejected.append((line, f"{self.files[line - 1]}: {reason}" if self.files else reason))
        return replace(self, graphs=self.graphs.select(kept), lines=self.lines[kept], rejected=tuple(sorted(rejected)))


def unlabelled_graphs(spec: RunSpec, source: Path) -> UnlabelledGraphs:
    """The graphs of a PyG file or a folder of NetworkX JSON; labels may be there or not."""
    if spec.molecules is not None:
        raise ValueError(f"{source} holds graphs, but this run was trained on molecules; expected a table of them")
    known = graph_format(source)
    assert known is not None, "asked for sources of graphs only"
    read = known.alone(source, spec.task.names, spec.level, spec.attributes)
    graphs = _as_floats(read.graphs, spec.model.float_features)
    return UnlabelledGraphs(graphs, read.lines, read.rejected, read.files)


def _as_floats(graphs: GraphBatch, names: Iterable[str]) -> GraphBatch:
    """Numbers that happen to be whole, where the model was trained on floats."""
    changed = {}
    for name in names:
        features = getattr(graphs, name)
        if features is not None and not features.is_floating_point():
            changed[name] = features.float()
    return replace(graphs, **changed)
