"""One training of tokengt: the command ``tokengt train`` with its defaults, on the parts of one seed."""

import csv
import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from tokengt.data.manifest import Recipe
from tokengt.data.splitting import COLUMN, SplitRequest
from tokengt.data.tables import TableWriter
from tokengt.experiments.admet.plan import START, TOKENGT, AdmetConfig
from tokengt.experiments.admet.reading import EndpointData
from tokengt.files import write_whole
from tokengt.training.metrics import Array
from tokengt.training.processes import DeviceConfig
from tokengt.training.request import AUTO, TrainRequest
from tokengt.training.results import PREDICTIONS, read_summary
from tokengt.workflow.comparing_cells import read_predictions
from tokengt.workflow.fitting import timed_request

TARGET, PART = "y", "part"


def trained(
    config: AdmetConfig, system: str, data: EndpointData, seed: int, work: Path
) -> tuple[Array, dict[str, Any]]:
    """Predictions of the test part, and what the training was. A training that was stopped goes on."""
    table, run = work / "data.csv", work / "run"
    if not table.exists():
        write_parts(table, data, seed)
    request = TrainRequest(
        recipe=Recipe(smiles="smiles", targets=(TARGET,), task=data.endpoint.task),
        split=SplitRequest(f"{COLUMN}{PART}", seed),
        preset=AUTO if system in (TOKENGT, START) else system,
        start=Path(config.start) if system == START and config.start is not None else None,
        settings=dict(config.settings),
        seed=seed,
        where=DeviceConfig(config.device),
        workers=1,
        resume=True,
        quiet=True,
        floor=False,
    )
    predictor, seconds = timed_request(table, run, request)
    first = predictor.members[0]
    summary, task = read_summary(run), predictor.spec.task
    predicted = read_predictions(run / PREDICTIONS, task)[:, 0]
    facts = {
        "chosen_by": len(data.chosen_by(seed)),
        "models": len(predictor.members),
        "parameters": sum(each.numel() for each in first.model.parameters()),
        "epochs": summary.epochs,
        "loop_seconds": seconds,
        "device": config.device if config.device != "auto" else DeviceConfig(config.device).resolved,
    }
    return predicted, facts


def write_parts(file: Path, data: EndpointData, seed: int, valid: str = "valid") -> None:
    """A table of all rows with the part of each: train, ``valid`` or test."""
    parts = np.where(data.is_test, "test", "train").astype(object)
    parts[data.chosen_by(seed)] = valid
    stream = io.StringIO()
    writer = TableWriter(stream)
    writer.writerow(["smiles", TARGET, PART])
    whole = data.endpoint.task == "binary"
    for text, label, part in zip(data.smiles, data.labels.tolist(), parts, strict=True):
        writer.writerow([text, int(label) if whole else repr(label), part])
    write_whole(file, stream.getvalue().encode())


def forget(work: Path) -> None:
    """Remove what a finished training leaves: the cell holds all that the table needs."""
    shutil.rmtree(work, ignore_errors=True)


def read_column(file: Path, column: str) -> Array:
    """One column of numbers of a CSV file."""
    with file.open(encoding="utf-8", newline="") as lines:
        return np.array([float(row[column]) for row in csv.DictReader(lines)])
