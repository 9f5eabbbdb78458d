"""The score that picks one equality pattern out of all: what a query, a key and their dot product must say (Lemma 1).

Whether (i, j) is of pattern mu is a test of i, a test of j and k l tests i_a = j_b (Lemma 3). Node identifiers answer
the last, type identifiers the first two, and the score is the largest just where all answers are yes (Property 1).
"""

import math
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokengt.structure.patterns import EqualityPattern, bell_number, equality_sign, split_pattern
from tokengt.theory.partitions import patterns
from tokengt.theory.tuples import pattern_places

TypeKind = Literal["circle", "one_hot"]


def type_identifiers(order: int, kind: TypeKind = "circle") -> Float[Tensor, "types width"]:
    """E, a unit row for every equality pattern of order k, in float64.

    "circle": equispaced on the circle, width 2 whatever k is (the paper). "one_hot": width bell(k), rows orthonormal.
    """
    if kind not in get_args(TypeKind):
        raise ValueError(f"types is {kind!r}; expected 'circle' or 'one_hot'")
    count = bell_number(order)
    if kind == "one_hot":
        return torch.eye(count, dtype=torch.float64)
    angle = 2 * math.pi / count * torch.arange(count, dtype=torch.float64)
    return torch.stack([angle.cos(), angle.sin()], 1)


def type_margin(order: int, kind: TypeKind = "circle") -> float:
    """epsilon: two different type identifiers have a dot product of at most 1 - epsilon.

    1 - cos(2 pi / bell(k)) on the circle, 1 for one-hot rows. Sets (k = 1) have one type and nothing to tell apart;
    the paper's formula gives 0 there, and any positive number serves: 1.
    """
    if kind == "one_hot" or order < 2:
        return 1.0
    return 1 - math.cos(2 * math.pi / bell_number(order))


def pattern_score(
    queries: Int[Tensor, "query_order queries"],
    keys: Int[Tensor, "key_order keys"],
    pattern: EqualityPattern,
    margin: float,
) -> Float[Tensor, "queries keys"]:
    """delta(i, j; mu, epsilon) of Definition 5 (Eq. 16) for every query i and key j (columns), in float64.

    One for i in its class or 1 - epsilon, the same for j, and sgn(a, b) for every i_a = j_b.
    """
    split = split_pattern(pattern, len(queries))
    sign = equality_sign(pattern, len(queries)).to(queries.device, torch.float64)
    equal = (queries[:, None, :, None] == keys[None, :, None, :]).double()
    score = torch.einsum("ab,abij->ij", sign, equal)
    return score + _class_term(queries, split.query, margin)[:, None] + _class_term(keys, split.key, margin)


def largest_score(pattern: EqualityPattern, query_order: int) -> int:
    """The score of every (i, j) of the pattern, and of no other pair (Property 1): 2 and one for each i_a = j_b."""
    return 2 + int((equality_sign(pattern, query_order) > 0).sum())


def _class_term(
    tuples: Int[Tensor, "order tuples"], pattern: EqualityPattern, margin: float
) -> Float[Tensor, " tuples"]:
    other = pattern_places(tuples) != patterns(len(pattern)).index(pattern)
    return 1 - margin * other.double()
