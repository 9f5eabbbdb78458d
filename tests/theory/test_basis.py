"""Basis tensors against enumeration, and against the number of all equivariant maps there are (Burnside)."""

from itertools import permutations, product
from math import factorial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tokengt.theory.basis import (
    bias_basis,
    bias_basis_on,
    multi_indices,
    normalise_rows,
    token_patterns,
    weight_bases,
    weight_basis,
    weight_basis_on,
)
from tokengt.theory.partitions import bell_number, count_keys, is_empty, pattern_of, patterns

ORDERS = list(product(range(4), range(4)))


@st.composite
def token_lists(draw: st.DrawFn, order: int, nodes: int) -> Tensor:
    """Tuples in any order, some listed twice, perhaps none."""
    entries = st.lists(st.integers(0, nodes - 1), min_size=order, max_size=order)
    listed = draw(st.lists(entries, max_size=9))
    return torch.tensor(listed, dtype=torch.int64).view(len(listed), order).T


def test_the_first_order_basis_is_identity_and_the_rest() -> None:
    """L_{1->1}(X) = I X w_1 + (11^T - I) X w_2 + 1 b^T (Eq. 4)."""
    identity = torch.eye(4, dtype=torch.bool)
    assert torch.equal(weight_basis((0, 0), 4, 1), identity)
    assert torch.equal(weight_basis((0, 1), 4, 1), ~identity)
    assert torch.equal(bias_basis((0,), 4), torch.ones(4, dtype=torch.bool))


def test_second_order_members_by_hand() -> None:
    """(0, 1, 1, 0) is transposition, (0, 0, 1, 1) joins different diagonal entries, (0, 1) is off the diagonal."""
    transposed = weight_basis((0, 1, 1, 0), 3, 2)
    pairs = multi_indices(3, 2).T.tolist()
    assert [[pairs[q], pairs[k]] for q, k in transposed.nonzero().tolist()] == [
        [[i, j], [j, i]] for i, j in product(range(3), repeat=2) if i != j
    ]
    assert weight_basis((0, 0, 1, 1), 3, 2).nonzero().tolist() == [[0, 4], [0, 8], [4, 0], [4, 8], [8, 0], [8, 4]]
    assert torch.equal(bias_basis((0, 1), 3), ~torch.eye(3, dtype=torch.bool))
    assert bias_basis((), 3).item() is True


