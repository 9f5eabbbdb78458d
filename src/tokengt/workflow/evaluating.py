"""How good a trained run is on a file that has the answers."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tokengt.data.cells import number_label
from tokengt.data.manifest import MANIFEST, Recipe, read_manifest
from tokengt.data.store import Store
from tokengt.data.tables import is_table, listed, open_table
from tokengt.files import ready_to_write, scratch_folder, write_whole
from tokengt.inference import Predictor
from tokengt.training.metrics import describe, metrics
from tokengt.training.plots import plot_test
from tokengt.training.processes import Device
from tokengt.training.resolve import policy_of
from tokengt.training.spec import RUN_FILE, RunSpec
from tokengt.workflow.inputs import open_data
from tokengt.workflow.predicting import smiles_column

_NUMBERS = "metrics.json"


@dataclass(frozen=True)
class Evaluation:
    """``metrics`` over ``rows`` labelled rows.

    ``rejected`` rows could not be read, ``strange`` had unknown classes, for ``overflowed`` labelled rows the model
    gives no finite number, and the data has no labels of the targets that ``missing`` names.
    """

    metrics: dict[str, float]
    rows: int
    rejected: int
    strange: int
    overflowed: int = 0
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        counts = (
            (self.rejected, "rows rejected"),
            (self.strange, "labels of a class the run does not know"),
            (self.overflowed, "rows for which the model gives no finite number"),
        )
        odd = [f"{count:,} {what}" for count, what in counts if count]
        absent = [f"without {', '.join(self.missing)}, which the data does not have"] if self.missing else []
        return ", ".join([f"{describe(self.metrics)} over {self.rows:,} rows", *odd, *absent])


def evaluate(
    run: Predictor | str | Path,
    data: Any,
    *,
    smiles: str | None = None,
    out: Path | None = None,
    overwrite: bool = False,
    device: Device = "auto",
    max_atoms: int | None = None,
    quiet: bool = False,
) -> Evaluation:
    """Compare a run's predictions with the labels of ``data``: a file like the one trained on, or a store.

    Of a run with several targets, those that the data has are compared. With ``out``, a folder gets the picture
    (parity, ROC or confusion) and ``metrics.json``; those of an earlier evaluation are replaced with ``overwrite``.
    """
    if out is not None:
        _check_out(out, overwrite)
    predictor = run if isinstance(run, Predictor) else Predictor.load(run, device, max_atoms=max_atoms)
    spec, task = predictor.spec, predictor.task
    is_file = isinstance(data, (str, Path)) and is_table(Path(data))
    present = _present_targets(data, task.names)
    recipe = Recipe(
        smiles=smiles_column(predictor, open_table(Path(data)), smiles)
        if is_file
        else _frame_column(spec, data, smiles),
        targets=present,
        descriptors=spec.descriptors.names,
        task=task.kind,
        level=spec.level,
        policy=spec.molecules or Recipe().policy,
        attributes=spec.attributes,
    )
    with scratch_folder() as scratch:
        store = open_data(data, recipe, scratch / "store", quiet=quiet, kept=False, max_rejected=1.0)
        if store.manifest.level != spec.level:
            raise ValueError(f"the data has targets a {store.manifest.level}; this run predicts a {spec.level}")
        _check_alike(store, spec)
        targets, strange = _known_classes(store, predictor)
        mean, _ = predictor.predict_graphs(store.graphs)
        rejected = store.manifest.rejected
        labelled = (~torch.isnan(targets)).any(1)
        if not bool(labelled.any()):
            raise ValueError(f"{store.manifest.source.name} has no label of {', '.join(present)} to compare with")
        overflowed = torch.isnan(mean).any(1)
        if bool((overflowed | ~labelled).all()):
            raise ValueError(
                f"{store.manifest.source.name} has no row with a label for which the model gives a finite number: "
                f"{next(iter(predictor.reasons(store.graphs, mean).values()))}"
            )
        targets = targets.masked_fill(overflowed[:, None], torch.nan)
        evaluation = Evaluation(
            metrics(task, mean, targets),
            int((labelled & ~overflowed).sum()),
            rejected,
            strange,
            int((labelled & overflowed).sum()),
            tuple(name for name in task.names if name not in present),
        )
        if out is not None:
            plot_test(task, mean, targets, out, part="evaluation")
            write_whole(out / _NUMBERS, json.dumps(asdict(evaluation), indent=2).encode() + b"\n")
    return evaluation


def _present_targets(data: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the run's targets that the data has; all of them, where only reading it tells."""
    if isinstance(data, Store):
        found, what, kind = data.manifest.target_names, "the store", "targets"
    elif hasattr(data, "columns"):
        found, what, kind = tuple(map(str, data.columns)), "the table", "columns"
    elif isinstance(data, (str, Path)) and (Path(data) / MANIFEST).is_file():
        found, what, kind = read_manifest(Path(data)).target_names, str(data), "targets"
    elif isinstance(data, (str, Path)) and is_table(Path(data)):
        found, what, kind = open_table(Path(data)).columns, str(data), "columns"
    else:
        return names
    present = tuple(name for name in names if name in found)
    if not present:
        raise ValueError(
            f"{what} has none of the run's targets {', '.join(names)}; its {kind} are {listed(found) or 'none'}"
        )
    return present


def _check_out(out: Path, overwrite: bool) -> None:
    """Whatever is wrong with the folder to write to is said before any work is done."""
    ready_to_write(out / _NUMBERS)
    if (out / RUN_FILE).exists():
        raise ValueError(f"{out} is the folder of a run, which has pictures of its own; choose another folder")
    if (out / _NUMBERS).exists() and not overwrite:
        raise ValueError(
            f"{out} holds an evaluation; choose another folder, or have it replaced (--force, in Python overwrite=True)"
        )


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
    """Labels in the numbering of the run's classes; a class that the run does not know is a missing label.

    A target that the data does not have is a column without labels.
    """
    spellings, names = store.manifest.targets[0].classes, predictor.task.classes
    if names is None:
        if spellings is not None:
            raise ValueError(f"the data holds classes of {predictor.task.names[0]!r}; this run predicts numbers")
        labels = _in_order(store, predictor.task.names)
        predictor.task.check(labels)
        return labels, 0
    present = ~torch.isnan(store.targets)
    values, places = torch.unique(store.targets.nan_to_num(0.0), return_inverse=True)
    # Where the data holds plain numbers, a class is spelled as the reader of tables spelled it for the run.
    spelled = [number_label(value) if spellings is None else spellings[int(value)] for value in values.tolist()]
    numbers = torch.tensor([names.index(name) if name in names else torch.nan for name in spelled], dtype=torch.float64)
    labels = torch.where(present, numbers[places], torch.nan)
    return labels, int((present & torch.isnan(labels)).sum())


def _in_order(store: Store, names: tuple[str, ...]) -> Float[Tensor, "rows targets"]:
    """The labels of the run's targets in their order, NaN for one that the store does not have."""
    found = store.manifest.target_names
    if len(found) == len(names):
        return store.targets
    labels = torch.full((len(store.targets), len(names)), torch.nan, dtype=store.targets.dtype)
    for place, name in enumerate(names):
        if name in found:
            labels[:, place] = store.targets[:, found.index(name)]
    return labels
