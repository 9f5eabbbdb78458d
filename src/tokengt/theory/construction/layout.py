"""Where things lie in a token: [X, P_{i_1}, ..., P_{i_k}, E, S_gamma for every class gamma]."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from tokengt.theory.partitions import bell_number
from tokengt.theory.scoring import TypeKind, type_identifiers, type_margin


@dataclass(frozen=True)
class Layout:
    """The channels of a token in the proofs, and the widths that follow.

    The proofs keep one block of d channels per head. Heads whose queries are of the same class gamma are only ever
    added up, so one block S_gamma per class is enough: bell(k) d channels instead of bell(2k) d.

    Args:
        order: k.
        width: d, the channels of X (the widest layer's).
        id_dim: d_p.
        types: how type identifiers are spaced.
    """

    order: int
    width: int
    id_dim: int
    types: TypeKind

    @property
    def identifiers(self) -> Float[Tensor, "types width"]:
        return type_identifiers(self.order, self.types)

    @property
    def margin(self) -> float:
        return type_margin(self.order, self.types)

    @property
    def num_classes(self) -> int:
        return bell_number(self.order)

    @property
    def num_heads(self) -> int:
        return bell_number(2 * self.order)

    @property
    def type_dim(self) -> int:
        """d_e."""
        return self.identifiers.shape[1]

    @property
    def head_dim(self) -> int:
        """d_H = k^2 d_p + 2 d_e."""
        return self.order**2 * self.id_dim + 2 * self.type_dim

    @property
    def dim(self) -> int:
        return self.input_dim + self.num_classes * self.width

    @property
    def input_dim(self) -> int:
        """D = d + k d_p + d_e: the channels of X^in."""
        return self.width + self.order * self.id_dim + self.type_dim

    @property
    def features(self) -> slice:
        return slice(0, self.width)

    def node_id(self, place: int) -> slice:
        """P_{i_a}, a counted from 0."""
        start = self.width + place * self.id_dim
        return slice(start, start + self.id_dim)

    @property
    def type_id(self) -> slice:
        return slice(self.input_dim - self.type_dim, self.input_dim)

    def sums(self, gamma: int) -> slice:
        """S_gamma: what the heads with queries of class gamma add up to."""
        start = self.input_dim + gamma * self.width
        return slice(start, start + self.width)
