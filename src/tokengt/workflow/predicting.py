"""Predict a file: every row comes back in its order, with a prediction or the reason why there is none.

A draw is one pass of a model with its own random identifiers (or dropout); several draws are averaged.
"""

import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.data import cells
from tokengt.data.graph_sources import is_graph_source
from tokengt.data.progress import progress_bar
from tokengt.data.tables import Row, Table, TableWriter, open_table
from tokengt.files import ready_to_write, write_whole, writing
from tokengt.inference import Predictor
from tokengt.interop.molecules import MoleculePolicy, TextKind, canonical_smiles, pack_molecules
from tokengt.level import Level
from tokengt.models.passes import Over
from tokengt.training import outputs
from tokengt.training.processes import Device
from tokengt.workflow.inputs import UnlabelledGraphs, unlabelled_graphs
from tokengt.workflow.vectors import Vectors, check_ending, writing_vectors

_CHUNK = 2048
# Endings of files that are no CSV: whoever asks for one would open something else than it says.
_OTHER_ENDINGS = (".gz", ".json", ".npz", ".parquet", ".pt", ".sdf", ".smi", ".tsv", ".xls", ".xlsx", ".xz", ".zip")
T = TypeVar("T")


@dataclass(frozen=True)
class Predicted:
    """How many rows came in, and how many of them have no prediction.

    ``overflowed`` of the ``bad`` ones could be read, but the model gives no finite number for them.
    """

    rows: int
    bad: int
    overflowed: int = 0

    def __str__(self) -> str:
        unread = self.bad - self.overflowed
        return (
            f"{self.rows:,} rows"
            + (f", {unread:,} of which could not be read" if unread else "")
            + (f", {self.overflowed:,} for which the model gives no finite number" if self.overflowed else "")
        )


@dataclass(frozen=True)
class _Columns:
    """Where a run finds its inputs in a table."""

    text: int
    kind: TextKind
    descriptors: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, predictor: Predictor, table: Table, smiles: str | None) -> "_Columns":
        spec = predictor.spec
        if spec.molecules is None:
            raise ValueError(f"{table.path} is a table of molecules, but this run was trained on other graphs")
        descriptors = tuple((name, table.place(name, "the run's descriptor")) for name in spec.descriptors.names)
        name = smiles_column(predictor, table, smiles)
        if name is None:
            assert table.text_column is not None
            return cls(table.columns.index(table.text_column), table.text_kind, descriptors)
        return cls(table.place(name, "the smiles option"), "smiles", descriptors)

    def look_like_row(self, cells_of_row: tuple[str, ...], policy: MoleculePolicy) -> bool:
        """Whether these cells could be a row of the table: a molecule that can be read, and every descriptor."""
        try:
            _ = [cells.descriptor(cells_of_row[place]) for _, place in self.descriptors]
        except cells.BadCell:
            return False
        return len(pack_molecules([cells_of_row[self.text]], policy, self.kind).kept) == 1


