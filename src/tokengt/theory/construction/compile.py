"""Theorems 1 and 2: a given equivariant layer, or a whole k-IGN, as weights of a TokenGT."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tokengt.block import Block, EncoderConfig
from tokengt.models.features import FeatureSpec
from tokengt.models.tokengt.config import TokenGTConfig
from tokengt.models.tokengt.guard import Domain
from tokengt.models.tokengt.heads import Head, HeadConfig
from tokengt.models.tokengt.identifiers import OrfIds
from tokengt.models.tokengt.model import TokenGT
from tokengt.models.tokengt.tokens import Tokenizer, TokensConfig
from tokengt.theory.construction.gates import (
    Activation,
    ScalarMap,
    Units,
    activation_map,
    identity_map,
    pour_units,
)
from tokengt.theory.construction.layer import class_reach, key_counts, layer_units, pour_attention
from tokengt.theory.construction.layout import Layout
from tokengt.theory.ign import EquivariantLinear, InvariantGraphNetwork
from tokengt.theory.scoring import TypeKind

# The share of its weight that a head may give to wrong keys before a caller is warned.
_BLUNT = 0.1
# e^-37 is float64's rounding: a larger logit gap changes nothing.
_SHARP_GAP = 37.0


@dataclass(frozen=True)
class Blueprint:
    """What a construction is made for and with.

    Args:
        layout: the channels of a token.
        num_nodes: n.
        sharpness: a.
        input_bound: a bound on |X|.
        activation: the encoder's.
        pieces: of GELU by ReLU, see :func:`activation_map`.
    """

    layout: Layout
    num_nodes: int
    sharpness: float
    input_bound: float
    activation: Activation
    pieces: int = 128

    def __post_init__(self) -> None:
        if self.num_nodes < 1:
            raise ValueError(f"num_nodes is {self.num_nodes}; expected at least 1")
        if self.layout.id_dim < self.num_nodes:
            raise ValueError(
                f"id_dim is {self.layout.id_dim} for {self.num_nodes} nodes; orthonormal identifiers need id_dim >= n"
            )
        if not (0 < self.sharpness < math.inf and 0 < self.input_bound < math.inf):
            raise ValueError(
                f"sharpness is {self.sharpness} and input_bound {self.input_bound}; expected positive finite numbers"
            )

    @property
    def wrong_share(self) -> float:
        """A bound on the share of its weight that any head gives to wrong keys: W / (c + W), W = m e^-gap.

        Of n^k keys c are right and m wrong, each at most e^-gap as heavy as a right one.
        """
        right = key_counts(self.layout.order, self.num_nodes)
        wrong = (self.num_nodes**self.layout.order - right)[right > 0] * math.exp(-self.sharpness / self.unit)
        return float((wrong / (right[right > 0] + wrong)).max())

    @property
    def unit(self) -> float:
        """The sharpness that makes the logit gap 1: sqrt(d_H) / min(1, type margin)."""
        return math.sqrt(self.layout.head_dim) / min(1.0, self.layout.margin)


def compile_layer(
    layer: EquivariantLinear,
    num_nodes: int,
    sharpness: float,
    input_bound: float,
    *,
    id_dim: int | None = None,
    activation: Activation = "relu",
    types: TypeKind = "one_hot",
) -> TokenGT:
    """L_{k->k} as one Transformer block (Theorem 1).

    ``encode_tensor(model, x)[..., :out_dim]`` is L(X) for every dense X [n, ..., n, in_dim] with |X| <= input_bound,
    within :func:`layer_bound`. The head sums it over all entries. Arguments as in :func:`compile_ign`.
    """
    if layer.in_order != layer.out_order or layer.in_order < 1:
        raise ValueError(f"the layer goes from order {layer.in_order} to {layer.out_order}; expected one order k >= 1")
    recipe = layer_recipe(layer, num_nodes, sharpness, input_bound, id_dim=id_dim, activation=activation, types=types)
    _warn_if_blunt(recipe)
    return layer_model(layer, recipe)


def layer_model(layer: EquivariantLinear, recipe: Blueprint) -> TokenGT:
    """:func:`compile_layer` of a recipe, however blunt it is."""
    layout, out_dim = recipe.layout, layer.weight.shape[2]
    units = layer_chain([layer], recipe, identity_map(), last=False)
    model = _pour([layer], units, recipe, HeadConfig(out_dim=out_dim, readout="sum"))
    with torch.no_grad():
        _linears(model.head)[0].weight[:, layout.features][:, :out_dim] = torch.eye(out_dim, dtype=torch.float64)
    return model


def compile_ign(
    ign: InvariantGraphNetwork,
    num_nodes: int,
    sharpness: float,
    input_bound: float | None = None,
    *,
    id_dim: int | None = None,
    activation: Activation | None = None,
    types: TypeKind = "one_hot",
    pieces: int = 128,
) -> TokenGT:
    """A k-IGN as T Transformer blocks, sum-pooling and an MLP (Theorem 2): weights of a plain TokenGT, nothing trained.

    ``model(tensor_graph(x))`` is F_k(X) within :func:`ign_bound` for every dense X [n, ..., n, d_0] with
    |X| <= input_bound and any orthonormal identifiers, the model's own draws or yours. Class counts are those of n
    nodes and the gates those of the bound: the model refuses other inputs and identifiers, and so does a copy read back
    from a file. Too little sharpness to tell keys apart is a warning. Float64 whatever the IGN's precision, in
    evaluation mode, on the CPU.

    Args:
        ign: F_k, of order 1 to 3.
        num_nodes: n.
        sharpness: a; attention is off by e^(-gap), gap = a min(1, type margin) / sqrt(d_H).
        input_bound: a bound on |X|; None for the one that the IGN was made for (:func:`message_passing_ign`).
        id_dim: d_p, at least n; None for n. Wider identifiers widen d_H and need more sharpness.
        activation: the encoder's; None for the IGN's own, where the MLPs are exact. Another one costs
            what :func:`activation_map` says, in every layer.
        types: type identifiers; one-hot ones make the gates exact.
        pieces: points of GELU by ReLU.
    """
    recipe = ign_recipe(
        ign, num_nodes, sharpness, input_bound, id_dim=id_dim, activation=activation, types=types, pieces=pieces
    )
    _warn_if_blunt(recipe)
    return ign_model(ign, recipe)


def ign_model(ign: InvariantGraphNetwork, recipe: Blueprint) -> TokenGT:
    """:func:`compile_ign` of a recipe, however blunt it is."""
    layers = equivariant_layers(ign)
    sigma = activation_map(ign.config.activation, recipe.activation, recipe.pieces)
    units = layer_chain(layers, recipe, sigma, last=True)
    hidden = ign.config.mlp_dims
    activation_of_head: Activation = ign.config.activation if hidden else "gelu"
    head = HeadConfig(out_dim=ign.config.out_dim, readout="sum", hidden=hidden, activation=activation_of_head)
    model = _pour(layers, units, recipe, head)
    _pour_readout(model.head, ign, recipe.layout)
    return model


def _warn_if_blunt(recipe: Blueprint) -> None:
    if recipe.wrong_share > _BLUNT:
        warnings.warn(
            f"sharpness {recipe.sharpness:g} is too small for {recipe.num_nodes} nodes: a head may give "
            f"{recipe.wrong_share:.0%} of its weight to wrong keys, so that the outputs mean little; from "
            f"{_SHARP_GAP * recipe.unit:.0f} on nothing but rounding is left",
            stacklevel=3,
        )


def layer_recipe(
    layer: EquivariantLinear,
    num_nodes: int,
    sharpness: float,
    input_bound: float,
    *,
    id_dim: int | None = None,
    activation: Activation = "relu",
    types: TypeKind = "one_hot",
) -> Blueprint:
    """What :func:`compile_layer` builds from."""
    width = max(layer.weight.shape[1:])
    layout = Layout(layer.in_order, width, num_nodes if id_dim is None else id_dim, types)
    return Blueprint(layout, num_nodes, float(sharpness), float(input_bound), activation)


def ign_recipe(
    ign: InvariantGraphNetwork,
    num_nodes: int,
    sharpness: float,
    input_bound: float | None,
    *,
    id_dim: int | None = None,
    activation: Activation | None = None,
    types: TypeKind = "one_hot",
    pieces: int = 128,
) -> Blueprint:
    """What :func:`compile_ign` builds from."""
    bound = _input_bound(ign, num_nodes, input_bound)
    layout = Layout(ign.config.order, max(ign.config.dims), num_nodes if id_dim is None else id_dim, types)
    used = activation or ign.config.activation
    return Blueprint(layout, num_nodes, float(sharpness), bound, used, pieces)


def _input_bound(ign: InvariantGraphNetwork, num_nodes: int, wanted: float | None) -> float:
    """The bound on |X| to compile for: the one that is asked for, or the IGN's own, which it may not exceed."""
    made_for = ign.domain
    if made_for is None:
        if wanted is None:
            raise ValueError("input_bound is missing; this network was made for no bound of its own on |X|")
        return float(wanted)
    bound = made_for.input_bound if wanted is None else float(wanted)
    if num_nodes > made_for.max_nodes or bound > made_for.input_bound:
        raise ValueError(
            f"num_nodes is {num_nodes} and input_bound {bound:g}; the network was made for at most "
            f"{made_for.max_nodes} nodes and |X| up to {made_for.input_bound:g}, and is wrong beyond"
        )
    return bound


