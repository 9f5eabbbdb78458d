"""Data that nobody should train on: too few rows, one label, no label, labels beyond floats, parts that are empty.

A training is refused by a sentence, or it ends in a run that is whole and predicts finite numbers.
"""

import csv
import io
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.drill.case import Case
from tests.drill.oracle import Fault, check_folder, judged, snapshot
from tests.drill.truth import MOLECULES
from tests.drill.workshop import TINY

# One label per row, by what is wrong with them.
LABELS: Mapping[str, Sequence[str]] = {
    "numbers": ("1", "2.5", "-3", "0.25"),
    "one number": ("7",),
    "none": ("", "nan"),
    "mostly none": ("", "", "", "", "3"),
    "huge": ("1e308", "-1e308", "1e300"),
    "huge and small": ("1e38", "1e-38", "0"),
    "beyond float32": ("1e39", "2e39", "-1e39"),
    "tiny": ("1e-310", "2e-310", "0"),
    "bits": ("0", "1"),
    "one bit": ("1",),
    "text": ("a", "b", "c"),
    "mixed": ("1", "b", "2", ""),
    "large integers": ("9007199254740993", "9007199254740992", "1"),
}


def play(case: Case) -> list[Fault]:
    rng = case.rng
    kind = rng.choice(tuple(LABELS))
    rows = rng.choice((1, 2, 3, 4, 7, 12, 30))
    _write(case.folder / "t.csv", rng, LABELS[kind], rows)
    before = snapshot(case.folder)
    options = rng.sample(OPTIONS, rng.choice((0, 1, 1, 2)))
    words = [word for option in options for word in option.split()]
    answer = case.call("train", "t.csv", "--target", "y", "--out", "run", *TINY, *words)
    faults = judged(answer) or check_folder(answer, before, ["run"])
    if faults or answer.refused:
        return faults
    wrong = list(_wrong_run(case.folder / "run"))
    again = case.call("predict", "run", "t.csv", "--out", "out.csv")
    faults = judged(again)
    if again.refused:
        wrong.append("the run that it wrote cannot predict its own data")
    elif not faults:
        wrong += _wrong_predictions(case.folder / "out.csv", rows)
    return faults + [
        Fault("silent", f"{rows} rows, labels {kind}, {options}: {each}", str(answer)) for each in wrong[:1]
    ]


OPTIONS = (
    "--task regression",
    "--task binary",
    "--task multiclass",
    "--split scaffold",
    "--split column:part",
    "--split column:empty",
    "--folds 3",
    "--ensemble 2",
    "--fractions 0.98 0.01 0.01",
    "--fractions 0.1 0.1 0.8",
    "--fractions 1 0 0",
    "--descriptors constant",
    "--descriptors large",
    "--descriptors random constant",
    "--seed 12345678901234567890",
    "--set training.learning_rate=1e30",
    "--set training.batch_size=1",
    "--hydrogens explicit",
    "--salts largest",
)


def _write(path: Path, rng: random.Random, labels: Sequence[str], rows: int) -> None:
    parts = rng.choice((("train", "valid", "test"), ("train",), ("test",), ("train", "test"), ("train", "valid")))
    lines = ["smiles,y,part,empty,constant,large,random"]
    names = rng.sample(tuple(MOLECULES), rng.choice((1, 2, len(MOLECULES))))
    for row in range(rows):
        large = rng.choice(("1e30", "-1e30", "3e38", "1"))
        cells = (
            names[row % len(names)],
            labels[row % len(labels)],
            parts[row % len(parts)],
            "",
            "5",
            large,
            rng.random(),
        )
        lines.append(",".join(map(str, cells)))
    path.write_text("\n".join(lines) + "\n")


def _wrong_run(run: Path) -> Iterator[str]:
    for name in ("run.json", "summary.json", "predictions.csv", "README.md"):
        if not (run / name).is_file():
            yield f"{name} is missing"
            return
    if not any(run.rglob("model.safetensors")):
        yield "there are no weights"
    summary = json.loads((run / "summary.json").read_bytes(), parse_constant=_no_constant)
    # A part without rows has no numbers; one with rows has numbers, or null where they are not defined.
    if not isinstance(summary, dict):
        yield "summary.json holds no numbers"
    for row in csv.DictReader(io.StringIO((run / "predictions.csv").read_text(), newline="")):
        if not all(_is_finite(value) for name, value in row.items() if name.startswith(("predicted_", "probability_"))):
            yield f"predictions.csv has a row without a finite prediction: {row}"
            return


def _no_constant(word: str) -> Any:
    raise ValueError(f"summary.json holds {word}, which is no JSON")


def _wrong_predictions(out: Path, rows: int) -> Iterator[str]:
    body = list(csv.DictReader(io.StringIO(out.read_text(), newline="")))
    if len(body) != rows:
        yield f"{len(body)} rows come back for {rows}"
    for row in body:
        values = [value for name, value in row.items() if name.startswith("predicted_")]
        if row["reason"].strip() == "" and not all(map(_is_finite, values)):
            yield f"no finite prediction and no reason: {row}"
            return


def _is_finite(text: str) -> bool:
    """A finite number, or the name of a class."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return bool(text)