@pytest.mark.parametrize(("q", "k"), ORDERS)
def test_every_entry_against_its_definition(q: int, k: int) -> None:
    nodes = 3
    wanted = [[pattern_of((*i, *j)) for j in product(range(nodes), repeat=k)] for i in product(range(nodes), repeat=q)]
    bases = weight_bases(nodes, q, k)
    assert bases.shape == (bell_number(q + k), nodes**q, nodes**k)
    for place, pattern in enumerate(patterns(q + k)):
        assert bases[place].tolist() == [[entry == pattern for entry in row] for row in wanted]
    middle = patterns(q + k)[bell_number(q + k) // 2]
    assert torch.equal(weight_basis(middle, nodes, q), bases[bell_number(q + k) // 2])
    for pattern in patterns(q):
        wanted_bias = [pattern_of(i) == pattern for i in product(range(nodes), repeat=q)]
        assert bias_basis(pattern, nodes).flatten().tolist() == wanted_bias


@pytest.mark.parametrize(("q", "k", "nodes"), [(*s, n) for s in ORDERS for n in (1, 2, 4, 6) if n ** sum(s) <= 5000])
def test_the_basis_spans_all_equivariant_maps(q: int, k: int, nodes: int) -> None:
    """Rank = non-empty patterns = dimension of the maps that every permutation leaves alone, by Burnside's lemma.

    From n = q + k nodes on that is the Bell number; the basis is orthogonal and sums to the matrix of ones.
    """
    basis = weight_bases(nodes, q, k).flatten(1).double()
    rank = int(torch.linalg.matrix_rank(basis))
    fixed = [sum(place == image for place, image in enumerate(p)) for p in permutations(range(nodes))]
    dimension, left_over = divmod(sum(points ** (q + k) for points in fixed), factorial(nodes))
    assert left_over == 0
    assert rank == dimension == sum(not is_empty(pattern, nodes) for pattern in patterns(q + k))
    assert rank == bell_number(q + k) or nodes < q + k
    gram = basis @ basis.T
    assert torch.equal(gram, torch.diag(gram.diag()))
    assert torch.equal(basis.sum(0), torch.ones(nodes ** (q + k), dtype=torch.float64))


@given(st.data(), st.integers(0, 3), st.integers(0, 3), st.integers(1, 4))
def test_restriction_is_the_dense_basis_at_the_listed_tokens(data: st.DataObject, q: int, k: int, nodes: int) -> None:
    queries, keys = data.draw(token_lists(q, nodes)), data.draw(token_lists(k, nodes))
    places = token_patterns(queries, keys)
    rows, columns = _row_of(queries, nodes), _row_of(keys, nodes)
    dense = weight_bases(nodes, q, k)
    for place, pattern in enumerate(patterns(q + k)):
        wanted = dense[place][rows][:, columns]
        assert torch.equal(places == place, wanted)
        if place % 17 == 0:
            assert torch.equal(weight_basis_on(queries, pattern, keys), wanted)
    for pattern in patterns(q):
        assert torch.equal(bias_basis_on(queries, pattern), bias_basis(pattern, nodes).flatten()[rows])


def _row_of(tokens: Tensor, nodes: int) -> Tensor:
    row = torch.zeros(tokens.shape[1], dtype=torch.int64)
    for entry in tokens:
        row = row * nodes + entry
    return row


def test_restriction_costs_tokens_squared_not_nodes_to_the_sixth() -> None:
    """Order 3 among a million nodes: the dense basis would have 10^36 entries."""
    tokens = torch.tensor([[5, 5, 5], [999_999, 3, 5], [5, 3, 999_999], [7, 7, 8]]).T
    wanted = [[pattern_of((*i, *j)) for j in tokens.T.tolist()] for i in tokens.T.tolist()]
    assert [[patterns(6)[place] for place in row] for row in token_patterns(tokens).tolist()] == wanted


def test_a_self_loop_is_a_second_diagonal_token_and_a_repeat_a_second_row() -> None:
    tokens = torch.tensor([[0, 0], [1, 1], [0, 0], [0, 1], [0, 1]]).T
    same = weight_basis_on(tokens, (0, 0, 0, 0)).int().tolist()
    assert same == [[1, 0, 1, 0, 0], [0, 1, 0, 0, 0], [1, 0, 1, 0, 0], [0] * 5, [0] * 5]
    pair = weight_basis_on(tokens, (0, 1, 0, 1)).int().tolist()
    assert pair == [[0] * 5, [0] * 5, [0] * 5, [0, 0, 0, 1, 1], [0, 0, 0, 1, 1]]


@pytest.mark.parametrize(("q", "k"), [(1, 1), (2, 2), (2, 1), (1, 3)])
def test_normalised_rows_divide_by_the_count_of_keys(q: int, k: int) -> None:
    nodes = 4
    for place, pattern in enumerate(patterns(q + k)):
        basis = weight_bases(nodes, q, k)[place]
        normal = normalise_rows(basis)
        used = basis.any(-1)
        assert normal.dtype == torch.float64
        torch.testing.assert_close(normal.sum(-1), used.double(), rtol=0, atol=1e-15)
        torch.testing.assert_close(normal * max(1, count_keys(pattern, q, nodes)), basis.double(), rtol=0, atol=1e-15)


def test_what_is_no_pattern_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(1, 0\) is no equality pattern of order 2"):
        bias_basis((1, 0), 3)
    with pytest.raises(ValueError, match=r"of order 4"):
        weight_basis_on(torch.zeros(2, 3, dtype=torch.int64), (0, 1))
