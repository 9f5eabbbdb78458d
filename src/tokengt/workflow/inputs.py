"""Whatever a person has, as a store to train on or as graphs to predict.

A store is a data set that was read and checked once, with all its graphs packed into one batch.
"""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from jaxtyping import Int64
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.config import near
from tokengt.data.catalogue import DATASETS
from tokengt.data.graph_sources import (
    LabelledGraphs,
    are_link_parts,
    as_numbers,
    check_columns,
    graph_format,
    is_graph_source,
    label_attribute,
    read_networkx_graphs,
    read_pyg_list,
    unread_sentence,
)
from tokengt.data.joined import SplitFiles
from tokengt.data.links import LINK, as_links, refuse_target
from tokengt.data.manifest import FILE_PART, MANIFEST, PARTS, REJECTED, Recipe
from tokengt.data.named import dataset_named, named_store, say_if_hidden
from tokengt.data.node_store import prepare_nodes
from tokengt.data.node_tables import NodeFiles, asked_level
from tokengt.data.prepare import MAX_REJECTED, prepare
from tokengt.data.progress import say
from tokengt.data.splitting import GIVEN, SCAFFOLD, SplitRequest
from tokengt.data.store import Store
from tokengt.data.tables import listed, open_table
from tokengt.data.targets import ALL, expanded
from tokengt.files import write_whole
from tokengt.interop.descriptors import is_feature
from tokengt.interop.molecules import MoleculePolicy
from tokengt.interop.reading import differences
from tokengt.training.resolve import policy_of
from tokengt.training.spec import RunSpec


def is_prepared_first(data: Any) -> bool:
    """Whether :func:`open_data` makes a store of the data: of files or a DataFrame, but not of graphs in memory.

    A data set that is known by its name has a store of its own.
    """
    if isinstance(data, (SplitFiles, NodeFiles)):
        return True
    if isinstance(data, (str, Path)):
        return dataset_named(data) is None and not (Path(data) / MANIFEST).is_file()
    return not isinstance(data, Store) and hasattr(data, "to_csv")


def is_molecule_table(data: Any, most: int) -> bool:
    """Whether the data is a table of molecules, in files or as a DataFrame, of at most so many rows."""
    if isinstance(data, NodeFiles) or not is_prepared_first(data):
        return False
    if not isinstance(data, (SplitFiles, str, Path)):
        return len(data) <= most
    files = list(data.parts.values()) if isinstance(data, SplitFiles) else [Path(data)]
    # What is there but is no file, such as a pipe, can be read once or not at all: whoever reads it will say so.
    if any(not file.is_file() or is_graph_source(file) for file in files):
        return False
    # No more rows are looked at than are needed to know.
    rows = (row for file in files for row in open_table(file).rows())
    return sum(1 for _ in islice(rows, most + 1)) <= most


def check_wishes(data: Any, recipe: Recipe, split: SplitRequest, labelled: bool = True) -> None:
    """Refuse, before anything is read or written, what this data cannot be asked for; ``labelled``: it needs a target.

    Raises:
        ValueError: the file does not exist, a table is to be learned without a target, or cannot be split that way.
    """
    if dataset_named(data) is not None:
        return
    if isinstance(data, NodeFiles):
        _check_node_files(data, recipe, split, labelled)
        return
    first = data.train if isinstance(data, SplitFiles) else data
    path = Path(first) if isinstance(first, (str, Path)) else None
    for file in data.parts.values() if isinstance(data, SplitFiles) else () if path is None else (path,):
        if not file.exists():
            known = near(str(file), DATASETS)
            raise ValueError(
                f"{file} does not exist{known}; expected a file, a folder of graphs, a store or the name of a data set"
            )
    if not is_prepared_first(data):
        return
    if path is not None and is_graph_source(path):
        if split.kind.startswith(SCAFFOLD):
            raise ValueError(f"{path} holds graphs, and a {split.kind} split is one of molecules; split it at random")
        return
    if labelled and not recipe.targets:
        columns = tuple(map(str, data.columns)) if path is None else open_table(path).columns
        where = "" if path is None else f"{path}: "
        raise ValueError(
            f"{where}there is no target to learn; name a column, a pattern of names or {ALL!r} as the target; the "
            f"columns are {listed(columns)}"
        )
    if split.kind == GIVEN:
        raise ValueError("split is 'given', but a table gives none by itself; name its column, as in column:NAME")


def _check_node_files(files: NodeFiles, recipe: Recipe, split: SplitRequest, labelled: bool) -> None:
    files.check()
    columns = open_table(files.paths[0]).columns
    links = asked_level(files, recipe) == LINK
    if links and files.pairs is None and split.column is not None:
        raise ValueError(
            f"the split names column {split.column!r}, and the links are the edges; give a table of pairs with it"
        )
    if labelled and not recipe.targets and not links:
        raise ValueError(
            f"{files.nodes}: there is no target to learn; name a column; the columns are {listed(columns)}"
        )
    if split.plain == GIVEN:
        raise ValueError("split is 'given', but a table gives none by itself; name its column, as in column:NAME")
    if split.kind.startswith(SCAFFOLD):
        raise ValueError(f"{files.name} hold a graph, and a {split.kind} split is one of molecules; split it at random")


