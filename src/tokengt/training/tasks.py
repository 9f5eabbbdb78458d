"""What is learned from a table of labels: its scaling, its loss and its predictions. A missing label is NaN."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, isnan
from typing import get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from tokengt.config import near
from tokengt.data.manifest import TaskKind as TaskKind
from tokengt.training.classes import (
    balancing_weights,
    check_classes,
    class_shares,
    guessed_kind,
    numbered_classes,
    unseen,
)
from tokengt.training.labels import LabelTable
from tokengt.training.losses import REGRESSION_LOSSES, RegressionLoss
from tokengt.training.scaling import LogTargets, Scaling, as_row, log_moments, moments

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
# Losses by the kind of task; the first is the default.
LOSSES: Mapping[TaskKind, tuple[str, ...]] = {
    "regression": tuple(REGRESSION_LOSSES),
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
        log_mean: regression: where the logarithm of a target is learned, the mean of its training labels' logarithms;
            empty where that is so for none.
        log_scale: their standard deviation; 0 for a target that is learned as it is.
        metric: a name in :data:`METRICS`: chooses between models, and is reported first; the first of them if empty.
        loss: a name in :data:`LOSSES`: what training makes small; the first of them if empty. It may ask the model for
            more than one output per target (:mod:`tokengt.training.losses`).
        quantile: for the loss of that name: the share of labels that is to lie below the prediction.
        target_weights: how much each target counts in the loss; ones if empty.
        class_weights: how much a label of each class counts: binary, zeros of each target and then ones of each;
            multiclass, each class. Ones if empty.
        bounded: whether tables of labels hold bounds beside numbers (:mod:`tokengt.training.labels`).
        weighted: whether they hold a weight for each row.
        auxiliary: how many numbers the model learns to predict beside its targets, which nobody asks for later.
        auxiliary_weight: how much the mean of their squared errors counts beside the loss of a label.
        links: binary: whether a row is a pair of nodes; how high positives rank above negatives is then told too.
    """

    kind: TaskKind
    names: tuple[str, ...]
    classes: tuple[str, ...] | None = None
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    metric: str = ""
    loss: str = ""
    quantile: float = field(default=0.5, metadata={"late": True})
    target_weights: tuple[float, ...] = field(default=(), metadata={"late": True})
    class_weights: tuple[float, ...] = field(default=(), metadata={"late": True})
    bounded: bool = field(default=False, metadata={"late": True})
    weighted: bool = field(default=False, metadata={"late": True})
    auxiliary: int = field(default=0, metadata={"late": True})
    auxiliary_weight: float = field(default=0.0, metadata={"late": True})
    links: bool = field(default=False, metadata={"late": True})
    log_mean: tuple[float, ...] = field(default=(), metadata={"late": True})
    log_scale: tuple[float, ...] = field(default=(), metadata={"late": True})

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
        check_classes(self.kind, self.names, self.classes)
        object.__setattr__(self, "mean", self.mean or (0.0,) * len(self.names))
        object.__setattr__(self, "scale", self.scale or (1.0,) * len(self.names))
        if not len(self.names) == len(self.mean) == len(self.scale):
            raise ValueError(f"mean and scale need {len(self.names)} numbers each, one per target")
        if not all(map(isfinite, self.mean)) or not all(isfinite(scale) and scale > 0 for scale in self.scale):
            raise ValueError("mean and scale of a task must be finite and scale above 0")
        self._check_logs()
        if self.target_weights and len(self.target_weights) != len(self.names):
            raise ValueError(
                f"target_weights are {len(self.target_weights)} numbers; expected {len(self.names)}, one per target"
            )
        if self.bounded and self.kind != "regression":
            raise ValueError(f"a label of a {self.kind} task cannot be a bound; expected the task regression")
        classes = {"regression": 0, "binary": 2 * len(self.names), "multiclass": len(self.classes or ())}[self.kind]
        if self.class_weights and len(self.class_weights) != classes:
            raise ValueError(f"class_weights are {len(self.class_weights)} numbers; expected {classes}, one per class")

    def _check_logs(self) -> None:
        if not self.log_mean and not self.log_scale:
            return
        if self.kind != "regression" or not len(self.names) == len(self.log_mean) == len(self.log_scale):
            raise ValueError("log_mean and log_scale are of a regression, one number per target each")
        if not all(map(isfinite, (*self.log_mean, *self.log_scale))) or min(self.log_scale) < 0:
            raise ValueError("log_mean and log_scale of a task must be finite and log_scale 0 or more")

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
        return task if kind != "regression" else cls(kind, tuple(names), None, *moments(targets, names))

    @property
    def scaling(self) -> Scaling:
        """Of a regression: how its labels become what the model learns."""
        return Scaling(self.mean, self.scale, self.log_mean, self.log_scale)

    def with_logs(self, targets: Float[Tensor, "rows targets"], logs: LogTargets) -> "Task":
        """The task that learns the logarithms that these training labels ask for (:func:`log_moments`)."""
        if self.kind != "regression":
            return self
        mean, scale = log_moments(targets, self.names, logs)
        return replace(self, log_mean=mean, log_scale=scale) if any(scale) else self

    def alone(self, at: int) -> "Task":
        """One target by itself, its loss the usual one."""
        logs = (self.log_mean[at : at + 1], self.log_scale[at : at + 1])
        moments = (self.mean[at : at + 1], self.scale[at : at + 1])
        return Task(self.kind, self.names[at : at + 1], None, *moments, log_mean=logs[0], log_scale=logs[1])

    @property
    def logged(self) -> tuple[str, ...]:
        """Names of the targets whose logarithm is learned."""
        return tuple(name for name, scale in zip(self.names, self.log_scale, strict=False) if scale)

    @property
    def width(self) -> int:
        """Columns of :meth:`predictions`: one per target or class."""
        return len(self.names) if self.classes is None else len(self.classes)

    @property
    def _class_count(self) -> int | None:
        return None if self.classes is None else len(self.classes)

    @property
    def out_dim(self) -> int:
        """Outputs that the model's head must have: of each target as many as its loss asks for, then auxiliary ones."""
        return self._own_outputs + self.auxiliary

    @property
    def _own_outputs(self) -> int:
        return self.width * (self._loss.outputs if self.kind == "regression" else 1)

    @property
    def _loss(self) -> RegressionLoss:
        return REGRESSION_LOSSES[self.loss](self.quantile)

    @property
    def table(self) -> LabelTable:
        """Where things stand in a table of labels that a training step reads."""
        return LabelTable(len(self.names), self.bounded, self.weighted, self.auxiliary)

    @property
    def loss_name(self) -> str:
        """What :meth:`loss_sum` sums up, with its unit."""
        if self.kind != "regression":
            return "cross entropy, nats"
        return f"{self._loss.words} of the logarithm" if any(self.log_scale) else self._loss.words

    @property
    def higher_is_better(self) -> bool:
        return METRICS[self.kind].get(self.metric, True)

    @property
    def judged(self) -> str:
        """The metric by which a model is held up to simpler ones.

        Of numbers whose logarithm is learned, the few largest decide a squared error, which says nothing of the others.
        """
        return "mae" if self.logged and self.metric == "rmse" else self.metric

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
            valid = (targets == targets.floor()) & (targets >= 0) & (targets < self.width)
            wrong, expected = ~torch.isnan(targets) & ~valid, f"the place of a class, 0 to {self.width - 1}"
        if bool(wrong.any()):
            row, column = torch.nonzero(wrong)[0].tolist()
            raise ValueError(f"target {self.names[column]!r} holds {targets[row, column]:g}; expected {expected}")

    def label_count(self, table: Float[Tensor, "rows columns"]) -> int:
        """How many labels there are; the loop divides the summed loss by it."""
        return int(self.table.counts(table).sum())

    def loss_sum(self, output: Float[Tensor, "rows out"], table: Float[Tensor, "rows columns"]) -> Float[Tensor, ""]:
        """Loss summed over the labels that there are: an error of the scaled target, or cross entropy in nats.

        Where a label is missing the loss and the gradient are exactly zero, whatever the output is; so they are where a
        prediction is on the right side of a bound. ``table`` is laid out as :attr:`table` says.
        """
        # A sum over many labels needs more digits than half precision has.
        if output.dtype in (torch.bfloat16, torch.float16):
            output = output.float()
        if self.auxiliary:
            own, beside = output[:, : self._own_outputs], output[:, self._own_outputs :]
            return self._own_loss(own, table) + self.auxiliary_weight * self.table.beside_loss(beside, table)
        return self._own_loss(output, table)

    def _own_loss(self, output: Float[Tensor, "rows own"], table: Tensor) -> Float[Tensor, ""]:
        present = self.table.present(table)
        # The outputs are masked and not only the losses: 0 times an infinite gradient would be NaN.
        if self.kind == "regression":
            told = torch.where(present[:, None], self._told(output), 0)
            wanted, counts = self.table.wanted(table, told[:, 0], self.scaling)
            losses = torch.where(counts, self._loss.each(told, wanted), 0)
            return self._weighted(losses, table).sum()
        targets = self.table.exact(table)
        output = torch.where(present, output, 0)
        if self.kind == "multiclass":
            labels = torch.where(present, targets, -1).squeeze(1).long()
            if not self.class_weights and not self.weighted:
                return F.cross_entropy(output, labels, ignore_index=-1, reduction="sum")
            losses = F.cross_entropy(output, labels, ignore_index=-1, reduction="none")[:, None]
        else:
            binary = torch.where(present, targets, 0).to(output.dtype)
            losses = F.binary_cross_entropy_with_logits(output, binary, reduction="none")
            losses = torch.where(present, losses, 0)
        return self._weighted(losses, table).sum()

    def _weighted(self, losses: Float[Tensor, "rows columns"], table: Tensor) -> Float[Tensor, "rows columns"]:
        """Each label's loss times what its target, its class and its row count."""
        if self.target_weights:
            losses = losses * as_row(self.target_weights, losses.device).to(losses.dtype)
        if self.class_weights:
            # A missing label, whose loss is zero, has the weight of the first class.
            labels = torch.nan_to_num(self.table.exact(table)).long()
            of_class = as_row(self.class_weights, losses.device).to(losses.dtype)
            if self.kind == "binary":
                labels = labels * len(self.names) + torch.arange(len(self.names), device=labels.device)
            losses = losses * of_class[labels]
        weights = self.table.weights(table)
        return losses if weights is None else losses * weights.to(losses.dtype)

    def predictions(self, output: Float[Tensor, "rows out"]) -> Float[Tensor, "rows width"]:
        """Outputs as a person reads them, in float64: natural units, or probabilities."""
        return self.readable(output.detach())

    def readable(self, output: Float[Tensor, "rows out"]) -> Float[Tensor, "rows width"]:
        """:meth:`predictions` through which gradients flow."""
        output = output[:, : self._own_outputs].double()
        if self.kind == "regression":
            return self.scaling.natural(self._told(output)[:, 0])
        return output.sigmoid() if self.kind == "binary" else output.softmax(1)

    def variances(self, output: Float[Tensor, "rows out"]) -> Float[Tensor, "rows width"] | None:
        """The squares of how far off the model takes its predictions to be; None where its loss asks for none."""
        if self.kind != "regression":
            return None
        output = output[:, : self._own_outputs].detach().double()
        told, said = self._loss.variance(self._told(output)), self._told(output)[:, 0]
        return None if told is None else self.scaling.variance(told, said)

    def _told(self, output: Float[Tensor, "rows out"]) -> Float[Tensor, "rows outputs targets"]:
        """A regression model's outputs by their kind: predictions first, then what else its loss asks for."""
        return output.reshape(len(output), self._loss.outputs, len(self.names))

    def floor(self, targets: Float[Tensor, "rows targets"], rows: int) -> Float[Tensor, "{rows} width"]:
        """What a model that saw only the training labels would predict: their mean, or how often a class occurs.

        A class that no label has is taken to have occurred once, and so is every other once more: nothing is certain.
        """
        labels = targets.detach().double()
        if self.kind == "regression":
            return labels.nanmean(0).expand(rows, -1)
        return class_shares(labels, self._class_count).expand(rows, -1)

    def balanced(self, targets: Float[Tensor, "rows targets"]) -> tuple[float, ...]:
        """Weights of classes by which all of a target count alike in these training labels; 1 on average.

        Raises:
            ValueError: numbers have no classes.
        """
        if self.kind == "regression":
            raise ValueError("training.balance lets classes count alike; this task predicts numbers")
        return balancing_weights(targets, self._class_count)

    def unseen_classes(self, targets: Float[Tensor, "rows targets"]) -> list[str]:
        """Classes that none of these labels has."""
        return [] if self.classes is None else unseen(targets, self.classes)


def hits_at(metric: str) -> int | None:
    """The k of hits@k; None for any other metric."""
    number = metric.removeprefix(HITS)
    return int(number) if metric.startswith(HITS) and number.isdecimal() and int(number) > 0 else None
