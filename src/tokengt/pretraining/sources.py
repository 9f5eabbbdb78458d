"""Where molecules to pre-train on come from, and what was measured of them: files, and public data sets by name.

Of a table, every column of zeros and ones is a yes/no assay (*answers*) and every other column of numbers a quantity
(*numbers*). FS-Mol has thousands of assays with a few molecules each, so that a table would be nearly empty: its labels
are kept as a list (*measurements*). This module does not import torch.
"""

import csv
import gzip
import io
import lzma
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokengt.data import cells
from tokengt.data.public import public_data
from tokengt.data.shards import smiles_column
from tokengt.data.tables import Table, open_table
from tokengt.data.targets import numeric_columns
from tokengt.interop.reading import TextKind

UNKNOWN = 255
# The relation of a measurement to the true value: it is equal, or a bound that the true value is below or above.
EQUAL, BELOW, ABOVE = 0, 1, 2
_RELATIONS = {"<": BELOW, "<=": BELOW, "<<": BELOW, ">": ABOVE, ">=": ABOVE, ">>": ABOVE}


@dataclass(frozen=True, eq=False)
class Measurements:
    """Labels of many assays, as a list sorted by molecule.

    Args:
        names: of the assays.
        rows: [labels] which molecule.
        assays: [labels] which assay.
        active: [labels] 0, 1, or UNKNOWN.
        values: [labels] what was measured, NaN where only ``active`` is known.
        relations: [labels] EQUAL, or BELOW (ABOVE): the true value is at most (at least) what was measured.
    """

    names: tuple[str, ...]
    rows: NDArray[np.int64]
    assays: NDArray[np.int64]
    active: NDArray[np.uint8]
    values: NDArray[np.float64]
    relations: NDArray[np.uint8]

    @classmethod
    def none(cls) -> "Measurements":
        empty = np.zeros(0, np.int64)
        return cls((), empty, empty, empty.astype(np.uint8), empty.astype(float), empty.astype(np.uint8))

    def of_rows(self, chosen: NDArray[np.int64]) -> "Measurements":
        """Those of some molecules, ascending, numbered anew in their order."""
        here = np.isin(self.rows, chosen)
        return replace(
            self,
            rows=np.searchsorted(chosen, self.rows[here]),
            **{name: getattr(self, name)[here] for name in ("assays", "active", "values", "relations")},
        )


@dataclass(frozen=True, eq=False)
class Source:
    """Molecules with what is known of them.

    Args:
        name: a file or a public data set.
        texts: the molecules.
        answer_names: the yes/no assays.
        answers: [molecules, assays] 0, 1, or UNKNOWN.
        number_names: the quantities.
        numbers: [molecules, quantities], NaN where missing.
        measurements: of assays that are kept as a list.
    """

    name: str
    texts: Sequence[str]
    answer_names: tuple[str, ...]
    answers: NDArray[np.uint8]
    number_names: tuple[str, ...]
    numbers: NDArray[np.float64]
    measurements: Measurements
    kind: TextKind = "smiles"

    @classmethod
    def bare(cls, name: str, texts: Sequence[str], kind: TextKind = "smiles") -> "Source":
        count = len(texts)
        return cls(name, texts, (), np.zeros((count, 0), np.uint8), (), np.zeros((count, 0)), Measurements.none(), kind)

    def some(self, most: int) -> "Source":
        """At most so many molecules, evenly spaced: files are often sorted, and neighbours alike."""
        if most >= len(self.texts):
            return self
        chosen = np.arange(most) * len(self.texts) // most
        return replace(
            self,
            texts=[self.texts[place] for place in chosen.tolist()],
            answers=self.answers[chosen],
            numbers=self.numbers[chosen],
            measurements=self.measurements.of_rows(chosen),
        )


def read_source(asked: str | Path, smiles: str | None = None) -> Source:
    """A file of molecules or a public data set; ``NAME:COUNT`` takes so many of its molecules, evenly spaced.

    Raises:
        ValueError: one sentence: there is no such file or name, or it holds no molecules.
    """
    name, _, count = str(asked).rpartition(":")
    if name and count.isdigit() and not Path(asked).exists():
        if int(count) < 1:
            raise ValueError(f"{asked} asks for {count} molecules; expected one at least")
        return read_source(name, smiles).some(int(count))
    source = _named(str(asked)) if not Path(asked).exists() else None
    source = _of_table(Path(asked), smiles) if source is None else source
    if not len(source.texts):
        raise ValueError(f"{asked} holds no molecules; expected one at least")
    return source


def read_excluded(asked: str | Path, smiles: str | None = None) -> list[str]:
    """The SMILES of a file or a public data set; of ``admet``, the test parts of its 22 endpoints."""
    if str(asked) == "admet" and not Path(asked).exists():
        files = sorted(public_data("admet").glob("*.csv.xz"))
        if not files:
            raise ValueError(f"{public_data('admet')} holds no .csv.xz file; expected one per endpoint")
        return [row["smiles"] for file in files for row in _rows(file) if row["split"] == "test"]
    source = read_source(asked, smiles)
    if source.kind != "smiles":
        raise ValueError(f"{asked} holds mol blocks; expected SMILES of the molecules to leave out")
    return list(source.texts)