def check_files(data: Any, store: Store) -> None:
    """Refuse files of parts of which one has no row that can be read: another part would take its place."""
    if not isinstance(data, SplitFiles) or store.split is None:
        return
    for part, path in data.parts.items():
        if not bool((store.split == PARTS.index(part)).any()):
            raise ValueError(f"{path} has no row that can be read; expected at least one for the {part} part")


def open_data(
    data: Any,
    recipe: Recipe,
    home: Path,
    *,
    workers: int | None = None,
    quiet: bool = False,
    kept: bool = True,
    max_rejected: float = MAX_REJECTED,
    labelled: bool = True,
) -> Store:
    """A store as it is, or one made in ``home`` from a file, a DataFrame or PyG graphs; that of a data set by its name.

    If rows could not be read, a sentence says how many, where the first stands and why; and where all of them are
    listed, if ``home`` is ``kept``. When they are a larger share than ``max_rejected``, the data is refused. Graphs in
    memory have to be ``labelled``, unless their labels are not used.
    """
    if isinstance(data, Store):
        return _chosen_targets(data, recipe)
    if isinstance(data, NodeFiles):
        store = prepare_nodes(data, home, recipe, progress=not quiet, max_rejected=max_rejected)
        _say_rejected(store, home, data.paths[-1], quiet, kept)
        return store
    if isinstance(data, SplitFiles):
        return _prepared(data, recipe, home, workers, quiet, kept, max_rejected)
    if hasattr(data, "to_csv"):
        data = _written(data.to_csv(index=False).encode(), home.with_name("data.csv"))
    if not isinstance(data, (str, Path)):
        return _in_memory(data, recipe, not quiet, labelled)
    say_if_hidden(data, not quiet)
    dataset = dataset_named(data)
    if dataset is not None:
        return _chosen_targets(named_store(dataset, recipe.policy, workers=workers, progress=not quiet), recipe)
    path = Path(data)
    if not is_prepared_first(path):
        return _chosen_targets(Store.open(path), recipe)
    if is_graph_source(path):
        recipe = replace(recipe, split=None)  # Graphs have no columns: their masks or files say the split.
    return _prepared(path, recipe, home, workers, quiet, kept, max_rejected)


def _prepared(
    source: Path | SplitFiles,
    recipe: Recipe,
    home: Path,
    workers: int | None,
    quiet: bool,
    kept: bool,
    max_rejected: float,
) -> Store:
    # The folder may be one that a person prepares in: what was begun there and is not finished is not ours to remove.
    store = prepare(
        source, home, recipe, workers=workers, progress=not quiet, takes_over=False, max_rejected=max_rejected
    )
    if set(recipe.targets) - set(store.manifest.target_names) and not quiet:
        say(f"targets: {listed(store.manifest.target_names)}")
    _say_rejected(store, home, source, quiet, kept)
    return store


def _say_rejected(store: Store, home: Path, source: Path | SplitFiles, quiet: bool, kept: bool) -> None:
    """Say how many rows could not be read and why, if there are any; ``kept``: where all of them are listed too."""
    if store.manifest.rejected and not quiet:
        say(_rejected(store, home / REJECTED, source) + (f"; all are in {home / REJECTED}" if kept else ""))


def _written(table: bytes, file: Path) -> Path:
    """Write a DataFrame as a file beside its store; a file with another table is never overwritten."""
    if file.exists() and file.read_bytes() != table:
        raise ValueError(f"{file} holds another table; choose another folder for this one")
    write_whole(file, table)
    return file


def _rejected(store: Store, file: Path, source: Path | SplitFiles) -> str:
    manifest = store.manifest
    what = f"rows of {source}" if manifest.pairs else "rows" if manifest.by_line else "graphs"
    count = f"{manifest.rejected:,} of {manifest.source.rows:,} {what} could not be read"
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            names, (place, reason, *cells) = islice(csv.reader(lines), 2)
        part = dict(zip(names[2:], cells, strict=False)).get(FILE_PART, "")
    except (OSError, ValueError, csv.Error):
        # The list is there to be read and edited, and may be gone or say anything by now.
        return count
    of_file = f" of {source.parts[part]}" if isinstance(source, SplitFiles) and part in source.parts else ""
    return f"{count} (the first{f' on line {place}{of_file}' if manifest.by_line else ''}: {reason})"


