"""A k-IGN as a (k+1)-IGN: an entry (i_1, ..., i_k) lives at (i_1, ..., i_k, i_k)."""

import torch
from jaxtyping import Float
from torch import Tensor

from tokengt.theory.ign import EquivariantLinear, IGNConfig, InvariantGraphNetwork
from tokengt.theory.partitions import EqualityPattern, pattern_of, patterns


def lift_tensor(x: Float[Tensor, "*nodes dim"]) -> Float[Tensor, "*lifted dim"]:
    """The order-(k+1) tensor with x on the entries whose last two indices are equal, zero elsewhere."""
    return torch.diag_embed(x.movedim(-1, 0)).movedim(0, -1)


@torch.no_grad()
def lift_ign(ign: InvariantGraphNetwork) -> InvariantGraphNetwork:
    """F' of order k + 1 with F'(lift_tensor(x)) = F(x): what a k-IGN computes, a (k+1)-IGN computes too.

    Its layers read only the entries that :func:`lift_tensor` fills.
    """
    config, order = ign.config, ign.config.order
    lifted = InvariantGraphNetwork(
        IGNConfig(order + 1, config.dims, config.activation, config.invariant_dim, config.mlp_dims, config.out_dim),
        ign.domain,
    ).to(ign.invariant.weight)
    for old, new in zip([*ign.layers, ign.invariant], [*lifted.layers, lifted.invariant], strict=True):
        assert isinstance(old, EquivariantLinear)
        assert isinstance(new, EquivariantLinear)
        _lift_layer(old, new)
    lifted.mlp.load_state_dict(ign.mlp.state_dict())
    return lifted


def _lift_layer(old: EquivariantLinear, new: EquivariantLinear) -> None:
    new.weight.zero_()
    new.bias.zero_()
    for place, mu in enumerate(patterns(old.out_order + old.in_order)):
        query, key = mu[: old.out_order], mu[old.out_order :]
        new.weight[_place((*_doubled(query), *_doubled(key)))] = old.weight[place]
    for place, gamma in enumerate(patterns(old.out_order)):
        new.bias[_place(_doubled(gamma))] = old.bias[place]


def _doubled(part: EqualityPattern) -> tuple[int, ...]:
    """The last entry twice; an order-0 part has none and stays."""
    return (*part, *part[-1:])


def _place(labels: tuple[int, ...]) -> int:
    return patterns(len(labels)).index(pattern_of(labels))
