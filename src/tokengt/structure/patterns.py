"""Equality patterns: which entries of a tuple of nodes are equal, and how a pattern of (i, j) splits into i and j.

A pattern is written as first-occurrence labels: (0, 0) is a diagonal entry, (0, 1) an off-diagonal one. Patterns are
listed lexicographically. In an order-(l+k) pattern mu the query multi-index i comes first, then the key multi-index j.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Int
from torch import Tensor

EqualityPattern = tuple[int, ...]


@cache
def bell_number(order: int) -> int:
    """How many equality patterns an ``order``-tuple can have: 1, 1, 2, 5, 15, 52, 203, ..."""
    row = [1]
    for _ in range(order):
        row = [row[-1], *row]
        for place in range(1, len(row)):
            row[place] += row[place - 1]
    return row[0]


@cache
def growth_strings(order: int) -> tuple[EqualityPattern, ...]:
    """All equality patterns in lexicographic order, each as first-occurrence labels.

    (0, 0), (0, 1) for pairs: a diagonal entry, an off-diagonal entry. bell(order) of them, whatever n is.
    """
    strings: list[EqualityPattern] = [()]
    for _ in range(order):
        strings = [(*s, label) for s in strings for label in range(max(s, default=-1) + 2)]
    return tuple(strings)


def pattern_of(index: Sequence[int]) -> EqualityPattern:
    """The pattern of one multi-index: (7, 3, 7) has (0, 1, 0)."""
    labels: dict[int, int] = {}
    return tuple(labels.setdefault(entry, len(labels)) for entry in index)


def check_pattern(pattern: EqualityPattern) -> None:
    """Refuse labels that are not those of first occurrences."""
    if pattern_of(pattern) != pattern:
        raise ValueError(f"{pattern} is no equality pattern; expected first-occurrence labels, {pattern_of(pattern)}")


def check_split(pattern: EqualityPattern, query_order: int) -> None:
    """Refuse a query that is longer than the pattern."""
    check_pattern(pattern)
    if not 0 <= query_order <= len(pattern):
        raise ValueError(f"query_order is {query_order}; expected 0 to {len(pattern)}, the order of {pattern}")


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
    check_split(pattern, query_order)
    query, key = pattern[:query_order], pattern[query_order:]
    equal = tuple(tuple(a == b for b in key) for a in query)
    return PatternSplit(query, pattern_of(key), equal)


def equality_sign(pattern: EqualityPattern, query_order: int) -> Int[Tensor, "query_order key_order"]:
    """sgn(a, b): +1 where the pattern says i_a = j_b, -1 where it says they differ (Definition 5, Eq. 17)."""
    equal = split_pattern(pattern, query_order).equal
    key_order = len(pattern) - query_order
    return 2 * torch.tensor(equal, dtype=torch.int64).view(query_order, key_order) - 1
