"""Whatever a person has, as a store to train on or as graphs to predict.

A store is a data set that was read and checked once, with all its graphs packed into one batch.
"""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jaxtyping import Int64
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.data.graph_sources import (
    LabelledGraphs,
    graph_format,
    is_graph_source,
    read_pyg_list,
)
from tokengt.data.manifest import MANIFEST, REJECTED, Recipe
from tokengt.data.prepare import prepare
from tokengt.data.progress import say
from tokengt.data.splitting import GIVEN, SCAFFOLD, SplitRequest
from tokengt.data.store import Store
from tokengt.data.tables import open_table
from tokengt.files import write_whole
from tokengt.interop.molecules import MoleculePolicy
from tokengt.training.resolve import policy_of
from tokengt.training.spec import RunSpec


def is_prepared_first(data: Any) -> bool:
    """Whether :func:`open_data` makes a store of the data: of a file or a DataFrame, but not of graphs in memory."""
    if isinstance(data, (str, Path)):
        return not (Path(data) / MANIFEST).is_file()
    return not isinstance(data, Store) and hasattr(data, "to_csv")


def check_wishes(data: Any, recipe: Recipe, split: SplitRequest) -> None:
    """Refuse, before anything is read or written, what this data cannot be asked for.

    Raises:
        ValueError: the file does not exist, a table is to be learned without a target, or cannot be split that way.
    """
    path = Path(data) if isinstance(data, (str, Path)) else None
    if path is not None and not path.exists():
        raise ValueError(f"{path} does not exist; expected a file, a folder of graphs or a store")
    if not is_prepared_first(data):
        return
    if path is not None and is_graph_source(path):
        if split.kind.startswith(SCAFFOLD):
            raise ValueError(f"{path} holds graphs, and a {split.kind} split is one of molecules; split it at random")
        return
    if not recipe.targets:
        columns = data.columns if path is None else open_table(path).columns
        listed = ", ".join(map(str, columns))
        raise ValueError(f"there is no target to learn; name one of the columns {listed} as the target")
    if split.kind == GIVEN:
        raise ValueError("split is 'given', but a table gives none by itself; name its column, as in column:NAME")


def open_data(
    data: Any, recipe: Recipe, home: Path, *, workers: int | None = None, quiet: bool = False, kept: bool = True
) -> Store:
    """A store as it is, or one made in ``home`` from a file, a DataFrame or PyG graphs.

    If rows could not be read, a sentence says how many, where the first stands and why; and where all of them are
    listed, if ``home`` is ``kept``.
    """
    if isinstance(data, Store):
        return _chosen_targets(data, recipe)
    if hasattr(data, "to_csv"):
        data = _written(data.to_csv(index=False).encode(), home.with_name("data.csv"))
    if not isinstance(data, (str, Path)):
        return _in_memory(data, recipe)
    path = Path(data)
    if not is_prepared_first(path):
        return _chosen_targets(Store.open(path), recipe)
    if is_graph_source(path):
        recipe = replace(recipe, split=None)  # Graphs have no columns: their masks or files say the split.
    # The folder may be one that a person prepares in: what was begun there and is not finished is not ours to remove.
    store = prepare(path, home, recipe, workers=workers, progress=not quiet, takes_over=False)
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
    with file.open(encoding="utf-8", newline="") as lines:
        first = next(csv.DictReader(lines))
    count = f"{store.manifest.rejected:,} of {store.manifest.source.rows:,} rows could not be read"
    return f"{count} (the first on line {first['line']}: {first['reason']})"


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
    if not recipe.targets or recipe.targets == names:
        return store
    for name in recipe.targets:
        if name not in names:
            raise ValueError(f"the store has no target {name!r}; it was prepared with {', '.join(names) or 'none'}")
    places = [names.index(name) for name in recipe.targets]
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
