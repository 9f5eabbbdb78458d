"""Linear attention with elu + 1: the quadratic formula in float64, its gradients, odd sequences, its cost."""

import math
import resource

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.attention.test_softmax import packed
from tests.graphs import odd_graphs, random_graph, small_model
from tokengt import EluConfig, EncoderConfig
from tokengt.attention import MultiheadAttention, elu_attention
from tokengt.attention.elu import elu_features
from tokengt.ragged import Segments


def by_definition(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: list[int], eps: float) -> torch.Tensor:
    """The table phi(q_i) . phi(k_j) of every sequence and head, its rows divided by their sums."""
    out, start = torch.zeros(*q.shape[:2], v.shape[2], dtype=v.dtype), 0
    for length in lengths:
        rows = slice(start, start + length)
        for head in range(q.shape[1]):
            phi_q, phi_k = (torch.nn.functional.elu(x[rows, head]) + 1 + eps for x in (q, k))
            table = phi_q @ phi_k.T
            out[rows, head] = table / table.sum(1, keepdim=True) @ v[rows, head]
        start += length
    return out


@given(st.lists(st.integers(1, 25), min_size=1, max_size=10), st.sampled_from([0.0, 1e-6, 0.1]))
def test_equals_the_quadratic_formula(lengths: list[int], eps: float) -> None:
    q, k, v, segments = packed(lengths, dim=6, value=5)
    assert (elu_attention(q, k, v, segments, eps=eps) - by_definition(q, k, v, lengths, eps)).abs().max() < 1e-12


def test_worked_by_hand() -> None:
    """phi(0) = 1, phi(1) = 2, phi(-ln 2) = 1/2; one query and two keys of one feature: weights 2/3, 1/3 by keys."""
    q = torch.zeros(2, 1, 1, dtype=torch.float64)
    k = torch.tensor([1.0, 0.0], dtype=torch.float64).view(2, 1, 1)
    v = torch.tensor([3.0, 9.0], dtype=torch.float64).view(2, 1, 1)
    out = elu_attention(q, k, v, Segments.uniform(1, 2), eps=0.0)
    torch.testing.assert_close(out.flatten(), torch.tensor([5.0, 5.0], dtype=torch.float64))
    features = elu_features(torch.tensor([0.0, 1.0, -math.log(2)], dtype=torch.float64), 0.0)
    torch.testing.assert_close(features, torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64))


