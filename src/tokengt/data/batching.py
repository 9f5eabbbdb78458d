"""Which graphs make up a step: all graphs are shuffled, cut into steps by a budget, and each step is dealt into pieces.

A *place* is a graph's number in the data set. Every ``tokens`` tensor here has one entry per graph of the whole data
set and is indexed by place. There is no loop over graphs.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from tokengt.draws import chain, mix

# How many tokens one batch of an evaluation may hold.
_AT_ONCE, _AT_ONCE_ON_A_GPU = 2**14, 2**17
# And one of a prediction on a CPU: matrices of so few rows stay in its caches, and need no new pages of memory, which
# makes a model of 8 x 192 a tenth faster. Evaluation in training keeps to its number, on which its last bits depend.
_PREDICTED_AT_ONCE = 2**12
# Every part of a step is listed, the empty ones too.
_MOST_PARTS = 10_000


@dataclass(frozen=True)
class BatchingConfig:
    """How much one optimiser step sees.

    Args:
        batch_size: graphs per step, over all processes.
        batch_tokens: when above 0, a step instead takes graphs up to this many tokens, over all processes. A graph
            longer than that is a step of its own.
        accumulate: parts that each process cuts its share of a step into, to save memory; the step stays the same.
    """

    batch_size: int
    batch_tokens: int = 0
    accumulate: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size is {self.batch_size}; expected at least 1")
        if self.batch_tokens < 0:
            raise ValueError(f"batch_tokens is {self.batch_tokens}; expected 0 (count graphs) or more")
        if not 1 <= self.accumulate <= _MOST_PARTS:
            raise ValueError(f"accumulate is {self.accumulate}; expected 1 to {_MOST_PARTS:,}")


def epoch_steps(
    train: Int[Tensor, " chosen"],
    tokens: Int[Tensor, " graphs"],
    config: BatchingConfig,
    *,
    seed: int,
    epoch: int,
    pieces: int,
) -> list[list[Tensor]]:
    """The steps of one epoch, each a list of ``pieces`` int64 tensors of places in the data set.

    Every place of ``train`` stands in exactly one piece. Which graphs step s holds depends on ``train``, ``tokens``,
    ``config``, ``seed`` and ``epoch`` only; ``pieces`` (processes x accumulate) decides how they are dealt out.
    Pieces of a step differ by at most one graph and by about one graph's tokens; a short step leaves some empty.
    """
    if pieces < 1:
        raise ValueError(f"pieces is {pieces}; expected at least 1")
    order = train.index_select(0, permutation(len(train), seed, epoch)).numpy()
    lengths = tokens.numpy()[order]
    bounds = _budget_bounds(lengths, config.batch_tokens) if config.batch_tokens else _count_bounds(len(order), config)
    steps = len(bounds) - 1
    step = np.repeat(np.arange(steps), np.diff(bounds))
    # The graphs of a step are sorted from long to short and then dealt to the pieces to and fro, as cards are (0, 1, 2,
    # 2, 1, 0, ...), so that pieces end up with nearly as many graphs and tokens.
    longest_first = np.lexsort((-lengths, step))
    rank = np.arange(len(order)) - bounds[step]
    turn, place = np.divmod(rank, pieces)
    owner = step * pieces + np.where(turn % 2, pieces - 1 - place, place)
    dealt = order[longest_first][np.argsort(owner, kind="stable")]
    sizes = np.bincount(owner, minlength=steps * pieces)
    flat = torch.split(torch.from_numpy(dealt), sizes.tolist()) if steps else ()
    return [list(flat[first : first + pieces]) for first in range(0, steps * pieces, pieces)]


def tokens_at_once(device: torch.device) -> int:
    """How many tokens one evaluation batch may hold: many on a GPU, which would finish a few before the next launch."""
    return _AT_ONCE_ON_A_GPU if device.type == "cuda" else _AT_ONCE


def tokens_predicted_at_once(device: torch.device) -> int:
    """The same for predictions of a trained model."""
    return _AT_ONCE_ON_A_GPU if device.type == "cuda" else _PREDICTED_AT_ONCE


def evaluation_batches(
    places: Int[Tensor, " chosen"], tokens: Int[Tensor, " graphs"], max_tokens: int = _AT_ONCE
) -> list[Tensor]:
    """``places`` sorted by tokens (ties as given) and cut into batches of at most ``max_tokens``.

    A graph longer than that is a batch of its own.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens}; expected at least 1")
    lengths, order = torch.sort(tokens.index_select(0, places), stable=True)
    bounds = _budget_bounds(lengths.numpy(), max_tokens)
    return list(torch.split(places.index_select(0, order), np.diff(bounds).tolist())) if len(places) else []


def permutation(count: int, *key: int) -> Int[Tensor, " count"]:
    """A shuffle of 0 to ``count - 1`` that is a function of ``key``, whatever the version of torch or NumPy."""
    state = chain(torch.tensor([[_signed(part)] for part in key]))
    # mix is a bijection, so no two places get the same number and the order has no ties.
    return torch.argsort(mix(mix(state) + torch.arange(count)))


def _signed(number: int) -> int:
    """The same 64 bits as a signed integer, which is what torch holds."""
    return (number + 2**63) % 2**64 - 2**63


def _count_bounds(count: int, config: BatchingConfig) -> NDArray[np.int64]:
    """[steps + 1] where each step of ``batch_size`` graphs begins, and the end."""
    return np.append(np.arange(0, count, config.batch_size), count)


def _budget_bounds(lengths: NDArray[np.int64], budget: int) -> NDArray[np.int64]:
    """[steps + 1] bounds of the longest runs whose sum stays within the budget; at least one entry per run."""
    ends = np.cumsum(lengths, dtype=np.int64)
    bounds = [0]
    while bounds[-1] < len(ends):
        start = bounds[-1]
        spent = int(ends[start - 1]) if start else 0
        bounds.append(max(start + 1, int(np.searchsorted(ends, spent + budget, side="right"))))
    return np.array(bounds)
