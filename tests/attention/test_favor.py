import math
import resource
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.attention.test_softmax import packed
from tests.graphs import small_model
from tokengt import EncoderConfig, FavorConfig, Graph, NearOrthonormalIds, TokensConfig
from tokengt.attention import (
    FavorAttention,
    MultiheadAttention,
    draw_projection,
    favor,
    favor_attention,
    favor_chunks,
    softmax_attention,
)
from tokengt.attention.favor import default_num_features
from tokengt.attention.favor_chunks import chunked_attention as chunked
from tokengt.ragged import Segments


def by_definition(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: list[int], w: torch.Tensor, eps: float
) -> torch.Tensor:
    """phi(q_i) (sum_j phi(k_j) v_j) / phi(q_i) (sum_j phi(k_j)), sequence by sequence, head by head."""
    out, start, d = torch.zeros(*q.shape[:2], v.shape[2], dtype=v.dtype), 0, q.shape[2]
    for length in lengths:
        for head in range(q.shape[1]):
            rows = slice(start, start + length)
            qs, ks = q[rows, head] * d**-0.25, k[rows, head] * d**-0.25
            dash_q, dash_k = qs @ w.T, ks @ w.T
            phi_q = (
                torch.exp(dash_q - qs.square().sum(1, keepdim=True) / 2 - dash_q.detach().amax(1, keepdim=True)) + eps
            )
            phi_k = torch.exp(dash_k - ks.square().sum(1, keepdim=True) / 2 - dash_k.detach().max()) + eps
            table = phi_q @ phi_k.T
            out[rows, head] = table @ v[rows, head] / table.sum(1, keepdim=True)
        start += length
    return out


@given(st.lists(st.integers(1, 25), min_size=1, max_size=10), st.sampled_from([0.0, 1e-4]))
def test_equals_the_definition(lengths: list[int], eps: float) -> None:
    q, k, v, segments = packed(lengths, dim=6, value=5)
    w = draw_projection(11, 6).double()
    output = favor_attention(q, k, v, segments, projection=w, eps=eps)
    assert (output - by_definition(q, k, v, lengths, w, eps)).abs().max() < 1e-11


def test_gradients_equal_the_definition() -> None:
    lengths = [5, 17, 16, 1]
    q, k, v, segments = packed(lengths, dim=4, value=4)
    w = draw_projection(7, 4).double()
    inputs, expected = ([x.clone().requires_grad_() for x in (q, k, v)] for _ in range(2))
    weights = torch.randn_like(v)
    (favor_attention(*inputs, segments, projection=w) * weights).sum().backward()
    (by_definition(*expected, lengths, w, 1e-4) * weights).sum().backward()
    for mine, theirs in zip(inputs, expected, strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert (mine.grad - theirs.grad).abs().max() < 1e-11


def test_many_tokens_take_the_path_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four buckets, one padded; 1 entry per chunk is one row per chunk."""
    lengths = [5, 17, 16, 1]
    q, k, v, segments = packed(lengths, dim=4, value=4)
    w = draw_projection(7, 4).double()
    results = []
    for entries in (1, 100, 2**40):
        monkeypatch.setattr(favor_chunks, "_CPU_ENTRIES", entries)
        calls = []
        monkeypatch.setattr(favor, "chunked_attention", lambda *x, _=calls, **y: _.append(1) or chunked(*x, **y))
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        out = favor_attention(*inputs, segments, projection=w)
        out.square().sum().backward()
        results.append([out.detach(), *(x.grad for x in inputs)])
        assert len(calls) == {1: len(segments.buckets), 100: 2, 2**40: 0}[entries]
    for result in results[:2]:
        for mine, theirs in zip(result, results[2], strict=True):
            assert (mine - theirs).abs().max() < 1e-12


def test_a_projection_that_learns_gets_its_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(favor_chunks, "_CPU_ENTRIES", 1)
    q, k, v, segments = packed([9], dim=4, value=4)
    w = draw_projection(7, 4).double().requires_grad_()
    favor_attention(q, k, v, segments, projection=w).square().sum().backward()
    assert w.grad is not None
    assert w.grad.abs().max() > 0


def test_approaches_softmax_at_the_monte_carlo_rate() -> None:
    """Unit queries and keys, eps 0: the error falls like features^(-1/2) (Performer, Theorem 4)."""
    q, k, v, segments = packed([12, 30], heads=2, dim=8)
    q, k = (torch.nn.functional.normalize(x, dim=2) * 8**0.25 for x in (q, k))
    exact = softmax_attention(q, k, v, segments)
    counts = [64, 256, 1024, 4096]
    errors = []
    for count in counts:
        runs = [
            favor_attention(q, k, v, segments, projection=draw_projection(count, 8).double(), eps=0.0)
            for _ in range(12)
        ]
        errors.append(float(torch.stack([(run - exact).square().mean() for run in runs]).mean().sqrt()))
    slope = math.log(errors[-1] / errors[0]) / math.log(counts[-1] / counts[0])
    assert -0.6 < slope < -0.4, errors
    assert errors[-1] < 0.02


def test_projection_rows_are_orthogonal_in_blocks_with_gaussian_lengths() -> None:
    w = draw_projection(3000, 6).double()
    gram = w[:6] @ w[:6].T
    assert (gram - torch.diag(gram.diagonal())).abs().max() < 1e-5
    assert abs(float(w.square().sum(1).mean()) - 6) < 0.3
    assert abs(float(w.mean())) < 0.03


def test_default_number_of_features() -> None:
    assert default_num_features(24) == 76
    assert default_num_features(1) == 1


def test_redraws_on_schedule_and_resumes() -> None:
    config = FavorConfig(redraw_interval=3)
    attention = MultiheadAttention(8, 2, 4, 4, config).train()
    x, segments = torch.randn(5, 8), Segments.from_lengths(torch.tensor([5]))
    seen = []
    for step in range(7):
        attention(x, segments).sum().backward()
        assert isinstance(attention.kernel, FavorAttention)
        seen.append(attention.kernel.projection.clone())
        if step == 3:
            copy = MultiheadAttention(8, 2, 4, 4, config).train()
            copy.load_state_dict(attention.state_dict())
    changed = [not torch.equal(a, b) for a, b in pairwise(seen)]
    assert changed == [False, False, True, False, False, True]
    for _ in range(2):
        copy(x, segments)
        assert torch.equal(copy.kernel.projection, seen[3])
    copy(x, segments)
    assert not torch.equal(copy.kernel.projection, seen[3])
    attention.eval()
    before = attention.kernel.projection
    for _ in range(9):
        attention(x, segments)
    assert attention.kernel.projection is before


def test_200_000_tokens_forward_and_backward_under_4_gib() -> None:
    """One graph of 200,000 tokens, dim 64, 4 heads, 2 layers, int(d_h ln d_h) features."""
    nodes, edges = 40_000, 159_999
    model = small_model(
        dim=64,
        tokens=TokensConfig(),
        ids=NearOrthonormalIds(16),
        encoder=EncoderConfig(num_layers=2, num_heads=4, attention=FavorConfig()),
    ).train()
    graph = Graph(edge_index=torch.randint(0, nodes, (2, edges)), num_nodes=nodes)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model(graph).sum().backward()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 4 * 2**20, f"{grown / 2**20:.2f} GiB"
    gradient = model.tokenizer.type_embedding.weight.grad
    assert torch.isfinite(gradient).all()
    assert gradient.abs().max() > 0
