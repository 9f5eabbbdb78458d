import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.attention.test_favor import by_definition
from tokengt.attention import draw_projection, favor_chunks
from tokengt.attention.favor import _attend
from tokengt.attention.favor_chunks import Chunking, chunked_attention
from tokengt.attention.favor_one_chunk import absorb_keys

FEATURES = 7


def inputs(sequences: int, heads: int, width: int, *, dim: int = 4, value: int = 5, scale: float = 1.0) -> list[Tensor]:
    """Queries, keys and values as attention hands them over: heads inside tokens, seen the other way round."""
    shapes = [(sequences, width, heads, size) for size in (dim, dim, value)]
    return [(torch.randn(shape, dtype=torch.float64) * scale).transpose(1, 2).requires_grad_() for shape in shapes]


def padded(parts: list[Tensor], lengths: list[int]) -> tuple[list[Tensor], Tensor]:
    """Padding repeats the sequence's first row, as buckets have it."""
    mask = torch.arange(parts[0].shape[2]) < torch.tensor(lengths)[:, None]
    filled = [torch.where(mask[:, None, :, None], x, x[:, :, :1]).detach().requires_grad_() for x in parts]
    return filled, mask


def with_gradients(out: Tensor, parts: list[Tensor], weights: Tensor) -> list[Tensor]:
    return [out.detach(), *torch.autograd.grad(out, parts, weights)]


def largest_error(found: list[Tensor], expected: list[Tensor]) -> float:
    """Relative to the largest entry, or absolute where that is below 1: a sequence of one token has gradients of 0."""
    pairs = zip(found, expected, strict=True)
    return max(float((x.double() - y).abs().max() / y.abs().max().clamp(min=1.0)) for x, y in pairs)


@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 33),
    st.integers(1, 700),
    st.sampled_from([0.0, 1e-4, 0.3]),
    st.booleans(),
)
def test_equals_the_dense_formula(
    sequences: int, heads: int, width: int, entries: int, eps: float, padding: bool
) -> None:
    """Outputs and gradients, for chunks that divide the tokens and chunks that do not, with and without T kept."""
    parts, mask = inputs(sequences, heads, width), None
    if padding:
        parts, mask = padded(parts, torch.randint(1, width + 1, (sequences,)).tolist())
    projection = draw_projection(FEATURES, 4).double()
    weights = torch.randn_like(parts[2])
    output = chunked_attention(*parts, projection, eps, mask, chunk_entries=entries)
    expected = _attend(*parts, projection, eps, mask)
    assert largest_error(with_gradients(output, parts, weights), with_gradients(expected, parts, weights)) < 1e-10


def test_equals_the_definition_with_a_stabiliser_that_grows() -> None:
    """Keys grow along the sequence, so that nearly every chunk rescales the sums."""
    parts = inputs(1, 2, 40)
    with torch.no_grad():
        parts[1].mul_(torch.linspace(0.1, 6.0, 40)[:, None])
    projection = draw_projection(FEATURES, 4).double()
    weights = torch.randn_like(parts[2])
    packed = [x.detach()[0].transpose(0, 1).clone().requires_grad_() for x in parts]
    expected = by_definition(*packed, [40], projection, 1e-4)
    wanted = [x.transpose(0, 1)[None] for x in with_gradients(expected, packed, weights[0].transpose(0, 1))]
    output = chunked_attention(*parts, projection, 1e-4, chunk_entries=3 * 2 * FEATURES)
    assert largest_error(with_gradients(output, parts, weights), wanted) < 1e-10


def test_a_sum_over_two_chunks_by_hand() -> None:
    """One feature w = ln 2, d = 1: e = 2^(k - 2) / exp(k^2 / 2) with the final stabiliser 2 ln 2, on both chunks."""
    keys, ones = torch.tensor([[[1.0]], [[2.0]]]).double(), torch.ones(1, 1, 1).double()
    projection = torch.tensor([[2.0]]).double().log()
    peak, sums = torch.full((1, 1, 1), -torch.inf).double(), torch.zeros(1, 1, 1).double()
    for key in keys:
        peak, sums = absorb_keys(key[None], ones, projection, peak, sums)
    assert torch.allclose(peak, 2 * projection)
    by_hand = torch.exp(torch.tensor(-0.5).double()) / 2 + torch.exp(torch.tensor(-2.0).double())
    assert torch.allclose(sums.flatten(), by_hand)


