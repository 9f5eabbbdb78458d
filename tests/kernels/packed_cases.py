"""What the Triton kernels must do, on a GPU or through Triton's interpreter (TRITON_INTERPRET=1, CPU tensors).

The interpreter has to be chosen before Triton is first imported, so ``test_kernels.py`` runs this file in a process of
its own; on a GPU it can be given to pytest directly.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tokengt.attention import AttentionPlan, MultiheadAttention, SoftmaxConfig, may_attend, softmax_attention
from tokengt.attention.plan import plan_softmax
from tokengt.kernels.attend import tiled_attention
from tokengt.kernels.heads import Heads
from tokengt.kernels.packed_launch import interpreted, run_backward, run_forward
from tokengt.kernels.packed_op import packed_attention_backward_op, packed_attention_op
from tokengt.kernels.tiles import StepTiles, Tiles, Tiling, choose_tiling, make_tiles
from tokengt.ragged import Segments


def mend_interpreter() -> None:
    """Triton 3.6's interpreter multiplies the bit patterns of bf16, and reads loop bounds as NumPy < 2.4 allowed."""
    from triton.runtime import interpreter

    patch, multiply = interpreter._patch_lang_tensor, interpreter.InterpreterBuilder.create_dot

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        wide = (self.cast_impl(x, interpreter.tl.float32) if x.dtype == interpreter.tl.bfloat16 else x for x in (a, b))
        return multiply(self, *wide, *rest)

    interpreter._patch_lang_tensor = patched
    interpreter.InterpreterBuilder.create_dot = create_dot


if interpreted():
    mend_interpreter()

DEVICE = torch.device("cpu" if interpreted() else "cuda")
LENGTHS = [0, 1, 2, 17, 64, 65, 0, 128, 130, 300]
FEW = [17, 0, 65, 2, 130]
TOLERANCE = {torch.float32: 3e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}


def segments_of(lengths: list[int]) -> Segments:
    return Segments.from_lengths(torch.tensor(lengths), DEVICE)


