"""Rows of a table converted to arrays, one shard at a time.

A *shard* is some thousand consecutive rows: the unit of parallel work, and of what a restarted run need not do again.
:func:`convert_shard` is pure: the same rows and recipe give the same arrays in any process on any machine. This module
does not import torch.
"""

import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from tokengt.data import cells
from tokengt.data.manifest import Censored, Recipe, TaskKind
from tokengt.data.sheets import unused
from tokengt.data.tables import Row, Table
from tokengt.data.tensorfile import DTYPES, Array, TensorType, narrowed
from tokengt.interop.molecules import MoleculePolicy, TextKind, canonical_smiles, pack_molecules

# The tensor of a shard's file that holds its classes and rejected rows, as JSON.
_NOTES = "notes"


@dataclass(frozen=True)
class Column:
    """A column's name and its place in a row."""

    name: str
    place: int


@dataclass(frozen=True)
class ShardRecipe:
    """A recipe with the places of its columns in one table."""

    text: Column
    kind: TextKind
    policy: MoleculePolicy
    task: TaskKind | None
    targets: tuple[Column, ...]
    descriptors: tuple[Column, ...]
    split: Column | None
    weights: Column | None = None
    censored: Censored = "reject"

    @classmethod
    def of(cls, recipe: Recipe, table: Table) -> "ShardRecipe":
        """Find every column; ``recipe.smiles`` may be None only for a table that has molecules of its own."""
        text = table.text_column if recipe.smiles is None else recipe.smiles
        assert text is not None
        return cls(
            text=Column(text, table.place(text, "the smiles option")),
            kind=table.text_kind if recipe.smiles is None else "smiles",
            policy=recipe.policy,
            task=recipe.task,
            targets=tuple(Column(name, table.place(name, "the target option")) for name in recipe.targets),
            descriptors=tuple(Column(name, table.place(name, "the descriptors option")) for name in recipe.descriptors),
            split=None if recipe.split is None else Column(recipe.split, table.place(recipe.split, "the split")),
            weights=_weights_column(recipe, table),
            censored=recipe.censored,
        )

    @classmethod
    def to_predict(
        cls,
        table: Table,
        policy: MoleculePolicy,
        descriptors: Sequence[str] = (),
        trained: str | None = None,
        wanted: str | None = None,
    ) -> "ShardRecipe":
        """Where a trained run finds its inputs in a table: no targets, SMILES in the column :func:`smiles_column`.

        Raises:
            ValueError: a column is missing; says which there are.
        """
        places = tuple(Column(name, table.place(name, "the run's descriptor")) for name in descriptors)
        name = smiles_column(table, trained, wanted)
        if name is None:
            assert table.text_column is not None
            text, kind = Column(table.text_column, table.columns.index(table.text_column)), table.text_kind
        else:
            text, kind = Column(name, table.place(name, "the smiles option")), "smiles"
        return cls(text, kind, policy, None, (), places, None)

    @property
    def multiclass(self) -> bool:
        return self.task == "multiclass"


def _weights_column(recipe: Recipe, table: Table) -> Column | None:
    if recipe.weights is None:
        return None
    return Column(recipe.weights, table.place(recipe.weights, "the weights option"))


def smiles_column(table: Table, trained: str | None, wanted: str | None) -> str | None:
    """The column of SMILES: as asked for, as in training, or the one that is called so; None for mol blocks."""
    if wanted is not None:
        return wanted
    if table.text_column is not None:
        return None
    alike = [column for column in table.columns if column.lower() == "smiles"]
    if trained in table.columns or len(alike) != 1:
        return trained or "smiles"
    return alike[0]


def visible_columns(table: Table) -> tuple[tuple[str, ...], int | None]:
    """The columns to give back, and the place of those that hold mol blocks: these come back as SMILES."""
    if table.text_column is None:
        return table.columns, None
    others = [name for name in table.columns if name != table.text_column]
    (smiles,) = unused(["smiles"], others)
    names = tuple(smiles if name == table.text_column else name for name in table.columns)
    return names, table.columns.index(table.text_column)


class Rejected(NamedTuple):
    """A row that could not be read."""

    line: int
    reason: str
    cells: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class ShardArrays:
    """The readable rows of a shard.

    ``arrays``: node_counts, edge_counts, text_counts, lines [kept]; node_features [nodes, 9]; edge_index [2, edges],
    local; edge_features [edges, 3]; texts [bytes], UTF-8; targets [kept, T]; and where the recipe has them
    graph_features [kept, D], split [kept], weights [kept] and bounds [kept, 2 T], the lower ones first. In a multiclass
    shard targets are places in its own ``classes``. ``censored`` counts the bounds (``>3.69``) among the labels of each
    target; their rows are rejected unless they are to be learned from.
    """

    arrays: dict[str, Array]
    classes: tuple[str, ...]
    rejected: tuple[Rejected, ...]
    censored: tuple[int, ...] = ()

    def to_bytes(self) -> bytes:
        content = {"classes": self.classes, "rejected": self.rejected, "censored": self.censored}
        notes = json.dumps(content).encode()
        return save({**self.arrays, _NOTES: np.frombuffer(notes, dtype=np.uint8)})


