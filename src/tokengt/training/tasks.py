"""What is learned from a table of labels: its scaling, its loss and its predictions. A missing label is NaN."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import isfinite, isnan
from typing import get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from tokengt.config import near
from tokengt.data.manifest import TaskKind as TaskKind

_MOST_CLASSES = 10_000
# Metrics that can choose the best epoch, by the kind of task, and whether more is better; the first is the default.
METRICS: Mapping[TaskKind, Mapping[str, bool]] = {
    "regression": {"rmse": False, "mae": False, "r2": True, "spearman": True},
    "binary": {"roc_auc": True, "average_precision": True, "accuracy": True, "cross_entropy": False, "mrr": True},
    "multiclass": {"accuracy": True, "macro_f1": True, "cross_entropy": False},
}
# Other names that people have for them.
METRIC_ALIASES: Mapping[str, str] = {
    "auc": "roc_auc",
    "roc": "roc_auc",
    "auroc": "roc_auc",
    "prc": "average_precision",
    "prc_auc": "average_precision",
    "auprc": "average_precision",
    "ap": "average_precision",
}
# A binary task has one more metric for every k: hits@k.
HITS = "hits@"
# How far down the list of negatives is looked where links are ranked, unless another k is asked for.
USUAL_HITS = (10, 50, 100)
# Losses by the kind of task; the first is the default. Those of regression are of the scaled target.
LOSSES: Mapping[TaskKind, tuple[str, ...]] = {
    "regression": ("mse", "mae", "huber"),
    "binary": ("cross_entropy",),
    "multiclass": ("cross_entropy",),
}


@dataclass(frozen=True)
class Task:
    """One kind of prediction for one or several columns of labels.

    Args:
        kind: "regression" (one number per target), "binary" (one probability per target) or "multiclass" (one target,
            one probability per class).
        names: the target columns.
        classes: multiclass: the names of the classes; a label is the place of its class.
        mean: regression: mean of each target's training labels; zeros otherwise.
        scale: regression: their standard deviation, 1 where all labels are equal; ones otherwise.
        metric: a name in :data:`METRICS`: chooses between models, and is reported first; the first of them if empty.
        loss: a name in :data:`LOSSES`: what training makes small; the first of them if empty.
        links: binary: whether a row is a pair of nodes; how high positives rank above negatives is then told too.
    """

    kind: TaskKind
    names: tuple[str, ...]
    classes: tuple[str, ...] | None = None
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    metric: str = ""
    loss: str = ""
    links: bool = field(default=False, metadata={"late": True})

    def __post_init__(self) -> None:
        if self.kind not in get_args(TaskKind):
            known = get_args(TaskKind)
            raise ValueError(f"task is {self.kind!r}{near(self.kind, known)}; expected one of {', '.join(known)}")
        if self.links and self.kind != "binary":
            raise ValueError(f"links are there or not, a binary task; the task is {self.kind}")
        if self.kind != "binary" or hits_at(self.metric) is None:
            self._choose("metric", METRICS[self.kind])
        self._choose("loss", LOSSES[self.kind])
        if not self.names:
            raise ValueError("a task needs a target; expected one or more column names")
        if self.kind == "multiclass":
            if len(self.names) > 1:
                raise ValueError(f"a multiclass task has one target, got {len(self.names)}: {', '.join(self.names)}")
            if self.classes is None or len(self.classes) < 2:
                raise ValueError(f"target {self.names[0]!r} has fewer than two classes; expected two or more")
            if len(self.classes) > _MOST_CLASSES:
                raise ValueError(
                    f"target {self.names[0]!r} has {len(self.classes):,} classes; expected at most {_MOST_CLASSES:,}"
                )
        elif self.classes is not None:
            raise ValueError(f"a {self.kind} task has no classes; use the task 'multiclass' for them")
        object.__setattr__(self, "mean", self.mean or (0.0,) * len(self.names))
        object.__setattr__(self, "scale", self.scale or (1.0,) * len(self.names))
        if not len(self.names) == len(self.mean) == len(self.scale):
            raise ValueError(f"mean and scale need {len(self.names)} numbers each, one per target")
        if not all(map(isfinite, self.mean)) or not all(isfinite(scale) and scale > 0 for scale in self.scale):
            raise ValueError("mean and scale of a task must be finite and scale above 0")

    def _choose(self, name: str, options: Iterable[str]) -> None:
        """The first of a kind's metrics or losses where none is named; refuse one of another kind."""
        known, value = tuple(options), getattr(self, name)
        if value and value not in known:
            raise ValueError(
                f"the {name} is {value}{near(value, known)}; expected {', '.join(known)} for the task {self.kind}"
            )
        object.__setattr__(self, name, value or known[0])

    @classmethod
    def fit(
        cls,
        kind: TaskKind | None,
        targets: Float[Tensor, "rows targets"],
        names: Sequence[str],
        classes: Sequence[str] | None = None,
    ) -> "Task":
        """The task that these training labels pose.

        Without a kind: multiclass when there are ``classes``, binary when all labels are 0 or 1, else regression.
        Multiclass labels without names are whole numbers, named by ``numbered_classes`` of these rows.

        Raises:
            ValueError: a target without a single label, or a label that the kind does not allow.
        """
        if targets.shape[1] != len(names):
            raise ValueError(f"the labels have {targets.shape[1]} columns but there are {len(names)} target names")
        targets = targets.detach().cpu().double()
        for name, empty in zip(names, torch.isnan(targets).all(0).tolist(), strict=True):
            if empty:
                raise ValueError(f"target {name!r} has no label in the training rows; expected one at least")
        if kind is None:
            kind = guessed_kind(targets, classes)
        if kind == "multiclass" and classes is None:
            classes = numbered_classes(targets, ", ".join(names))
        task = cls(kind, tuple(names), None if classes is None else tuple(classes))
        task.check(targets)
        return task if kind != "regression" else cls(kind, tuple(names), None, *_moments(targets, names))

    @property
    def out_dim(self) -> int:
        """Outputs that the model's head must have."""
        return len(self.names) if self.classes is None else len(self.classes)

    @property
    def loss_name(self) -> str:
        """What :meth:`loss_sum` sums up, with its unit."""
        return {
            "mse": "scaled squared error",
            "mae": "scaled absolute error",
            "huber": "Huber loss of the scaled error",
            "cross_entropy": "cross entropy, nats",
        }[self.loss]

    @property
    def higher_is_better(self) -> bool:
        return METRICS[self.kind].get(self.metric, True)

    def is_better(self, value: float, best: float | None) -> bool:
        """Whether a metric beats the best one so far; NaN beats nothing, and everything else beats NaN or None."""
        if isnan(value):
            return False
        if best is None or isnan(best):
            return True
        return value > best if self.higher_is_better else value < best

    def check(self, targets: Float[Tensor, "rows targets"]) -> None:
        """Refuse labels that this task cannot have: one sentence with target and value."""
        if targets.shape[1] != len(self.names):
            raise ValueError(f"the labels have {targets.shape[1]} columns; expected {len(self.names)}, one per target")
        if self.kind == "regression":
            wrong, expected = torch.isinf(targets), "a finite number"
        elif self.kind == "binary":
            wrong, expected = ~torch.isnan(targets) & (targets != 0) & (targets != 1), "0 or 1 in a binary task"
        else:
            valid = (targets == targets.floor()) & (targets >= 0) & (targets < self.out_dim)
            wrong, expected = ~torch.isnan(targets) & ~valid, f"the place of a class, 0 to {self.out_dim - 1}"
        if bool(wrong.any()):
            row, column = torch.nonzero(wrong)[0].tolist()
            raise ValueError(f"target {self.names[column]!r} holds {targets[row, column]:g}; expected {expected}")

    def label_count(self, targets: Float[Tensor, "rows targets"]) -> int:
        """How many labels there are; the loop divides the summed loss by it."""
        return int((~torch.isnan(targets)).sum())

    def loss_sum(self, output: Float[Tensor, "rows out"], targets: Float[Tensor, "rows targets"]) -> Float[Tensor, ""]:
        """Loss summed over the labels that there are: an error of the scaled target, or cross entropy in nats.

        Where a label is missing the loss and the gradient are exactly zero, whatever the output is.
        """
        # A sum over many labels needs more digits than half precision has.
        if output.dtype in (torch.bfloat16, torch.float16):
            output = output.float()
        present = ~torch.isnan(targets)
        # The outputs are masked and not only the losses: 0 times an infinite gradient would be NaN.
        output = torch.where(present, output, 0)
        if self.kind == "multiclass":
            labels = torch.where(present, targets, -1).squeeze(1).long()
            return F.cross_entropy(output, labels, ignore_index=-1, reduction="sum")
        if self.kind == "binary":
            labels = torch.where(present, targets, 0).to(output.dtype)
            losses = F.binary_cross_entropy_with_logits(output, labels, reduction="none")
            return torch.where(present, losses, 0).sum()
        scaled = (targets.double() - _row(self.mean, output.device)) / _row(self.scale, output.device)
        error = output - torch.where(present, scaled, 0).to(output.dtype)
        if self.loss == "mae":
            return error.abs().sum()
        if self.loss == "huber":
            # Half the square up to one standard deviation, then a line with the slope that the square has there.
            return F.huber_loss(error, torch.zeros_like(error), reduction="sum")
        return error.square().sum()

    def predictions(self, output: Float[Tensor, "rows out"]) -> Float[Tensor, "rows out"]:
        """Outputs as a person reads them, in float64: natural units, or probabilities."""
        return self.readable(output.detach())

    def readable(self, output: Float[Tensor, "rows out"]) -> Float[Tensor, "rows out"]:
        """:meth:`predictions` through which gradients flow."""
        output = output.double()
        if self.kind == "regression":
            return output * _row(self.scale, output.device) + _row(self.mean, output.device)
        return output.sigmoid() if self.kind == "binary" else output.softmax(1)

    def floor(self, targets: Float[Tensor, "rows targets"], rows: int) -> Float[Tensor, "{rows} out"]:
        """What a model that saw only the training labels would predict: their mean, or how often a class occurs.

        A class that no label has is taken to have occurred once, and so is every other once more: nothing is certain.
        """
        labels = targets.detach().double()
        if self.kind == "regression":
            return labels.nanmean(0).expand(rows, -1)
        if self.kind == "multiclass":
            labels = _one_hot(labels, self.out_dim)
        counts, count = labels.nansum(0), (~torch.isnan(labels)).sum(0)
        if self.kind == "multiclass":
            smooth = (counts == 0).any()
            return torch.where(smooth, (counts + 1) / (count + self.out_dim), labels.nanmean(0)).expand(rows, -1)
        certain = (counts == 0) | (counts == count)
        return torch.where(certain, (counts + 1) / (count + 2), labels.nanmean(0)).expand(rows, -1)

    def unseen_classes(self, targets: Float[Tensor, "rows targets"]) -> list[str]:
        """Classes that none of these labels has."""
        if self.classes is None:
            return []
        seen = set(targets[~torch.isnan(targets)].long().tolist())
        return [name for place, name in enumerate(self.classes) if place not in seen]


