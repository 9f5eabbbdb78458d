"""The theorems measured on random cases: what the production code gives against what it should, beside the bound."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tokengt.batch import GraphBatch
from tokengt.block import Block
from tokengt.models.features import FeatureSpec
from tokengt.models.tokengt.identifiers import Identifiers, OrfIds
from tokengt.models.tokengt.token_batch import TokenBatch
from tokengt.models.tokengt.tokens import Tokenizer, TokensConfig
from tokengt.theory.basis import multi_indices, token_patterns
from tokengt.theory.construction.bounds import UNIT_ROUNDING, attention_bound, ign_bound, layer_bound
from tokengt.theory.construction.compile import ign_model, ign_recipe, layer_model, layer_recipe, pour_tokenizer
from tokengt.theory.construction.gates import Activation
from tokengt.theory.construction.layout import Layout
from tokengt.theory.construction.lemma import basis_attention
from tokengt.theory.construction.message_passing import (
    MessagePassingLayer,
    graph_tensor,
    message_passing_ign,
    pass_messages,
)
from tokengt.theory.construction.tensors import encode_tensor, tensor_graph
from tokengt.theory.ign import EquivariantLinear, IGNConfig, InvariantGraphNetwork
from tokengt.theory.lift import lift_ign, lift_tensor
from tokengt.theory.partitions import EqualityPattern, is_empty, patterns
from tokengt.theory.scoring import TypeKind, largest_score, pattern_score, type_identifiers
from tokengt.theory.tuples import Tuples

# Where the fall of errors is measured: e^-12 is 6e-6 and e^-20 is 2e-9.
_GAPS = (12.0, 16.0, 20.0)
# Stands for an error of zero, which has no logarithm.
_NOTHING = 1e-300


@dataclass(frozen=True)
class Agreement:
    """How well a construction meets its theorem.

    Args:
        error: the largest absolute difference.
        bound: what it may be at most.
        scale: the largest absolute value that was to be met.
    """

    error: float
    bound: float
    scale: float

    @property
    def relative(self) -> float:
        return self.error / self.scale if self.scale else self.error

    @property
    def holds(self) -> bool:
        return self.error <= self.bound


def orthonormal_ids(num_nodes: int, id_dim: int, generator: torch.Generator) -> Float[Tensor, "nodes id_dim"]:
    """n orthonormal rows in general position, float64."""
    gaussian = torch.randn(id_dim, num_nodes, generator=generator, dtype=torch.float64)
    rows: Tensor = torch.linalg.qr(gaussian).Q.T
    return rows


def property_1_gap(order: int, num_nodes: int, types: TypeKind = "circle") -> float:
    """How far below its pattern's score every other pair of multi-indices is: at least min(1, epsilon) (Property 1).

    The smallest over all patterns of order 2k and all (i, j); -inf if a pair of the pattern scores below its maximum.
    Epsilon is read off the type identifiers, and not taken from the formula that the result is compared with.
    """
    tuples, margin = multi_indices(num_nodes, order), measured_margin(order, types)
    places, smallest = token_patterns(tuples), []
    for place, mu in enumerate(patterns(2 * order)):
        below = largest_score(mu, order) - pattern_score(tuples, tuples, mu, margin)
        right = places == place
        if bool((below[right] != 0).any()):
            return float("-inf")
        smallest += [float(below[~right].min())] if not bool(right.all()) else []
    return min(smallest)


def measured_margin(order: int, types: TypeKind = "circle") -> float:
    """epsilon of the type identifiers themselves: 1 minus the largest product of two of them; 1 if there is one."""
    identifiers = type_identifiers(order, types)
    others = (identifiers @ identifiers.T)[~torch.eye(len(identifiers), dtype=torch.bool)]
    return 1 - float(others.max()) if others.numel() else 1.0


def decay_rate(error: Callable[[float], float], unit: float) -> float:
    """-d ln error / d gap between the logit gaps 12, 16 and 20, of sharpness ``unit`` each: 1 if it falls as e^-gap.

    Of the two slopes the one that is further from 1. There the leak is small enough to be linear, and far above what
    float64 rounds. One slope alone could be 1 by chance, where an error that falls too fast meets the rounding.
    """
    logs = [math.log(max(error(gap * unit), _NOTHING)) for gap in _GAPS]
    slopes = [
        (soft - sharp) / (high - low)
        for (soft, sharp), (low, high) in zip(pairwise(logs), pairwise(_GAPS), strict=True)
    ]
    return max(slopes, key=lambda slope: abs(slope - 1))


def unidentified_error(order: int, num_nodes: int, sharpness: float = 1000.0, types: TypeKind = "circle") -> float:
    """:func:`lemma_1_errors`, the largest, where X is constant and all nodes have the same identifier: none.

    Tokens of one class are then equal and get equal weight from every query, whatever the weights of the attention. A
    head that should pick one of c > 1 such keys is off by 1 - 1/c at least.
    """
    layout = Layout(order, 1, num_nodes, types)
    x = torch.ones(*[num_nodes] * order, 1, dtype=torch.float64)
    tokens = augmented_tokens(x, torch.zeros(num_nodes, layout.id_dim, dtype=torch.float64), layout)
    return max(_head_errors(tokens, num_nodes, layout, sharpness).values())


def lemma_1_errors(
    order: int,
    num_nodes: int,
    id_dim: int | None = None,
    sharpness: float = 1000.0,
    types: TypeKind = "circle",
    *,
    seed: int = 0,
) -> dict[EqualityPattern, float]:
    """max |alpha^h_ij - B^mu_ij / sum_j B^mu_ij| over i of gamma^Q and all j, for every non-empty mu (Lemma 1).

    alpha is the production attention's, on the production tokenizer's tokens of a random X; ``id_dim`` None for n.
    """
    generator = torch.Generator().manual_seed(seed)
    layout = Layout(order, 1, num_nodes if id_dim is None else id_dim, types)
    x = torch.randn(*[num_nodes] * order, 1, generator=generator, dtype=torch.float64)
    tokens = augmented_tokens(x, orthonormal_ids(num_nodes, layout.id_dim, generator), layout)
    return _head_errors(tokens, num_nodes, layout, sharpness)


def _head_errors(tokens: TokenBatch, num_nodes: int, layout: Layout, sharpness: float) -> dict[EqualityPattern, float]:
    attention = basis_attention(layout.order, layout.id_dim, sharpness, types=layout.types)
    with torch.no_grad():
        maps = attention.attention_weights(tokens.values, tokens.segments)[0]
    places, errors = token_patterns(tokens.endpoints.T), {}
    for head, mu in enumerate(patterns(2 * layout.order)):
        if is_empty(mu, num_nodes):
            continue
        basis = (places == head).double()
        rows = basis.sum(1) > 0
        target = basis[rows] / basis[rows].sum(1, keepdim=True)
        errors[mu] = float((maps[head][rows] - target).abs().max())
    return errors


def lemma_1_agreement(
    order: int,
    num_nodes: int,
    id_dim: int | None = None,
    sharpness: float = 1000.0,
    types: TypeKind = "circle",
    *,
    seed: int = 0,
) -> Agreement:
    """:func:`lemma_1_errors` in one: the largest error and that head's bound, or a head that breaks its own, if any."""
    width = num_nodes if id_dim is None else id_dim
    errors = lemma_1_errors(order, num_nodes, width, sharpness, types, seed=seed)
    bounds = {mu: attention_bound(mu, num_nodes, width, sharpness, types) for mu in errors}
    worst = max(errors, key=lambda mu: (errors[mu] > bounds[mu], errors[mu]))
    return Agreement(errors[worst], bounds[worst], 1.0)


