"""Lemma 1: bell(2k) heads of the production attention, each the normalised basis tensor of one pattern."""

import math
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor

from tokengt.attention import MultiheadAttention, SoftmaxConfig
from tokengt.structure.patterns import equality_sign
from tokengt.theory.construction.layout import Layout
from tokengt.theory.partitions import patterns, split_pattern
from tokengt.theory.scoring import TypeKind


def basis_attention(
    order: int, id_dim: int, sharpness: float, *, types: TypeKind = "circle", width: int = 1
) -> MultiheadAttention:
    """The production attention whose head h has alpha^h -> B^mu_h, rows normalised, as ``sharpness`` grows.

    Lemma 1, Eq. 27. Heads follow ``patterns(2 order)``. It reads tokens as :class:`Layout` lays them out, with
    ``width`` channels of X, and its values are those channels. Nothing in it depends on n: it serves any n <= id_dim.
    Float64.
    """
    layout = Layout(order, width, id_dim, types)
    attention = MultiheadAttention(layout.dim, layout.num_heads, layout.head_dim, width, SoftmaxConfig()).double()
    pour_basis(attention, layout, sharpness)
    return attention


@torch.no_grad()
def pour_basis(attention: MultiheadAttention, layout: Layout, sharpness: float) -> None:
    """Write w^Q, b^Q, w^K, b^K of the proof of Lemma 1 and w^V = [I; 0]; w^O is left zero."""
    queries, query_biases, keys, key_biases = query_key_weights(layout, sharpness)
    values = torch.zeros(layout.num_heads, attention.heads.value, layout.dim, dtype=torch.float64)
    values[:, : layout.width, layout.features] = torch.eye(layout.width, dtype=torch.float64)
    weights = [part.flatten(0, 1) for part in (queries, keys, values)]
    biases = [query_biases.flatten(), key_biases.flatten(), torch.zeros(len(weights[2]), dtype=torch.float64)]
    attention.qkv_proj.weight.copy_(torch.cat(weights))
    attention.qkv_proj.bias.copy_(torch.cat(biases))
    attention.out_proj.weight.zero_()
    attention.out_proj.bias.zero_()


def query_key_weights(
    layout: Layout, sharpness: float
) -> tuple[
    Float[Tensor, "heads head_dim dim"],
    Float[Tensor, "heads head_dim"],
    Float[Tensor, "heads head_dim dim"],
    Float[Tensor, "heads head_dim"],
]:
    """w^Q, b^Q, w^K, b^K of every head (Eq. 18 to 21), transposed as ``nn.Linear`` keeps them.

    Query i is sqrt(a) [sgn(s, r) P_{i_s} for all s, r; E^i; E^{gamma^K}], key j is
    sqrt(a) [P_{j_r} for all s, r; E^{gamma^Q}; E^j], so that their product is a delta(i, j; mu, epsilon) for (i, j) of
    mu and at most that for all other pairs (Eq. 24 to 26).
    """
    order, ids, types = layout.order, layout.id_dim, layout.identifiers
    shape = (layout.num_heads, layout.head_dim, layout.dim)
    queries, keys = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
    strings = patterns(2 * order)
    signs = torch.stack([equality_sign(mu, order) for mu in strings]).double()
    eye = torch.eye(ids, dtype=torch.float64)
    for s, r in product(range(order), repeat=2):
        rows = slice((s * order + r) * ids, (s * order + r + 1) * ids)
        queries[:, rows, layout.node_id(s)] = signs[:, s, r, None, None] * eye
        keys[:, rows, layout.node_id(r)] = eye
    own, other = slice(-2 * layout.type_dim, -layout.type_dim), slice(-layout.type_dim, None)
    queries[:, own, layout.type_id] = torch.eye(layout.type_dim, dtype=torch.float64)
    keys[:, other, layout.type_id] = torch.eye(layout.type_dim, dtype=torch.float64)
    query_biases, key_biases = torch.zeros(shape[:2], dtype=torch.float64), torch.zeros(shape[:2], dtype=torch.float64)
    places = {gamma: place for place, gamma in enumerate(patterns(order))}
    splits = [split_pattern(mu, order) for mu in strings]
    query_biases[:, other] = types[[places[split.key] for split in splits]]
    key_biases[:, own] = types[[places[split.query] for split in splits]]
    root = math.sqrt(sharpness)
    return root * queries, root * query_biases, root * keys, root * key_biases
