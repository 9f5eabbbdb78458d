"""What the Triton kernels of FAVOR+ must do, on a GPU or through Triton's interpreter; ``test_kernels.py`` runs it."""

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from packed_cases import DEVICE, assert_close, rows, segments_of

from tokengt.attention import FavorAttention, FavorConfig, MultiheadAttention, draw_projection, favor_attention
from tokengt.attention.plan import plan_favor
from tokengt.kernels.attend import cut_favor
from tokengt.kernels.cuts import make_cuts
from tokengt.kernels.heads import Heads
from tokengt.kernels.packed_launch import interpreted
from tokengt.ragged import Segments

EPS = 1e-4
# The interpreter cuts numbers off where a GPU rounds them.
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 4e-2 if interpreted() else 2e-2}


def split(qkv: Tensor, heads: Heads) -> list[Tensor]:
    widths = [heads.count * heads.key, heads.count * heads.key, heads.count * heads.value]
    return [x.unflatten(1, (heads.count, -1)) for x in qkv.split(widths, 1)]


def attend(qkv: Tensor, segments: Segments, heads: Heads, projection: Tensor, eps: float = EPS) -> Tensor:
    return cut_favor(qkv, projection, make_cuts(segments, heads.count, len(projection)), heads, eps)


def reference(qkv: Tensor, segments: Segments, heads: Heads, projection: Tensor, eps: float = EPS) -> Tensor:
    return favor_attention(*split(qkv, heads), segments, projection=projection, eps=eps)


@pytest.mark.parametrize(
    ("heads", "features", "lengths", "dtype", "eps"),
    [
        (Heads(2, 12, 12), 29, [300], torch.float32, EPS),
        (Heads(2, 12, 12), 29, [300, 70], torch.bfloat16, EPS),
        (Heads(1, 16, 8), 130, [130, 0, 700, 1, 64], torch.float32, EPS),
        (Heads(3, 5, 20), 32, [513], torch.float32, EPS),
        (Heads(1, 64, 64), 266, [200, 65], torch.bfloat16, EPS),
        (Heads(1, 64, 33), 66, [150], torch.float32, EPS),
        (Heads(1, 128, 128), 70, [70], torch.bfloat16, EPS),
        (Heads(2, 8, 8), 2, [90], torch.float32, EPS),
        (
            Heads(2, 8, 8),
            16,
            [90, 70],
            torch.float32,
            0.3,
        ),  # This eps is so large that its parts of the gradient are seen.
    ],
    ids=str,
)
def test_output_and_gradients_equal_float64(
    heads: Heads, features: int, lengths: list[int], dtype: torch.dtype, eps: float
) -> None:
    print("seed", torch.seed())  # Printed when the test fails.
    segments, projection = segments_of(lengths), draw_projection(features, heads.key, device=DEVICE)
    qkv = rows(segments, heads, dtype)
    weights = torch.randn(segments.total, heads.count, heads.value, device=DEVICE).to(dtype)
    leaf, exact = qkv.clone().requires_grad_(), qkv.double().requires_grad_()
    out = attend(leaf, segments, heads, projection, eps)
    expected = reference(exact, segments, heads, projection.double(), eps)
    assert out.dtype == dtype
    out.backward(weights)
    expected.backward(weights.double())
    assert leaf.grad is not None
    assert exact.grad is not None
    assert_close(out, expected, segments, TOLERANCE[dtype])
    for one, other in zip(split(leaf.grad, heads), split(exact.grad, heads), strict=True):
        assert float((one.double() - other).norm()) <= 2 * TOLERANCE[dtype] * float(other.norm())


def test_what_pieces_are_cut_from_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """One piece for a sequence, or one for every few tiles, whose largest exponents differ by far."""
    heads, lengths = Heads(2, 8, 8), [400, 1000]
    projection, results = draw_projection(17, 8, device=DEVICE), []
    qkv = rows(segments_of(lengths), heads)
    qkv[700:900] *= 4
    for least in (10_000, 128):
        monkeypatch.setattr("tokengt.kernels.cuts._LEAST_PIECE", least)
        x = qkv.clone().requires_grad_()
        out = attend(x, segments_of(lengths), heads, projection)
        (gradient,) = torch.autograd.grad(out, x, torch.ones_like(out).cumsum(0))
        results.append((out, gradient))
    for one, other in zip(*results, strict=True):
        assert (one - other).norm() <= 3e-6 * other.norm()