def augmented_tokens(x: Float[Tensor, "*nodes dim"], node_ids: Float[Tensor, "n id_dim"], layout: Layout) -> TokenBatch:
    """X' = X^in w^in by the production tokenizer: [X, P_{i_1}, ..., P_{i_k}, E, 0] (the proof of Lemma 1)."""
    spec = FeatureSpec(width=x.shape[-1])
    config = TokensConfig(
        node_features=spec,
        edge_features=spec if layout.order > 1 else FeatureSpec(),
        order=layout.order,
        graph_token=False,
    )
    tokenizer = Tokenizer(layout.dim, config, OrfIds(dim=layout.id_dim)).double()
    pour_tokenizer(tokenizer, layout)
    with torch.no_grad():
        tokens: TokenBatch = tokenizer(GraphBatch.collate([tensor_graph(x)]), Identifiers(node_ids))
    return tokens


def layer_agreement(
    order: int,
    num_nodes: int,
    sharpness: float = 200.0,
    *,
    channels: int = 4,
    id_dim: int | None = None,
    activation: Activation = "relu",
    types: TypeKind = "one_hot",
    input_bound: float = 1.0,
    seed: int = 0,
) -> Agreement:
    """A random L_{k->k} against one Transformer block on a random X (Theorem 1)."""
    generator = torch.Generator().manual_seed(seed)
    layer = EquivariantLinear(order, order, channels, channels).double()
    randomise(layer, generator)
    x = random_tensor(num_nodes, order, channels, input_bound, generator)
    ids = orthonormal_ids(num_nodes, num_nodes if id_dim is None else id_dim, generator)
    recipe = layer_recipe(layer, num_nodes, sharpness, input_bound, id_dim=id_dim, activation=activation, types=types)
    model = layer_model(layer, recipe)
    bound = layer_bound(layer, num_nodes, sharpness, input_bound, id_dim=id_dim, activation=activation, types=types)
    with torch.no_grad():
        wanted = layer(x.flatten(0, -2), *[Tuples.dense(num_nodes, order)] * 2).view(x.shape)
        measured = encode_tensor(model, x, ids)[..., :channels]
    return _compare(measured, wanted, bound)


