"""Sources that hold graphs already: PyG data sets and folders of NetworkX JSON, with labels of any level."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tokengt.batch import Level
from tokengt.data._labelled import LabelledGraphs, Record, as_numbers, assembled, level_rows
from tokengt.data._networkx_files import read_networkx_folder, read_networkx_graphs
from tokengt.data._pyg_collated import read_collated
from tokengt.data._pyg_files import Collated, PyGFile, data_files, listed, load_pyg, pyg_files
from tokengt.data._pyg_labels import (
    check_columns,
    guessed_level,
    is_integer,
    label_attribute,
    label_of,
    shaped,
    split_of,
    target_names,
    targets_of,
)
from tokengt.data._pyg_links import are_link_parts as are_link_parts
from tokengt.data._pyg_links import check_parts, link_graphs
from tokengt.data.links import LINK, linked_by_edges, refuse_target
from tokengt.data.manifest import Attributes
from tokengt.facts import Per
from tokengt.graph import Graph
from tokengt.interop.pyg import as_batch, facts_on, unread_attributes, unread_sentence

__all__ = [
    "LabelledGraphs",
    "Level",
    "as_numbers",
    "check_columns",
    "graph_format",
    "is_graph_source",
    "label_attribute",
    "load_pyg",
    "read_networkx_folder",
    "read_networkx_graphs",
    "read_pyg",
    "read_pyg_graphs",
    "read_pyg_list",
    "unread_sentence",
]
_LIST = Path("the list of graphs")


def read_pyg(path: Path, target: str | None = None, level: Level | None = None) -> LabelledGraphs:
    """The graphs of a PyG data set with the labels in attribute ``target``; None for ``y``, which may then be absent.

    The level is the one whose rows (one, nodes, edges) most graphs' labels have. Labels [T] of a graph are T
    targets when ``level`` is "graph". Splits come from ``train_mask``, ``val_mask`` and ``test_mask`` (the first
    column of several), or from files of these names. A graph that cannot be used is rejected, the others stay. With
    the level "link", rows are pairs of nodes (:mod:`tokengt.data._pyg_links`).

    Raises:
        ValueError: the source cannot be read (see :func:`load_pyg`), or the labels' level is not clear.
        ImportError: torch_geometric is not installed.
    """
    files = pyg_files(path)
    if len(files) == 1 and isinstance(files[0].graphs, Collated) and files[0].code is None and level != "link":
        quick = read_collated(files[0].graphs, target, level)
        if quick is not None:
            return quick
    return _one_by_one(path, files, target, level)


def read_pyg_list(
    datas: Sequence[Any], target: str | None = None, level: Level | None = None, *, parts: bool = False
) -> LabelledGraphs:
    """:func:`read_pyg` of PyG data in memory; ``parts``: they are those of train, valid and test, in this order."""
    files = [PyGFile(_LIST, list(datas))]
    if parts:
        files = [PyGFile(_LIST, [data], code) for code, data in enumerate(datas)]
    return _one_by_one(_LIST, files, target, level)


def read_pyg_graphs(path: Path, level: Level) -> LabelledGraphs:
    """The graphs of a PyG data set alone: whatever labels and masks it has are not looked at.

    With the level "link" they are asked about their ``edge_label_index``.
    """
    readable, rejected = [], []
    datas = [data for file in pyg_files(path) for data in listed(file)]
    for number, data in enumerate(datas, 1):
        try:
            readable.append((number, data, None, _graph(data)))
        except ValueError as error:
            rejected.append((number, str(error)))
    if level == "link":
        return link_graphs(path, readable, rejected, None, labelled=False)
    records = [
        Record(number, graph, torch.empty(level_rows(graph, level), 0, dtype=torch.float64))
        for number, _, _, graph in readable
    ]
    return assembled(path, records, rejected, level, ())


def _one_by_one(path: Path, files: list[PyGFile], target: str | None, level: Level | None) -> LabelledGraphs:
    name = target or "y"
    datas = [(data, file.code) for file in files for data in listed(file)]
    readable, rejected = [], []
    for number, (data, code) in enumerate(datas, 1):
        try:
            label = label_of(data, name) if level != "link" else None
            readable.append((number, data, code, _graph(data), label))
        except ValueError as error:
            rejected.append((number, str(error)))
    if level == "link":
        pairs = [(number, data, code, graph) for number, data, code, graph, _ in readable]
        check_parts(path, pairs)
        return link_graphs(path, pairs, rejected, target)
    labels = [(graph, label) for *_, graph, label in readable if label is not None]
    if target is not None and readable and not labels:
        attributes = ", ".join(sorted(set().union(*(data.keys() for _, data, *_ in readable))))
        raise ValueError(f"{path}: no graph has an attribute {target!r}; there are {attributes}")
    if level is None:
        rows = [(len(label) if label.ndim else 1, graph.num_nodes, graph.num_edges) for graph, label in labels]
        level = guessed_level(path, name, rows)
    widths = Counter(shaped(label, level).shape[1] for _, label in labels)
    width = widths.most_common(1)[0][0] if widths else 0
    records = []
    for number, data, code, graph, label in readable:
        try:
            targets = targets_of(label, name, level, level_rows(graph, level), width)
            split, integers = split_of(data, len(targets), code), is_integer(data, name)
            records.append(Record(number, graph, targets, split, integers, facts=_facts(data)))
        except ValueError as error:
            rejected.append((number, str(error)))
    found = assembled(path, records, rejected, level, target_names(name, width))
    return replace(found, unread=_unread([data for _, data, *_ in readable], name))


def _unread(datas: Sequence[Any], target: str) -> dict[str, Level]:
    """What no model reads in these graphs; of all that have the same attributes, the first is looked at."""
    first: dict[frozenset[str], Any] = {}
    for data in datas:
        first.setdefault(frozenset(data.keys()), data)
    unread: dict[str, Level] = {}
    for data in first.values():
        unread |= unread_attributes(data, (target,))
    return unread


def _facts(data: Any) -> dict[tuple[str, Per], Tensor]:
    """What was worked out of a graph before and is kept with it."""
    return {(name, per): rows for name, per, rows in facts_on(data)}


def _graph(data: Any) -> Graph:
    batch = as_batch(data)
    if len(batch) != 1:
        raise ValueError(f"it is a batch of {len(batch)} graphs; expected one")
    return batch[0]


class GraphFormat(NamedTuple):
    """One format of files that hold graphs.

    ``files`` lists what would be read at a path, and nothing where the path is not of this format. ``labelled`` reads
    graphs with the targets of these names (none: what the format takes by itself) at a level (None: guessed), with
    these attributes as features where they have names (None: chosen by the data); ``alone`` reads the graphs for a
    prediction, with or without labels.
    """

    files: Callable[[Path], list[Path]]
    labelled: Callable[[Path, tuple[str, ...], Level | None, Attributes | None], LabelledGraphs]
    alone: Callable[[Path, tuple[str, ...], Level, Attributes | None], LabelledGraphs]


def _pyg_at(path: Path) -> list[Path]:
    """A ``.pt`` file, or the files of a PyG data set's folder."""
    if path.is_dir():
        return data_files(path)
    return [path] if path.suffix == ".pt" else []


