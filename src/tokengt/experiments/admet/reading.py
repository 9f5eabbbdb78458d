"""One endpoint's table: molecules, labels, and which rows are the official test part."""

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tokengt.data.public import public_data
from tokengt.data.splits import balanced_group_split
from tokengt.data.tables import Table, open_table
from tokengt.experiments.admet.endpoints import Endpoint
from tokengt.interop.molecules import canonical_smiles, scaffolds
from tokengt.training.metrics import Array

FOLDER = "admet"
COLUMNS = ("smiles", "y", "split")
TRAIN_VAL, TEST = "train_val", "test"
# Files are looked for by these endings, in this order.
_SUFFIXES = (".csv.xz", ".csv.gz", ".csv")
# The group's own share of train_val for choosing.
VALID = 1 / 8


@dataclass(frozen=True, eq=False)
class EndpointData:
    """The rows of an endpoint that RDKit can read, in the order of the file.

    Args:
        smiles: one text per row.
        labels: one number per row.
        is_test: whether a row is of the official test part.
        unreadable: how many rows of train_val and of test were left out because RDKit cannot read them.
    """

    endpoint: Endpoint
    smiles: tuple[str, ...]
    labels: Array
    is_test: NDArray[np.bool_]
    unreadable: tuple[int, int]

    @property
    def test(self) -> NDArray[np.int64]:
        """Places of the test rows."""
        return np.flatnonzero(self.is_test)

    @property
    def train_val(self) -> NDArray[np.int64]:
        return np.flatnonzero(~self.is_test)

    @property
    def checksum(self) -> str:
        """Of everything that a result depends on."""
        rows = "".join(
            f"{text}\t{label!r}\t{int(test)}\n"
            for text, label, test in zip(self.smiles, self.labels.tolist(), self.is_test.tolist(), strict=True)
        )
        return hashlib.sha256(rows.encode()).hexdigest()

    def texts(self, places: NDArray[np.int64]) -> list[str]:
        return [self.smiles[place] for place in places.tolist()]

    def chosen_by(self, seed: int) -> NDArray[np.int64]:
        """Places of the rows of train_val that a seed keeps for choosing: an eighth, by whole scaffolds."""
        rows = self.train_val
        split = balanced_group_split(scaffolds(self.texts(rows)), seed, (1 - VALID, VALID, 0.0))
        return np.asarray(rows[split.valid.numpy()])


def data_folder(folder: Path | None) -> Path:
    """The folder with the endpoints: the one that is given, or ``admet`` of TOKENGT_DATA.

    Raises:
        ValueError: there is none.
    """
    if folder is None:
        return public_data(FOLDER)
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder; expected one that holds a table for each endpoint, such as herg.csv")
    return folder


def read_endpoint(endpoint: Endpoint, folder: Path) -> EndpointData:
    """Read ``folder/NAME.csv`` (or .csv.xz, .csv.gz): smiles, y, and split, which is train_val or test.

    Raises:
        ValueError: one sentence with the file, the line and what was expected.
    """
    file = _file(endpoint, folder)
    table = open_table(file)
    missing = [name for name in COLUMNS if name not in table.columns]
    if missing:
        raise ValueError(
            f"{file} has no column {missing[0]!r}; expected {', '.join(COLUMNS)}, got {', '.join(table.columns)}"
        )
    smiles, labels, parts = _cells(table, endpoint, file)
    readable = np.array([text is not None for text in canonical_smiles(smiles)], dtype=bool)
    is_test = np.array([part == TEST for part in parts], dtype=bool)
    left_out = (int((~readable & ~is_test).sum()), int((~readable & is_test).sum()))
    kept = np.flatnonzero(readable)
    data = EndpointData(
        endpoint, tuple(smiles[place] for place in kept), np.array(labels)[kept], is_test[kept], left_out
    )
    for part, places in ((TRAIN_VAL, data.train_val), (TEST, data.test)):
        if len(places) < 2:
            raise ValueError(f"{file} has {len(places)} readable rows whose split is {part}; expected two at least")
    return data


def _file(endpoint: Endpoint, folder: Path) -> Path:
    for suffix in _SUFFIXES:
        if (file := folder / f"{endpoint.name}{suffix}").is_file():
            return file
    raise ValueError(f"{folder} holds no {endpoint.name}.csv (or .csv.xz, .csv.gz); expected a table for each endpoint")


def _cells(table: Table, endpoint: Endpoint, file: Path) -> tuple[list[str], list[float], list[str]]:
    at = [table.columns.index(name) for name in COLUMNS]
    smiles, labels, parts = [], [], []
    for row in table.rows():
        line = row.line
        if row.problem is not None:
            raise ValueError(f"{file}, line {line}: {row.problem}")
        text, label, part = (row.cells[place].strip() for place in at)
        if part not in (TRAIN_VAL, TEST):
            raise ValueError(f"{file}, line {line}: split is {part!r}; expected {TRAIN_VAL} or {TEST}")
        labels.append(_label(label, endpoint, f"{file}, line {line}"))
        smiles.append(text)
        parts.append(part)
    return smiles, labels, parts


def _label(text: str, endpoint: Endpoint, where: str) -> float:
    wanted = "0 or 1" if endpoint.task == "binary" else "a finite number"
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (endpoint.task == "binary" and value not in (0.0, 1.0)):
        raise ValueError(f"{where}: y is {text!r}; expected {wanted}")
    return value
