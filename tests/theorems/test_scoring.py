"""Definition 5 and Property 1."""

from itertools import product

import pytest
import torch

from tokengt.structure.patterns import equality_sign
from tokengt.theory.construction.layout import Layout
from tokengt.theory.construction.lemma import query_key_weights
from tokengt.theory.construction.measure import augmented_tokens, orthonormal_ids, property_1_gap
from tokengt.theory.partitions import pattern_of, patterns
from tokengt.theory.scoring import (
    TypeKind,
    largest_score,
    pattern_score,
    type_identifiers,
    type_margin,
)

KINDS: tuple[TypeKind, ...] = ("circle", "one_hot")


def test_signs_by_hand() -> None:
    assert equality_sign((0, 1, 0, 1), 2).tolist() == [[1, -1], [-1, 1]]
    assert equality_sign((0, 0, 0, 1), 2).tolist() == [[1, -1], [1, -1]]
    assert equality_sign((0, 1, 2), 1).tolist() == [[-1, -1]]
    assert equality_sign((0, 1), 0).shape == (0, 2)


def test_scores_by_hand() -> None:
    """mu = (i, j) again, epsilon 2. The pair itself: 1 + 1 + 2; swapped: 1 + 1 - 2; a diagonal key: 1 - 1 + 1 - 1."""
    query, keys = torch.tensor([[3], [5]]), torch.tensor([[3, 5, 3, 4, 7], [5, 3, 3, 5, 8]])
    assert pattern_score(query, keys, (0, 1, 0, 1), 2.0).tolist() == [[4, 0, 0, 3, 2]]
    assert largest_score((0, 1, 0, 1), 2) == 4
    assert pattern_score(torch.tensor([[1], [1]]), keys, (0, 1, 0, 1), 2.0)[0, 4] == 0


@pytest.mark.parametrize(("query_order", "key_order"), [(0, 2), (1, 1), (1, 2), (2, 1), (2, 2), (3, 1)])
def test_property_1_from_its_words(query_order: int, key_order: int) -> None:
    """A pair scores the maximum if and only if it has the pattern: every multi-index of five nodes, one by one."""
    queries = list(product(range(5), repeat=query_order))
    keys = list(product(range(5), repeat=key_order))
    for mu in patterns(query_order + key_order):
        i_columns = torch.tensor(queries, dtype=torch.int64).view(len(queries), query_order).T
        score = pattern_score(i_columns, torch.tensor(keys).T, mu, 0.5)
        top = largest_score(mu, query_order)
        for (a, i), (b, j) in product(enumerate(queries), enumerate(keys)):
            if pattern_of(i + j) == mu:
                assert score[a, b] == top
            else:
                assert score[a, b] <= top - 0.5


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_property_1_has_the_margin(order: int, kind: TypeKind) -> None:
    """Wrong pairs are min(1, epsilon) below, and some just that, once there are nodes enough."""
    least = min(1.0, type_margin(order, kind))
    for nodes in (1, 2, 3, 4):
        gap = property_1_gap(order, nodes, kind)
        assert gap >= least - 1e-12
        assert nodes == 1 or gap == pytest.approx(least, abs=1e-12)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_type_identifiers_keep_the_margin(order: int, kind: TypeKind) -> None:
    types = type_identifiers(order, kind)
    products = types @ types.T
    assert torch.allclose(products.diagonal(), torch.ones(len(types), dtype=torch.float64))
    others = products[~torch.eye(len(types), dtype=torch.bool)]
    if order > 1:
        assert float(others.max()) == pytest.approx(1 - type_margin(order, kind), abs=1e-12)
    assert types.shape[1] == (2 if kind == "circle" else len(patterns(order)))


def test_margins_by_hand() -> None:
    assert type_margin(2) == 2.0
    assert type_margin(3) == pytest.approx(0.6909830056250525)
    assert type_margin(1) == type_margin(1, "one_hot") == type_margin(3, "one_hot") == 1.0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", [1, 2, 3])
def test_dot_products_of_query_and_key_are_the_score(order: int, kind: TypeKind) -> None:
    """Eq. 24 to 26: a delta for pairs of mu, at most a delta for the others; for one-hot types a delta throughout."""
    nodes, sharpness = 3, 7.0
    layout = Layout(order, 2, 4, kind)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(*[nodes] * order, 2, generator=generator, dtype=torch.float64)
    tokens = augmented_tokens(x, orthonormal_ids(nodes, 4, generator), layout)
    w_query, b_query, w_key, b_key = query_key_weights(layout, sharpness)
    tuples = tokens.endpoints.T
    for head, mu in enumerate(patterns(2 * order)):
        query, key = tokens.values @ w_query[head].T + b_query[head], tokens.values @ w_key[head].T + b_key[head]
        score = sharpness * pattern_score(tuples, tuples, mu, layout.margin)
        top = (score == sharpness * largest_score(mu, order)).double()
        assert torch.allclose(query @ key.T * top, score * top, atol=1e-12)
        assert bool((query @ key.T <= score + 1e-12).all())
        if kind == "one_hot":
            assert torch.allclose(query @ key.T, score, atol=1e-12)
