"""How good a trained run is on a file that has the answers."""

import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tokengt.data.cells import number_label
from tokengt.data.manifest import Recipe
from tokengt.data.store import Store
from tokengt.data.tables import is_table, open_table
from tokengt.files import write_whole
from tokengt.inference import Predictor
from tokengt.training.metrics import describe, metrics
from tokengt.training.plots import plot_test
from tokengt.training.processes import Device
from tokengt.training.resolve import policy_of
from tokengt.training.spec import RunSpec
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
        smiles=smiles_column(predictor, open_table(Path(data)), smiles)
        if is_file
        else _frame_column(spec, data, smiles),
        targets=task.names,
        descriptors=spec.descriptors.names,
        task=task.kind,
        level=spec.level,
        policy=spec.molecules or Recipe().policy,
    )
    with tempfile.TemporaryDirectory(prefix="tokengt-") as scratch:
        store = open_data(data, recipe, Path(scratch) / "store", quiet=quiet, kept=False)
        if store.manifest.level != spec.level:
            raise ValueError(f"the data has targets a {store.manifest.level}; this run predicts a {spec.level}")
        _check_alike(store, spec)
        targets, strange = _known_classes(store, predictor)
        mean, _ = predictor.predict_graphs(store.graphs)
        rejected = store.manifest.rejected
        labelled = int((~torch.isnan(targets)).any(1).sum())
        if not labelled:
            raise ValueError(f"{store.manifest.source.name} has no label of {', '.join(task.names)} to compare with")
        evaluation = Evaluation(metrics(task, mean, targets), labelled, rejected, strange)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            plot_test(task, mean, targets, out, part="evaluation")
            write_whole(out / "metrics.json", json.dumps(asdict(evaluation), indent=2).encode() + b"\n")
    return evaluation


def _frame_column(spec: RunSpec, data: Any, wanted: str | None) -> str | None:
    """The column of SMILES of a DataFrame; a store has its own."""
    if wanted is None and spec.text_column in getattr(data, "columns", ()):
        return spec.text_column
    return wanted


def _check_alike(store: Store, spec: RunSpec) -> None:
    """Refuse a store whose features and descriptors mean something else than those the run was trained on."""
    policy, wanted = policy_of(store), spec.molecules
    if policy != wanted:
        raise ValueError(f"the store holds {policy or 'graphs'}; this run was trained on {wanted or 'graphs'}")
    names = store.manifest.descriptors
    if names != spec.descriptors.names:
        raise ValueError(
            f"the store has the descriptors {', '.join(names) or 'none'}; this run was trained with "
            f"{', '.join(spec.descriptors.names) or 'none'}, in that order"
        )


def _known_classes(store: Store, predictor: Predictor) -> tuple[Float[Tensor, "rows targets"], int]:
    """Labels in the numbering of the run's classes; a class that the run does not know is a missing label."""
    spellings, names = store.manifest.targets[0].classes, predictor.task.classes
    if names is None:
        if spellings is not None:
            raise ValueError(f"the data holds classes of {predictor.task.names[0]!r}; this run predicts numbers")
        predictor.task.check(store.targets)
        return store.targets, 0
    present = ~torch.isnan(store.targets)
    values, places = torch.unique(store.targets.nan_to_num(0.0), return_inverse=True)
    # Where the data holds plain numbers, a class is spelled as the reader of tables spelled it for the run.
    spelled = [number_label(value) if spellings is None else spellings[int(value)] for value in values.tolist()]
    numbers = torch.tensor([names.index(name) if name in names else torch.nan for name in spelled], dtype=torch.float64)
    labels = torch.where(present, numbers[places], torch.nan)
    return labels, int((present & torch.isnan(labels)).sum())
