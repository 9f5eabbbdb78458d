"""How queries, keys and values lie in one row."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

Rows = Float[Tensor, "tokens heads _"]


@dataclass(frozen=True)
class Heads:
    """The layout of a row as one linear layer writes it: the queries of all heads, then all keys, then all values.

    Args:
        count: H, the number of heads.
        key: d_H, the width of a query and of a key.
        value: d_v, the width of a value.
    """

    count: int
    key: int
    value: int

    @property
    def width(self) -> int:
        return self.count * (2 * self.key + self.value)

    def split(self, qkv: Float[Tensor, "tokens width"]) -> tuple[Rows, Rows, Rows]:
        """Queries, keys and values of every head: views of the rows."""
        rows, widths = len(qkv), (self.key, self.key, self.value)
        query, key, value = torch.split(qkv, [self.count * width for width in widths], dim=1)
        return (
            query.view(rows, self.count, self.key),
            key.view(rows, self.count, self.key),
            value.view(rows, self.count, self.value),
        )