def equivariant_layers(ign: InvariantGraphNetwork) -> list[EquivariantLinear]:
    return [layer for layer in ign.layers if isinstance(layer, EquivariantLinear)]


def reaches(
    layers: Sequence[EquivariantLinear], num_nodes: int, input_bound: float, sigma_error: float
) -> list[Float[Tensor, "classes _"]]:
    """:func:`class_reach` of every layer, the input bound carried through: |sigma(z)| <= |z| for ReLU and GELU."""
    bound = torch.full((layers[0].weight.shape[1],), input_bound, dtype=torch.float64)
    bounds = []
    for layer in layers:
        bounds.append(class_reach(layer, num_nodes, bound))
        bound = bounds[-1].amax(0) + sigma_error
    if not all(bool(torch.isfinite(reach).all()) for reach in bounds):
        raise ValueError(f"input_bound {input_bound:g} grows beyond float64 in this network; give a smaller one")
    return bounds


def layer_chain(layers: Sequence[EquivariantLinear], recipe: Blueprint, sigma: ScalarMap, *, last: bool) -> list[Units]:
    """The MLPs of all blocks; with ``last`` the last one has no sigma and writes by class."""
    reach_by_layer = reaches(layers, recipe.num_nodes, recipe.input_bound, sigma.error)
    ends = [last and place == len(layers) - 1 for place in range(len(layers))]
    return [
        layer_units(layer, recipe.layout, reach, identity_map() if end else sigma, recipe.activation, last=end)
        for layer, reach, end in zip(layers, reach_by_layer, ends, strict=True)
    ]