def hits_at(metric: str) -> int | None:
    """The k of hits@k; None for any other metric."""
    number = metric.removeprefix(HITS)
    return int(number) if metric.startswith(HITS) and number.isdecimal() and int(number) > 0 else None


def numbered_classes(targets: Float[Tensor, "rows targets"], name: str = "target") -> tuple[str, ...]:
    """Names "0", "1", ... for labels that are whole numbers; give it all rows, so that no part holds a new class."""
    labels = targets[~torch.isnan(targets)]
    wrong = labels[(labels != labels.floor()) | (labels < 0) | torch.isinf(labels)]
    if len(wrong):
        raise ValueError(f"target {name!r} holds {float(wrong[0]):g}; expected whole numbers from 0 for multiclass")
    highest = int(labels.max()) if len(labels) else -1
    if highest >= _MOST_CLASSES:
        raise ValueError(
            f"target {name!r} holds {highest}; expected at most {_MOST_CLASSES:,} classes, numbered from 0"
        )
    return tuple(str(place) for place in range(highest + 1))


def guessed_kind(targets: Float[Tensor, "rows targets"], classes: Sequence[str] | None) -> TaskKind:
    """Multiclass when there are classes, binary when all labels are 0 or 1, else regression; give it all rows."""
    if classes is not None:
        return "multiclass"
    return "binary" if _only_bits(targets) else "regression"