def smiles_column(predictor: Predictor, table: Table, wanted: str | None) -> str | None:
    """The column of SMILES: as asked for, as in training, or the one that is called so; None for mol blocks."""
    if wanted is not None:
        return wanted
    if table.text_column is not None:
        return None
    trained = predictor.spec.text_column
    alike = [column for column in table.columns if column.lower() == "smiles"]
    if trained in table.columns or len(alike) != 1:
        return trained or "smiles"
    return alike[0]


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some rows of a table: those that can be predicted as graphs, and the reasons of the others, by place."""

    rows: Sequence[Row]
    graphs: GraphBatch | None
    kept: NDArray[np.int64]
    problems: dict[int, str]

    def told(self, predictor: Predictor, values: Float[Tensor, "kept out"] | None, level: Level) -> dict[int, str]:
        """The reasons of all rows without a value: those that could not be read, and those that overflowed."""
        if self.graphs is None or values is None:
            return self.problems
        overflowed = predictor.reasons(self.graphs, values, level)
        return self.problems | {int(self.kept[row]): reason for row, reason in overflowed.items()}

    def spread_out(self, values: Float[Tensor, "kept out"] | None, width: int) -> Float[Tensor, "rows out"]:
        """Values of the kept rows at their places, NaN elsewhere."""
        out = torch.full((len(self.rows), width), torch.nan, dtype=torch.float64)
        if values is not None:
            out[torch.from_numpy(self.kept)] = values.double()
        return out


def open_for(predictor: Predictor, source: Path, smiles: str | None) -> Table:
    """The table, which notices a quote that takes in whole rows."""
    table = open_table(source)
    places, policy = _Columns.of(predictor, table, smiles), predictor.spec.molecules
    return table if policy is None else table.guarded(partial(places.look_like_row, policy=policy))


def chunks(predictor: Predictor, table: Table, smiles: str | None) -> Iterator[Chunk]:
    """The table as graphs, a few thousand rows at a time."""
    places = _Columns.of(predictor, table, smiles)
    waiting: list[Row] = []
    for row in table.rows():
        waiting.append(row)
        if len(waiting) == _CHUNK:
            yield _chunk(predictor, waiting, places)
            waiting = []
    if waiting:
        yield _chunk(predictor, waiting, places)


def _chunk(predictor: Predictor, rows: Sequence[Row], places: _Columns) -> Chunk:
    problems: dict[int, str] = {}
    numbers: dict[int, list[float]] = {}
    for place, row in enumerate(rows):
        if row.problem is not None:
            problems[place] = row.problem
            continue
        try:
            numbers[place] = [_descriptor(name, row.cells[column]) for name, column in places.descriptors]
        except cells.BadCell as error:
            problems[place] = str(error)
    asked = [place for place in range(len(rows)) if place not in problems]
    if not asked:
        return Chunk(rows, None, np.empty(0, dtype=np.int64), problems)
    graphs, kept, unread = predictor.read_texts([rows[place].cells[places.text] for place in asked], places.kind)
    problems |= {asked[place]: reason for place, reason in unread.items()}
    readable = np.array(asked)[kept]
    if places.descriptors and len(readable):
        values = torch.tensor([numbers[place] for place in readable.tolist()], dtype=torch.float32)
        graphs = graphs.with_graph_features(values)
    return Chunk(rows, graphs if len(readable) else None, readable, problems)


def _descriptor(name: str, text: str) -> float:
    try:
        return cells.descriptor(text)
    except cells.BadCell as error:
        raise cells.BadCell(f"descriptor {name!r} {error}") from None


def predict_file(
    run: Predictor | str | Path,
    source: str | Path,
    out: str | Path,
    *,
    smiles: str | None = None,
    draws: int = 1,
    over: Over = "identifiers",
    overwrite: bool = False,
    device: Device = "auto",
    max_atoms: int | None = None,
    quiet: bool = False,
) -> Predicted:
    """Write ``out``, a CSV with the columns of ``source``, then the predictions, then the reason of a bad row.

    A source of graphs has no columns: its CSV has the number of the graph (and of its node or edge) instead. A file
    that exists is replaced only if ``overwrite`` says so.
    """
    source, out = Path(source), Path(out)
    if out.suffix.lower() in _OTHER_ENDINGS:
        raise ValueError(f"{out}: predictions are written as CSV; choose a name that ends in .csv")
    _check_out(source, out, overwrite)
    predictor = run if isinstance(run, Predictor) else Predictor.load(run, device, max_atoms=max_atoms)
    if is_graph_source(source):
        _no_column(source, smiles)
        return _predict_graphs(predictor, source, out, draws, over)
    table = open_for(predictor, source, smiles)
    head, as_smiles = _visible(table)
    names = outputs.unused([*outputs.columns(predictor.task, _has_spread(predictor, draws)), "reason"], head)
    # The file is read once more just to count its rows, so that the progress bar can say how long it will take.
    total = sum(1 for _ in table.rows())
    rows = bad = overflowed = 0
    with writing(out) as file, progress_bar(total, "rows", "predicting", shown=not quiet) as advance:
        text = io.TextIOWrapper(file, "utf-8", newline="")
        writer = TableWriter(text)
        writer.writerow([*head, *names])
        for chunk in chunks(predictor, table, smiles):
            predictions, problems = _predicted(predictor, chunk, draws, over)
            inputs = _shown_cells(predictor, chunk.rows, table, as_smiles)
            reasons = _reasons(chunk, problems)
            writer.writerows([*a, *b, c] for a, b, c in zip(inputs, predictions, reasons, strict=True))
            rows, bad = rows + len(chunk.rows), bad + len(problems)
            overflowed += len(problems) - len(chunk.problems)
            advance(len(chunk.rows))
        text.flush()
        # Otherwise the wrapper would close the file, which ``writing`` still has to move to its name.
        text.detach()
    return Predicted(rows, bad, overflowed)


def _check_out(source: Path, out: Path, overwrite: bool) -> None:
    """Whatever is wrong with the file to write is said before any work is done."""
    ready_to_write(out)
    if os.path.realpath(out) == os.path.realpath(source):
        raise ValueError(f"the file to write is the input {source} itself; choose another name")
    if out.is_file() and not overwrite:
        raise ValueError(f"{out} exists; choose another name, or have it replaced (--force, in Python overwrite=True)")


def _has_spread(predictor: Predictor, draws: int) -> bool:
    """Whether there is more than one pass, of several draws or several models."""
    return draws * len(predictor.members) > 1


def _no_column(source: Path, smiles: str | None) -> None:
    if smiles is not None:
        raise ValueError(f"{source} holds graphs and no table of molecules: a column of SMILES means nothing there")


def _predicted(predictor: Predictor, chunk: Chunk, draws: int, over: Over) -> tuple[list[list[str]], dict[int, str]]:
    """The cells of every row's prediction, and the reasons of those that have none, by place."""
    mean = std = None
    if chunk.graphs is not None:
        mean, std = predictor.predict_graphs(chunk.graphs, draws, over)
    width = predictor.task.out_dim
    stds = chunk.spread_out(std, width) if _has_spread(predictor, draws) else None
    cells = outputs.cells(predictor.task, chunk.spread_out(mean, width), stds)
    return cells, chunk.told(predictor, mean, predictor.spec.level)


