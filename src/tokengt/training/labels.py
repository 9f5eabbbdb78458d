"""The table of labels that a training step reads: one row per graph, node or edge, all that a loss needs side by side.

Its columns are the labels of all targets; where the data has bounds (``>3.69``) then the lower bound of each target and
the upper bound of each; then auxiliary numbers, which a model learns to predict beside its targets and nobody asks for
later; and where the data has weights, last, that of the row. One table of numbers travels to a GPU and is cut by rows
there, so that no step has to put anything together. A label that is not there is NaN.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokengt.training.scaling import Scaling


@dataclass(frozen=True)
class LabelTable:
    """Where things stand in a table of labels.

    Args:
        targets: how many targets there are.
        bounded: whether bounds of each follow them.
        weighted: whether the last column is the weight of the row.
        auxiliary: how many auxiliary numbers there are.
    """

    targets: int
    bounded: bool = False
    weighted: bool = False
    auxiliary: int = 0

    def made(
        self,
        targets: Float[Tensor, "rows targets"],
        bounds: Float[Tensor, "rows bounds"] | None,
        weights: Float[Tensor, " rows"] | None,
        auxiliary: Float[Tensor, "rows auxiliary"] | None = None,
    ) -> Float[Tensor, "rows columns"]:
        """All of it side by side."""
        parts = [targets]
        if self.bounded:
            assert bounds is not None
            parts.append(bounds)
        if self.auxiliary:
            assert auxiliary is not None
            parts.append(auxiliary)
        if self.weighted:
            assert weights is not None
            parts.append(weights[:, None])
        return targets if len(parts) == 1 else torch.cat([part.to(targets.dtype) for part in parts], 1)

    def exact(self, table: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows targets"]:
        """The labels that are numbers and no bounds: what metrics compare with."""
        return table[:, : self.targets]

    def bounds(
        self, table: Float[Tensor, "rows columns"]
    ) -> tuple[Float[Tensor, "rows targets"], Float[Tensor, "rows targets"]] | None:
        """Lower and upper bounds of the labels that are bounds; None for a table without."""
        if not self.bounded:
            return None
        return table[:, self.targets : 2 * self.targets], table[:, 2 * self.targets : 3 * self.targets]

    def beside(self, table: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows auxiliary"]:
        """The auxiliary numbers."""
        start = self.targets * (3 if self.bounded else 1)
        return table[:, start : start + self.auxiliary]

    def weights(self, table: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows 1"] | None:
        """What each row counts; 0 for one that is of another part, and so blank."""
        return torch.nan_to_num(table[:, -1:]) if self.weighted else None

    def present(self, table: Float[Tensor, "rows columns"]) -> Bool[Tensor, "rows targets"]:
        """Which labels there are, as numbers or as bounds."""
        there = ~torch.isnan(self.exact(table))
        for bound in self.bounds(table) or ():
            there = there | ~torch.isnan(bound)
        return there

    def wanted(
        self, table: Float[Tensor, "rows columns"], said: Float[Tensor, "rows targets"], scaling: Scaling
    ) -> tuple[Float[Tensor, "rows targets"], Bool[Tensor, "rows targets"]]:
        """The scaled labels, and which of them count: a bound that the prediction ``said`` keeps to does not."""

        def scaled(labels: Tensor, there: Tensor) -> Tensor:
            return torch.where(there, scaling.learned(labels.double()), 0).to(said.dtype)

        exact = self.exact(table)
        counts = ~torch.isnan(exact)
        wanted, bounds = scaled(exact, counts), self.bounds(table)
        if bounds is None:
            return wanted, counts
        for bound, missed in zip(bounds, (torch.lt, torch.gt), strict=True):
            there = ~torch.isnan(bound)
            at = scaled(bound, there)
            wanted = torch.where(there, at, wanted)
            counts = counts | (there & missed(said.detach(), at))
        return wanted, counts

    def counts(self, table: Float[Tensor, "rows columns"]) -> Int[Tensor, " rows"]:
        """How many labels each row has."""
        return self.present(table).sum(1)

    def beside_loss(self, output: Float[Tensor, "rows auxiliary"], table: Tensor) -> Float[Tensor, ""]:
        """The mean squared error of each row's auxiliary numbers, summed over rows; what is not known is no error."""
        wanted = self.beside(table)
        there = ~torch.isnan(wanted)
        errors = torch.where(there, output, 0) - torch.where(there, wanted, 0).to(output.dtype)
        return errors.square().sum() / self.auxiliary
