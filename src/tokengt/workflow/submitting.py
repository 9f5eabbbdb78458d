"""The file that the PCQM4Mv2 leaderboard takes: predictions of its test-dev part, whose labels are not published."""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32
from numpy.typing import NDArray

from tokengt.data._official import split_dict
from tokengt.data.catalogue import DATASETS
from tokengt.data.manifest import PARTS
from tokengt.data.named import named_store, sources
from tokengt.data.progress import progress_bar, say
from tokengt.data.store import Store
from tokengt.files import ready_to_write, write_whole
from tokengt.inference import Predictor
from tokengt.training.processes import Device
from tokengt.training.tasks import Task
from tokengt.workflow import rows as all_rows
from tokengt.workflow.inputs import as_floats
from tokengt.workflow.stores import check_alike

# What OGB's evaluator calls the file; it looks for the array y_pred in it.
SUBMISSION = "y_pred_pcqm4m-v2_test-dev.npz"
_NAME, _TARGET, _PART = "pcqm4mv2", "homolumogap", "test-dev"
# The number of rows that the leaderboard expects.
OFFICIAL_ROWS = 147_037
# The first row of a table stands behind its header.
_FIRST_LINE = 2


@dataclass(frozen=True)
class Submitted:
    """How many rows the file has; ``filled`` of them have no prediction of their own."""

    rows: int
    filled: int

    def __str__(self) -> str:
        filled = f", {self.filled:,} of which have the mean of the training labels" if self.filled else ""
        odd = "" if self.rows == OFFICIAL_ROWS else f"; the leaderboard expects {OFFICIAL_ROWS:,}"
        return f"{self.rows:,} predictions of {_PART}{filled}{odd}"


def submit(
    run: Predictor | str | Path,
    out: str | Path,
    *,
    overwrite: bool = False,
    device: Device = "auto",
    workers: int | None = None,
    quiet: bool = False,
) -> Submitted:
    """Predict PCQM4Mv2's test-dev part and write ``out/y_pred_pcqm4m-v2_test-dev.npz`` as OGB's evaluator does.

    The predictions are float32 in the order of the official split. A row that RDKit rejects, or for which the model
    gives no finite number, has the mean of the training labels.
    """
    file = Path(out) / SUBMISSION
    ready_to_write(file)
    if file.exists() and not overwrite:
        raise ValueError(
            f"{file} exists; choose another folder, or have it replaced (--force, in Python overwrite=True)"
        )
    predictor = run if isinstance(run, Predictor) else Predictor.load(run, device)
    column = _column(predictor.task)
    dataset = DATASETS[_NAME]
    numbers = split_dict(sources(dataset, not quiet).files)[_PART]
    policy = predictor.spec.molecules
    if policy is None:
        raise ValueError(f"this run was trained on graphs, and {_NAME} holds molecules; choose a run of molecules")
    store = named_store(dataset, policy, workers=workers, progress=not quiet)
    check_alike(store, predictor.spec)
    values = _predicted(predictor, store, numbers, column, not quiet)
    missing = ~np.isfinite(values)
    if missing.any():
        values[missing] = _training_mean(store)
        say(f"{int(missing.sum()):,} rows of {_PART} have no prediction: they get the mean of training", not quiet)
    content = io.BytesIO()
    np.savez_compressed(content, y_pred=values)
    write_whole(file, content.getvalue())
    return Submitted(len(values), int(missing.sum()))


def _column(task: Task) -> int:
    """Which of the run's predictions is the gap."""
    if task.kind != "regression" or (len(task.names) > 1 and _TARGET not in task.names):
        names = ", ".join(task.names[:5])
        raise ValueError(f"this run predicts {names} ({task.kind}); expected a regression of {_TARGET}")
    return task.names.index(_TARGET) if _TARGET in task.names else 0


def _predicted(
    predictor: Predictor, store: Store, numbers: NDArray[np.int64], column: int, shown: bool
) -> Float32[np.ndarray, " rows"]:
    """The prediction for each of these rows of the public file; NaN for one that is not in the store."""
    lines = store.lines.numpy()
    places = np.minimum(np.searchsorted(lines, numbers + _FIRST_LINE), len(lines) - 1)
    known = np.flatnonzero(lines[places] == numbers + _FIRST_LINE)
    values = np.full(len(numbers), np.nan, dtype=np.float32)
    with progress_bar(len(known), "molecules", "predicting", shown=shown) as advance:
        for start in range(0, len(known), all_rows.CHUNK_ROWS):
            chunk = known[start : start + all_rows.CHUNK_ROWS]
            graphs = store.graphs.select(torch.from_numpy(places[chunk]))
            mean = predictor.predict_graphs(as_floats(graphs, predictor.spec.model.float_features)).mean
            values[chunk] = mean[:, column].numpy()
            advance(len(chunk))
    return values


def _training_mean(store: Store) -> float:
    assert store.split is not None
    labels = store.targets[store.split == PARTS.index("train"), 0]
    return float(labels[~labels.isnan()].mean())