def _of_table(path: Path, smiles: str | None) -> Source:
    """Every molecule of a table, with all columns of numbers that are no ids."""
    if not path.exists():
        known = ", ".join(_NAMED)
        raise ValueError(f"{path} does not exist; expected a file of molecules, or one of {known} in TOKENGT_DATA")
    table = open_table(path)
    column = smiles_column(table, None, smiles)
    text = table.text_column if column is None else column
    assert text is not None
    place = table.place(text, "the smiles option")
    names = numeric_columns(table, [name for name in table.columns if name != text])
    texts, rows = _columns(table, place, [table.columns.index(name) for name in names])
    values = np.array(rows, dtype=np.float64).reshape(len(texts), len(names))
    with np.errstate(invalid="ignore"):
        yes_no = np.array([bool(np.isin(each[~np.isnan(each)], (0, 1)).all()) for each in values.T], dtype=bool)
    answers = values[:, yes_no]
    kind: TextKind = table.text_kind if column is None else "smiles"
    return replace(
        Source.bare(path.name, texts, kind),
        answer_names=tuple(f"{path.name}: {name}" for name, yes in zip(names, yes_no, strict=True) if yes),
        answers=np.where(np.isnan(answers), UNKNOWN, answers).astype(np.uint8),
        number_names=tuple(f"{path.name}: {name}" for name, yes in zip(names, yes_no, strict=True) if not yes),
        numbers=values[:, ~yes_no],
    )


def _columns(table: Table, place: int, others: Sequence[int]) -> tuple[list[str], list[list[float]]]:
    """Texts and numbers of all rows that have a molecule; what is no number is missing."""
    texts, rows = [], []
    for row in table.rows():
        if row.problem is None and row.cells[place].strip():
            texts.append(row.cells[place])
            rows.append([_number(row.cells[other]) for other in others])
    return texts, rows


def _number(text: str) -> float:
    try:
        return cells.number(text)
    except cells.BadCell:
        return float("nan")


def _named(name: str) -> Source | None:
    """A public data set under TOKENGT_DATA; None where nothing has this name."""
    return _NAMED[name](public_data("molecules")) if name in _NAMED else None


def _rows(path: Path) -> list[dict[str, str]]:
    opened: Any = lzma.open if path.suffix == ".xz" else gzip.open
    with opened(path, "rt", encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def _moses(folder: Path) -> Source:
    return Source.bare("moses", [row["SMILES"] for row in _rows(folder / "moses_train.csv.gz")])


def _pcba(folder: Path) -> Source:
    with lzma.open(folder / "pcba_labels.npy.xz") as file:
        labels = np.load(io.BytesIO(file.read()), allow_pickle=False)
    texts = [row["smiles"] for row in _rows(folder / "pcba_smiles.csv.xz")]
    names = tuple(f"pcba: {place}" for place in range(labels.shape[1]))
    # -1 of the file's signed bytes is 255, which is UNKNOWN.
    return replace(Source.bare("pcba", texts), answer_names=names, answers=labels.astype(np.int8).view(np.uint8))


def _fsmol(folder: Path) -> Source:
    labels = _rows(folder / "fsmol_labels.csv.xz")
    found = {name: [row[name] for row in labels] for name in ("molecule", "assay", "active", "logvalue", "relation")}
    measurements = Measurements(
        tuple(f"fsmol: {row['chembl']}" for row in _rows(folder / "fsmol_assays.csv.xz")),
        np.array(found["molecule"], dtype=np.int64),
        np.array(found["assay"], dtype=np.int64),
        np.array(found["active"], dtype=np.uint8),
        np.array([float(text or "nan") for text in found["logvalue"]]),
        np.array([_RELATIONS.get(text, EQUAL) for text in found["relation"]], dtype=np.uint8),
    )
    texts = [row["smiles"] for row in _rows(folder / "fsmol_smiles.csv.xz")]
    order = np.argsort(measurements.rows, kind="stable")
    columns = ("rows", "assays", "active", "values", "relations")
    return replace(
        Source.bare("fsmol", texts),
        measurements=replace(measurements, **{name: getattr(measurements, name)[order] for name in columns}),
    )


def _plain(name: str, smiles: str = "smiles") -> Callable[[Path], Source]:
    """A table of MoleculeNet, with all of its labels."""
    return lambda folder: replace(_of_table(folder / f"{name}.csv.xz", smiles), name=name)


_NAMED: dict[str, Callable[[Path], Source]] = {
    "moses": _moses,
    "pcba": _pcba,
    "fsmol": _fsmol,
    **{name: _plain(name) for name in ("qm9", "hiv", "tox21", "esol", "freesolv")},
    "bace": _plain("bace", "mol"),
}
NAMES = tuple(_NAMED)