def test_gradients_equal_those_of_the_formula_and_of_differences() -> None:
    lengths = [5, 17, 16, 1]
    q, k, v, segments = packed(lengths, dim=4, value=4)
    inputs, expected = ([x.clone().requires_grad_() for x in (q, k, v)] for _ in range(2))
    weights = torch.randn_like(v)
    (elu_attention(*inputs, segments) * weights).sum().backward()
    (by_definition(*expected, lengths, 1e-6) * weights).sum().backward()
    for mine, theirs in zip(inputs, expected, strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert (mine.grad - theirs.grad).abs().max() < 1e-12
    q, k, v, segments = packed([3, 1, 4], dim=2, value=3)
    assert torch.autograd.gradcheck(
        lambda *x: elu_attention(*x, segments), [x.clone().requires_grad_() for x in (q, k, v)]
    )


def test_the_slope_at_zero_is_one_from_both_sides() -> None:
    x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    elu_features(x, 0.0).sum().backward()
    assert torch.equal(x.grad, torch.ones(3, dtype=torch.float64))  # type: ignore[arg-type]


def test_no_sequences_empty_ones_and_single_tokens() -> None:
    """A single token attends to itself alone: its output is its value."""
    q, k, v, segments = packed([1, 1, 1], dim=4, value=3)
    torch.testing.assert_close(elu_attention(q, k, v, segments), v, rtol=1e-14, atol=1e-14)
    empty = Segments.from_lengths(torch.tensor([0, 0]))
    assert elu_attention(q[:0], k[:0], v[:0], empty).shape == (0, *v.shape[1:])
    mixed = Segments.from_lengths(torch.tensor([0, 3, 0]))
    expected = by_definition(q, k, v, [3], 1e-6)
    torch.testing.assert_close(elu_attention(q, k, v, mixed), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [-200.0, 200.0])
def test_far_features_give_means_of_values_in_every_precision(dtype: torch.dtype, size: float) -> None:
    """exp(-200) is 0 in all of them: eps keeps every output a mean of values, with finite gradients."""
    q, k, v = (torch.randn(40, 2, 4).to(dtype) for _ in range(3))
    q, k = (size + q).requires_grad_(), (size + k).requires_grad_()
    out = elu_attention(q, k, v, Segments.uniform(2, 20))
    assert out.dtype == dtype
    low, high = (getattr(v.float().view(2, 20, 2, 4), name)(1, keepdim=True) for name in ("amin", "amax"))
    out.float().sum().backward()
    shaped = out.detach().float().view(2, 20, 2, 4)
    assert bool(((shaped >= low - 0.01) & (shaped <= high + 0.01)).all())
    for x in (q, k):
        assert x.grad is not None
        assert bool(torch.isfinite(x.grad).all())


def test_autocast_does_not_round_its_sums() -> None:
    """A mean over 4,000 values of 1 + something small: in bfloat16 the sum would stop growing at 256."""
    q, k = torch.zeros(2, 4000, 1, 4).bfloat16()
    v = torch.ones(4000, 1, 4).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        out = elu_attention(q, k, v, Segments.uniform(1, 4000))
    torch.testing.assert_close(out, v, rtol=1e-2, atol=0)


def test_weights_written_out_are_those_it_attends_with() -> None:
    torch.manual_seed(0)
    attention = MultiheadAttention(8, 2, 3, 5, EluConfig()).double()
    segments = Segments.from_lengths(torch.tensor([4, 9, 1]))
    x = torch.randn(14, 8, dtype=torch.float64)
    _, _, value = attention.heads.split(attention.qkv_proj(x))
    by_maps = [
        torch.einsum("hij,jhd->ihd", weights, rows)
        for weights, rows in zip(attention.attention_weights(x, segments), value.split([4, 9, 1]), strict=True)
    ]
    expected = attention.out_proj(torch.cat(by_maps).flatten(1))
    torch.testing.assert_close(attention(x, segments), expected, rtol=1e-12, atol=1e-12)
    q, k, _ = (part[4:13].transpose(0, 1)[None] for part in attention.heads.split(attention.qkv_proj(x)))
    mask = torch.arange(9)[None] < 6
    padded = attention.kernel.weights(q, k, mask[:, None])
    assert bool((padded[..., 6:] == 0).all())
    torch.testing.assert_close(padded[..., :6, :6], attention.kernel.weights(q[..., :6, :], k[..., :6, :]))


def test_a_graph_gives_the_same_alone_and_in_any_batch() -> None:
    model = small_model(encoder=EncoderConfig(num_layers=2, num_heads=4, attention=EluConfig())).double().eval()
    graphs = odd_graphs()
    together = model(graphs)
    for graph, row in zip(graphs, together, strict=True):
        torch.testing.assert_close(model(graph)[0], row, rtol=1e-10, atol=1e-10)


def test_memory_is_linear_in_tokens() -> None:
    """100,000 tokens of 4 heads: a table of scores would take 160 GB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    q, k, v = (torch.randn(100_000, 4, 8, requires_grad=True) for _ in range(3))
    elu_attention(q, k, v, Segments.uniform(1, 100_000)).sum().backward()
    # Some twenty tensors of 12.8 MB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600_000


@pytest.mark.slow
def test_overfits_a_few_graphs() -> None:
    torch.manual_seed(0)
    encoder = EncoderConfig(num_layers=2, num_heads=4, attention=EluConfig())
    model, batch = small_model(encoder=encoder), [random_graph(5 + i, 8, i) for i in range(6)]
    targets = torch.randn(6, 1)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    model.train()
    for _ in range(200):
        loss = (model(batch)[:, :1] - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.02
