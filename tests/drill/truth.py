"""What cells of a table mean, written down by hand: the readers of the package are never asked."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# SMILES that everybody can read, with their atoms and bonds.
MOLECULES: Mapping[str, tuple[int, int]] = {
    "CCO": (3, 2),
    "CCCO": (4, 3),
    "c1ccccc1": (6, 6),
    "CC(=O)O": (4, 3),
    "CCN": (3, 2),
    "C#N": (2, 1),
    "[Na+].[Cl-]": (2, 0),
    "O": (1, 0),
    "c1ccncc1": (6, 6),
    "CC(C)(C)O": (5, 4),
    "C1CCCCC1": (6, 6),
    "OC(=O)c1ccccc1": (9, 9),
    "F/C=C/F": (4, 3),
    "C[C@H](N)C(=O)O": (6, 5),
    "ClC(Cl)Cl": (4, 3),
    "S(=O)(=O)(O)O": (5, 4),
    "CCCCCCCC": (8, 7),
    "N#N": (2, 1),
    "[Fe]": (1, 0),
    "C1CC1": (3, 3),
}
BAD_MOLECULES = (
    "C1CC",
    "C(C",
    "xyz",
    "C)C",
    "",
    "  ",
    "c1cccc1",
    "C(C)(C)(C)(C)C",
    "[Zz]",
    "-",
    "N/A",
    "0",
    "C" * 20_000,
)
MISSING = math.nan
# None: the cell rejects its row.
NUMBERS: Mapping[str, float | None] = {
    "1.5": 1.5,
    " 2 ": 2.0,
    "+3": 3.0,
    "-4e-3": -0.004,
    "0": 0.0,
    "7": 7.0,
    "7.0": 7.0,
    "-0.25": -0.25,
    "true": 1.0,
    "False": 0.0,
    "1e-400": 0.0,
    "\u22125": -5.0,
    "": MISSING,
    "nan": MISSING,
    "NA": MISSING,
    "n/a": MISSING,
    "null": MISSING,
    "None": MISSING,
    "1e400": None,
    "inf": None,
    "-Infinity": None,
    ">3.69": None,
    "abc": None,
    "1_000": None,
    "1,5": None,
    "0x10": None,
    "--1": None,
    "3.69 mg": None,
    "1.5\t2": None,
}
DESCRIPTORS: Mapping[str, float | None] = {
    "0.5": 0.5,
    "-3": -3.0,
    "1e3": 1e3,
    "1e30": 1e30,
    " 4": 4.0,
    "": None,
    "nan": None,
    "abc": None,
    "1e39": None,
    "inf": None,
}
BITS: Mapping[str, float | None] = {
    "0": 0.0,
    "1": 1.0,
    "1.0": 1.0,
    "true": 1.0,
    "": MISSING,
    "2": None,
    "0.5": None,
    "yes": None,
}
# Text to the class it names; None: no label.
CLASSES: Mapping[str, str | None] = {
    "a": "a",
    "B b": "B b",
    "1": "1",
    "1.0": "1",
    "01": "1",
    "TRUE": "true",
    "": None,
    "na": None,
    "\u03b2": "\u03b2",
    "-0.5": "-0.5",
}
PARTS: Mapping[str, int | None] = {
    "train": 0,
    "Train": 0,
    "valid": 1,
    "val": 1,
    "validation": 1,
    " test ": 2,
    "foo": None,
    "": None,
    "3": None,
}
# Cells that mean nothing to a model and must come back as they are.
NOTES = (
    "x",
    "",
    "two words",
    "a, b; c",
    'she said "5 inch"',
    "=1+1",
    "\u00b5g \u2713 \u0639\u0631\u0628 \U0001f9ea",
    "line\nbreak",
    "line\r\nbreak",
    "carriage\rreturn",
    "form\x0cfeed \x85 \u2028 \x1c",
    "-",
    "'quoted'",
    " blanks ",
    "\\N \\n \\",
    "#hash",
)


@dataclass(frozen=True)
class Row:
    """A row as it was written: ``line`` where it begins, ``cells`` by column, ``broken`` where its shape is wrong.

    ``doubtful``: its writing is wrong, and a reader may refuse the file, reject the row, or read what is meant.
    """

    line: int
    cells: Mapping[str, str]
    broken: bool = False
    doubtful: bool = False


@dataclass(frozen=True)
class Asked:
    """What a call asks of a table: columns by their role."""

    smiles: str = "smiles"
    targets: tuple[str, ...] = ()
    descriptors: tuple[str, ...] = ()
    split: str | None = None
    task: str | None = None


@dataclass(frozen=True)
class Meaning:
    """What a store must hold of a good row."""

    line: int
    targets: tuple[float | str | None, ...]
    atoms: int
    bonds: float
    part: int | None


def meaning(row: Row, asked: Asked) -> Meaning | None:
    """The row as a store must hold it; None when it must be rejected."""
    smiles = row.cells[asked.smiles]
    if row.broken or smiles not in MOLECULES:
        return None
    targets = []
    for name in asked.targets:
        text = row.cells[name]
        if asked.task == "multiclass":
            targets.append(CLASSES[text])
            continue
        value = bit(text) if asked.task == "binary" else NUMBERS[text]
        if value is None:
            return None
        targets.append(value)
    if any(DESCRIPTORS[row.cells[name]] is None for name in asked.descriptors):
        return None
    part = None if asked.split is None else PARTS[row.cells[asked.split]]
    if asked.split is not None and part is None:
        return None
    return Meaning(row.line, tuple(targets), *MOLECULES[smiles], part)


def bit(text: str) -> float | None:
    """A cell as 0 or 1, also where its column holds any numbers."""
    value = BITS[text] if text in BITS else NUMBERS[text]
    return value if value is None or math.isnan(value) or value in (0.0, 1.0) else None


def overflows(row: Row, descriptors: Sequence[str]) -> bool:
    """Whether a descriptor is so far from all others that no prediction need be finite; then there is a reason."""
    return not row.broken and any(abs(DESCRIPTORS[row.cells[name]] or 0.0) > 1e6 for name in descriptors)


def predictable(row: Row, descriptors: Sequence[str]) -> bool:
    """Whether a prediction, and not a reason, must come back for this row."""
    good = row.cells["smiles"] in MOLECULES and not row.broken
    return good and all(DESCRIPTORS[row.cells[name]] is not None for name in descriptors)


POOLS: Mapping[str, Mapping[str, object]] = {
    "y": NUMBERS,
    "y2": NUMBERS,
    "d": DESCRIPTORS,
    "b": BITS,
    "c": CLASSES,
    "part": PARTS,
}


def cell(rng: random.Random, column: str, hostile: float) -> str:
    """A cell of a column: with chance ``hostile`` any that its column knows, else one that is surely good."""
    if column == "smiles":
        # The molecule that is too large for most programs comes rarely: it is the slowest.
        bad = BAD_MOLECULES if rng.random() < 0.2 else BAD_MOLECULES[:-1]
        return rng.choice(bad if rng.random() < hostile else tuple(MOLECULES))
    if column in POOLS:
        pool = POOLS[column]
        good = [text for text, value in pool.items() if value is not None and value == value]
        return rng.choice(tuple(pool) if rng.random() < hostile else good)
    return rng.choice(NOTES if rng.random() < 0.5 else NOTES[:3])