@torch.no_grad()
def _pour(layers: Sequence[EquivariantLinear], units: Sequence[Units], recipe: Blueprint, head: HeadConfig) -> TokenGT:
    """The model with everything poured but the head, which is zero."""
    layout, in_dim = recipe.layout, layers[0].weight.shape[1]
    spec = FeatureSpec(width=in_dim)
    config = TokenGTConfig(
        dim=layout.dim,
        tokens=TokensConfig(
            node_features=spec,
            edge_features=spec if layout.order > 1 else FeatureSpec(),
            order=layout.order,
            graph_token=False,
        ),
        identifiers=OrfIds(dim=layout.id_dim),
        encoder=EncoderConfig(
            num_layers=len(layers),
            num_heads=layout.num_heads,
            head_dim=layout.head_dim,
            value_dim=layout.width,
            mlp_dim=max(len(part) for part in units),
            norm=False,
            final_norm=False,
            activation=recipe.activation,
        ),
        head=head,
        # Class counts and gates are right for this n and this bound only: any other input would give wrong numbers.
        domain=Domain(recipe.num_nodes, recipe.input_bound, recipe.sharpness),
    )
    model = TokenGT(config).double().eval()
    pour_tokenizer(model.tokenizer, layout)
    for block, layer, part in zip(model.encoder.blocks, layers, units, strict=True):
        assert isinstance(block, Block)
        pour_attention(block.attention, layer, layout, recipe.num_nodes, recipe.sharpness)
        pour_units(block.mlp, part)
    for parameter in model.head.parameters():
        parameter.zero_()
    return model


@torch.no_grad()
def pour_tokenizer(tokenizer: Tokenizer, layout: Layout) -> None:
    """w^in = [I, 0]: features, identifiers and types go to their channels."""
    for parameter in tokenizer.parameters():
        parameter.zero_()
    for encoder in (tokenizer.node_encoder, tokenizer.edge_encoder):
        if encoder.linear is not None:
            in_dim = encoder.linear.in_features
            encoder.linear.weight[layout.features][:in_dim] = torch.eye(in_dim, dtype=torch.float64)
    assert tokenizer.id_proj is not None
    assert tokenizer.type_embedding is not None
    ids = slice(layout.width, layout.width + layout.order * layout.id_dim)
    tokenizer.id_proj.weight[ids] = torch.eye(layout.order * layout.id_dim, dtype=torch.float64)
    tokenizer.type_embedding.weight[:, layout.type_id] = layout.identifiers


@torch.no_grad()
def _pour_readout(head: Head, ign: InvariantGraphNetwork, layout: Layout) -> None:
    """f'' of Eq. 48: sum_a X^a w_a + b, folded into the MLP's first linear map, then the MLP."""
    weight, bias = ign.invariant.weight.cpu().double(), ign.invariant.bias.cpu().double()
    first, *rest = _linears(ign.mlp)
    mixing = first.weight.cpu().double()
    poured, *others = _linears(head)
    for gamma in range(layout.num_classes):
        start = layout.sums(gamma).start
        poured.weight[:, start : start + weight.shape[1]] = mixing @ weight[gamma].T
    poured.bias.copy_(mixing @ bias[0] + first.bias.cpu())
    for target, source in zip(others, rest, strict=True):
        target.weight.copy_(source.weight)
        target.bias.copy_(source.bias)


def _linears(module: nn.Module) -> list[nn.Linear]:
    return [part for part in module.modules() if isinstance(part, nn.Linear)]
