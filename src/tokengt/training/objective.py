"""What the training loop asks of something to learn that is no table of targets, such as several losses at once."""

from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from tokengt.training.labels import LabelTable


@runtime_checkable
class Objective(Protocol):
    """A loss to make small, and which epoch is the best one by it.

    ``metric`` names the measure that chooses the best epoch, ``out_dim`` how many outputs of the model a loss reads.
    The loop divides a summed loss by the number of labels that ``table`` counts.
    """

    @property
    def metric(self) -> str: ...

    @property
    def out_dim(self) -> int: ...

    @property
    def table(self) -> LabelTable: ...

    def loss_sum(
        self, output: Float[Tensor, "rows out"], targets: Float[Tensor, "rows columns"]
    ) -> Float[Tensor, ""]: ...

    def is_better(self, value: float, best: float | None) -> bool: ...

    def validated(self, output: Float[Tensor, "rows out"], targets: Float[Tensor, "rows columns"]) -> dict[str, Any]:
        """``valid_loss`` and ``valid``, measures by name, as a record of an epoch has them."""
        ...