def test_huge_exponents_do_not_overflow() -> None:
    """W k reaches thousands: the dense formula and the one in chunks agree, and nothing is infinite."""
    parts = inputs(1, 2, 50, scale=300.0)
    projection = draw_projection(FEATURES, 4).double()
    weights = torch.randn_like(parts[2])
    expected = with_gradients(_attend(*parts, projection, 1e-4, None), parts, weights)
    for dtype, bound in ((torch.float64, 1e-10), (torch.float32, 1e-3)):
        same = [x.detach().to(dtype).requires_grad_() for x in parts]
        out = chunked_attention(*same, projection.to(dtype), 1e-4, chunk_entries=60)
        results = with_gradients(out, same, weights.to(dtype))
        assert all(torch.isfinite(x).all() for x in results)
        assert float((results[0] - expected[0]).abs().max() / expected[0].abs().max()) < bound


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02), (torch.float16, 0.003)], ids=str
)
def test_precision(dtype: torch.dtype, bound: float) -> None:
    """Types come back as they went in; inputs are rounded before either path, so that the path alone is judged."""
    parts = [x.detach().to(dtype).requires_grad_() for x in inputs(2, 2, 300, dim=16, value=16)]
    exact = [x.detach().double().requires_grad_() for x in parts]
    projection = draw_projection(44, 16).double()
    weights = torch.randn_like(exact[2]).to(dtype)
    expected = with_gradients(_attend(*exact, projection, 1e-4, None), exact, weights.double())
    out = chunked_attention(*parts, projection.float(), 1e-4, chunk_entries=5000)
    results = with_gradients(out, parts, weights)
    assert [x.dtype for x in results] == [dtype] * 4
    assert largest_error(results, expected) < bound


def test_bfloat16_factors_as_a_gpu_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly uniform attention to values with a mean: without a centre, T's rounding puts dq 14 % off."""
    parts = [x.detach().bfloat16() for x in inputs(1, 2, 3000, dim=16, value=16)]
    parts = [parts[0].requires_grad_(), parts[1].requires_grad_(), (parts[2] + 1).requires_grad_()]
    exact = [x.detach().double().requires_grad_() for x in parts]
    projection = draw_projection(44, 16).bfloat16().double()
    weights = torch.randn_like(exact[2]).bfloat16()
    expected = with_gradients(_attend(*exact, projection, 1e-4, None), exact, weights.double())
    monkeypatch.setattr(favor_chunks._Pass, "factors", torch.bfloat16)
    results = with_gradients(chunked_attention(*parts, projection, 1e-4, chunk_entries=2**14), parts, weights)
    errors = [float((x.double() - y).norm() / y.norm()) for x, y in zip(results, expected, strict=True)]
    assert max(errors) < 0.01, errors


def test_autocast_does_not_reach_inside() -> None:
    parts = [x.detach().float().requires_grad_() for x in inputs(1, 2, 30)]
    projection, weights = draw_projection(FEATURES, 4), torch.randn(1, 2, 30, 5)
    plain = with_gradients(chunked_attention(*parts, projection, 1e-4, chunk_entries=50), parts, weights)
    with torch.autocast("cpu", torch.bfloat16):
        cast = with_gradients(chunked_attention(*parts, projection, 1e-4, chunk_entries=50), parts, weights)
    assert all(torch.equal(x, y) for x, y in zip(plain, cast, strict=True))


@pytest.mark.parametrize(("sequences", "width"), [(1, 5000), (500, 10)])
def test_nothing_of_the_size_of_the_features_is_kept(sequences: int, width: int) -> None:
    """Saved for the backward: q, k, v, one number per token, and T when a sequence is longer than T is."""
    heads, dim, features = 2, 8, 64
    parts = [torch.randn(sequences, heads, width, dim, requires_grad=True) for _ in range(3)]
    projection = draw_projection(features, dim)
    saved: list[int] = []

    def record(x: Tensor) -> Tensor:
        saved.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(record, lambda x: x):
        out = chunked_attention(*parts, projection, 1e-4, chunk_entries=2**12)
    tokens = sequences * heads * width
    assert max(saved) == tokens * dim
    assert sum(saved) < 4 * tokens * dim < tokens * features
    out.sum().backward()
    with torch.autograd.graph.saved_tensors_hooks(record, lambda x: x):
        _attend(*parts, projection, 1e-4, None)
    assert max(saved) == tokens * features


@given(st.integers(1, 50), st.integers(1, 4), st.integers(1, 300), st.integers(1, 20), st.integers(1, 10_000))
def test_chunks_cover_every_row_once(sequences: int, heads: int, width: int, features: int, entries: int) -> None:
    chunking = Chunking(sequences, heads, width, features, entries)
    assert [i for group in chunking.groups for i in range(group.start, group.stop)] == list(range(sequences))
    assert [i for chunk in chunking.chunks for i in range(chunk.start, chunk.stop)] == list(range(width))
    rows = max(x.stop - x.start for x in chunking.groups) * max(x.stop - x.start for x in chunking.chunks)
    assert rows == 1 or rows * heads * features <= entries
