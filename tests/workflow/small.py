"""Runs small enough for a test: few molecules, a model of one narrow layer."""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokengt.data.datasets import esol
from tokengt.inference import Predictor
from tokengt.models.pretrained import write_sealed
from tokengt.workflow.fitting import TrainOptions, train

TINY: Mapping[str, Any] = {
    "model.dim": 32,
    "model.encoder.num_layers": 1,
    "model.encoder.num_heads": 4,
    "model.encoder.mlp_dim": 32,
    "model.identifiers.dim": 4,
    "training.epochs": 2,
}
# Without dropout and other chance, so that two ways to take the same step can be compared.
EXACT: Mapping[str, Any] = {
    **TINY,
    "model.encoder.mlp_dropout": 0,
    "model.encoder.drop_path": 0,
    "model.identifiers.dropout": 0,
    "model.identifiers.sign_flip": False,
    "training.precision": "float64",
}
# One model, also where several are averaged by themselves.
QUIET = TrainOptions(quiet=True, workers=1, ensemble=1)


def molecules(count: int) -> tuple[list[str], list[float]]:
    """The first of ESOL, with their solubility."""
    smiles, values = esol()
    return smiles[:count], [round(value, 3) for value in values[:count, 0].tolist()]


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


def molecule_csv(path: Path, count: int = 40) -> Path:
    """``smiles``, ``y``, ``z``: two targets with blanks, some rows without any label."""
    smiles, values = molecules(count)
    return write_csv(
        path,
        ("smiles", "y", "z"),
        (
            (text, "" if place % 5 == 3 else value, "" if place % 7 == 3 else -2 * value)
            for place, (text, value) in enumerate(zip(smiles, values, strict=True))
        ),
    )


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def train_small(data: Any, out: Path, target: str | Sequence[str] = (), **more: Any) -> Predictor:
    """:func:`tokengt.train` of a tiny model; ``settings`` are added to :data:`TINY`."""
    settings = {**TINY, **more.pop("settings", {})}
    options = more.pop("options", QUIET)
    return train(data, out, target=target, settings=settings, options=options, device="cpu", **more)


@contextmanager
def resealed(file: Path) -> Iterator[dict[str, Any]]:
    """What a sealed file of ours says, to be changed in the block and then sealed again, as only our own code would."""
    data = json.loads(file.read_text())
    data.pop("checksum")
    yield data
    write_sealed(file, data)
