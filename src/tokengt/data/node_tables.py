"""A large graph of one's own: a table of nodes and a table of edges as one graph with labels on its nodes.

Of the table of nodes one column is the id, of any kind; the target columns are what is learned, blank where it is to be
predicted; all others are features. Of the table of edges two columns name nodes by their ids, and all others are
features of the edge, such as its weight. Edges join both ways unless they are said to be directed.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float64, Int, Int8
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.data import cells
from tokengt.data._labelled import LabelledGraphs
from tokengt.data.manifest import NO_PART, GraphColumns, Recipe, TaskKind
from tokengt.data.table_columns import described, encoded
from tokengt.data.tables import Table, listed, open_table
from tokengt.files import checksum, file_checksum
from tokengt.graph import Graph
from tokengt.sparse import SparseRows

# Names that people give to the column of ids, and to the two ends of an edge; else the first column, and the first two.
_IDS = ("id", "node", "node_id", "nodeid", "name")
_ENDS = (("source", "target"), ("src", "dst"), ("from", "to"), ("u", "v"), ("id1", "id2"), ("node1", "node2"))


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
    """

    nodes: str | Path
    edges: str | Path
    id: str | None = None
    source: str | None = None
    target: str | None = None
    directed: bool = False

    def __post_init__(self) -> None:
        if (self.source is None) != (self.target is None):
            raise ValueError("source and target name the two ends of an edge; expected both of them, or neither")

    @property
    def paths(self) -> tuple[Path, Path]:
        """The two tables: nodes, edges."""
        return Path(self.nodes), Path(self.edges)

    @property
    def name(self) -> str:
        return " and ".join(path.name for path in self.paths)

    def check(self) -> None:
        """Refuse files that are not there."""
        for path, what in zip(self.paths, ("nodes", "edges"), strict=True):
            if not path.is_file():
                raise ValueError(f"{path} does not exist; expected a table of {what}")

    def checksum(self) -> str:
        """Of the content of both, and of what is said about them."""
        said = [self.id, self.source, self.target, self.directed]
        content = [*map(file_checksum, self.paths), *said]
        return checksum(json.dumps(content).encode())


@dataclass(frozen=True, eq=False)
class _Rows:
    """A table that was read: the cells of every column, and where each row stands."""

    table: Table
    columns: dict[str, tuple[str, ...]]
    lines: list[int]

    @classmethod
    def read(cls, path: Path) -> "_Rows":
        table = open_table(path)
        rows = list(table.rows())
        for row in rows:
            if row.problem is not None:
                raise ValueError(f"{path}, {table.unit} {row.line}: {row.problem}")
        if not rows:
            raise ValueError(f"{path} has a header but no rows; expected at least one")
        columns = dict(zip(table.columns, zip(*(row.cells for row in rows), strict=True), strict=True))
        return cls(table, columns, [row.line for row in rows])

    def where(self, place: int) -> str:
        return f"{self.table.path}, {self.table.unit} {self.lines[place]}"


@dataclass(frozen=True, eq=False)
class NodeTables:
    """What two tables hold: the graph with its labels, how columns became features, and the cells of the nodes' rows.

    ``sentences`` are what a person should know of it.
    """

    labelled: LabelledGraphs
    columns: GraphColumns
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    lines: list[int]
    sentences: tuple[str, ...]