def _json_at(path: Path) -> list[Path]:
    """A JSON file, or those of a folder that is no store, run or saved model."""
    if path.is_file() and path.suffix == ".json":
        return [path]
    if not path.is_dir() or any(path.glob("*.safetensors")):
        return []
    return sorted(path.glob("*.json"))


def _labelled_pyg(
    path: Path, targets: tuple[str, ...], level: Level | None, _: Attributes | None = None
) -> LabelledGraphs:
    try:
        found = read_pyg(path, label_attribute(targets), level)
        check_columns(targets, found.target_names)
    except ValueError as error:
        raise error if str(path) in str(error) else ValueError(f"{path}: {error}") from None
    return found


def _labelled_json(
    path: Path, targets: tuple[str, ...], level: Level | None, names: Attributes | None = None
) -> LabelledGraphs:
    if level != "link":
        return read_networkx_folder(path, targets, level, attributes=names)
    refuse_target(targets, f"the NetworkX graphs of {path}")
    found = read_networkx_folder(path, (), "graph", labelled=False, attributes=names)
    graphs, links = linked_by_edges(found.graphs)
    return replace(found, graphs=graphs, targets=links, level="link", target_names=(LINK,))


def _json_alone(path: Path, targets: tuple[str, ...], level: Level, names: Attributes | None) -> LabelledGraphs:
    if level == "link":
        raise ValueError(
            f"{path} holds NetworkX graphs, which name no pairs to predict; expected PyG's edge_label_index"
        )
    return read_networkx_folder(path, targets, level, labelled=False, attributes=names)


# A new format of graphs is a line here; the first one that knows a path reads it.
FORMATS: tuple[GraphFormat, ...] = (
    GraphFormat(_pyg_at, _labelled_pyg, lambda path, _, level, __: read_pyg_graphs(path, level)),
    GraphFormat(
        _json_at,
        _labelled_json,
        _json_alone,
    ),
)


def graph_format(path: Path) -> GraphFormat | None:
    """The format of the graphs at a path; None where there is none that we know."""
    return next((known for known in FORMATS if known.files(path)), None)


def is_graph_source(path: Path) -> bool:
    return graph_format(path) is not None
