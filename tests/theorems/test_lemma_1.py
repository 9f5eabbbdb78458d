"""Lemma 1 on the production attention: alpha^h is the normalised basis tensor B^mu, as near as the formula says."""

import math

import pytest
import torch

from tests.theorems.curves import assert_falls_as_the_gap
from tokengt.theory.basis import weight_basis_on
from tokengt.theory.construction import (
    attention_bound,
    attention_error,
    attention_leak,
    attention_rounding,
    basis_attention,
    logit_gap,
)
from tokengt.theory.construction.layout import Layout
from tokengt.theory.construction.measure import (
    augmented_tokens,
    lemma_1_agreement,
    lemma_1_errors,
    orthonormal_ids,
)
from tokengt.theory.partitions import count_keys, is_empty, patterns
from tokengt.theory.scoring import TypeKind


@pytest.mark.parametrize(
    ("order", "nodes", "sharpness", "heads", "within"),
    [(2, 5, 100.0, 15, 1e-8), (2, 5, 1000.0, 15, 1e-12), (3, 4, 1000.0, 187, 1e-11), (1, 6, 100.0, 2, 1e-12)],
)
def test_all_heads_with_types_of_width_two(order: int, nodes: int, sharpness: float, heads: int, within: float) -> None:
    """id_dim = n; 16 of the 203 patterns of order 6 ask for more than four nodes."""
    errors = lemma_1_errors(order, nodes, nodes, sharpness, "circle")
    assert len(errors) == heads
    assert max(errors.values()) < within


def test_wider_identifiers_need_more_sharpness_as_the_formula_says() -> None:
    """At id_dim 16 the same a = 100 gives 3e-5 and not 8e-9: the logit gap is divided by sqrt(4 id_dim + 4)."""
    wide = max(lemma_1_errors(2, 5, 16, 100.0).values())
    assert 2e-5 < wide < 5e-5
    narrow = max(lemma_1_errors(2, 5, 5, 100.0).values())
    gaps = logit_gap(2, 5, 100.0) - logit_gap(2, 16, 100.0)
    assert math.log(wide / narrow) == pytest.approx(gaps, rel=0.01)
    assert gaps == pytest.approx(100 / math.sqrt(24) - 100 / math.sqrt(68))
    same_gap = 100.0 * math.sqrt(68 / 24)
    assert max(lemma_1_errors(2, 5, 16, same_gap).values()) == pytest.approx(narrow, rel=0.01)


CASES: list[tuple[int, int, int, float, TypeKind]] = [
    (1, 1, 3, 30.0, "circle"),
    (1, 7, 9, 50.0, "one_hot"),
    (2, 1, 1, 40.0, "circle"),
    (2, 2, 5, 80.0, "one_hot"),
    (2, 5, 5, 100.0, "circle"),
    (2, 5, 16, 100.0, "circle"),
    (2, 5, 16, 0.5, "circle"),
    (2, 6, 6, 3000.0, "one_hot"),
    (3, 2, 4, 100.0, "circle"),
    (3, 4, 4, 120.0, "one_hot"),
    (3, 4, 4, 1000.0, "circle"),
]


@pytest.mark.parametrize(("order", "nodes", "id_dim", "sharpness", "kind"), CASES)
def test_every_head_is_within_its_bound(order: int, nodes: int, id_dim: int, sharpness: float, kind: TypeKind) -> None:
    errors = lemma_1_errors(order, nodes, id_dim, sharpness, kind)
    assert set(errors) == {mu for mu in patterns(2 * order) if not is_empty(mu, nodes)}
    for mu, error in errors.items():
        assert error <= attention_bound(mu, nodes, id_dim, sharpness, kind), mu
    agreement = lemma_1_agreement(order, nodes, id_dim, sharpness, kind)
    assert agreement.holds
    assert agreement.error == max(errors.values())


