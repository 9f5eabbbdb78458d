"""Equality patterns of multi-indices (Definition 3) and how a pattern of (i, j) splits into i, j and i_a = j_b.

A pattern is written as first-occurrence labels: (0, 0) is a diagonal entry, (0, 1) an off-diagonal one. Patterns are
listed lexicographically. In an order-(l+k) pattern mu the query multi-index i comes first, then the key multi-index j.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod

from tokengt.structure.tuples import bell_number, growth_strings

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

EqualityPattern = tuple[int, ...]


def patterns(order: int) -> tuple[EqualityPattern, ...]:
    """The bell(order) equality patterns of ``order``-tuples, in lexicographic order (Definition 3)."""
    if order < 0:
        raise ValueError(f"order is {order}; expected 0 or more")
    return growth_strings(order)


def pattern_of(index: Sequence[int]) -> EqualityPattern:
    """The pattern of one multi-index: (7, 3, 7) has (0, 1, 0)."""
    labels: dict[int, int] = {}
    return tuple(labels.setdefault(entry, len(labels)) for entry in index)


def num_blocks(pattern: EqualityPattern) -> int:
    """How many different nodes a multi-index of this pattern names."""
    _check_pattern(pattern)
    return max(pattern, default=-1) + 1


def is_empty(pattern: EqualityPattern, num_nodes: int) -> bool:
    """Whether no multi-index over ``num_nodes`` nodes has this pattern: it asks for more nodes than there are."""
    return num_blocks(pattern) > num_nodes


@dataclass(frozen=True)
class PatternSplit:
    """What Lemma 3 tests of (i, j) in mu: i in ``query``, j in ``key``, and i_a = j_b exactly where ``equal[a][b]``."""

    query: EqualityPattern
    key: EqualityPattern
    equal: tuple[tuple[bool, ...], ...]

    @property
    def num_matched(self) -> int:
        """How many different nodes i and j have in common."""
        return len({label for label, row in zip(self.query, self.equal, strict=True) if any(row)})


@cache
def split_pattern(pattern: EqualityPattern, query_order: int) -> PatternSplit:
    """The query pattern, the key pattern (Lemma 2) and the equalities across of an order-(l+k) pattern (Lemma 3)."""
    _check_split(pattern, query_order)
    query, key = pattern[:query_order], pattern[query_order:]
    equal = tuple(tuple(a == b for b in key) for a in query)
    return PatternSplit(query, pattern_of(key), equal)


def join_pattern(split: PatternSplit) -> EqualityPattern:
    """The order-(l+k) pattern with this split: the inverse of :func:`split_pattern`.

    Raises:
        ValueError: no multi-index (i, j) has this query pattern, key pattern and equalities at once.
    """
    fresh = num_blocks(split.query)
    _check_pattern(split.key)
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
    _check_split(pattern, query_order)
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


def _check_pattern(pattern: EqualityPattern) -> None:
    if pattern_of(pattern) != pattern:
        raise ValueError(f"{pattern} is no equality pattern; expected first-occurrence labels, {pattern_of(pattern)}")


def _check_split(pattern: EqualityPattern, query_order: int) -> None:
    _check_pattern(pattern)
    if not 0 <= query_order <= len(pattern):
        raise ValueError(f"query_order is {query_order}; expected 0 to {len(pattern)}, the order of {pattern}")
