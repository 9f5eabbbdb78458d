"""One meaning of "predict": the mean over draws, and how far the draws lie apart.

A *draw* is one pass of a model that makes random choices: other node identifiers, or another dropout mask. The choices
of a draw follow from its number, so a draw can be repeated. With Laplacian identifiers, draw number 0 has the canonical
eigenvectors, without random signs. The words are the same in Python and on the command line: ``draws`` is how many
passes are averaged, and ``over`` is what differs between them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tokengt.models.contract import Model

Over = Literal["identifiers", "dropout"]


class Prediction(NamedTuple):
    """The mean over all passes and their standard deviation, which is None where there is one pass only."""

    mean: Float[Tensor, "rows out"]
    std: Float[Tensor, "rows out"] | None


def check_passes(model: Model, draws: int, over: str, given_ids: bool = False) -> None:
    """Refuse passes that could not differ, in one sentence; ``given_ids``: with identifiers that are given."""
    if over not in get_args(Over):
        raise ValueError(f"over is {over!r}; expected 'identifiers' or 'dropout'")
    if draws < 1:
        raise ValueError(f"draws is {draws}; expected at least 1")
    if draws > 1 and over == "identifiers" and not model.has_draws:
        raise ValueError("this model has no identifiers to draw; take the draws over dropout instead")
    if given_ids and not model.takes_node_ids:
        raise ValueError(f"node_ids are given, but a {type(model).__name__} takes none; leave them out")
    if given_ids and draws > 1 and over == "identifiers":
        raise ValueError("node_ids are given, so that draws over identifiers would all be alike; use over='dropout'")


@torch.no_grad()
def run_passes(model: Model, draws: int, over: Over, forward: Callable[[int], Tensor]) -> list[Tensor]:
    """The outputs of ``forward(draw)`` for every draw; the same numbers every time they are asked for.

    Over dropout the model runs as in training, but for batch norm, each pass with a seed of its own; otherwise as at
    evaluation.
    """
    check_passes(model, draws, over)
    if over == "identifiers" or draws == 1:
        with evaluating(model):
            return [forward(draw) for draw in range(draws)]
    outputs = []
    # The caller's random state is put back afterwards: a prediction must not change what training draws next.
    with evaluating(model), torch.random.fork_rng(range(torch.cuda.device_count())):
        model.train()
        keep_norms(model)
        for draw in range(draws):
            torch.manual_seed(draw)
            outputs.append(forward(0))
    return outputs


def keep_norms(model: nn.Module, *, frozen_only: bool = False) -> None:
    """Have batch norm use the moments it has learned, instead of those of the batch, and leave them as they are.

    Otherwise a prediction would depend on the other rows of its batch. With ``frozen_only`` only layers whose weights
    are not trained: their moments are part of what stays as it is.
    """
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            trained = any(parameter.requires_grad for parameter in module.parameters())
            if not (frozen_only and trained):
                module.eval()


def summarise(passes: Sequence[Float[Tensor, "rows out"]]) -> Prediction:
    """Mean and standard deviation (with n - 1 in its denominator) over the passes."""
    together = torch.stack(list(passes))
    return Prediction(together.mean(0), together.std(0) if len(passes) > 1 else None)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, whatever happens there; afterwards every module is as it was."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