def silenced_agreement(
    order: int,
    num_nodes: int,
    sharpness: float = 200.0,
    *,
    channels: int = 4,
    activation: Activation = "relu",
    types: TypeKind = "one_hot",
    loudest: bool = False,
    seed: int = 0,
) -> Agreement:
    """What heads of other query classes (empty rows of B^mu) leave in a token, ``scale`` before and ``error`` after.

    ``loudest``: weights above zero and X at its bound everywhere, so that all sums are as large as gates are made for.

    After the last block of Theorem 2 the channels of class gamma must be zero on every other token (Eq. 45). For ReLU
    they are, without rounding; for GELU as far as S - (GELU(S) - GELU(-S)) rounds.
    """
    generator = torch.Generator().manual_seed(seed)
    ign = InvariantGraphNetwork(IGNConfig(order, (channels, channels), activation)).double()
    randomise(ign, generator)
    x = random_tensor(num_nodes, order, channels, 1.0, generator)
    if loudest:
        x = torch.ones_like(x)
        for parameter in ign.parameters():
            parameter.data.abs_()
    ids = orthonormal_ids(num_nodes, num_nodes, generator)
    model = ign_model(ign, ign_recipe(ign, num_nodes, sharpness, 1.0, types=types))
    layout = Layout(order, channels, num_nodes, types)
    with torch.no_grad():
        tokens = augmented_tokens(x, ids, layout)
        block = model.encoder.blocks[0]
        assert isinstance(block, Block)
        plan = model.encoder.plan(tokens.segments)
        before = tokens.values + block.attention(tokens.values, plan)
        after = block(tokens.values, plan)
    other = torch.stack([tokens.kinds != gamma for gamma in range(layout.num_classes)], 1)
    received, left = (
        (part[:, layout.input_dim :].view(len(part), layout.num_classes, channels).abs() * other[..., None]).max()
        for part in (before, after)
    )
    return Agreement(float(left), 0.0 if activation == "relu" else 4 * UNIT_ROUNDING * float(received), float(received))