def _reasons(chunk: Chunk, problems: Mapping[int, str]) -> list[str]:
    return [problems.get(place, "") for place in range(len(chunk.rows))]


def _visible(table: Table) -> tuple[list[str], bool]:
    """The columns to give back; a mol block of many lines comes back as SMILES."""
    if table.text_column is None:
        return list(table.columns), False
    others = [name for name in table.columns if name != table.text_column]
    (smiles,) = outputs.unused(["smiles"], others)
    return [smiles if name == table.text_column else name for name in table.columns], True


def _shown_cells(predictor: Predictor, found: Sequence[Row], table: Table, as_smiles: bool) -> list[tuple[str, ...]]:
    rows, policy = [row.cells for row in found], predictor.spec.molecules
    if not as_smiles or table.text_column is None or policy is None:
        return rows
    place = table.columns.index(table.text_column)
    texts = canonical_smiles([row[place] for row in rows], policy.of_whole, table.text_kind)
    return [(*row[:place], text or "", *row[place + 1 :]) for row, text in zip(rows, texts, strict=True)]


def _answered(found: UnlabelledGraphs, ask: Callable[[GraphBatch], T]) -> tuple[UnlabelledGraphs, T]:
    """What the model says of the graphs, without those that it refuses, such as one of a category it does not know."""
    try:
        return found, ask(found.graphs)
    except ValueError as error:
        refused = _refused(found.graphs, range(len(found.graphs)), ask)
        if len(refused) in (0, len(found.graphs)):
            raise error
    usable = found.without(refused)
    return usable, ask(usable.graphs)


def _refused(graphs: GraphBatch, places: Sequence[int], ask: Callable[[GraphBatch], object]) -> dict[int, str]:
    """The reasons of the graphs among these places that the model refuses, found by halves."""
    try:
        ask(graphs.select(places))
    except ValueError as error:
        if len(places) == 1:
            return {places[0]: str(error).removeprefix("graph 0: ")}
        half = len(places) // 2
        return _refused(graphs, places[:half], ask) | _refused(graphs, places[half:], ask)
    return {}


