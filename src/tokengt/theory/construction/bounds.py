"""How far the constructions are off, as formulas in sharpness, n, k and id_dim, float64's rounding included.

With gap = a min(1, epsilon) / sqrt(d_H) and d_H = k^2 d_p + 2 d_e, a head's wrong keys weigh at most e^-gap of a right
one. Everything else is that number carried through linear maps and activations.

The paper lets a -> infinity (Eq. 27) and states no rate; these bounds are our own.
"""

import math
from collections.abc import Iterator
from functools import cache
from itertools import chain

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tokengt.theory.construction.compile import Blueprint, equivariant_layers, ign_recipe, layer_recipe, reaches
from tokengt.theory.construction.gates import (
    Activation,
    ScalarMap,
    activation_map,
    gate_strength,
    identity_map,
    lipschitz,
)
from tokengt.theory.construction.layer import absolute_weights, class_reach, key_counts, query_classes
from tokengt.theory.construction.layout import Layout
from tokengt.theory.ign import EquivariantLinear, InvariantGraphNetwork
from tokengt.theory.partitions import EqualityPattern, count_keys, is_empty, patterns, split_pattern
from tokengt.theory.scoring import TypeKind, largest_score

# Half the distance from 1 to the next float64: the largest relative error of one rounding.
UNIT_ROUNDING = 2.0**-53


def logit_gap(order: int, id_dim: int, sharpness: float, types: TypeKind = "circle") -> float:
    """a min(1, epsilon) / sqrt(k^2 d_p + 2 d_e): how far below a right key's logit every wrong key's is (Lemma 1)."""
    layout = Layout(order, 1, id_dim, types)
    return sharpness * min(1.0, layout.margin) / math.sqrt(layout.head_dim)


def attention_leak(
    pattern: EqualityPattern, num_nodes: int, id_dim: int, sharpness: float, types: TypeKind = "circle"
) -> float:
    """A bound on |alpha_ij - B^mu_ij / sum_j B^mu_ij| for i of gamma^Q in exact arithmetic (Lemma 1).

    With c right keys and m = n^k - c wrong ones, a wrong key gets at most e^-gap / c, and each right one, 1 / c in the
    limit, loses at most m e^-gap / c^2. So e^-gap / c max(1, m / c).
    """
    order = len(pattern) // 2
    right = _right_keys(pattern, num_nodes)
    wrong = int(num_nodes**order) - right
    if not wrong:
        return 0.0
    return math.exp(-logit_gap(order, id_dim, sharpness, types)) / right * max(1.0, wrong / right)