@pytest.mark.parametrize(("order", "nodes", "id_dim", "sharpness", "kind"), CASES)
def test_the_error_in_closed_form(order: int, nodes: int, id_dim: int, sharpness: float, kind: TypeKind) -> None:
    """Every head's error is foretold, not only bounded, as far as rounding lets one see it."""
    for mu, error in lemma_1_errors(order, nodes, id_dim, sharpness, kind).items():
        predicted = attention_error(mu, nodes, id_dim, sharpness, kind)
        assert error == pytest.approx(predicted, rel=1e-9, abs=attention_rounding(mu, nodes, id_dim, sharpness, kind))
        assert predicted <= attention_leak(mu, nodes, id_dim, sharpness, kind) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("order", "nodes", "id_dim", "sharpness", "kind"),
    [case for case in CASES if case[1] > case[0] and 30 < case[3] < 1000],
)
def test_the_bound_is_no_more_than_the_number_of_keys_above_the_error(
    order: int, nodes: int, id_dim: int, sharpness: float, kind: TypeKind
) -> None:
    """With n > k some head has a wrong key just at the gap: the largest bound overstates the largest error by < n^k."""
    errors = lemma_1_errors(order, nodes, id_dim, sharpness, kind)
    bound = max(attention_leak(mu, nodes, id_dim, sharpness, kind) for mu in errors)
    assert bound > 1e-11, "the case is one of rounding, not of sharpness"
    assert max(errors.values()) <= bound <= nodes**order * max(errors.values())


def test_sets_in_closed_form() -> None:
    """k = 1: softmax(+-g I), g = a / sqrt(d_p + 2 d_e), worked out."""
    n, g = 5, 20 / math.sqrt(5 + 4)
    errors = lemma_1_errors(1, n, n, 20.0)
    own = (n - 1) / (math.exp(g) + n - 1)
    others = math.exp(-g) / (n - 1 + math.exp(-g))
    assert errors[(0, 0)] == pytest.approx(own, rel=1e-10)
    assert errors[(0, 1)] == pytest.approx(others, rel=1e-10)


@pytest.mark.parametrize(("order", "kind"), [(1, "circle"), (2, "circle"), (2, "one_hot"), (3, "circle")])
def test_errors_fall_geometrically_until_float64_ends_it(order: int, kind: TypeKind) -> None:
    nodes = 4
    assert_falls_as_the_gap(
        lambda sharpness: max(lemma_1_errors(order, nodes, nodes, sharpness, kind).values()),
        lambda sharpness: logit_gap(order, nodes, sharpness, kind),
        floor=2e-12,
    )


def test_rounding_grows_with_sharpness() -> None:
    """Beyond the point where float64 ends it, more sharpness is worse, and the bound says so too."""
    errors = [max(lemma_1_errors(2, 5, 5, sharpness).values()) for sharpness in (1e4, 1e6, 1e8)]
    bounds = [attention_bound((0, 0, 0, 0), 5, 5, sharpness) for sharpness in (1e4, 1e6, 1e8)]
    assert errors[0] < errors[1] < errors[2]
    assert all(error < bound < 1e-4 for error, bound in zip(errors, bounds, strict=True))


def test_the_output_is_the_masked_mean_of_the_features() -> None:
    """The forward pass itself, not only its maps: head h's value is the mean of X over the keys of mu_h."""
    order, nodes, width = 2, 4, 3
    layout = Layout(order, width, nodes, "circle")
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(nodes, nodes, width, generator=generator, dtype=torch.float64)
    tokens = augmented_tokens(x, orthonormal_ids(nodes, nodes, generator), layout)
    attention = basis_attention(order, nodes, 500.0, width=width)
    for head, mu in enumerate(patterns(4)):
        attention.out_proj.weight.zero_()
        attention.out_proj.weight[:width, head * width : (head + 1) * width] = torch.eye(width)
        output = attention(tokens.values, tokens.segments)[:, :width]
        basis = weight_basis_on(tokens.endpoints.T, mu).double()
        rows = basis.sum(1) > 0
        expected = basis @ tokens.values[:, :width] / count_keys(mu, order, nodes)
        assert torch.allclose(output[rows], expected[rows], atol=1e-12)


def test_empty_patterns_have_no_bound() -> None:
    with pytest.raises(ValueError, match="has no members among 3 nodes"):
        attention_bound((0, 1, 2, 3), 3, 3, 100.0)
