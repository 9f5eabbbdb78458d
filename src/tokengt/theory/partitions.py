"""Equality patterns of multi-indices (Definition 3): counted, split into query and key (Lemmas 2 and 3), and joined.

What a pattern is, and how it splits, stands in :mod:`tokengt.structure.patterns`, which models read too.
"""

from functools import cache
from itertools import product
from math import prod

from tokengt.structure.patterns import (
    EqualityPattern,
    PatternSplit,
    bell_number,
    check_pattern,
    check_split,
    growth_strings,
    pattern_of,
    split_pattern,
)

__all__ = [
    "EqualityPattern",
    "PatternSplit",
    "bell_number",
    "count_keys",
    "is_empty",
    "join_pattern",
    "mobius",
    "num_blocks",
    "pattern_of",
    "patterns",
    "split_pattern",
]


def patterns(order: int) -> tuple[EqualityPattern, ...]:
    """The bell(order) equality patterns of ``order``-tuples, in lexicographic order (Definition 3)."""
    if order < 0:
        raise ValueError(f"order is {order}; expected 0 or more")
    return growth_strings(order)


def num_blocks(pattern: EqualityPattern) -> int:
    """How many different nodes a multi-index of this pattern names."""
    check_pattern(pattern)
    return max(pattern, default=-1) + 1


def is_empty(pattern: EqualityPattern, num_nodes: int) -> bool:
    """Whether no multi-index over ``num_nodes`` nodes has this pattern: it asks for more nodes than there are."""
    return num_blocks(pattern) > num_nodes


def join_pattern(split: PatternSplit) -> EqualityPattern:
    """The order-(l+k) pattern with this split: the inverse of :func:`split_pattern`.

    Raises:
        ValueError: no multi-index (i, j) has this query pattern, key pattern and equalities at once.
    """
    fresh = num_blocks(split.query)
    check_pattern(split.key)
    if [len(row) for row in split.equal] != [len(split.key)] * len(split.query):
        raise ValueError(
            f"equal is {split.equal}; expected {len(split.query)} rows of {len(split.key)} entries, a row for every "
            "query entry and in it an entry for every key entry"
        )
    labels = list(split.query)
    for b, block in enumerate(split.key):
        matched = [label for label, row in zip(split.query, split.equal, strict=True) if row[b]]
        labels.append(matched[0] if matched else fresh + block)
    joined = pattern_of(labels)
    if split_pattern(joined, len(split.query)) != split:
        raise ValueError(f"no pattern splits into {split}: its equalities contradict each other")
    return joined


@cache
def count_keys(pattern: EqualityPattern, query_order: int, num_nodes: int) -> int:
    """How many j in [n]^k make (i, j) one of mu, the same for every i of its query pattern: a row sum of B^mu.

    The blocks that only j has take different nodes that i does not name: (n - p)(n - p - 1)... for p query blocks.
    """
    check_split(pattern, query_order)
    if is_empty(pattern, num_nodes):
        return 0
    named = num_blocks(pattern[:query_order])
    return prod(num_nodes - block for block in range(named, num_blocks(pattern)))


@cache
def mobius(query_order: int, key_order: int) -> tuple[tuple[int, ...], ...]:
    """Integers ``Z[mu'][mu]`` that turn sums over "just the equalities of mu" into sums over "at least those of mu'".

    With A_mu'(i) the sum of X_j over keys of mu's key pattern that agree with i wherever mu' says so (and perhaps
    elsewhere), sum_j B^mu_ij X_j = sum_mu' ``Z[mu'][mu]`` A_mu'(i). Equalities across are a one-to-one matching of
    blocks, and any part of a matching is one, so Moebius inversion is inclusion-exclusion:
    Z = (-1)^(matched in mu' - matched in mu) where mu' has mu's query and key pattern and contains its equalities.
    """
    splits = [split_pattern(pattern, query_order) for pattern in patterns(query_order + key_order)]
    return tuple(tuple(_sign(coarse, fine) for fine in splits) for coarse in splits)


def _sign(coarse: PatternSplit, fine: PatternSplit) -> int:
    if (coarse.query, coarse.key) != (fine.query, fine.key):
        return 0
    places = product(range(len(fine.query)), range(len(fine.key)))
    contained = all(coarse.equal[a][b] or not fine.equal[a][b] for a, b in places)
    return (-1) ** (coarse.num_matched - fine.num_matched) if contained else 0