def ign_agreement(
    order: int,
    num_nodes: int,
    sharpness: float = 400.0,
    *,
    dims: tuple[int, ...] = (2, 4, 4, 3),
    ign_activation: Activation = "relu",
    id_dim: int | None = None,
    activation: Activation | None = None,
    types: TypeKind = "one_hot",
    pieces: int = 128,
    input_bound: float = 1.0,
    seed: int = 0,
) -> Agreement:
    """A random k-IGN with ``len(dims) - 1`` layers and an MLP against the Transformer compiled from it (Theorem 2)."""
    generator = torch.Generator().manual_seed(seed)
    config = IGNConfig(order, dims, ign_activation, invariant_dim=4, mlp_dims=(8,), out_dim=3)
    ign = InvariantGraphNetwork(config).double()
    randomise(ign, generator)
    x = random_tensor(num_nodes, order, dims[0], input_bound, generator)
    ids = orthonormal_ids(num_nodes, num_nodes if id_dim is None else id_dim, generator)
    recipe = ign_recipe(
        ign, num_nodes, sharpness, input_bound, id_dim=id_dim, activation=activation, types=types, pieces=pieces
    )
    model = ign_model(ign, recipe)
    bound = ign_bound(
        ign, num_nodes, sharpness, input_bound, id_dim=id_dim, activation=activation, types=types, pieces=pieces
    )
    with torch.no_grad():
        return _compare(model(tensor_graph(x), ids), ign(x.flatten(0, -2), Tuples.dense(num_nodes, order)), bound)


def message_passing_agreement(
    num_nodes: int,
    sharpness: float = 400.0,
    *,
    order: int = 2,
    widths: tuple[int, ...] = (2, 3, 3),
    activation: Activation = "relu",
    loudest: bool = False,
    seed: int = 0,
) -> Agreement:
    """A random message-passing network on a random graph against the Transformer compiled from its k-IGN (Corollary 2).

    Both give sum_i h_i after all layers; a message is sigma of both ends' states and an edge feature. Above order 2
    the 2-IGN is lifted. ``loudest``: weights above zero and features at their bound, so that gates are tried hardest.
    """
    generator = torch.Generator().manual_seed(seed)
    layers = [random_message_layer(before, after, generator) for before, after in pairwise(widths)]
    features = random_tensor(num_nodes, 1, widths[0], 1.0, generator)
    edge_features = random_tensor(num_nodes, 2, 1, 1.0, generator)
    if loudest:
        layers = [layer.absolute() for layer in layers]
        features, edge_features = torch.ones_like(features), torch.ones_like(edge_features)
    adjacency = torch.rand(num_nodes, num_nodes, generator=generator) < 0.5
    ign, x = message_passing_ign(layers, num_nodes, 1.0, activation), graph_tensor(features, adjacency, edge_features)
    for _ in range(order - 2):
        ign, x = lift_ign(ign), lift_tensor(x)
    model = ign_model(ign, ign_recipe(ign, num_nodes, sharpness, 1.0))
    ids = orthonormal_ids(num_nodes, num_nodes, generator)
    with torch.no_grad():
        measured = model(tensor_graph(x), ids)
    wanted = pass_messages(layers, features, adjacency, activation, edge_features).sum(0, keepdim=True)
    return _compare(measured, wanted, ign_bound(ign, num_nodes, sharpness, 1.0))


def random_message_layer(dim: int, out: int, generator: torch.Generator) -> MessagePassingLayer:
    """Gaussian weights; messages as wide as the output, one feature per edge."""
    shapes = ((dim, out), (dim, out), (1, out), (out,), (out, out), (dim, out), (out,))
    return MessagePassingLayer(*(torch.randn(shape, generator=generator, dtype=torch.float64) / 2 for shape in shapes))


def random_tensor(
    num_nodes: int, order: int, channels: int, bound: float, generator: torch.Generator
) -> Float[Tensor, "*nodes channels"]:
    """Uniform numbers, scaled so that the largest one has the size ``bound``."""
    x = 2 * torch.rand(*[num_nodes] * order, channels, generator=generator, dtype=torch.float64) - 1
    return bound * (x / x.abs().max())


@torch.no_grad()
def randomise(module: nn.Module, generator: torch.Generator) -> None:
    """Standard normal weights and biases."""
    for parameter in module.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))


def _compare(found: Float[Tensor, "*shape"], wanted: Float[Tensor, "*shape"], bound: float) -> Agreement:
    return Agreement(float((found - wanted).abs().max()), bound, float(wanted.abs().max()))