@dataclass(frozen=True)
class ShardFile:
    """A shard on disk; its tensors are read one at a time."""

    path: Path

    def read(self, name: str) -> Array:
        with safe_open(self.path, "numpy") as file:
            array: Array = file.get_tensor(name)
        return array

    def header(self) -> dict[str, TensorType]:
        """Type and shape of every tensor, without reading any."""
        with safe_open(self.path, "numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {
                name: TensorType(DTYPES[part.get_dtype()], tuple(part.get_shape())) for name, part in slices.items()
            }

    def classes(self) -> tuple[str, ...]:
        return tuple(self._notes()["classes"])

    def censored(self) -> tuple[int, ...]:
        return tuple(self._notes()["censored"])

    def rejected(self) -> list[Rejected]:
        return [Rejected(line, reason, tuple(row)) for line, reason, row in self._notes()["rejected"]]

    def _notes(self) -> dict[str, Any]:
        notes: dict[str, Any] = json.loads(self.read(_NOTES).tobytes())
        return notes


class _Values(NamedTuple):
    """What a row says besides its molecule."""

    targets: tuple[float | str | None, ...]
    descriptors: tuple[float, ...]
    split: int
    lower: tuple[float, ...] = ()
    upper: tuple[float, ...] = ()
    weight: float = 1.0


def convert_shard(rows: Sequence[Row], recipe: ShardRecipe) -> ShardArrays:
    """Featurise the rows; one that cannot be read is named with its reason and costs the others nothing."""
    readable: list[Row] = []
    values: list[_Values] = []
    problems: dict[int, tuple[Row, str]] = {}
    for place, row in enumerate(rows):
        try:
            values.append(_values(row, recipe))
            readable.append(row)
        except cells.BadCell as bad:
            problems[place] = row, str(bad)
    texts = [row.cells[recipe.text.place] for row in readable]
    packed = pack_molecules(texts, recipe.policy, recipe.kind)
    places = [place for place in range(len(rows)) if place not in problems]
    problems |= {places[place]: (readable[place], reason) for place, reason in packed.problems}
    kept = packed.kept.tolist()
    arrays: dict[str, Array] = {
        "node_counts": packed.node_counts,
        "edge_counts": packed.edge_counts,
        "node_features": narrowed(packed.node_features),
        "edge_index": narrowed(packed.edge_index),
        "edge_features": narrowed(packed.edge_features),
        "lines": np.array([readable[place].line for place in kept], dtype=np.int64),
        **_text_arrays([texts[place] for place in kept], recipe),
    }
    values = [values[place] for place in kept]
    labels = sorted({label for row_values in values for label in row_values.targets if isinstance(label, str)})
    arrays |= _value_arrays(values, recipe, {label: float(code) for code, label in enumerate(labels)})
    if packed.features.shape[1]:
        # Columns of the table come first, as the manifest names them.
        columns = [arrays["graph_features"]] if recipe.descriptors else []
        arrays["graph_features"] = np.concatenate([*columns, packed.features], 1)
    rejected = tuple(Rejected(row.line, reason, row.cells) for _, (row, reason) in sorted(problems.items()))
    censored = _censored([row for row, _ in problems.values()], recipe)
    if "bounds" in arrays:
        learned = (~np.isnan(arrays["bounds"])).sum(0).reshape(2, -1).sum(0)
        censored = tuple(count + int(own) for count, own in zip(censored, learned, strict=True))
    return ShardArrays(arrays, tuple(labels), rejected, censored)


@dataclass(frozen=True, eq=False)
class ShownShard:
    """A shard to predict: its readable rows as arrays, and all its rows as they are to be given back.

    ``lines`` [rows] is where each row stands, ``cells`` what :func:`shown_cells` says of it, packed: whoever passes
    them on to the one that writes them does not look at each row.
    """

    shard: ShardArrays
    lines: Array
    cells: bytes

    @property
    def kept(self) -> Array:
        """[kept] the places of the readable rows among all."""
        return np.searchsorted(self.lines, self.shard.arrays["lines"])

    @property
    def problems(self) -> dict[int, str]:
        """The reasons of the other rows, by their places."""
        places = np.searchsorted(self.lines, [row.line for row in self.shard.rejected]).tolist()
        return {place: row.reason for place, row in zip(places, self.shard.rejected, strict=True)}