def _predict_graphs(predictor: Predictor, source: Path, out: Path, draws: int, over: Over) -> Predicted:
    found = unlabelled_graphs(predictor.spec, source)
    source_graphs, (mean, std) = _answered(found, lambda graphs: predictor.predict_graphs(graphs, draws, over))
    level = predictor.spec.level
    rows = source_graphs.graphs.level_rows(level)
    lines = source_graphs.lines[rows.ids].tolist()
    head = ["graph"] if level == "graph" else ["graph", level]
    front = (
        [[line] for line in lines]
        if level == "graph"
        else [[line, place] for line, place in zip(lines, rows.positions.tolist(), strict=True)]
    )
    predictions = outputs.cells(predictor.task, mean, std)
    columns = outputs.columns(predictor.task, _has_spread(predictor, draws))
    overflowed = predictor.reasons(source_graphs.graphs, mean)
    reasons = [overflowed.get(row, "") for row in range(len(mean))]
    body = [[*a, *b, c] for a, b, c in zip(front, predictions, reasons, strict=True)]
    body += [[line, *[""] * (len(head) - 1 + len(columns)), reason] for line, reason in source_graphs.rejected]
    text = io.StringIO()
    # Graphs that could not be read go back to their places among the others.
    body.sort(key=lambda row: row[0])
    TableWriter(text).writerows([[*head, *columns, "reason"], *body])
    write_whole(out, text.getvalue().encode())
    return Predicted(len(body), len(source_graphs.rejected) + len(overflowed), len(overflowed))


def embed_file(
    run: Predictor | str | Path,
    source: str | Path,
    out: str | Path,
    *,
    smiles: str | None = None,
    overwrite: bool = False,
    device: Device = "auto",
    max_atoms: int | None = None,
    quiet: bool = False,
) -> Predicted:
    """Write ``out``, one vector per row of ``source`` (per graph, where it holds graphs), as its ending says.

    ``.csv`` and ``.parquet`` have the columns of ``source`` (or ``graph``), then ``vector_0``, ``vector_1``, ..., then
    ``reason``: why a row has no vector. ``.npz`` has ``vectors`` [rows, dim] (NaN for such a row), ``valid`` [rows],
    ``lines`` [rows] and the ``reasons`` of the rows that are not valid; ``np.load`` reads it without pickle. A file
    that exists is replaced only if ``overwrite`` says so.
    """
    source, out = Path(source), Path(out)
    check_ending(out)
    _check_out(source, out, overwrite)
    predictor = run if isinstance(run, Predictor) else Predictor.load(run, device, max_atoms=max_atoms)
    if is_graph_source(source):
        _no_column(source, smiles)
        return _embed_graphs(predictor, source, out)
    table = open_for(predictor, source, smiles)
    head, as_smiles = _visible(table)
    total = sum(1 for _ in table.rows())
    if not total:
        raise ValueError(f"{source} has no rows; expected at least one")
    bad = overflowed = 0
    with writing_vectors(out, head) as add, progress_bar(total, "rows", "embedding", shown=not quiet) as advance:
        for chunk in chunks(predictor, table, smiles):
            own = None if chunk.graphs is None else predictor.embed_graphs(chunk.graphs)
            values = chunk.spread_out(own, predictor.width if own is None else own.shape[1]).float().numpy()
            problems = chunk.told(predictor, own, "graph")
            lines = np.array([row.line for row in chunk.rows], dtype=np.int64)
            add(
                Vectors(_shown_cells(predictor, chunk.rows, table, as_smiles), lines, values, _reasons(chunk, problems))
            )
            bad, overflowed = bad + len(problems), overflowed + len(problems) - len(chunk.problems)
            advance(len(chunk.rows))
    return Predicted(total, bad, overflowed)


def _embed_graphs(predictor: Predictor, source: Path, out: Path) -> Predicted:
    """One vector per graph; graphs that could not be read stand at their places among the others."""
    source_graphs, found = _answered(unlabelled_graphs(predictor.spec, source), predictor.embed_graphs)
    overflowed = predictor.reasons(source_graphs.graphs, found, "graph")
    lines = [*source_graphs.lines.tolist(), *(line for line, _ in source_graphs.rejected)]
    reasons = [overflowed.get(row, "") for row in range(len(found))] + [why for _, why in source_graphs.rejected]
    values = np.full((len(lines), found.shape[1]), np.nan, dtype=np.float32)
    values[: len(found)] = found.numpy()
    order = np.argsort(np.array(lines, dtype=np.int64), kind="stable")
    with writing_vectors(out, ["graph"]) as add:
        fronts = [[str(lines[place])] for place in order]
        add(Vectors(fronts, np.array(lines, dtype=np.int64)[order], values[order], [reasons[p] for p in order]))
    return Predicted(len(lines), len(source_graphs.rejected) + len(overflowed), len(overflowed))
