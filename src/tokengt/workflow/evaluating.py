"""How good a trained run is on a file that has the answers."""

import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tokengt.data.manifest import Recipe
from tokengt.data.store import Store
from tokengt.data.tables import is_table, open_table
from tokengt.files import write_whole
from tokengt.inference import Predictor
from tokengt.training.metrics import describe, metrics
from tokengt.training.plots import plot_test
from tokengt.training.processes import Device
from tokengt.workflow.inputs import open_data
from tokengt.workflow.predicting import smiles_column


@dataclass(frozen=True)
class Evaluation:
    """``metrics`` over ``rows`` labelled rows; ``rejected`` rows could not be read, ``strange`` had unknown classes."""

    metrics: dict[str, float]
    rows: int
    rejected: int
    strange: int

    def __str__(self) -> str:
        counts = ((self.rejected, "rows rejected"), (self.strange, "labels of a class the run does not know"))
        odd = [f"{count:,} {what}" for count, what in counts if count]
        return ", ".join([f"{describe(self.metrics)} over {self.rows:,} rows", *odd])


def evaluate(
    run: Predictor | str | Path,
    data: Any,
    *,
    smiles: str | None = None,
    out: Path | None = None,
    device: Device = "auto",
    quiet: bool = False,
) -> Evaluation:
    """Compare a run's predictions with the labels of ``data``: a file like the one trained on, or a store.

    With ``out``, a folder gets the picture (parity, ROC or confusion) and ``metrics.json``.
    """
    predictor = run if isinstance(run, Predictor) else Predictor.load(run, device)
    spec, task = predictor.spec, predictor.task
    is_file = isinstance(data, (str, Path)) and is_table(Path(data))
    recipe = Recipe(
        smiles=smiles_column(predictor, open_table(Path(data)), smiles) if is_file else None,
        targets=task.names,
        descriptors=spec.descriptors.names,
        task=task.kind if spec.molecules is not None or task.kind == "multiclass" else None,
        level=spec.level,
        policy=spec.molecules or Recipe().policy,
    )
    with tempfile.TemporaryDirectory(prefix="tokengt-") as scratch:
        store = open_data(data, recipe, Path(scratch) / "store", quiet=quiet)
        if store.manifest.level != spec.level:
            raise ValueError(f"the data has targets a {store.manifest.level}; this run predicts a {spec.level}")
        if store.manifest.descriptors != spec.descriptors.names:
            wanted = ", ".join(spec.descriptors.names) or "none"
            raise ValueError(f"the data was prepared with other descriptors; this run needs {wanted}")
        targets, strange = _known_classes(store, predictor)
        mean, _ = predictor.predict_graphs(store.graphs)
        rejected = store.manifest.rejected
        labelled = int((~torch.isnan(targets)).any(1).sum())
        if not labelled:
            raise ValueError(f"{store.manifest.source.name} has no label of {', '.join(task.names)} to compare with")
        found = Evaluation(metrics(task, mean, targets), labelled, rejected, strange)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            plot_test(task, mean, targets, out, part="evaluation")
            write_whole(out / "metrics.json", json.dumps(asdict(found), indent=2).encode() + b"\n")
    return found


def _known_classes(store: Store, predictor: Predictor) -> tuple[Float[Tensor, "rows targets"], int]:
    """Labels in the numbering of the run's classes; a class that the run does not know is a missing label."""
    classes, names = store.manifest.targets[0].classes, predictor.task.classes
    if classes is None or names is None or classes == names:
        predictor.task.check(store.targets)
        return store.targets, 0
    known = torch.tensor([names.index(name) if name in names else torch.nan for name in classes], dtype=torch.float64)
    present = ~torch.isnan(store.targets)
    labels = torch.where(present, known[torch.nan_to_num(store.targets).long()], torch.nan)
    return labels, int((present & torch.isnan(labels)).sum())