def convert_shown(rows: Sequence[Row], recipe: ShardRecipe, blocks: int | None = None) -> ShownShard:
    """:func:`convert_shard`, with what is to be given back of every row; ``blocks`` as in :func:`shown_cells`."""
    lines = np.array([row.line for row in rows], dtype=np.int64)
    cells_of_rows = shown_cells([row.cells for row in rows], recipe.policy, blocks)
    return ShownShard(convert_shard(rows, recipe), lines, pickle.dumps(cells_of_rows, protocol=5))


def shown_cells(rows: list[tuple[str, ...]], policy: MoleculePolicy, blocks: int | None) -> list[tuple[str, ...]]:
    """The cells of every row as the file has them; the mol blocks of column ``blocks`` come back as SMILES."""
    if blocks is None:
        return rows
    texts = canonical_smiles([row[blocks] for row in rows], policy.of_whole, "molblock")
    return [(*row[:blocks], text or "", *row[blocks + 1 :]) for row, text in zip(rows, texts, strict=True)]


def _censored(rows: Sequence[Row], recipe: ShardRecipe) -> tuple[int, ...]:
    """How many of these rows have a bound where each target's number should be."""
    counts = [0] * len(recipe.targets)
    for row in rows:
        for place, column in enumerate(recipe.targets):
            try:
                _ = recipe.multiclass or cells.number(row.cells[column.place])
            except cells.CensoredCell:
                counts[place] += 1
            except cells.BadCell:
                continue
    return tuple(counts)


def looks_like_row(cells_of_row: tuple[str, ...], recipe: ShardRecipe) -> bool:
    """Whether these cells could be a row of the table: a molecule that can be read, and numbers where they belong."""
    try:
        _values(Row(0, cells_of_row), recipe)
    except cells.BadCell:
        return False
    return len(pack_molecules([cells_of_row[recipe.text.place]], recipe.policy, recipe.kind).kept) == 1


def _values(row: Row, recipe: ShardRecipe) -> _Values:
    if row.problem is not None:
        raise cells.BadCell(row.problem)
    read = cells.class_label if recipe.multiclass else cells.binary if recipe.task == "binary" else cells.number
    split = 0 if recipe.split is None else _cell(row, "split column", recipe.split, cells.split_code)
    descriptors = tuple(_cell(row, "descriptor", column, cells.descriptor) for column in recipe.descriptors)
    weight = 1.0 if recipe.weights is None else _cell(row, "weights", recipe.weights, cells.weight)
    if recipe.censored == "learn":
        labels = [_cell(row, "target", column, cells.number_or_bound) for column in recipe.targets]
        targets, lower, upper = (tuple(each) for each in zip(*labels, strict=True)) if labels else ((), (), ())
        return _Values(targets, descriptors, split, lower, upper, weight)
    targets = tuple(_cell(row, "target", column, read) for column in recipe.targets)
    return _Values(targets, descriptors, split, weight=weight)


def _cell(row: Row, role: str, column: Column, read: Any) -> Any:
    try:
        return read(row.cells[column.place])
    except cells.BadCell as bad:
        raise cells.BadCell(f"{role} {column.name!r} {bad}") from None


def _text_arrays(texts: list[str], recipe: ShardRecipe) -> dict[str, Array]:
    """SMILES as given; RDKit's own where the file has none."""
    if recipe.kind != "smiles":
        texts = [smiles or "" for smiles in canonical_smiles(texts, recipe.policy.of_whole, recipe.kind)]
    encoded = [text.encode() for text in texts]
    return {
        "texts": np.frombuffer(b"".join(encoded), dtype=np.uint8),
        "text_counts": np.array([len(text) for text in encoded], dtype=np.int64),
    }


def _value_arrays(values: list[_Values], recipe: ShardRecipe, codes: dict[str, float]) -> dict[str, Array]:
    def target(value: float | str | None) -> float:
        return np.nan if value is None else codes[value] if isinstance(value, str) else value

    count = len(values)
    targets = [[target(value) for value in row.targets] for row in values]
    arrays: dict[str, Array] = {
        "targets": np.array(targets, dtype=np.float64).reshape(count, len(recipe.targets)),
    }
    if recipe.descriptors:
        descriptors = np.array([row.descriptors for row in values], dtype=np.float32)
        arrays["graph_features"] = descriptors.reshape(count, len(recipe.descriptors))
    if recipe.split is not None:
        arrays["split"] = np.array([row.split for row in values], dtype=np.int8)
    if recipe.weights is not None:
        arrays["weights"] = np.array([row.weight for row in values], dtype=np.float64)
    if recipe.censored == "learn":
        bounds = np.array([(*row.lower, *row.upper) for row in values], dtype=np.float64)
        arrays["bounds"] = bounds.reshape(count, 2 * len(recipe.targets))
    return arrays
