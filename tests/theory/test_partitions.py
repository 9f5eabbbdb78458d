"""Equality patterns against enumeration: Definition 3, Lemmas 2 and 3."""

import re
from collections import Counter
from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokengt.theory.partitions import (
    PatternSplit,
    bell_number,
    count_keys,
    is_empty,
    join_pattern,
    mobius,
    num_blocks,
    pattern_of,
    patterns,
    split_pattern,
)

SPLITS = [(q, k) for q in range(4) for k in range(4) if q + k <= 5]
INDICES = st.lists(st.integers(0, 4), max_size=7)


def test_patterns_of_small_orders_by_hand() -> None:
    assert patterns(0) == ((),)
    assert patterns(1) == ((0,),)
    assert patterns(2) == ((0, 0), (0, 1))
    assert patterns(3) == ((0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (0, 1, 2))
    assert [num_blocks(pattern) for pattern in patterns(3)] == [1, 2, 2, 2, 3]
    assert num_blocks(()) == 0


@pytest.mark.parametrize(("order", "bell"), list(enumerate([1, 1, 2, 5, 15, 52, 203, 877])))
def test_there_are_bell_many(order: int, bell: int) -> None:
    assert bell_number(order) == len(set(patterns(order))) == bell
    assert sorted(patterns(order)) == list(patterns(order))


@given(INDICES, st.permutations(range(5)))
def test_a_pattern_is_what_renumbering_keeps(index: list[int], renumber: list[int]) -> None:
    pattern = pattern_of(index)
    assert pattern in patterns(len(index))
    assert pattern_of([renumber[entry] for entry in index]) == pattern
    assert [[a == b for b in pattern] for a in pattern] == [[a == b for b in index] for a in index]


def test_some_patterns_are_empty_when_nodes_are_few() -> None:
    """16 of the 203 order-6 patterns name five or six nodes; without nodes only the empty tuple is left."""
    assert sum(is_empty(pattern, 4) for pattern in patterns(6)) == 16
    for order, nodes in product(range(5), range(5)):
        seen = {pattern_of(index) for index in product(range(nodes), repeat=order)}
        assert seen == {pattern for pattern in patterns(order) if not is_empty(pattern, nodes)}


def test_a_split_by_hand() -> None:
    split = split_pattern((0, 1, 1, 2, 1), 2)
    assert split == PatternSplit((0, 1), (0, 1, 0), ((False, False, False), (True, False, True)))
    assert split.num_matched == 1
    assert split_pattern((0, 0, 1), 0) == PatternSplit((), (0, 0, 1), ())
    assert split_pattern((0, 0, 1), 3) == PatternSplit((0, 0, 1), (), ((), (), ()))


@pytest.mark.parametrize(("q", "k"), SPLITS)
def test_lemma_2_queries_and_keys_of_a_pattern_fill_one_pattern_each(q: int, k: int) -> None:
    nodes = range(q + k)
    members: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for index in product(nodes, repeat=q + k):
        members.setdefault(pattern_of(index), []).append(index)
    for pattern, indices in members.items():
        split = split_pattern(pattern, q)
        assert {index[:q] for index in indices} == {i for i in product(nodes, repeat=q) if pattern_of(i) == split.query}
        assert {index[q:] for index in indices} == {j for j in product(nodes, repeat=k) if pattern_of(j) == split.key}


@given(INDICES, INDICES)
def test_lemma_3_the_split_tells_the_pattern(i: list[int], j: list[int]) -> None:
    """(i, j) lies in mu just where its three tests pass: no two patterns share a split, and (i, j) passes its own."""
    split = split_pattern(pattern_of([*i, *j]), len(i))
    assert split.query == pattern_of(i)
    assert split.key == pattern_of(j)
    assert split.equal == tuple(tuple(a == b for b in j) for a in i)
    assert split.num_matched == len(set(i) & set(j))
    assert join_pattern(split) == pattern_of([*i, *j])


@pytest.mark.parametrize(("q", "k"), [*SPLITS, (3, 3)])
def test_splits_are_distinct_and_join_back(q: int, k: int) -> None:
    splits = [split_pattern(pattern, q) for pattern in patterns(q + k)]
    assert len(set(splits)) == bell_number(q + k)
    assert tuple(join_pattern(split) for split in splits) == patterns(q + k)


@pytest.mark.parametrize(
    "split",
    [
        PatternSplit((0, 1), (0,), ((True,), (True,))),
        PatternSplit((0, 0), (0,), ((True,), (False,))),
        PatternSplit((0,), (0, 1), ((True, True),)),
        PatternSplit((0,), (0, 0), ((False, True),)),
    ],
)
def test_equalities_that_contradict_each_other_are_refused(split: PatternSplit) -> None:
    with pytest.raises(ValueError, match="contradict"):
        join_pattern(split)


@pytest.mark.parametrize("pattern", [(5, 3), (1,), (0, 2), (1, 0), (0, -1)])
def test_labels_that_are_not_of_first_occurrence_are_refused(pattern: tuple[int, ...]) -> None:
    """(5, 3) would name six nodes, and (0, 2) three."""
    calls: list[Callable[[], object]] = [
        lambda: num_blocks(pattern),
        lambda: is_empty(pattern, 4),
        lambda: split_pattern(pattern, 1),
        lambda: count_keys(pattern, 1, 4),
        lambda: join_pattern(PatternSplit(pattern, (), ((),) * len(pattern))),
        lambda: join_pattern(PatternSplit((), pattern, ())),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=rf"^{re.escape(str(pattern))} is no equality pattern; expected .*0"):
            call()


@pytest.mark.parametrize(
    "equal", [(), ((True,),), ((True,), (False,), (False,)), ((True, False), (False,)), ((True,), ())]
)
def test_equalities_of_another_shape_are_refused(equal: tuple[tuple[bool, ...], ...]) -> None:
    with pytest.raises(ValueError, match="expected 2 rows of 1 entries"):
        join_pattern(PatternSplit((0, 1), (0,), equal))


@pytest.mark.parametrize(("q", "k", "nodes"), [(*s, n) for s in SPLITS for n in range(5) if n ** sum(s) <= 300])
def test_every_query_of_a_pattern_has_equally_many_keys(q: int, k: int, nodes: int) -> None:
    """A row sum of B^mu, counted; every query of mu's query pattern occurs, so an empty mu has none at all."""
    counts = Counter((index[:q], pattern_of(index)) for index in product(range(nodes), repeat=q + k))
    for query, pattern in product(product(range(nodes), repeat=q), patterns(q + k)):
        if pattern_of(query) == split_pattern(pattern, q).query:
            assert counts[query, pattern] == count_keys(pattern, q, nodes)
        else:
            assert counts[query, pattern] == 0


def test_count_keys_by_hand() -> None:
    assert count_keys((0, 1, 1, 2), 2, 5) == 3
    assert count_keys((0, 1, 2, 3), 2, 5) == 6
    assert count_keys((0, 0, 0, 0), 2, 5) == 1
    assert count_keys((0, 1), 0, 4) == 12
    assert count_keys((0, 1, 2, 3), 2, 3) == 0
    assert count_keys((0, 1, 0), 2, 1) == 0
    assert count_keys((), 0, 0) == 1


def test_mobius_by_hand() -> None:
    """Order 1 -> 1: sum over j != i = sum over all j - X_i."""
    assert mobius(1, 1) == ((1, -1), (0, 1))


@pytest.mark.parametrize(("q", "k"), [*SPLITS, (3, 3)])
def test_mobius_inverts_sums_over_at_least_the_equalities(q: int, k: int) -> None:
    signs = mobius(q, k)
    splits = [split_pattern(pattern, q) for pattern in patterns(q + k)]
    contains = [[_contains(more, less) for less in splits] for more in splits]
    for exact in range(len(splits)):
        terms = [(place, row[exact]) for place, row in enumerate(signs) if row[exact]]
        for other in range(len(splits)):
            assert sum(sign for place, sign in terms if contains[other][place]) == (other == exact)


def _contains(more: PatternSplit, less: PatternSplit) -> bool:
    """Whether keys of ``more`` are counted in the "at least" sum of ``less``."""
    if (more.query, more.key) != (less.query, less.key):
        return False
    pairs = zip((bit for row in more.equal for bit in row), (bit for row in less.equal for bit in row), strict=True)
    return all(a or not b for a, b in pairs)


def test_bad_orders_are_named() -> None:
    with pytest.raises(ValueError, match="order is -1"):
        patterns(-1)
    with pytest.raises(ValueError, match="query_order is 3; expected 0 to 2"):
        split_pattern((0, 1), 3)
