"""Attention maps as text: read back within half of the stated step, and never larger than the budget."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokengt.explain.page.packing import pack_maps, quantise, unpack_maps


def maps(layers: int, heads: int, tokens: int, sharpness: float = 1.0, seed: int = 0) -> np.ndarray:
    scores = sharpness * np.random.default_rng(seed).normal(size=(layers, heads, tokens, tokens))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def test_a_row_is_counted_in_steps_of_its_largest_weight() -> None:
    steps, maxima = quantise(np.array([[[[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]]]], dtype=np.float32), 4)
    np.testing.assert_array_equal(steps, [[[[4, 2, 2], [4, 0, 0]]]])
    np.testing.assert_array_equal(maxima, [[[0.5, 1.0]]])


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 12), st.floats(0, 20), st.integers(1_000, 10_000))
def test_every_weight_is_read_back_within_half_a_step(
    layers: int, heads: int, tokens: int, sharpness: float, budget: int
) -> None:
    weights = maps(layers, heads, tokens, sharpness)
    packed = pack_maps(weights, budget)
    assert packed is not None
    expected = weights.mean(1, keepdims=True) if packed.mean_only else weights
    step = expected.max(-1, keepdims=True) / packed.levels
    assert np.abs(unpack_maps(packed) - expected).max() <= (step / 2).max() * (1 + 1e-5)
    assert (np.abs(unpack_maps(packed) - expected) <= step / 2 * (1 + 1e-5)).all()


@pytest.mark.parametrize(("budget", "mean_only"), [(200_000, False), (45_000, False), (10_000, True)])
def test_less_room_makes_coarser_steps_and_then_means_over_heads(budget: int, mean_only: bool) -> None:
    packed = pack_maps(maps(2, 8, 60), budget)
    assert packed is not None
    assert packed.mean_only == mean_only
    assert sum(map(len, packed.blocks)) <= 1.1 * budget
    finest = pack_maps(maps(2, 8, 60), 10**7)
    assert finest is not None
    assert packed.levels <= finest.levels == 255


def test_maps_that_do_not_fit_at_all_are_none() -> None:
    assert pack_maps(maps(2, 8, 60), 100) is None


@pytest.mark.parametrize("sharpness", [0.3, 3.0, 30.0])
def test_maps_of_the_largest_preset_fit_into_a_page(sharpness: float) -> None:
    """12 layers x 32 heads of a molecule of 60 atoms; one layer stands for all of them."""
    packed = pack_maps(maps(1, 32, 190, sharpness), 8_000_000 // 12)
    assert packed is not None
    assert not packed.mean_only
    assert 12 * (sum(map(len, packed.blocks)) + len(packed.maxima)) < 9_000_000


def test_a_row_without_attention_stays_empty() -> None:
    packed = pack_maps(np.zeros((1, 1, 3, 3), dtype=np.float32))
    assert packed is not None
    np.testing.assert_array_equal(unpack_maps(packed), 0.0)
