"""Labels that name classes: which labels do, what the classes are called, how often each occurs and what that weighs.

A label is the place of its class, 0 or 1 where there are just two; a missing label is NaN.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tokengt.data.manifest import TaskKind

MOST_CLASSES = 10_000


def check_classes(kind: TaskKind, names: Sequence[str], classes: Sequence[str] | None) -> None:
    """Refuse classes that a task of this kind cannot have, and too few or too many of them."""
    if kind == "multiclass":
        if len(names) > 1:
            raise ValueError(f"a multiclass task has one target, got {len(names)}: {', '.join(names)}")
        if classes is None or len(classes) < 2:
            raise ValueError(f"target {names[0]!r} has fewer than two classes; expected two or more")
        if len(classes) > MOST_CLASSES:
            raise ValueError(f"target {names[0]!r} has {len(classes):,} classes; expected at most {MOST_CLASSES:,}")
    elif classes is not None:
        raise ValueError(f"a {kind} task has no classes; use the task 'multiclass' for them")


def guessed_kind(targets: Float[Tensor, "rows targets"], classes: Sequence[str] | None) -> TaskKind:
    """Multiclass when there are classes, binary when all labels are 0 or 1, else regression; give it all rows."""
    if classes is not None:
        return "multiclass"
    return "binary" if _only_bits(targets) else "regression"


def numbered_classes(targets: Float[Tensor, "rows targets"], name: str = "target") -> tuple[str, ...]:
    """Names "0", "1", ... for labels that are whole numbers; give it all rows, so that no part holds a new class."""
    labels = targets[~torch.isnan(targets)]
    wrong = labels[(labels != labels.floor()) | (labels < 0) | torch.isinf(labels)]
    if len(wrong):
        raise ValueError(f"target {name!r} holds {float(wrong[0]):g}; expected whole numbers from 0 for multiclass")
    highest = int(labels.max()) if len(labels) else -1
    if highest >= MOST_CLASSES:
        raise ValueError(f"target {name!r} holds {highest}; expected at most {MOST_CLASSES:,} classes, numbered from 0")
    return tuple(str(place) for place in range(highest + 1))


def class_shares(labels: Float[Tensor, "rows targets"], classes: int | None) -> Float[Tensor, " width"]:
    """How often each of these ``classes`` occurs; with None, how often each target of a binary task is 1.

    A class that no label has is taken to have occurred once, and so is every other once more: nothing is certain.
    """
    if classes is not None:
        labels = _one_hot(labels, classes)
    counts, count = labels.nansum(0), (~torch.isnan(labels)).sum(0)
    if classes is not None:
        smooth = (counts == 0).any()
        return torch.where(smooth, (counts + 1) / (count + classes), labels.nanmean(0))
    certain = (counts == 0) | (counts == count)
    return torch.where(certain, (counts + 1) / (count + 2), labels.nanmean(0))


def balancing_weights(targets: Float[Tensor, "rows targets"], classes: int | None) -> tuple[float, ...]:
    """Weights by which all classes of a target count alike in these labels, 1 on average.

    With None for ``classes``, the targets are binary: weights for zeros of each target, then for ones of each.
    """
    columns = torch.cat([1 - targets, targets], 1).T if classes is None else _one_hot(targets, classes).T
    counts = torch.stack([column.nansum() for column in columns]).double()
    of_target = counts.view(2, -1).sum(0).repeat(2) if classes is None else counts.view(-1, 1).sum(0)
    return tuple((of_target / ((classes or 2) * counts.clamp(min=1))).tolist())


def unseen(targets: Float[Tensor, "rows targets"], classes: Sequence[str]) -> list[str]:
    """Classes that none of these labels has."""
    seen = set(targets[~torch.isnan(targets)].long().tolist())
    return [name for place, name in enumerate(classes) if place not in seen]


def _only_bits(targets: Tensor) -> bool:
    return bool((torch.isnan(targets) | (targets == 0) | (targets == 1)).all())


def _one_hot(labels: Float[Tensor, "rows 1"], classes: int) -> Float[Tensor, "rows {classes}"]:
    """NaN in the whole row where the label is missing."""
    hits: Bool[Tensor, "rows classes"] = labels == torch.arange(classes, device=labels.device)
    return torch.where(torch.isnan(labels), torch.nan, hits.to(labels.dtype))
