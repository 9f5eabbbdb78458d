"""A model and a random forest beside it: the forest is grown, weighed by the validation part, and averaged."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from threading import Thread

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokengt.models.forest import Forest
from tokengt.training.calibrating import Told
from tokengt.training.card import FOREST, MODEL
from tokengt.training.forest import grown
from tokengt.training.resolve import Member
from tokengt.training.shares import averaged, fitted_share, natural


@dataclass(frozen=True, eq=False)
class Averaged:
    """What a run says of its held-out rows once a forest stands beside its model.

    Args:
        forest: with the share that it has of every prediction.
        valid, test: tables of all rows, NaN elsewhere.
        apart: such tables of the test rows, of the model alone and of the forest alone.
    """

    forest: Forest
    valid: Told
    test: Told
    apart: Mapping[str, Float[Tensor, "rows width"]]


def growing(member: Member, device: torch.device) -> Callable[[], Forest]:
    """What gives the forest of the training rows: it grows while a GPU trains the model, else when it is asked for.

    A model that trains on the cores themselves would wait for it as long as it waits for the model.
    """
    grow = partial(_of_rows, member, member.split.train)
    if device.type != "cuda":
        return grow
    grown_beside: Future[Forest] = Future()
    # A thread that nobody waits for where the training ends early: by Ctrl-C, or because it did not fit.
    Thread(target=_settle, args=(grown_beside, grow), name="forest", daemon=True).start()
    return grown_beside.result


def _settle(future: "Future[Forest]", grow: Callable[[], Forest]) -> None:
    try:
        future.set_result(grow())
    except BaseException as error:
        future.set_exception(error)


def with_forest(
    member: Member, valid: Told, test: Told, of_training: Callable[[], Forest], say: Callable[[str], None]
) -> Averaged:
    """Weigh a forest by the validation part, and average it with what the model says of held-out rows.

    The share is fitted with a forest ``of_training`` rows. The one that is kept is then grown anew from these and the
    validation rows: a model needs them to choose its epoch by, trees have no other use for them. The models of an
    ensemble share the trees: each grows some of its own, and the mean of all is as large a forest as beside one.
    """
    task, features = member.spec.task, _features(member)
    say(f"a random forest beside the model: {member.spec.trees} trees per target, on {features.shape[1]:,} features")
    forest = of_training()
    shown, asked = member.valid_rows, member.test_rows
    seen = forest(features[shown])
    if len(shown):
        share = fitted_share(task, valid.values[shown], seen, member.store.targets[shown])
        forest = replace(_of_rows(member, torch.cat([member.split.train, shown])), share=share)
    told = forest(features[asked])
    alone = torch.full_like(test.values, torch.nan)
    alone[asked] = natural(task, told)
    return Averaged(
        forest,
        replace(valid, values=_with(valid.values, shown, averaged(task, forest.share, valid.values[shown], seen))),
        replace(test, values=_with(test.values, asked, averaged(task, forest.share, test.values[asked], told))),
        {MODEL: test.values, FOREST: alone},
    )


def _features(member: Member) -> Float[Tensor, "rows columns"]:
    features = member.store.graphs.graph_features
    assert isinstance(features, Tensor)
    return features


def _of_rows(member: Member, rows: Int[Tensor, " some"]) -> Forest:
    store, task, seed = member.store, member.spec.task, member.spec.seed
    weights = None if store.weights is None else store.weights[rows]
    return grown(task, _features(member)[rows], store.targets[rows], seed, weights, member.spec.trees)


def _with(
    table: Float[Tensor, "rows width"], rows: Int[Tensor, " some"], values: Float[Tensor, "some width"]
) -> Float[Tensor, "rows width"]:
    changed = table.clone()
    changed[rows] = values.to(table.dtype)
    return changed
