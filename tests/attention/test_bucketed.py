"""Attention on a CPU as one step of autograd: the bits of PyTorch's own way, forwards and backwards."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tokengt.attention import softmax_attention
from tokengt.attention.bucketed import bucketed_attention, takes_bucketed
from tokengt.kernels.heads import Heads
from tokengt.ragged import Segments

LENGTHS = {
    "padded": [7, 30, 3, 29, 1, 28, 11, 30],
    "in order": [2, 2, 2, 5, 5, 5, 9, 9, 9],
    "one": [17],
    "with empty ones": [0, 4, 0, 9, 13],
}


def rows(lengths: list[int], heads: Heads, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Segments]:
    generator = torch.Generator().manual_seed(len(lengths))
    segments = Segments.from_lengths(torch.tensor(lengths))
    return torch.randn(segments.total, heads.width, dtype=dtype, generator=generator).requires_grad_(), segments


@pytest.mark.parametrize("heads", [Heads(8, 12, 12), Heads(5, 7, 7), Heads(1, 1, 1)], ids=str)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_outputs_and_gradients_have_the_bits_of_the_plain_way(lengths: list[int], heads: Heads) -> None:
    """A person who trains again with the same seed gets the same weights as with an older version."""
    qkv, segments = rows(lengths, heads)
    upstream = torch.randn(segments.total, heads.count * heads.value, generator=torch.Generator().manual_seed(0))
    plain = softmax_attention(*heads.split(qkv), segments).flatten(1)
    (expected,) = torch.autograd.grad(plain, qkv, upstream)
    found = bucketed_attention(qkv, segments, heads)
    (gradient,) = torch.autograd.grad(found, qkv, upstream)
    assert torch.equal(found, plain)
    assert torch.equal(gradient, expected)
    with torch.no_grad():
        assert torch.equal(bucketed_attention(qkv, segments, heads), plain)


@pytest.mark.slow
@settings(max_examples=25)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(any))
def test_gradients_are_those_of_finite_differences(lengths: list[int]) -> None:
    qkv, segments = rows(lengths, Heads(2, 3, 3), torch.float64)
    assert torch.autograd.gradcheck(lambda x: bucketed_attention(x, segments, Heads(2, 3, 3)), (qkv,))


def test_a_gradient_that_is_not_contiguous_is_taken() -> None:
    heads = Heads(2, 4, 4)
    for lengths in (LENGTHS["padded"], LENGTHS["in order"]):
        qkv, segments = rows(lengths, heads)
        upstream = torch.randn(8, segments.total).T
        out = bucketed_attention(qkv, segments, heads)
        (found,) = torch.autograd.grad(out, qkv, upstream, retain_graph=True)
        (expected,) = torch.autograd.grad(out, qkv, upstream.contiguous())
        assert torch.equal(found, expected)


def test_what_it_does_not_take() -> None:
    qkv = torch.randn(5, 24)
    assert takes_bucketed(qkv, Heads(2, 4, 4), 0.0)
    assert not takes_bucketed(qkv, Heads(2, 4, 4), 0.1)
    assert not takes_bucketed(torch.randn(5, 20), Heads(2, 3, 4), 0.0)
    assert not takes_bucketed(qkv.bfloat16(), Heads(2, 4, 4), 0.0)
    assert not takes_bucketed(qkv[:0], Heads(2, 4, 4), 0.0)