def attention_error(
    pattern: EqualityPattern, num_nodes: int, id_dim: int, sharpness: float, types: TypeKind = "circle"
) -> float:
    """The error that :func:`attention_leak` bounds, in closed form.

    The keys of a query i are as many of each pattern nu of (i, j) as ``count_keys`` says, and all of one nu have one
    logit. With w_nu = exp(-a / sqrt(d_H) times nu's distance from the largest score) and W = sum_nu count_nu w_nu over
    the wrong ones, a right key is off by W / (c (c + W)) and a wrong one has w_nu / (c + W).
    """
    layout = Layout(len(pattern) // 2, 1, id_dim, types)
    right, scale = _right_keys(pattern, num_nodes), sharpness / math.sqrt(layout.head_dim)
    total = largest = 0.0
    for count, distance in _rivals(pattern, num_nodes, layout):
        weight = math.exp(-scale * distance)
        total, largest = total + count * weight, max(largest, weight)
    return max(total / right, largest) / (right + total)


@cache
def closest_rival(order: int, num_nodes: int, types: TypeKind = "circle") -> float | None:
    """How far below the largest score the closest wrong key of any head is; None if no head has a wrong key.

    At least min(1, epsilon) (Property 1), and just that once there are nodes enough: errors fall as
    exp(-a closest / sqrt(d_H)).
    """
    layout = Layout(order, 1, num_nodes, types)
    heads = (mu for mu in patterns(2 * order) if not is_empty(mu, num_nodes))
    return min((distance for mu in heads for _, distance in _rivals(mu, num_nodes, layout)), default=None)


def _rivals(pattern: EqualityPattern, num_nodes: int, layout: Layout) -> Iterator[tuple[int, float]]:
    """How many wrong keys a query of the pattern has, and how far below the largest score, for every other pattern."""
    order, wanted = layout.order, split_pattern(pattern, layout.order)
    products = (layout.identifiers @ layout.identifiers.T).tolist()[patterns(order).index(wanted.key)]
    top = largest_score(pattern, order)
    for nu, place, equal in _by_query(order)[wanted.query]:
        if nu != pattern and not is_empty(nu, num_nodes):
            matches = zip(chain(*wanted.equal), equal, strict=True)
            score = 1 + products[place] + sum(1 if sign else -1 for sign, same in matches if same)
            yield count_keys(nu, order, num_nodes), top - score


@cache
def _by_query(order: int) -> dict[EqualityPattern, list[tuple[EqualityPattern, int, tuple[bool, ...]]]]:
    """All patterns of order 2k by their query's: each with the place of its key's and the equalities across."""
    found: dict[EqualityPattern, list[tuple[EqualityPattern, int, tuple[bool, ...]]]] = {}
    for nu in patterns(2 * order):
        split = split_pattern(nu, order)
        entry = (nu, patterns(order).index(split.key), tuple(chain(*split.equal)))
        found.setdefault(split.query, []).append(entry)
    return found


def attention_rounding(
    pattern: EqualityPattern, num_nodes: int, id_dim: int, sharpness: float, types: TypeKind = "circle"
) -> float:
    """What float64 adds to :func:`attention_leak`: it grows with a, so that more sharpness stops helping."""
    layout = Layout(len(pattern) // 2, 1, id_dim, types)
    relative = 2 * _logit_rounding(layout, sharpness) + (int(num_nodes**layout.order) + 8) * UNIT_ROUNDING
    return relative / _right_keys(pattern, num_nodes)


def attention_bound(
    pattern: EqualityPattern, num_nodes: int, id_dim: int, sharpness: float, types: TypeKind = "circle"
) -> float:
    """Lemma 1's error in float64: :func:`attention_leak` + :func:`attention_rounding`."""
    arguments = (pattern, num_nodes, id_dim, sharpness, types)
    return attention_leak(*arguments) + attention_rounding(*arguments)


def layer_bound(
    layer: EquivariantLinear,
    num_nodes: int,
    sharpness: float,
    input_bound: float,
    *,
    id_dim: int | None = None,
    activation: Activation = "relu",
    types: TypeKind = "one_hot",
) -> float:
    """A bound on |T(X) - L_{k->k}(X)| of :func:`compile_layer`, for every |X| <= input_bound (Theorem 1).

    A row of alpha is off by at most 2 m e^-gap / c in sum; times count c and |X w_mu| that is
    2 e^-gap sum_mu m_mu |X w_mu| over the heads of a class, and rounding.
    """
    recipe = layer_recipe(layer, num_nodes, sharpness, input_bound, id_dim=id_dim, activation=activation, types=types)
    bound = torch.full((layer.weight.shape[1],), recipe.input_bound, dtype=torch.float64)
    return float(_deviation(layer, recipe, bound, torch.zeros_like(bound), identity_map()).max())


def layer_rounding(
    layer: EquivariantLinear,
    num_nodes: int,
    sharpness: float,
    input_bound: float,
    *,
    id_dim: int | None = None,
    activation: Activation = "relu",
    types: TypeKind = "one_hot",
) -> float:
    """The part of :func:`layer_bound` that is float64's: by how much two orders of the same sums may differ, halved."""
    recipe = layer_recipe(layer, num_nodes, sharpness, input_bound, id_dim=id_dim, activation=activation, types=types)
    bound = torch.full((layer.weight.shape[1],), recipe.input_bound, dtype=torch.float64)
    reach = class_reach(layer, num_nodes, bound)
    return float(_layer_rounding(recipe, reach, recipe.input_bound, identity_map()).max())


def ign_bound(
    ign: InvariantGraphNetwork,
    num_nodes: int,
    sharpness: float,
    input_bound: float | None = None,
    *,
    id_dim: int | None = None,
    activation: Activation | None = None,
    types: TypeKind = "one_hot",
    pieces: int = 128,
) -> float:
    """A bound on |model(X) - F_k(X)| of :func:`compile_ign`, for every |X| <= input_bound (Theorem 2).

    The deviation D_t of layer t's output obeys D_t <= sum_mu count_mu |w_mu| D_{t-1} + (Theorem 1's at the bound on
    |X| there), sigma multiplies it by its largest slope and adds the cost of another activation, pooling sums it over
    a class, and the MLP multiplies it by |W|. The factors are worst cases: the bound falls with e^-gap as the error
    does, from far above it.
    """
    recipe = ign_recipe(
        ign, num_nodes, sharpness, input_bound, id_dim=id_dim, activation=activation, types=types, pieces=pieces
    )
    layers = equivariant_layers(ign)
    sigma = activation_map(ign.config.activation, recipe.activation, recipe.pieces)
    slope = lipschitz(ign.config.activation)
    bound = torch.full((layers[0].weight.shape[1],), recipe.input_bound, dtype=torch.float64)
    off = torch.zeros_like(bound)
    reach_by_layer = reaches(layers, num_nodes, recipe.input_bound, sigma.error)
    for layer, reach in zip(layers[:-1], reach_by_layer[:-1], strict=True):
        off = slope * _deviation(layer, recipe, bound, off, sigma).amax(0) + sigma.error
        bound = reach.amax(0) + sigma.error
    last = _deviation(layers[-1], recipe, bound, off, identity_map())
    return _through_readout(ign, recipe, reach_by_layer[-1], last)


def _through_readout(
    ign: InvariantGraphNetwork,
    recipe: Blueprint,
    reach: Float[Tensor, "classes dim"],
    off: Float[Tensor, "classes dim"],
) -> float:
    """Sum over each class, L_{k->0}, MLP: sizes and deviations times |W|; each product rounds."""
    order = recipe.layout.order
    members = torch.tensor([count_keys(gamma, 0, recipe.num_nodes) for gamma in patterns(order)]).double()[:, None]
    weight, bias = absolute_weights(ign.invariant)
    size = torch.einsum("gc,gco->o", members * reach, weight) + bias[0]
    deviation = torch.einsum("gc,gco->o", members * off, weight)
    terms = float(members.sum()) + recipe.layout.dim + weight.shape[2] + 16
    slope = lipschitz(ign.config.activation)
    linears = [part for part in ign.mlp if isinstance(part, nn.Linear)]
    for place, linear in enumerate(linears):
        absolute, shift = (part.detach().cpu().double().abs() for part in (linear.weight, linear.bias))
        deviation = (slope if place else 1.0) * deviation + terms * UNIT_ROUNDING * size
        deviation, size = absolute @ deviation, absolute @ size + shift
        terms = linear.in_features + 16
    return float((deviation + terms * UNIT_ROUNDING * size).max())


def _deviation(
    layer: EquivariantLinear,
    recipe: Blueprint,
    bound: Float[Tensor, " in_dim"],
    off: Float[Tensor, " in_dim"],
    sigma: ScalarMap,
) -> Float[Tensor, "classes out_dim"]:
    """Theorem 1's error by class where |X| <= ``bound`` and X itself is ``off``; sigma's own error is not in it."""
    layout, order = recipe.layout, recipe.layout.order
    weight, bias = absolute_weights(layer)
    right = key_counts(order, recipe.num_nodes)
    wrong = torch.where(right > 0, recipe.num_nodes**order - right, 0.0)
    gap = logit_gap(order, layout.id_dim, recipe.sharpness, layout.types)
    # Both rows of weights sum to 1, so they cannot differ by more than 2 in sum.
    leak = torch.minimum(2 * right, 2 * math.exp(-gap) * wrong)
    classes = torch.tensor(query_classes(order))
    inherited = right[:, None] * torch.einsum("c,hco->ho", off, weight)
    leaked = leak[:, None] * torch.einsum("c,hco->ho", bound, weight)
    exact = torch.zeros_like(bias).index_add(0, classes, inherited + leaked)
    reach = class_reach(layer, recipe.num_nodes, bound)
    return exact + _layer_rounding(recipe, reach, float(bound.max()), sigma)


def _layer_rounding(
    recipe: Blueprint, reach: Float[Tensor, "classes out_dim"], bound: float, sigma: ScalarMap
) -> Float[Tensor, "classes out_dim"]:
    """What float64 adds: logits off by their rounding, and every sum by its terms times u.

    Sizes are those of what is passed (sigma's units), cleared (X and S) and, where type identifiers are not one-hot,
    of the gate that must cancel.
    """
    layout = recipe.layout
    inner, shift, outer = sigma.inner.abs()[:, None, None], sigma.shift.abs()[:, None, None], sigma.outer.abs()
    passed = torch.einsum("u,ugo->go", outer, inner * reach + shift)
    sizes = passed + 2 * reach + 2 * bound
    if layout.types != "one_hot":
        strength = gate_strength(sigma, reach.flatten(), recipe.activation).view(-1, *reach.shape)
        sizes = sizes + torch.einsum("u,ugo->go", outer, strength) / layout.margin
    hidden = 2 * layout.dim + layout.num_classes * layout.width * len(outer)
    terms = int(recipe.num_nodes**layout.order) + layout.num_heads * layout.width + layout.dim + hidden + 16
    logits = 2 * _logit_rounding(layout, recipe.sharpness)
    return logits * reach + terms * UNIT_ROUNDING * sizes


def _logit_rounding(layout: Layout, sharpness: float) -> float:
    """A bound on a logit's rounding error, for identifiers orthonormal to within (2 d_p + 16) u.

    A logit is a / sqrt(d_H) times d_H products that sum to at most k^2 + 2 in size; each product carries a few
    roundings and the sum d_H. Identifiers enter k^2 times with what they are off, and the model refuses those that are
    further off (:func:`tokengt.models.tokengt.guard.orthonormal_within`).
    """
    size = sharpness * (layout.order**2 + 2) / math.sqrt(layout.head_dim)
    return (2 * layout.head_dim + 16) * UNIT_ROUNDING * size


def _right_keys(pattern: EqualityPattern, num_nodes: int) -> int:
    if is_empty(pattern, num_nodes):
        raise ValueError(f"pattern {pattern} has no members among {num_nodes} nodes; Lemma 1 says nothing of it")
    return count_keys(pattern, len(pattern) // 2, num_nodes)