def test_gradients_survive_values_far_from_zero() -> None:
    """Outputs differ little from the values' mean: rounded with it, that little would be lost, and with it dq."""
    torch.manual_seed(0)
    heads, segments = Heads(1, 16, 16), segments_of([1500])
    projection = draw_projection(44, 16, device=DEVICE).bfloat16().float()
    qkv = rows(segments, heads, torch.bfloat16)
    qkv[:, 32:] += 1
    weights = torch.randn(1500, 1, 16, device=DEVICE).bfloat16()
    leaf, exact = qkv.clone().requires_grad_(), qkv.double().requires_grad_()
    attend(leaf, segments, heads, projection).backward(weights)
    reference(exact, segments, heads, projection.double()).backward(weights.double())
    assert leaf.grad is not None
    assert exact.grad is not None
    one, other = leaf.grad[:, :16].double(), exact.grad[:, :16]
    assert (one - other).norm() < 0.03 * other.norm()


def test_a_tile_that_is_not_full_has_no_part_in_the_stabiliser() -> None:
    """All exponents of keys are below zero, which rows that do not exist would have."""
    torch.manual_seed(0)
    heads, segments = Heads(1, 8, 8), segments_of([90])
    projection = draw_projection(2, 8, device=DEVICE)
    qkv = rows(segments, heads)
    qkv[:, 8:16] = -(torch.linalg.pinv(projection) @ (1 + 3 * torch.rand(2, 90, device=DEVICE))).T
    output = attend(qkv, segments, heads, projection, 0.3)
    expected = reference(qkv.double(), segments, heads, projection.double(), 0.3)
    assert (output - expected).norm() < 1e-5 * expected.norm()


def test_rows_and_gradients_of_any_strides() -> None:
    torch.manual_seed(0)
    heads, segments = Heads(2, 8, 12), segments_of([100])
    projection, qkv = draw_projection(16, 8, device=DEVICE), rows(segments, heads)
    weights, results = torch.randn(2, 100, 12, device=DEVICE).transpose(0, 1), []
    for x, by in ((qkv, weights.contiguous()), (qkv.T.contiguous().T, weights)):
        leaf = x.detach().requires_grad_()
        out = attend(leaf, segments, heads, projection)
        results.append((out, *torch.autograd.grad(out, leaf, by)))
    assert not leaf.is_contiguous()
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_every_element_is_written() -> None:
    """New tensors begin as NaN where PyTorch is asked for repeatable results."""
    heads, segments = Heads(2, 12, 20), segments_of([0, 65, 1, 300])
    qkv = rows(segments, heads).requires_grad_()
    torch.use_deterministic_algorithms(True)
    try:
        out = attend(qkv, segments, heads, draw_projection(40, 12, device=DEVICE))
        (gradient,) = torch.autograd.grad(out, qkv, torch.ones_like(out))
    finally:
        torch.use_deterministic_algorithms(False)
    assert out.isfinite().all()
    assert gradient.isfinite().all()


def test_large_rows_stay_finite() -> None:
    """Exponents of hundreds: only what is left after the stabilisers is raised to."""
    heads, segments = Heads(1, 8, 8), segments_of([200])
    qkv = (30 * rows(segments, heads)).requires_grad_()
    out = attend(qkv, segments, heads, draw_projection(16, 8, device=DEVICE))
    (gradient,) = torch.autograd.grad(out, qkv, torch.ones_like(out))
    assert out.isfinite().all()
    assert gradient.isfinite().all()


def test_module_equals_the_plain_path() -> None:
    segments = segments_of([1100])
    x = torch.randn(1100, 20, device=DEVICE)
    module = MultiheadAttention(20, 3, 8, 12, FavorConfig(backend="triton")).to(DEVICE).eval()
    assert isinstance(module.kernel, FavorAttention)
    results = []
    for backend in ("triton", "bucketed"):
        module.kernel.config = FavorConfig(backend=backend)
        module.zero_grad()
        out = module(x, segments)
        out.square().sum().backward()
        results.append([out.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)])
    assert len(results[0]) == 5
    for one, other in zip(*results, strict=True):
        assert (one - other).norm() < 1e-5 * other.norm()


def test_plans_for_what_it_can_take() -> None:
    heads, projection = Heads(1, 8, 8), draw_projection(16, 8, device=DEVICE)
    long, short = segments_of([1100]), segments_of([900] * 3)
    few = segments_of([1100] + [3] * 70)  # Their tables would be larger than their rows.

    def taken(segments: Segments, heads: Heads, dtype: torch.dtype, projection: Tensor, backend: str) -> bool:
        return plan_favor(segments, heads, dtype, backend, projection).cuts is not None  # type: ignore[arg-type]

    assert taken(long, heads, torch.float32, projection, "triton")
    assert not taken(long, heads, torch.float32, projection, "bucketed")
    assert not taken(short, heads, torch.float32, projection, "triton")
    assert not taken(few, heads, torch.float32, projection, "triton")
    assert not taken(long, Heads(1, 65, 8), torch.float32, draw_projection(16, 65, device=DEVICE), "triton")
    for dtype in (torch.float64, torch.float16):
        assert not taken(long, heads, dtype, projection, "triton")
    assert not taken(long, heads, torch.float32, projection.clone().requires_grad_(), "triton")
