"""Theorem 1: any L_{k->k} as one block of the production encoder."""

import torch
from jaxtyping import Float
from torch import Tensor

from tokengt.attention import MultiheadAttention
from tokengt.theory.construction.gates import Activation, ScalarMap, Units, class_gate, gated, identity_map, mapped
from tokengt.theory.construction.layout import Layout
from tokengt.theory.construction.lemma import pour_basis
from tokengt.theory.ign import EquivariantLinear
from tokengt.theory.partitions import count_keys, patterns, split_pattern


def key_counts(order: int, num_nodes: int) -> Float[Tensor, " heads"]:
    """Row sums of every B^mu: what undoes the softmax's normalisation (g of Eq. 34)."""
    counts = [count_keys(mu, order, num_nodes) for mu in patterns(2 * order)]
    return torch.tensor(counts, dtype=torch.float64)


def query_classes(order: int) -> list[int]:
    """The class gamma^Q of every head's queries, as a place in ``patterns(order)``."""
    places = {gamma: place for place, gamma in enumerate(patterns(order))}
    return [places[split_pattern(mu, order).query] for mu in patterns(2 * order)]


def absolute_weights(
    layer: EquivariantLinear,
) -> tuple[Float[Tensor, "patterns in_dim out_dim"], Float[Tensor, "classes out_dim"]]:
    """|w_mu| and |b_lambda|, float64 on the CPU."""
    return layer.weight.detach().cpu().double().abs(), layer.bias.detach().cpu().double().abs()


def class_reach(
    layer: EquivariantLinear, num_nodes: int, bound: Float[Tensor, " in_dim"]
) -> Float[Tensor, "classes out_dim"]:
    """A bound on |S_gamma + b_gamma| for every token, of class gamma or not.

    Attention rows are convex whatever the token, so |S_gamma| <= sum over its heads of count_mu sum_c bound_c |w_mu|_c,
    with ``bound`` on |X| by channel.
    """
    order = layer.in_order
    weight, bias = absolute_weights(layer)
    by_head = key_counts(order, num_nodes)[:, None] * torch.einsum("c,hco->ho", bound, weight)
    return bias.index_add(0, torch.tensor(query_classes(order)), by_head)


@torch.no_grad()
def pour_attention(
    attention: MultiheadAttention, layer: EquivariantLinear, layout: Layout, num_nodes: int, sharpness: float
) -> None:
    """Lemma 1's heads, with count_mu w_mu in w^O of head mu (Eq. 28), added to the channels S_gamma of its query class.

    The count depends on n and mu alone, so it needs no MLP. Head mu's rows outside gamma^Q hold any finite average.
    """
    pour_basis(attention, layout, sharpness)
    weight = key_counts(layout.order, num_nodes)[:, None, None] * layer.weight.detach().cpu().double()
    in_dim, out_dim = weight.shape[1:]
    for head, gamma in enumerate(query_classes(layout.order)):
        columns = slice(head * attention.heads.value, head * attention.heads.value + in_dim)
        block = layout.sums(gamma)
        attention.out_proj.weight[block.start : block.start + out_dim, columns] = weight[head].T


def layer_units(
    layer: EquivariantLinear,
    layout: Layout,
    reach: Float[Tensor, "classes out_dim"],
    sigma: ScalarMap,
    activation: Activation,
    *,
    last: bool = False,
) -> Units:
    """f of Eq. 33: X <- sum_gamma [class gamma] sigma(S_gamma + b_gamma), identifiers kept, S <- 0.

    The ``last`` block of Theorem 2 is f' of Eq. 42: S_gamma <- [class gamma] (S_gamma + b_gamma) and all other channels
    are cleared.

    Args:
        layer: L_{k->k}.
        layout: the channels.
        reach: see :func:`class_reach`.
        sigma: the activation that follows L, in units of the encoder's.
        activation: the encoder's.
        last: as above.
    """
    eye = torch.eye(layout.dim, dtype=torch.float64)
    bias = layer.bias.detach().cpu().double()
    out_dim = bias.shape[1]
    cleared = eye if last else torch.cat([eye[layout.features], eye[layout.input_dim :]])
    parts = [mapped(identity_map(), cleared, cleared.T, -1.0)]
    for gamma in range(layout.num_classes):
        block = eye[layout.sums(gamma)][:out_dim]
        target = block if last else eye[layout.features][:out_dim]
        gate = class_gate(layout, gamma)
        parts.append(gated(sigma, block, bias[gamma], target.T, gate, reach[gamma], activation))
    return Units.join(parts)