def rows(segments: Segments, heads: Heads, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(segments.total, heads.width, device=DEVICE).to(dtype)


def reference(
    qkv: Tensor,
    segments: Segments,
    heads: Heads,
    factors: list[Tensor] | None = None,
    marks: Tensor | None = None,
) -> Tensor:
    """softmax(Q K^T / sqrt(d)) V in the precision given, weights times ``factors``, [heads, n, n] per sequence.

    With ``marks`` scores of rows that may not attend to each other count as minus infinity.
    """
    widths = [heads.count * heads.key, heads.count * heads.key, heads.count * heads.value]
    q, k, v = (x.unflatten(1, (heads.count, -1)) for x in qkv.split(widths, 1))
    outputs = []
    for place, (start, stop) in enumerate(zip(segments.host[:-1].tolist(), segments.host[1:].tolist(), strict=True)):
        scores = torch.einsum("ihd,jhd->hij", q[start:stop], k[start:stop]) / math.sqrt(heads.key)
        if marks is not None:
            scores = scores.masked_fill(~may_attend(marks[start:stop]), -torch.inf)
        weights = scores.softmax(-1)
        if factors is not None:
            weights = weights * factors[place]
        outputs.append(torch.einsum("hij,jhd->ihd", weights, v[start:stop]))
    return torch.cat(outputs)


def attend(
    qkv: Tensor,
    segments: Segments,
    heads: Heads,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    marks: Tensor | None = None,
) -> Tensor:
    tiles = plan_softmax(segments, heads, qkv.dtype, "triton").tiles
    assert tiles is not None
    return tiled_attention(qkv, tiles, heads, dropout=dropout, seed=seed, marks=marks)


def chain_marks(segments: Segments) -> Tensor:
    """Rows of every sequence in a chain, each sharing one mark with the next; a few, never the first ones, are open.

    So most tiles of a long sequence have nothing that a query may attend to, the first ones among them.
    """
    place = torch.arange(segments.total, device=DEVICE)
    marks = torch.stack([place, place + 1], 1)
    marks[(segments.positions >= 150) & (place % 41 == 0)] = -1
    return marks.int()


def assert_close(found: Tensor, exact: Tensor, segments: Segments, tolerance: float) -> None:
    """Relative error of every sequence by itself."""
    assert found.shape == exact.shape
    for one, other in zip(*(x.detach().split(segments.host_lengths.tolist()) for x in (found, exact)), strict=True):
        # One token attends to itself alone: the gradients of its query and key are zero, up to rounding.
        assert float((one.double() - other).norm()) <= tolerance * max(float(other.norm()), 1.0)


def assert_equals_float64(
    attending: Callable[[Tensor], Tensor],
    segments: Segments,
    heads: Heads,
    dtype: torch.dtype,
    marks: Tensor | None = None,
) -> None:
    """Outputs and gradients on fresh rows."""
    qkv = rows(segments, heads, dtype)
    weights = torch.randn(segments.total, heads.count, heads.value, device=DEVICE).to(dtype)
    leaf, exact = qkv.clone().requires_grad_(), qkv.double().requires_grad_()
    out, expected = attending(leaf), reference(exact, segments, heads, marks=marks)
    assert out.dtype == dtype
    (out * weights).sum().backward()
    (expected * weights.double()).sum().backward()
    assert leaf.grad is not None
    assert exact.grad is not None
    assert_close(out, expected, segments, TOLERANCE[dtype])
    assert_close(leaf.grad, exact.grad, segments, TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("heads", "dtype", "lengths"),
    [
        (Heads(1, 24, 24), torch.float32, LENGTHS),
        (Heads(1, 24, 24), torch.bfloat16, LENGTHS),
        (Heads(2, 8, 8), torch.float16, FEW),
        (Heads(2, 32, 20), torch.float32, FEW),
        (Heads(1, 5, 65), torch.bfloat16, FEW),
        (Heads(1, 128, 128), torch.bfloat16, FEW),
        (Heads(1, 128, 128), torch.float32, [1, 16, 40]),
    ],
    ids=str,
)
def test_output_and_gradients_equal_float64(heads: Heads, dtype: torch.dtype, lengths: list[int]) -> None:
    torch.seed()
    segments = segments_of(lengths)
    assert_equals_float64(lambda qkv: attend(qkv, segments, heads), segments, heads, dtype)


@pytest.mark.parametrize(
    ("heads", "dtype", "lengths"),
    [
        (Heads(1, 24, 24), torch.float32, LENGTHS),
        (Heads(1, 24, 24), torch.bfloat16, LENGTHS),
        (Heads(2, 8, 12), torch.float16, FEW),
        (Heads(1, 128, 128), torch.float32, [1, 16, 40]),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["chain", "pairs"])
def test_masked_output_and_gradients_equal_float64(
    heads: Heads, dtype: torch.dtype, lengths: list[int], kind: str
) -> None:
    """Whole sequences and loops; rows with one partner, with many, and open ones."""
    torch.seed()
    segments = segments_of(lengths)
    marks = chain_marks(segments)
    if kind == "pairs":
        marks = torch.randint(12, (segments.total, 2), device=DEVICE, dtype=torch.int32)
        marks[segments.starts[segments.lengths > 0]] = -1
    assert_equals_float64(lambda qkv: attend(qkv, segments, heads, marks=marks), segments, heads, dtype, marks)


def test_where_all_rows_share_a_mark_nothing_is_masked() -> None:
    """With dropout: the mask changes no draw."""
    heads, segments = Heads(2, 8, 8), segments_of([5, 40, 150])
    qkv, seed = rows(segments, heads), torch.tensor(4, device=DEVICE)
    marks = torch.stack([torch.full((195,), 7), torch.arange(195)], 1).int().to(DEVICE)
    results = []
    for given in (None, marks, torch.full_like(marks, -1)):
        x = qkv.clone().requires_grad_()
        out = attend(x, segments, heads, 0.3, seed, given)
        out.square().sum().backward()
        assert x.grad is not None
        results.append((out.detach(), x.grad))
    for out, grad in results[1:]:
        assert (out - results[0][0]).abs().max() < 1e-6
        assert (grad - results[0][1]).abs().max() < 1e-5


def test_masked_dropout_gradients_go_through_the_same_mask() -> None:
    dropout, heads, segments = 0.3, Heads(2, 24, 16), segments_of([1, 20, 64, 0, 150])
    marks = chain_marks(segments)
    kept = 1 / (1 - round(dropout * 2**16) / 2**16)
    factors = [mask.double() * kept for mask in keep_masks(segments, 77, dropout)]
    qkv = rows(segments, heads)
    leaf, exact = qkv.clone().requires_grad_(), qkv.double().requires_grad_()
    out = attend(leaf, segments, heads, dropout, torch.tensor(77, device=DEVICE), marks)
    expected = reference(exact, segments, heads, factors, marks)
    out.sum().backward()
    expected.sum().backward()
    assert leaf.grad is not None
    assert exact.grad is not None
    assert_close(out, expected, segments, TOLERANCE[torch.float32])
    assert_close(leaf.grad, exact.grad, segments, TOLERANCE[torch.float32])


def test_masked_rows_beyond_a_tile_are_written_and_none_beside() -> None:
    """Outputs begin as NaN; sequences end in the middle of tiles, whose other rows have no marks."""
    heads, segments = Heads(2, 24, 9), segments_of([0, 1, 17, 0, 33, 70])
    tiles, marks = make_tiles(segments, Tiling((16, 32), 32)), chain_marks(segments)
    qkv, seed = rows(segments, heads), torch.tensor(5, device=DEVICE)
    out, sums, grad = (
        torch.full(shape, torch.nan, device=DEVICE)
        for shape in ((segments.total, 2, 9), (2, segments.total), (segments.total, heads.width))
    )
    run_forward(qkv, tiles.items, tiles.buckets, seed, heads, 0.2, out, sums, marks)
    run_backward(qkv, out, torch.randn_like(out), sums, tiles.items, tiles.buckets, seed, heads, 0.2, grad, marks)
    assert all(tensor.isfinite().all() for tensor in (out, sums, grad))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tiles_of_two_parts_equal_float64(dtype: torch.dtype, masked: bool) -> None:
    """Sequences that end in the first part of a tile, at its end, in the second part, and fill the tile."""
    heads, segments = Heads(2, 24, 9), segments_of([1, 63, 64, 65, 70, 95, 96])
    tiles, marks = make_tiles(segments, Tiling((96,), 32)), chain_marks(segments) if masked else None
    assert (tiles.buckets[:, 3] - tiles.buckets[:, 2]).tolist() == [7, 0]
    assert_equals_float64(lambda qkv: tiled_attention(qkv, tiles, heads, marks=marks), segments, heads, dtype, marks)


@pytest.mark.parametrize("tiling", [choose_tiling(24, 9, 4), Tiling((96,), 32)], ids=str)
def test_every_element_is_written_and_none_beside(tiling: Tiling) -> None:
    """Outputs begin as NaN, in the middle of larger tensors of NaN."""
    heads, segments = Heads(2, 24, 9), segments_of([0, 1, 17, 0, 33, 70])
    tiles = make_tiles(segments, tiling)
    qkv, seed = rows(segments, heads), torch.tensor(5, device=DEVICE)

    def poisoned(*shape: int) -> tuple[Tensor, Tensor]:
        around = torch.full((shape[0] + 2, *shape[1:]), torch.nan, device=DEVICE)
        return around, around[1:-1]

    (about_out, out), (about_sums, sums), (about_grad, grad) = (
        poisoned(*shape) for shape in ((segments.total, 2, 9), (2, segments.total), (segments.total, heads.width))
    )
    run_forward(qkv, tiles.items, tiles.buckets, seed, heads, 0.2, out, sums)
    run_backward(qkv, out, torch.randn_like(out), sums, tiles.items, tiles.buckets, seed, heads, 0.2, grad)
    for around, inside in ((about_out, out), (about_sums, sums), (about_grad, grad)):
        assert inside.isfinite().all()
        assert around[0].isnan().all()
        assert around[-1].isnan().all()


def test_log_sums_are_those_of_the_scores() -> None:
    heads, segments = Heads(1, 16, 16), segments_of([3, 70])
    tiles = make_tiles(segments, Tiling((16,), 16))
    qkv = rows(segments, heads)
    _, log_sums = packed_attention_op(qkv, tiles.items, tiles.buckets, None, 1, 16, 16, 0.0)
    q, k = qkv[:, :16].double(), qkv[:, 16:32].double()
    expected = [(q[a:b] @ k[a:b].T / 4).logsumexp(1) for a, b in ((0, 3), (3, 73))]
    assert (log_sums[0] * math.log(2) - torch.cat(expected)).abs().max() < 1e-5


@pytest.mark.parametrize("tiling", [Tiling((16, 32), 32), Tiling((16, 96), 32)], ids=str)
def test_room_that_nothing_takes_changes_nothing(tiling: Tiling) -> None:
    """Entries of length 0 in every bucket, the loop's as well."""
    heads, segments = Heads(3, 8, 8), segments_of([9, 16, 3, 1, 12, 40, 100])
    tiles = make_tiles(segments, tiling)
    many, lengths = StepTiles.decide(tiling, segments.host_lengths, 10**6), segments.host_lengths.numpy()
    room = (many.needed(lengths[None]) + 3).tolist()
    items = torch.from_numpy(many.items(segments.host[:-1].numpy()[None], lengths[None], room)[0])
    roomy = Tiles(items.to(DEVICE), many.buckets(room))
    qkv, seed = rows(segments, heads), torch.tensor(3, device=DEVICE)
    results = []
    for used in (tiles, roomy):
        x = qkv.clone().requires_grad_()
        out, _ = packed_attention_op(x, used.items, used.buckets, seed, *vars(heads).values(), 0.1)
        out.sum().backward()  # The gradient of a sum has strides of zero.
        assert x.grad is not None
        results.append((out.detach(), x.grad))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def keep_masks(segments: Segments, seed: int, dropout: float, count: int = 2) -> list[Tensor]:
    """The masks that the kernel used, seen from outside: equal scores, and values that are the rows of an identity."""
    masks = [torch.empty(count, n, 0, dtype=torch.bool, device=DEVICE) for n in segments.host_lengths.tolist()]
    for first in range(0, segments.max_length, 128):
        heads = Heads(count, 8, 128)
        qkv = torch.zeros(segments.total, heads.width, device=DEVICE, dtype=torch.float16)
        place = segments.positions - first
        inside = ((place >= 0) & (place < 128)).nonzero()[:, 0]
        for head in range(count):
            qkv[inside, 2 * count * 8 + head * 128 + place[inside]] = 1.0
        out = attend(qkv, segments, heads, dropout, torch.tensor(seed, device=DEVICE))
        for index, part in enumerate(out.split(segments.host_lengths.tolist())):
            n = len(part)
            weights = part.transpose(0, 1)[..., : max(0, min(128, n - first))].float() * n
            kept = 2**16 / (2**16 - round(dropout * 2**16))
            assert ((weights == 0) | ((weights - kept).abs() < 5e-3)).all()
            masks[index] = torch.cat((masks[index], weights > 0), 2)
    return masks


def correlation(a: Tensor, b: Tensor) -> float:
    """Of two 0/1 tensors, in units of what chance gives."""
    a, b = a.double().flatten(), b.double().flatten()
    a, b = a - a.mean(), b - b.mean()
    return float((a @ b) / (a.norm() * b.norm())) * math.sqrt(len(a))


def test_dropout_mask_is_fair_and_independent() -> None:
    dropout = 0.25
    short, long = keep_masks(segments_of([64, 256]), 11, dropout=dropout)
    everything = torch.cat([short.flatten(), long.flatten()]).double()
    deviation = math.sqrt(dropout * (1 - dropout) / len(everything))
    assert abs(float(everything.mean()) - (1 - dropout)) < 4 * deviation
    # Sums over rows and over columns spread as independent draws do: their variance is n p (1 - p).
    for sums in (long.double().sum(2), long.double().sum(1)):
        ratio = float(sums.var(1).mean()) / (256 * dropout * (1 - dropout))
        assert abs(ratio - 1) < 4 * math.sqrt(2 / 512)
    pairs = [
        (long[:, :, :-1], long[:, :, 1:]),
        (long[:, :, :-2], long[:, :, 2:]),
        (long[:, :-1], long[:, 1:]),
        (long[:, :, :128], long[:, :, 128:]),
        (long[0], long[1]),
        (short, long[:, :64, :64]),
    ]
    for a, b in pairs:
        assert abs(correlation(a, b)) < 4
    upper = torch.ones(256, 256, dtype=torch.bool, device=DEVICE).triu(1)
    assert abs(correlation(long[:, upper], long.transpose(1, 2)[:, upper])) < 4


def test_seed_decides_the_mask() -> None:
    segments, dropout = segments_of([60, 120]), 0.5
    one, again, other = (torch.cat([m.flatten() for m in keep_masks(segments, s, dropout, 1)]) for s in (1, 1, 2))
    assert torch.equal(one, again)
    # Also seeds that differ in their upper 32 bits only.
    far = torch.cat([m.flatten() for m in keep_masks(segments, 1 + 2**40, dropout, 1)])
    for different in (other, far):
        assert abs(correlation(one, different)) < 4
    torch.manual_seed(3)
    heads = Heads(1, 8, 8)
    qkv = rows(segments, heads)
    state = torch.get_rng_state() if interpreted() else torch.cuda.get_rng_state()
    first, second = attend(qkv, segments, heads, dropout), attend(qkv, segments, heads, dropout)
    _ = torch.set_rng_state(state) if interpreted() else torch.cuda.set_rng_state(state)
    assert torch.equal(first, attend(qkv, segments, heads, dropout))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("masked", [False, True])
def test_mask_does_not_depend_on_tiles(masked: bool) -> None:
    heads, segments = Heads(2, 16, 16), segments_of([40, 7, 64, 90])
    marks = chain_marks(segments) if masked else None
    qkv, seed = rows(segments, heads), torch.tensor(9, device=DEVICE)
    results = []
    for tiling in (Tiling(), Tiling((16, 32), 32), Tiling((96,), 32)):
        tiles = make_tiles(segments, tiling)
        x = qkv.clone().requires_grad_()
        out, _ = packed_attention_op(x, tiles.items, tiles.buckets, seed, 2, 16, 16, 0.4, marks)
        out.square().sum().backward()
        assert x.grad is not None
        results.append((out.detach(), x.grad))
    for out, grad in results[1:]:
        assert (out - results[0][0]).abs().max() < 1e-5
        assert (grad - results[0][1]).abs().max() < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_gradients_go_through_the_same_mask(dtype: torch.dtype) -> None:
    dropout, heads, segments = 0.3, Heads(2, 24, 16), segments_of([1, 20, 64, 0, 150])
    kept = 1 / (1 - round(dropout * 2**16) / 2**16)
    factors = [mask.double() * kept for mask in keep_masks(segments, 77, dropout)]
    qkv = rows(segments, heads, dtype)
    weights = torch.randn(segments.total, 2, 16, device=DEVICE).to(dtype)
    leaf, exact = qkv.clone().requires_grad_(), qkv.double().requires_grad_()
    out = attend(leaf, segments, heads, dropout, torch.tensor(77, device=DEVICE))
    expected = reference(exact, segments, heads, factors)
    (out * weights).sum().backward()
    (expected * weights.double()).sum().backward()
    assert leaf.grad is not None
    assert exact.grad is not None
    assert_close(out, expected, segments, TOLERANCE[dtype])
    assert_close(leaf.grad, exact.grad, segments, TOLERANCE[dtype])


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_gradient_is_the_slope(dropout: float) -> None:
    """Central differences of the kernel's own output along random directions."""
    heads, segments = Heads(2, 8, 8), segments_of([5, 30, 70])
    qkv, seed = rows(segments, heads), torch.tensor(1, device=DEVICE)
    weights = torch.randn(segments.total, 2, 8, device=DEVICE)

    def loss(x: Tensor) -> Tensor:
        return (attend(x, segments, heads, dropout, seed).double() * weights).sum()

    x = qkv.clone().requires_grad_()
    loss(x).backward()
    assert x.grad is not None
    for part in (slice(0, 16), slice(16, 32), slice(32, 48)):
        direction = torch.zeros_like(qkv)
        direction[:, part] = torch.randn_like(direction[:, part])
        step = 1e-2
        with torch.no_grad():
            slope = (loss(qkv + step * direction) - loss(qkv - step * direction)) / (2 * step)
        expected = float((x.grad * direction).double().sum())
        assert abs(float(slope) - expected) < 2e-3 * float(x.grad[:, part].norm())


def test_operators_keep_pytorchs_rules() -> None:
    """Schema, fake tensors, autograd registration and tracing with static and dynamic shapes."""
    segments = segments_of([3, 20])
    heads, tiles = Heads(1, 8, 8), make_tiles(segments, Tiling((16,), 16))
    qkv = rows(segments, heads)
    for seed, dropout in ((None, 0.0), (torch.tensor(4, device=DEVICE), 0.3)):
        marks = None if seed is None else chain_marks(segments)
        arguments = (tiles.items, tiles.buckets, seed, 1, 8, 8, dropout, marks)
        torch.library.opcheck(packed_attention_op, (qkv.clone().requires_grad_(), *arguments))
    out, sums = packed_attention_op(qkv, *arguments)
    # Its own gradient is not defined, and not asked for.
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        packed_attention_backward_op, (torch.randn_like(out), qkv, out, sums, *arguments), test_utils=tests
    )


def test_module_equals_the_bucketed_path() -> None:
    segments = segments_of([4, 33, 0, 70])
    x = torch.randn(segments.total, 20, device=DEVICE)
    module = MultiheadAttention(20, 3, 8, 12, SoftmaxConfig(dropout=0.1)).to(DEVICE)
    results = []
    for backend in ("bucketed", "triton"):
        module.configure(SoftmaxConfig(backend=backend))
        module.zero_grad()
        out = module(x, segments)
        out.square().sum().backward()
        assert module.qkv_proj.weight.grad is not None
        results.append((out.detach(), module.qkv_proj.weight.grad.clone()))
    assert (results[0][0] - results[1][0]).abs().max() < 1e-5
    assert (results[0][1] - results[1][1]).norm() < 1e-5 * results[0][1].norm()
    q, k, v = torch.randn(3, segments.total, 2, 8, device=DEVICE).unbind(0)
    calls = (softmax_attention(q, k, v, segments, backend=b) for b in ("bucketed", "triton"))
    by_kernels, expected = calls
    assert (by_kernels - expected).abs().max() < 1e-5
    masked = MultiheadAttention(20, 3, 8, 12, SoftmaxConfig(), masked=True).to(DEVICE)
    results = []
    for backend in ("bucketed", "triton"):
        masked.configure(SoftmaxConfig(backend=backend))
        plan = masked.plan(segments, chain_marks(segments))
        out = masked(x, plan)
        assert (plan.masked is not None and plan.masked.tiles is not None) == (backend == "triton")
        (gradient,) = torch.autograd.grad(out.square().sum(), masked.qkv_proj.weight)
        results.append((out.detach(), gradient))
    assert (results[0][0] - results[1][0]).abs().max() < 1e-5
    assert (results[0][1] - results[1][1]).norm() < 1e-5 * results[0][1].norm()
    module.configure(SoftmaxConfig(backend="triton", dropout=0.5))
    assert not torch.equal(module(x, segments), module(x, segments))
    assert torch.equal(module.eval()(x, segments), module(x, segments))


def test_compiles_whole_and_once() -> None:
    """One trace for a fixed shape, one for any shape, none after that; the plan is made before."""
    from torch._dynamo.testing import CompileCounterWithBackend

    config = SoftmaxConfig(backend="triton", dropout=0.1)
    modules = nn.ModuleList([MultiheadAttention(16, 2, 8, 8, config, masked=masked) for masked in (True, False)])
    modules.to(DEVICE)
    counter = CompileCounterWithBackend("aot_eager")

    def stack(x: Tensor, plan: AttentionPlan) -> Tensor:
        for module in modules:
            x = x + module(x, plan)
        return x

    compiled = torch.compile(stack, backend=counter, fullgraph=True)
    for number, lengths in enumerate([[5, 20], [9, 9, 30], [1, 2, 3], [130], [16, 0, 17]]):
        segments = segments_of(lengths)
        plan = modules[0].plan(segments, chain_marks(segments))  # type: ignore[operator]
        x = torch.randn(segments.total, 16, device=DEVICE, requires_grad=True)
        compiled(x, plan).sum().backward()
        assert x.grad is not None
        assert counter.frame_count == min(number + 1, 2)
    torch.manual_seed(7)
    output = compiled(x, plan)
    torch.manual_seed(7)
    assert torch.allclose(output, stack(x, plan), atol=1e-5)


def test_a_plan_is_for_one_type() -> None:
    """Tiles for bfloat16 may be too large for float32."""
    module = MultiheadAttention(16, 2, 8, 8, SoftmaxConfig(backend="triton")).to(DEVICE)
    segments = segments_of([5, 90])
    with torch.autocast(DEVICE.type, torch.bfloat16):
        plan = module.plan(segments)
    with pytest.raises(ValueError, match=r"for torch.bfloat16 and the rows are torch.float32"):
        module(torch.randn(95, 16, device=DEVICE), plan)


def test_says_what_it_cannot_do() -> None:
    segments = segments_of([3])
    for heads, dtype in ((Heads(1, 8, 8), torch.float64), (Heads(1, 8, 129), torch.float32)):
        with pytest.raises(ValueError, match=rf"needs bf16, fp16 or fp32 and head sizes up to 128; got {dtype}, size"):
            attend(rows(segments, heads, dtype), segments, heads)
