"""A large graph of one's own: a table of nodes and a table of edges as one graph with labels on its nodes or links.

Of the table of nodes one column is the id, of any kind; the target columns are what is learned, blank where it is to be
predicted; all others are features. Of the table of edges two columns name nodes by their ids, and all others are
features of the edge, such as its weight. Edges join both ways unless they are said to be directed. Of links a third
table has the pairs of nodes that are asked about (:mod:`tokengt.data.pair_tables`), or the edges themselves are.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.data import cells
from tokengt.data._labelled import LabelledGraphs
from tokengt.data.links import LINK, linked_by_edges, refuse_target
from tokengt.data.manifest import GraphColumns, Recipe, TaskKind
from tokengt.data.pair_tables import read_pairs
from tokengt.data.shards import Rejected
from tokengt.data.table_columns import described, encoded
from tokengt.data.table_rows import TableRows, end_columns, plain_id
from tokengt.data.tables import Table, listed, open_table
from tokengt.files import checksum, file_checksum
from tokengt.graph import Graph
from tokengt.level import Level
from tokengt.sparse import SparseRows

# Names that people give to the column of ids; else it is the first.
_IDS = ("id", "node", "node_id", "nodeid", "name")


@dataclass(frozen=True)
class NodeFiles:
    """A table of nodes and a table of edges (CSV, TSV or Parquet) that are one graph together.

    Args:
        nodes: one row per node.
        edges: one row per edge.
        id: the column of nodes that names them; by itself one called id, node or name, else the first.
        source: the column of edges with the id of their first node; by itself source, src or from, else the first.
        target: the same of the second node; by itself target, dst or to, else the second.
        directed: whether an edge joins its nodes in one direction only.
        pairs: of links: one row per pair of nodes that is asked about, named by two columns as an edge is; without it,
            training asks about the edges.
    """

    nodes: str | Path
    edges: str | Path
    id: str | None = None
    source: str | None = None
    target: str | None = None
    directed: bool = False
    pairs: str | Path | None = None

    def __post_init__(self) -> None:
        if (self.source is None) != (self.target is None):
            raise ValueError("source and target name the two ends of an edge; expected both of them, or neither")

    @property
    def paths(self) -> tuple[Path, ...]:
        """The tables: nodes, edges, and pairs where there are any."""
        return Path(self.nodes), Path(self.edges), *(() if self.pairs is None else (Path(self.pairs),))

    @property
    def name(self) -> str:
        return " and ".join(path.name for path in self.paths)

    def check(self) -> None:
        """Refuse files that are not there."""
        for path, what in zip(self.paths, ("nodes", "edges", "pairs"), strict=False):
            if not path.is_file():
                raise ValueError(f"{path} does not exist; expected a table of {what}")

    def refuse_without_pairs(self) -> None:
        """One sentence where a run of links would not know what it is asked."""
        if self.pairs is None:
            raise ValueError(
                f"{self.name} name no pairs of nodes, and this run answers about links; give a table of pairs "
                "(--pairs, in Python NodeFiles(..., pairs=...))"
            )

    def checksum(self) -> str:
        """Of the content of all, and of what is said about them."""
        said = [self.id, self.source, self.target, self.directed]
        content = [*map(file_checksum, self.paths), *said]
        return checksum(json.dumps(content).encode())


@dataclass(frozen=True, eq=False)
class NodeTables:
    """What the tables hold: the graph with its labels, how columns became features, and the cells of what is asked.

    ``head``, ``rows`` and ``lines`` are those of the table of nodes or, of links, of the table of pairs. ``sentences``
    are what a person should know of it. ``problems`` are why rows of pairs cannot be asked about, by their places;
    ``labelled`` has the others. ``names`` are the ids of all nodes.
    """

    labelled: LabelledGraphs
    columns: GraphColumns
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    lines: list[int]
    sentences: tuple[str, ...]
    names: tuple[str, ...]
    problems: Mapping[int, str] = field(default_factory=dict)

    @property
    def rejected(self) -> list[Rejected]:
        """The rows that cannot be asked about."""
        return [Rejected(self.lines[place], reason, self.rows[place]) for place, reason in self.problems.items()]


def read_node_tables(files: NodeFiles, recipe: Recipe, known: GraphColumns | None = None) -> NodeTables:
    """The graph of two tables, asked about its nodes or about pairs of them.

    With ``known``, columns are read as they were in training, and labels may be absent.

    Raises:
        ValueError: one sentence: the file, its line, and what was expected.
    """
    files.check()
    level = asked_level(files, recipe)
    nodes, edges = map(TableRows.read, files.paths[:2])
    roles = _roles(files, nodes.table, edges.table, known)
    numbers = _numbered(nodes, roles.id)
    # Of links, the table of pairs has the labels and the split.
    targets = () if level == LINK else tuple(n for n in recipe.targets if known is None or n in nodes.columns)
    split = None if level == LINK else recipe.split
    for name in targets:
        nodes.table.place(name, "the target option")
        if name in (roles.id, split):
            what = "the ids" if name == roles.id else "the split"
            raise ValueError(f"{files.nodes}: the target option names column {name!r}, which holds {what}")
    sentences: list[str] = []
    if known is None:
        taken = {roles.id, *targets, *([] if split is None else [split])}
        roles, sentences = _with_features(roles, nodes, edges, taken)
    else:
        _check_features(known, nodes.table, edges.table)
    features = encoded(nodes.table, roles.nodes, nodes.columns, nodes.lines)
    ends, edge_features = _edges(edges, roles, numbers, nodes.table.path)
    graphs = GraphBatch.collate([Graph(features, ends, edge_features, num_nodes=len(nodes.lines))])
    asked = (nodes.table.columns, nodes.cells, nodes.lines)
    read = NodeTables(_unlabelled(graphs), roles, *asked, tuple(sentences), nodes.columns[roles.id])
    if level == LINK:
        return _with_links(read, files, recipe, numbers, known is not None)
    labels, classes, whole = _labels(nodes, targets, recipe.task)
    labelled = LabelledGraphs(
        *(graphs, labels, "node", targets, nodes.split(split), torch.tensor([1]), ()), integers=whole, classes=classes
    )
    return replace(read, labelled=labelled)


def asked_level(files: NodeFiles, recipe: Recipe) -> Level:
    """What a person asks about: nodes, or links, which a table of pairs says as well as the level does."""
    level: Level = recipe.level or ("node" if files.pairs is None else "link")
    if level not in ("node", "link"):
        raise ValueError(f"level is {level}; tables of nodes and edges have labels of nodes or links: expected these")
    if level == "node" and files.pairs is not None:
        raise ValueError(f"level is node, and {files.pairs} is a table of pairs of nodes; expected the level link")
    return level


def _unlabelled(graphs: GraphBatch) -> LabelledGraphs:
    """The graph without a label of its nodes."""
    return LabelledGraphs(graphs, torch.empty(graphs.num_nodes, 0).double(), "node", (), None, torch.tensor([1]), ())


def _with_links(
    read: NodeTables, files: NodeFiles, recipe: Recipe, numbers: dict[str, int], trained: bool
) -> NodeTables:
    """The graph, asked about the pairs of a table, or where it is to be learned from, about its own edges."""
    graphs, target = read.labelled.graphs, next(iter(recipe.targets), None)
    if files.pairs is None:
        if trained:
            files.refuse_without_pairs()
        refuse_target(recipe.targets, f"{files.edges} without a table of pairs")
        try:
            linked, labels = linked_by_edges(graphs)
        except ValueError as error:
            raise ValueError(f"{files.edges}: {error}") from None
        labelled = replace(read.labelled, graphs=linked, targets=labels, level="link", target_names=(LINK,))
        return replace(read, labelled=labelled)
    pairs_path = Path(files.pairs)
    if trained and target is not None and target not in open_table(pairs_path).columns:
        target = None
    pairs = read_pairs(pairs_path, read.columns, numbers, Path(files.nodes), target, recipe.split)
    labelled = replace(
        read.labelled,
        graphs=graphs.with_own_links([pairs.index]),
        targets=pairs.labels,
        level="link",
        target_names=(target or LINK,),
        split=pairs.split,
    )
    told = (*read.sentences, *(() if trained else pairs.sentences))
    return replace(
        read,
        labelled=labelled,
        head=pairs.rows.table.columns,
        rows=pairs.rows.cells,
        lines=pairs.rows.lines,
        sentences=told,
        problems=pairs.problems,
    )


def _roles(files: NodeFiles, nodes: Table, edges: Table, known: GraphColumns | None) -> GraphColumns:
    """Which columns are the id and the two ends."""
    if known is not None:
        for table, name in ((nodes, known.id), (edges, known.source), (edges, known.target)):
            table.place(name, "the run")
        return known
    named = {column.lower(): column for column in nodes.columns}
    own = files.id or next((named[name] for name in _IDS if name in named), nodes.columns[0])
    nodes.place(own, "the id option")
    if files.source is not None and files.target is not None:
        ends = (files.source, files.target)
    else:
        ends = end_columns(edges, "edge")
    for name, option in zip(ends, ("the source option", "the target-node option"), strict=True):
        edges.place(name, option)
    return GraphColumns(own, *ends, files.directed)


def _numbered(nodes: TableRows, column: str) -> dict[str, int]:
    """The number of every node by its id."""
    numbers: dict[str, int] = {}
    for place, cell in enumerate(nodes.columns[column]):
        name = plain_id(cell)
        if not name:
            raise ValueError(f"{nodes.where(place)}: the id is blank; expected one in column {column!r}")
        if name in numbers:
            raise ValueError(
                f"{nodes.where(place)}: the id {cells.shown(name)} stands on {nodes.table.unit} "
                f"{nodes.lines[numbers[name]]} too; expected every id once"
            )
        numbers[name] = place
    return numbers


def _with_features(
    roles: GraphColumns, nodes: TableRows, edges: TableRows, taken: set[str]
) -> tuple[GraphColumns, list[str]]:
    """The roles with the features of both tables, and what is to be said about them."""
    own = {name: column for name, column in nodes.columns.items() if name not in taken}
    more = {name: column for name, column in edges.columns.items() if name not in (roles.source, roles.target)}
    of_nodes, odd = described(nodes.table, own, nodes.lines)
    of_edges, odd_edges = described(edges.table, more, edges.lines)
    sentences = [f"{nodes.table.path}: the id is {roles.id!r}, features are {_listed(of_nodes)}"]
    if not of_nodes:
        sentences.append("nodes have no features: a model tells them apart by who they are joined to alone")
    joined = "one way" if roles.directed else "both ways"
    ends = f"{roles.source!r} and {roles.target!r} {joined}"
    sentences.append(f"{edges.table.path}: edges join {ends}, features are {_listed(of_edges)}")
    for table, names in ((nodes.table, odd), (edges.table, odd_edges)):
        if names:
            sentences.append(
                f"{table.path}: {listed(names)} left out: all alike or blank, or text that differs from row to row"
            )
    return replace(roles, nodes=tuple(of_nodes), edges=tuple(of_edges)), sentences


def _listed(features: Sequence[object]) -> str:
    return listed([getattr(feature, "name", "") for feature in features]) or "none"


def _check_features(known: GraphColumns, nodes: Table, edges: Table) -> None:
    for table, features in ((nodes, known.nodes), (edges, known.edges)):
        for feature in features:
            table.place(feature.name, "the run, as a feature,")


def _edges(
    edges: TableRows, roles: GraphColumns, numbers: dict[str, int], nodes: Path
) -> tuple[Int[Tensor, "2 edges"], Float[Tensor, "edges width"] | None]:
    """The ends of every edge and its features; of undirected ones, the reverse of each that is not listed too."""
    ends = edges.numbers_of((roles.source, roles.target), numbers, nodes)
    features = encoded(edges.table, roles.edges, edges.columns, edges.lines)
    dense = features.dense() if isinstance(features, SparseRows) else features
    if roles.directed:
        return ends, dense
    keys, reverse = ends[0] * len(numbers) + ends[1], ends[1] * len(numbers) + ends[0]
    alone = torch.from_numpy(~np.isin(reverse.numpy(), keys.numpy()))
    both = torch.cat([ends, ends[:, alone].flip(0)], 1)
    return both, None if dense is None else torch.cat([dense, dense[alone]])


def _labels(
    nodes: TableRows, targets: tuple[str, ...], task: TaskKind | None
) -> tuple[Float64[Tensor, "nodes targets"], tuple[str, ...] | None, bool]:
    """The labels, NaN where they are blank; the classes where they are texts; whether all are whole numbers.

    Raises:
        ValueError: one sentence: a column without a label, or several of texts.
    """
    columns, whole = [], bool(targets)
    for name in targets:
        values = nodes.columns[name]
        words = [cells.class_label(text) for text in values]
        if all(word is None for word in words):
            raise ValueError(f"{nodes.table.path}: target {name!r} has no label; expected one in some rows")
        numbers = [_number(text) for text in values]
        if any(number is None for number in numbers):
            if len(targets) > 1 or task not in (None, "multiclass"):
                place = next(place for place, number in enumerate(numbers) if number is None)
                wanted = "one column of classes" if len(targets) > 1 else f"numbers for the task {task}"
                raise ValueError(
                    f"{nodes.where(place)}: target {name!r} holds {cells.shown(values[place])}; expected {wanted}"
                )
            classes = cells.sorted_classes({word for word in words if word is not None})
            coded = {word: float(place) for place, word in enumerate(classes)}
            labels = [np.nan if word is None else coded[word] for word in words]
            return torch.tensor(labels, dtype=torch.float64)[:, None], classes, False
        known = [number for number in numbers if number is not None and number == number]
        whole = whole and all(number.is_integer() for number in known)
        columns.append([np.nan if number is None else number for number in numbers])
    table = np.array(columns, dtype=np.float64).reshape(len(targets), len(nodes.lines)).T
    return torch.from_numpy(np.ascontiguousarray(table)), None, whole


def _number(text: str) -> float | None:
    try:
        return cells.number(text)
    except cells.BadCell:
        return None
