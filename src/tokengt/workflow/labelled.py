"""Labels of whatever a person has, in the order and the numbering of a run's targets and classes."""

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tokengt.data.cells import number_label
from tokengt.data.links import LINK
from tokengt.data.manifest import MANIFEST, Recipe, read_manifest
from tokengt.data.node_tables import NodeFiles
from tokengt.data.shards import smiles_column
from tokengt.data.store import Store
from tokengt.data.tables import is_table, listed, open_table
from tokengt.inference import Predictor
from tokengt.training.spec import RunSpec
from tokengt.training.tasks import Task
from tokengt.workflow.stores import check_alike


def label_recipe(predictor: Predictor, data: Any, smiles: str | None, present: tuple[str, ...]) -> Recipe:
    """How data with labels of these targets is read for a run."""
    spec = predictor.spec
    is_file = isinstance(data, (str, Path)) and is_table(Path(data))
    return Recipe(
        smiles=smiles_column(open_table(Path(data)), predictor.spec.text_column, smiles) if is_file else smiles,
        targets=present,
        descriptors=spec.descriptors.columns,
        task=predictor.task.kind,
        level=spec.level,
        policy=spec.molecules or Recipe().policy,
        attributes=spec.attributes,
        tables=spec.tables if isinstance(data, NodeFiles) else None,
    )


def store_labels(predictor: Predictor, store: Store) -> tuple[Float[Tensor, "rows targets"], int]:
    """The labels of a store, and how many of them are of classes that the run does not know.

    Raises:
        ValueError: the store holds labels of another level, or other graphs than the run was trained on.
    """
    spec, manifest = predictor.spec, store.manifest
    if manifest.level != spec.level:
        raise ValueError(f"the data has targets a {manifest.level}; this run predicts a {spec.level}")
    check_alike(store, spec)
    return known_classes(store.targets, manifest.target_names, manifest.targets[0].classes, predictor.task)


def frame_column(spec: RunSpec, data: Any, wanted: str | None) -> str | None:
    """The column of SMILES of a DataFrame."""
    if wanted is None and spec.text_column in getattr(data, "columns", ()):
        return spec.text_column
    return wanted


def present_targets(data: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the run's targets that the data has; all of them, where only reading it tells."""
    if isinstance(data, NodeFiles):
        data.check()
        table = data.paths[0 if data.pairs is None else -1]
        found, what, kind = open_table(table).columns, str(table), "columns"
        if data.pairs is not None and names == (LINK,):
            return names  # Without a label, every pair is a link.
    elif isinstance(data, Store):
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


def known_classes(
    targets: Float[Tensor, "rows found"],
    found: tuple[str, ...],
    spellings: tuple[str, ...] | None,
    task: Task,
) -> tuple[Float[Tensor, "rows targets"], int]:
    """Labels in the numbering of the run's classes; a class that the run does not know is a missing label.

    ``found`` names the columns of ``targets``, and ``spellings`` their classes where they are places of classes. A
    target that the data does not have is a column without labels.
    """
    names = task.classes
    if names is None:
        if spellings is not None:
            raise ValueError(f"the data holds classes of {task.names[0]!r}; this run predicts numbers")
        labels = _in_order(targets, found, task.names)
        task.check(labels)
        return labels, 0
    present = ~torch.isnan(targets)
    values, places = torch.unique(targets.nan_to_num(0.0), return_inverse=True)
    # Where the data holds plain numbers, a class is spelled as the reader of tables spelled it for the run.
    spelled = [number_label(value) if spellings is None else _spelling(spellings, value) for value in values.tolist()]
    numbers = torch.tensor([names.index(name) if name in names else torch.nan for name in spelled], dtype=torch.float64)
    labels = torch.where(present, numbers[places], torch.nan)
    return labels, int((present & torch.isnan(labels)).sum())


def _spelling(spellings: tuple[str, ...], place: float) -> str:
    # Where all labels are missing there may be no class at all, and the place stands for none.
    return spellings[int(place)] if spellings else ""


def _in_order(
    targets: Float[Tensor, "rows found"], found: tuple[str, ...], names: tuple[str, ...]
) -> Float[Tensor, "rows targets"]:
    """The labels of the run's targets in their order, NaN for one that the data does not have."""
    if len(found) == len(names):
        return targets
    labels = torch.full((len(targets), len(names)), torch.nan, dtype=targets.dtype)
    for place, name in enumerate(names):
        if name in found:
            labels[:, place] = targets[:, found.index(name)]
    return labels