def _chosen_targets(store: Store, recipe: Recipe) -> Store:
    """A store prepared with more targets than are asked for; what else is asked for must be what it has.

    Any store can be asked about the edges of its graphs.
    """
    if recipe.level == LINK and store.manifest.level != LINK:
        refuse_target(recipe.targets, "a store")
        return as_links(store)
    kept_policy = policy_of(store)
    for option, asked, kept in (
        ("descriptors", recipe.descriptors, tuple(name for name in store.manifest.descriptors if not is_feature(name))),
        ("level", recipe.level, store.manifest.level),
        ("the molecule policy", _asked_policy(recipe.policy, kept_policy), kept_policy),
        ("weights", recipe.weights, store.manifest.columns.get("weights")),
        ("censored", None if recipe.censored == "reject" else recipe.censored, store.manifest.columns.get("censored")),
    ):
        if asked and asked != kept:
            if isinstance(asked, MoleculePolicy) and isinstance(kept, MoleculePolicy):
                asked, kept = differences(asked, kept)
            raise ValueError(f"{option} is {asked}, but the store was prepared with {kept or 'none'}; prepare it anew")
    store = _as_asked(store, recipe)
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
    bounds = store.bounds
    if bounds is not None:
        bounds = bounds[:, [*places, *(place + len(names) for place in places)]]
    return replace(store, manifest=manifest, targets=store.targets[:, places], bounds=bounds)


def _asked_policy(asked: MoleculePolicy, kept: MoleculePolicy | None) -> MoleculePolicy | None:
    """What is asked for besides the defaults; None for nothing.

    Older versions knew only one order of atoms, so their stores keep it: nobody asked them for another.
    """
    default = MoleculePolicy()
    if kept is not None and asked.atoms == default.atoms:
        asked, default = replace(asked, atoms=kept.atoms), replace(default, atoms=kept.atoms)
    return None if asked == default else asked


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


def _in_memory(data: Any, recipe: Recipe, shown: bool, has_labels: bool) -> Store:
    data = _as_list(data)
    if not isinstance(data, Sequence):
        raise ValueError(
            f"data is a {type(data).__name__}; expected a file, a store, a DataFrame or a list of PyG graphs"
        )
    parts = recipe.level == LINK and are_link_parts(data)
    say("three graphs of the same nodes are the parts train, valid and test", shown and parts)
    labelled = read_pyg_list(data, label_attribute(recipe.targets), recipe.level, parts=parts)
    _refuse_rejected(labelled)
    if has_labels and not labelled.target_names:
        raise ValueError(
            'no graph of the list has labels; expected an attribute y, or the name of another as target="..."'
        )
    check_columns(recipe.targets, labelled.target_names)
    labelled, sentence = labelled.for_task(recipe.task)
    say(sentence or "", shown and sentence is not None)
    if labelled.unread:
        say(unread_sentence(labelled.unread), shown)
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


def _as_list(data: Any) -> Any:
    """One PyG graph, or a data set of PyG such as ``Coauthor(...)``, as a list of graphs; anything else as it is."""
    if isinstance(data, Sequence):
        return data
    # A data set that holds a single graph answers for that graph's attributes too, so that it is looked for first.
    if hasattr(data, "processed_dir") and hasattr(data, "__getitem__"):
        return [data[place] for place in range(len(data))]
    return [data] if hasattr(data, "edge_index") else data


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


def unlabelled_graphs(spec: RunSpec, source: Path) -> UnlabelledGraphs:
    """The graphs of a PyG file or a folder of NetworkX JSON; labels may be there or not."""
    if spec.molecules is not None:
        raise ValueError(f"{source} holds graphs, but this run was trained on molecules; expected a table of them")
    _refuse_tables(spec, str(source))
    known = graph_format(source)
    assert known is not None, "asked for sources of graphs only"
    return _as_trained(spec, known.alone(source, spec.task.names, spec.level, spec.attributes))


def unlabelled_contents(spec: RunSpec, contents: Sequence[Any]) -> UnlabelledGraphs:
    """The graphs that these objects describe, as ``networkx.node_link_data`` does."""
    if spec.molecules is not None:
        raise ValueError("this run was trained on molecules; expected SMILES, got graphs")
    _refuse_tables(spec, "the input")
    return _as_trained(spec, read_networkx_graphs(contents, spec.task.names, spec.level, spec.attributes))


def _refuse_tables(spec: RunSpec, what: str) -> None:
    """Attributes of a graph are not scaled as the columns of tables were: predictions from them would be wrong."""
    if spec.tables is not None:
        raise ValueError(
            f"{what} holds graphs, but this run was trained on a table of nodes and one of edges; expected such tables "
            "(--nodes and --edges, in Python NodeFiles)"
        )


def _as_trained(spec: RunSpec, read: LabelledGraphs) -> UnlabelledGraphs:
    graphs = as_floats(read.graphs, spec.model.float_features)
    return UnlabelledGraphs(graphs, read.lines, read.rejected, read.files)


def as_floats(graphs: GraphBatch, names: Iterable[str]) -> GraphBatch:
    """Numbers that happen to be whole, where the model was trained on floats."""
    changed = {}
    for name in names:
        features = getattr(graphs, name)
        if features is not None and not features.is_floating_point():
            changed[name] = features.float()
    return replace(graphs, **changed)
