"""The equality patterns that attention is compared with, in words, and symmetric ones where edges have no direction.

A pattern of (i, j) = (i_1, ..., i_k, j_1, ..., j_k) says which nodes of the query i and the key j are the same
(:mod:`tokengt.theory.partitions`); at order 2 there are bell(4) = 15. One token that stands for both directions of an
edge cannot tell (u, v) from (v, u), so that patterns which differ in that alone are one: nine are left.
"""

from dataclasses import dataclass
from functools import cache
from itertools import permutations, product
from typing import Literal

from tokengt.theory.partitions import EqualityPattern, num_blocks, pattern_of, patterns

Role = Literal["self", "neighbour", "global", "special", "left over"]

# Keys of an order-2 query in words. A node is (u, u), an edge (u, v); a and b are nodes that the query does not name.
_WORDS: dict[EqualityPattern, str] = {
    (0, 0, 0, 0): "node: itself",
    (0, 0, 0, 1): "node: edges out of it",
    (0, 0, 1, 0): "node: edges into it",
    (0, 0, 1, 1): "node: other nodes",
    (0, 0, 1, 2): "node: other edges",
    (0, 1, 0, 0): "edge: its source",
    (0, 1, 0, 1): "edge: itself",
    (0, 1, 0, 2): "edge: edges of the same source",
    (0, 1, 1, 0): "edge: its reverse",
    (0, 1, 1, 1): "edge: its target",
    (0, 1, 1, 2): "edge: edges out of its target",
    (0, 1, 2, 0): "edge: edges into its source",
    (0, 1, 2, 1): "edge: edges of the same target",
    (0, 1, 2, 2): "edge: other nodes",
    (0, 1, 2, 3): "edge: other edges",
}
_SYMMETRIC_WORDS: dict[EqualityPattern, str] = {
    (0, 0, 0, 0): "node: itself",
    (0, 0, 0, 1): "node: its edges",
    (0, 0, 1, 1): "node: other nodes",
    (0, 0, 1, 2): "node: other edges",
    (0, 1, 0, 0): "edge: its nodes",
    (0, 1, 0, 1): "edge: itself",
    (0, 1, 0, 2): "edge: edges at its nodes",
    (0, 1, 2, 2): "edge: other nodes",
    (0, 1, 2, 3): "edge: other edges",
}


@dataclass(frozen=True)
class Column:
    """One column of a profile: what queries may attend to.

    Args:
        name: in words.
        role: "self" (the token itself), "neighbour" (tokens that share a node with it), "global" (tokens that share
            none), "special" ([graph], [null]) or "left over".
        members: the equality patterns that it holds, one, or at order 2 without directions up to four; none for special
            tokens and what is left over.
    """

    name: str
    role: Role
    members: tuple[EqualityPattern, ...] = ()


@cache
def pattern_columns(order: int, directed: bool) -> tuple[Column, ...]:
    """A column for each pattern of queries and keys of this order, lexicographically: 15 at order 2, or 9 symmetric."""
    every = patterns(2 * order)
    if directed:
        groups: list[tuple[EqualityPattern, ...]] = [(pattern,) for pattern in every]
    else:
        orbits = {pattern: _orbit(pattern, order) for pattern in every}
        groups = [orbits[pattern] for pattern in every if orbits[pattern][0] == pattern]
    words = {2: _WORDS if directed else _SYMMETRIC_WORDS}.get(order, {})
    return tuple(
        Column(words.get(group[0]) or _spelled(group[0], order), _role(group[0], order), group) for group in groups
    )


@cache
def column_places(order: int, directed: bool) -> tuple[int, ...]:
    """The column of every pattern of ``patterns(2 * order)``."""
    columns = pattern_columns(order, directed)
    places = {pattern: place for place, column in enumerate(columns) for pattern in column.members}
    return tuple(places[pattern] for pattern in patterns(2 * order))


@cache
def key_columns(order: int) -> tuple[Column, ...]:
    """What the [graph] token may attend to: keys of each equality pattern, at order 2 nodes and edges."""
    names = {1: ("all nodes",), 2: ("all nodes", "all edges")}.get(order)
    return tuple(
        Column(names[place] if names else f"all {_letters(pattern, {})}", "global", (pattern,))
        for place, pattern in enumerate(patterns(order))
    )


def _orbit(pattern: EqualityPattern, order: int) -> tuple[EqualityPattern, ...]:
    """The patterns that this one becomes when the nodes of the query, and those of the key, are listed otherwise."""
    found = {
        pattern_of([pattern[place] for place in (*query, *(order + key for key in keys))])
        for query, keys in product(permutations(range(order)), repeat=2)
    }
    return tuple(sorted(found))


def _role(pattern: EqualityPattern, order: int) -> Role:
    query, key = pattern[:order], pattern[order:]
    if query == key:
        return "self"
    return "neighbour" if set(query) & set(key) else "global"


def _spelled(pattern: EqualityPattern, order: int) -> str:
    """Such as "uuv: vuw" at order 3: the nodes of the query, and those of its keys."""
    letters: dict[int, str] = {}
    assert num_blocks(pattern) <= 20
    return f"{_letters(pattern[:order], letters)}: {_letters(pattern[order:], letters)}"


def _letters(labels: tuple[int, ...], known: dict[int, str]) -> str:
    return "".join(known.setdefault(label, "uvwxyzabcdefghijklmn"[len(known)]) for label in labels)
