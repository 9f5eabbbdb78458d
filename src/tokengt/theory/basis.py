"""Basis tensors of equivariant linear layers (Definition 4): the weight basis B^mu and the bias basis C^lambda.

A basis tensor is dense (over all multi-indices of n nodes) or restricted to listed tokens: then it is read off a
[queries, keys] table of patterns, whose size does not depend on n. All tokens of one call belong to one graph; a token
that is listed twice has two rows and two columns.
"""

from functools import cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokengt.theory.partitions import EqualityPattern, bell_number, pattern_of, patterns, split_pattern
from tokengt.theory.tuples import Tuples, pattern_places


def multi_indices(num_nodes: int, order: int) -> Int[Tensor, "order tuples"]:
    """[n]^order, lexicographically."""
    return Tuples.dense(num_nodes, order).index


def bias_basis(pattern: EqualityPattern, num_nodes: int) -> Bool[Tensor, "..."]:
    """C^lambda with axes [n] * l: where a multi-index has the pattern lambda (Definition 4, Eq. 11)."""
    members = bias_basis_on(multi_indices(num_nodes, len(pattern)), pattern)
    return members.view([num_nodes] * len(pattern))


def weight_basis(pattern: EqualityPattern, num_nodes: int, query_order: int) -> Bool[Tensor, "queries keys"]:
    """B^mu as the matrix from n^k keys to n^l queries that Eq. (2) multiplies X with (Definition 4, Eq. 11)."""
    queries = multi_indices(num_nodes, query_order)
    keys = multi_indices(num_nodes, len(pattern) - query_order)
    return weight_basis_on(queries, pattern, keys)


def weight_bases(num_nodes: int, query_order: int, key_order: int) -> Bool[Tensor, "patterns queries keys"]:
    """All bell(l+k) of :func:`weight_basis`, in the order of ``patterns(l + k)``."""
    places = token_patterns(multi_indices(num_nodes, query_order), multi_indices(num_nodes, key_order))
    every = torch.arange(bell_number(query_order + key_order))
    return places == every[:, None, None]


def bias_basis_on(tokens: Int[Tensor, "order tokens"], pattern: EqualityPattern) -> Bool[Tensor, " tokens"]:
    """C^lambda restricted to the listed tokens."""
    return pattern_places(tokens) == _place(pattern, tokens.shape[0])


def weight_basis_on(
    tokens: Int[Tensor, "query_order queries"],
    pattern: EqualityPattern,
    keys: Int[Tensor, "key_order keys"] | None = None,
) -> Bool[Tensor, "queries keys"]:
    """B^mu restricted to the listed tokens as queries, and to ``keys``, or the same tokens, as keys."""
    key_order = tokens.shape[0] if keys is None else keys.shape[0]
    return token_patterns(tokens, keys) == _place(pattern, tokens.shape[0] + key_order)


def token_patterns(
    tokens: Int[Tensor, "query_order *graphs queries"], keys: Int[Tensor, "key_order *graphs keys"] | None = None
) -> Int[Tensor, "*graphs queries keys"]:
    """The place in ``patterns(l + k)`` of the pattern of every (query, key): Lemma 3's tests, read as one number.

    Tokens of several graphs of one size may be given at once; keys are those of the same graph.
    """
    keys = tokens if keys is None else keys
    query_order, key_order = tokens.shape[0], keys.shape[0]
    query_places, key_places = (pattern_places(each.flatten(1)).view(each.shape[1:]) for each in (tokens, keys))
    codes = query_places[..., :, None] * bell_number(key_order) + key_places[..., None, :]
    # By Lemma 3 the two patterns and the bits i_a = j_b decide the pattern of (i, j): together they make one code.
    for a in range(query_order):
        for b in range(key_order):
            codes = codes * 2 + (tokens[a][..., :, None] == keys[b][..., None, :])
    all_codes, places = torch.sort(_known_codes(query_order, key_order).to(tokens.device))
    return places[torch.searchsorted(all_codes, codes)]


def normalise_rows(basis: Bool[Tensor, "*rest queries keys"]) -> Float[Tensor, "*rest queries keys"]:
    """Rows that sum to one, as a softmax's do (Lemma 1), in float64; rows without a key stay zero."""
    return basis.double() / basis.sum(-1, keepdim=True).clamp(min=1)


@cache
def _known_codes(query_order: int, key_order: int) -> Int[Tensor, " patterns"]:
    """What :func:`token_patterns` reads off (i, j), for every order-(l+k) pattern."""
    codes = []
    for pattern in patterns(query_order + key_order):
        split = split_pattern(pattern, query_order)
        code = _place(split.query, query_order) * bell_number(key_order) + _place(split.key, key_order)
        for bit in (bit for row in split.equal for bit in row):
            code = code * 2 + bit
        codes.append(code)
    return torch.tensor(codes)


def _place(pattern: EqualityPattern, order: int) -> int:
    if len(pattern) != order or pattern_of(pattern) != pattern:
        raise ValueError(f"{pattern} is no equality pattern of order {order}; expected one of patterns({order})")
    return patterns(order).index(pattern)
