import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tokengt.attention import attention_weights, limits, softmax_attention
from tokengt.ragged import Segments


def packed(
    lengths: list[int], heads: int = 3, dim: int = 8, value: int = 8, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Segments]:
    total = sum(lengths)
    q, k = (torch.randn(total, heads, dim, dtype=dtype) for _ in range(2))
    return q, k, torch.randn(total, heads, value, dtype=dtype), Segments.from_lengths(torch.tensor(lengths))


def by_definition(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """softmax(Q K^T / sqrt(d)) V, one sequence and head at a time."""
    out = torch.zeros(*q.shape[:2], v.shape[2], dtype=v.dtype)
    start = 0
    for length in lengths:
        for head in range(q.shape[1]):
            rows = slice(start, start + length)
            scores = torch.exp(q[rows, head] @ k[rows, head].T / math.sqrt(q.shape[2]))
            out[rows, head] = scores @ v[rows, head] / scores.sum(1, keepdim=True)
        start += length
    return out


@given(st.lists(st.integers(0, 25), min_size=1, max_size=12), st.sampled_from([(8, 8), (4, 7), (7, 4), (1, 1)]))
def test_equals_the_definition(lengths: list[int], widths: tuple[int, int]) -> None:
    q, k, v, segments = packed(lengths, dim=widths[0], value=widths[1])
    if not sum(lengths):
        return
    output = softmax_attention(q, k, v, segments)
    assert (output - by_definition(q, k, v, lengths)).abs().max() < 1e-12


def test_gradients_equal_the_definition() -> None:
    lengths = [5, 17, 3, 16, 1]
    q, k, v, segments = packed(lengths, dim=4, value=6)
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    expected = [x.clone().requires_grad_() for x in (q, k, v)]
    weights = torch.randn(sum(lengths), 3, 6, dtype=torch.float64)
    (softmax_attention(*inputs, segments) * weights).sum().backward()
    (by_definition(*expected, lengths) * weights).sum().backward()
    for mine, theirs in zip(inputs, expected, strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert (mine.grad - theirs.grad).abs().max() < 1e-12


def test_maps_are_the_weights_used() -> None:
    lengths = [4, 9, 1]
    q, k, v, segments = packed(lengths)
    maps = attention_weights(q, k, segments)
    assert [m.shape for m in maps] == [(3, n, n) for n in lengths]
    rebuilt = torch.cat(
        [(m @ part.transpose(0, 1)).transpose(0, 1) for m, part in zip(maps, v.split(lengths), strict=True)]
    )
    assert torch.allclose(rebuilt, softmax_attention(q, k, v, segments), atol=1e-12)


def test_dropout_keeps_the_mean_and_drops_weights() -> None:
    q, k, v, segments = packed([6, 11, 6], heads=2)
    expected = softmax_attention(q, k, v, segments)
    draws = torch.stack([softmax_attention(q, k, v, segments, dropout=0.3) for _ in range(800)])
    assert (draws.mean(0) - expected).abs().max() < 0.2
    assert draws.std(0).min() > 0.02


def test_refuses_scores_that_do_not_fit() -> None:
    q, k, v, segments = packed([200_000], heads=4, dim=1, value=1, dtype=torch.float32)
    sentence = r"with attention dropout would hold 1,788\.1 GiB of scores for up to 200,000 tokens.*'favor'"
    with pytest.raises(ValueError, match=sentence):
        softmax_attention(q, k, v, segments, dropout=0.1)
    with pytest.raises(ValueError, match=r"with attention maps would hold 596\.0 GiB"):
        attention_weights(q, k, segments)


def test_warns_of_long_work(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, segments = packed([100, 50], heads=2, dim=8, value=8)
    work = 2 * 2 * 16 * (100**2 + 50**2)
    monkeypatch.setitem(limits.WORK_WARNING_FLOP, "cpu", work - 1)
    with pytest.warns(UserWarning, match=r"up to 100 tokens per sequence costs about 0.0 TFLOP per layer"):
        softmax_attention(q, k, v, segments)
    monkeypatch.setitem(limits.WORK_WARNING_FLOP, "cpu", work)
    softmax_attention(q, k, v, segments)


LINEAR_MEMORY = """
import resource, torch
from tokengt.attention import softmax_attention
from tokengt.ragged import Segments

q, k, v = (torch.randn(20_000, 1, 8) for _ in range(3))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
softmax_attention(q, k, v, Segments.from_lengths(torch.tensor([20_000])))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_long_sequences_need_linear_memory() -> None:
    """20,000 tokens would be 1.6 GB of float32 scores; PyTorch's kernel writes none. (A peak needs its own process.)"""
    done = subprocess.run([sys.executable, "-c", LINEAR_MEMORY], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 500_000


def test_refusal_counts_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, segments = packed([10] * 50, heads=2, dim=4, value=4)
    monkeypatch.setattr(limits, "SCORE_LIMIT_BYTES", 50 * 100 * 2 * 8)
    attention_weights(q, k, segments)
    with pytest.raises(ValueError, match="attention dropout"):
        softmax_attention(q, k, v, segments, dropout=0.1)
    monkeypatch.setattr(limits, "SCORE_LIMIT_BYTES", 50 * 100 * 2 * 8 - 1)
    with pytest.raises(ValueError, match="attention maps"):
        attention_weights(q, k, segments)


def test_varlen_says_what_it_needs() -> None:
    q, k, v, segments = packed([3])
    with pytest.raises(ValueError, match=r"'varlen' needs a GPU.*got torch.float64 on cpu"):
        softmax_attention(q, k, v, segments, backend="varlen")
