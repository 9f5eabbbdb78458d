"""What a model and the random forest beside it say together, and how much of that is the forest's.

Both are taken in the unit in which errors are alike (:meth:`Scaling.comparable`), in which forests speak: of numbers
their own, or logarithms where these are learned; of classes probabilities.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from tokengt.models.forest import HALF
from tokengt.training.tasks import Task

# How far from a half a forest's share is expected to be, and from how many labels on it is asked.
_BELIEF, _FEW = 0.25, 3


def averaged(
    task: Task,
    share: Float[Tensor, " targets"],
    model: Float[Tensor, "... rows width"],
    said: Float[Tensor, "... width"],
) -> Float[Tensor, "... rows width"]:
    """What a run predicts: the forest's share of what that ``said``, the rest what the model predicts.

    Gradients flow to the model's part.
    """
    weight = share.to(model).repeat_interleave(said.shape[-1] // len(share))
    plain = (1 - weight) * model + weight * said
    if task.kind != "regression" or not task.scaling.log_scale:
        return plain
    return torch.where(*task.scaling.logged_mean(weight, model, said), plain)


def natural(task: Task, said: Float[Tensor, "rows width"]) -> Float[Tensor, "rows width"]:
    """What a forest says, in the unit of the labels."""
    return said if task.kind != "regression" else torch.from_numpy(task.scaling.from_comparable(said.numpy()))


def fitted_share(
    task: Task,
    model: Float[Tensor, "rows width"],
    said: Float[Tensor, "rows width"],
    labels: Float[Tensor, "rows targets"],
) -> Float[Tensor, " targets"]:
    """How much of each target's prediction should be the forest's, by rows that neither learned from.

    The share s makes the squared error of (1 - s) model + s forest least; of classes it is that of their probabilities.
    A half is believed beforehand, give or take a quarter, so that few labels move it little.
    """
    model, count = _comparable(task, model), len(task.names)
    if task.kind == "regression":
        labels = torch.from_numpy(task.scaling.comparable(labels.double().numpy()))
    elif task.kind == "multiclass":
        known = labels[:, 0].isfinite()
        one = torch.nn.functional.one_hot(labels[:, 0].nan_to_num().long(), task.width).double()
        labels = torch.where(known[:, None], one, torch.nan)
    shares = []
    for left, apart in zip((labels - model).chunk(count, 1), (said - model).chunk(count, 1), strict=True):
        known = left.isfinite()
        shares.append(_share(left[known], apart[known]))
    return torch.tensor(shares, dtype=torch.float32)


def _share(left: Float[Tensor, " known"], apart: Float[Tensor, " known"]) -> float:
    """The s that makes (left - s apart)^2 small, pulled to a half as far as it is uncertain."""
    length = float(apart.square().sum())
    if len(left) < _FEW or not length:
        return HALF
    best = float((left * apart).sum()) / length
    variance = float((left - best * apart).square().sum()) / (len(left) - 1) / length
    trust = _BELIEF**2 / (_BELIEF**2 + variance)
    return min(1.0, max(0.0, HALF + trust * (best - HALF)))


def _comparable(task: Task, model: Float[Tensor, "... rows width"]) -> Float[Tensor, "... rows width"]:
    values = model.double().cpu()
    return values if task.kind != "regression" else torch.from_numpy(task.scaling.comparable(values.numpy()))