def _only_bits(targets: Tensor) -> bool:
    return bool((torch.isnan(targets) | (targets == 0) | (targets == 1)).all())


def _one_hot(labels: Float[Tensor, "rows 1"], classes: int) -> Float[Tensor, "rows {classes}"]:
    """NaN in the whole row where the label is missing."""
    hits: Bool[Tensor, "rows classes"] = labels == torch.arange(classes, device=labels.device)
    return torch.where(torch.isnan(labels), torch.nan, hits.to(labels.dtype))


def _moments(targets: Tensor, names: Sequence[str]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each column's labels."""
    mean, scale = [], []
    for name, column in zip(names, targets.T, strict=True):
        labels = column[~torch.isnan(column)]
        spread = float(labels.std(correction=0))
        if not isfinite(spread):
            raise ValueError(f"target {name!r} spreads too far for a standard deviation in float64; rescale it")
        # Equal labels can have a tiny deviation from their rounded mean, so the labels themselves are compared.
        constant = bool(labels.min() == labels.max()) or spread == 0
        mean.append(float(labels[0]) if constant else float(labels.mean()))
        scale.append(1.0 if constant else spread)
    return tuple(mean), tuple(scale)


@lru_cache(maxsize=64)
def _row(values: tuple[float, ...], device: torch.device) -> Float[Tensor, " targets"]:
    """The values as a tensor, cached on its device: a copy at each step would wait for all work queued before it."""
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=torch.float64, device=device)
