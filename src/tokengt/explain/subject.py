"""What is explained: one row of outputs of one model for one graph, as a function of which tokens it is given.

Two questions can be asked of it: what the outputs are without some tokens, and how they change along a path from a
baseline, where nothing is known of any token, to the graph itself. Many answers are worked out in one packed batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tokengt.explain.tokens import Tokens
from tokengt.level import Level

# Outputs [copies, out] as they are to be read, such as in natural units; it must have a gradient.
Reading = Callable[[Float[Tensor, "copies out"]], Float[Tensor, "copies out"]]

# About how many bytes of activations are kept at once for a gradient.
_KEPT = 2**30
# How many tokens are put through a model at once where no gradient is asked for.
_TOKENS_AT_ONCE = 2**13


def as_they_are(outputs: Float[Tensor, "copies out"]) -> Float[Tensor, "copies out"]:
    """The model's own outputs."""
    return outputs


class Slopes(NamedTuple):
    """Values of one output at points of the path, and how each token changes them there.

    ``by_part`` has for every part of a token ("features", "identifiers", "structure") the derivative along the path
    that is due to it, [points, tokens].
    """

    values: Float[Tensor, " points"]
    by_part: dict[str, Float[Tensor, "points tokens"]]


class Subject(ABC):
    """One row of outputs of one model for one graph."""

    tokens: Tokens
    level: Level
    # What stands at the beginning of the path, in one sentence; {3} stands for the name of token 3.
    baseline: str
    # How many straight pieces the path from the baseline to the graph has.
    stages: int = 1
    # Tokens that the row is read from: without them there is nothing to read.
    read_from: frozenset[int] = frozenset()

    @abstractmethod
    def without(self, removed: Bool[Tensor, "copies tokens"]) -> Float[Tensor, "copies out"]:
        """The outputs without some tokens, one row per choice of them; NaN where the row itself is gone."""

    @abstractmethod
    def slopes(self, times: Float[Tensor, " points"], output: int, stage: int = 0) -> Slopes:
        """One output at points of one stage of the path, 0 being where it begins and 1 where it ends.

        The first stage begins at the baseline, and the last one ends at the graph.

        Raises:
            ValueError: one sentence: why there is no path for this model.
        """

    @abstractmethod
    def size(self) -> int:
        """About how many bytes the gradient of one token takes."""

    def chunks(self, copies: int, *, gradients: bool) -> Iterator[slice]:
        """Copies that go through the model at once."""
        tokens = max(1, len(self.tokens))
        most = _KEPT // max(1, self.size()) if gradients else _TOKENS_AT_ONCE
        count = max(1, most // tokens)
        return (slice(start, start + count) for start in range(0, copies, count))


def removals(groups: Sequence[Sequence[int]], tokens: int) -> Bool[Tensor, "copies tokens"]:
    """Which tokens each group removes."""
    removed = torch.zeros(len(groups), tokens, dtype=torch.bool)
    for place, group in enumerate(groups):
        removed[place, list(group)] = True
    return removed