def read_node_tables(files: NodeFiles, recipe: Recipe, known: GraphColumns | None = None) -> NodeTables:
    """The graph of two tables. With ``known``, columns are read as they were in training, and labels may be absent.

    Raises:
        ValueError: one sentence: the file, its line, and what was expected.
    """
    files.check()
    if recipe.level not in (None, "node"):
        raise ValueError(f"level is {recipe.level}; a table of nodes has labels of nodes: expected node")
    nodes, edges = map(_Rows.read, files.paths)
    roles = _roles(files, nodes.table, edges.table, known)
    numbers = _numbered(nodes, roles.id)
    targets = tuple(name for name in recipe.targets if known is None or name in nodes.columns)
    taken = {roles.id, *targets, *([] if recipe.split is None else [recipe.split])}
    for name in targets:
        nodes.table.place(name, "the target option")
        if name in (roles.id, recipe.split):
            what = "the ids" if name == roles.id else "the split"
            raise ValueError(f"{files.nodes}: the target option names column {name!r}, which holds {what}")
    sentences: list[str] = []
    if known is None:
        roles, sentences = _with_features(roles, nodes, edges, taken)
    else:
        _check_features(known, nodes.table, edges.table)
    features = encoded(nodes.table, roles.nodes, nodes.columns, nodes.lines)
    ends, edge_features = _edges(edges, roles, numbers, nodes.table.path)
    graph = Graph(features, ends, edge_features, num_nodes=len(nodes.lines))
    labels, classes, whole = _labels(nodes, targets, recipe.task)
    labelled = LabelledGraphs(
        GraphBatch.collate([graph]),
        labels,
        "node",
        targets,
        _split(nodes, recipe.split),
        torch.tensor([1]),
        (),
        integers=whole,
        classes=classes,
    )
    cells_of = list(zip(*nodes.columns.values(), strict=True))
    return NodeTables(labelled, roles, nodes.table.columns, cells_of, nodes.lines, tuple(sentences))


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
        if len(edges.columns) < 2:
            raise ValueError(f"{edges.path} has one column; expected two that name the nodes of each edge")
        there = {column.lower(): column for column in edges.columns}
        usual = ((there[one], there[other]) for one, other in _ENDS if one in there and other in there)
        ends = next(usual, (edges.columns[0], edges.columns[1]))
    for name, option in zip(ends, ("the source option", "the target-node option"), strict=True):
        edges.place(name, option)
    return GraphColumns(own, *ends, files.directed)


def _numbered(nodes: _Rows, column: str) -> dict[str, int]:
    """The number of every node by its id."""
    numbers: dict[str, int] = {}
    for place, cell in enumerate(nodes.columns[column]):
        name = _id(cell)
        if not name:
            raise ValueError(f"{nodes.where(place)}: the id is blank; expected one in column {column!r}")
        if name in numbers:
            raise ValueError(
                f"{nodes.where(place)}: the id {cells.shown(name)} stands on {nodes.table.unit} "
                f"{nodes.lines[numbers[name]]} too; expected every id once"
            )
        numbers[name] = place
    return numbers


def _id(cell: str) -> str:
    """An id as it is compared: ``7.0``, which other programs make of 7 where some ids are blank, is 7."""
    text = cell.strip()
    head, dot, tail = text.partition(".")
    return head if dot and tail.strip("0") == "" and head.lstrip("-").isdigit() else text


def _with_features(roles: GraphColumns, nodes: _Rows, edges: _Rows, taken: set[str]) -> tuple[GraphColumns, list[str]]:
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
    edges: _Rows, roles: GraphColumns, numbers: dict[str, int], nodes: Path
) -> tuple[Int[Tensor, "2 edges"], Float[Tensor, "edges width"] | None]:
    """The ends of every edge and its features; of undirected ones, the reverse of each that is not listed too."""
    found = []
    for column in (roles.source, roles.target):
        own = [numbers.get(_id(cell), -1) for cell in edges.columns[column]]
        if -1 in own:
            place = own.index(-1)
            raise ValueError(
                f"{edges.where(place)}: {column} is {cells.shown(edges.columns[column][place])}, which is no id of "
                f"{nodes}; expected one of its {len(numbers):,} ids"
            )
        found.append(own)
    ends = torch.tensor(found, dtype=torch.int64)
    features = encoded(edges.table, roles.edges, edges.columns, edges.lines)
    dense = features.dense() if isinstance(features, SparseRows) else features
    if roles.directed:
        return ends, dense
    keys, reverse = ends[0] * len(numbers) + ends[1], ends[1] * len(numbers) + ends[0]
    alone = torch.from_numpy(~np.isin(reverse.numpy(), keys.numpy()))
    both = torch.cat([ends, ends[:, alone].flip(0)], 1)
    return both, None if dense is None else torch.cat([dense, dense[alone]])


def _labels(
    nodes: _Rows, targets: tuple[str, ...], task: TaskKind | None
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


def _split(nodes: _Rows, column: str | None) -> Int8[Tensor, " nodes"] | None:
    if column is None:
        return None
    nodes.table.place(column, "the split")
    codes = []
    for place, text in enumerate(nodes.columns[column]):
        try:
            codes.append(NO_PART if cells.is_missing(text) else cells.split_code(text))
        except cells.BadCell as error:
            raise ValueError(f"{nodes.where(place)}: column {column!r} {error}") from None
    return torch.tensor(codes, dtype=torch.int8)
