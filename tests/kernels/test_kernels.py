"""The kernels' host side, and the kernels themselves (*_cases.py) on a GPU or through Triton's interpreter."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokengt.attention.kernels import kernel_plan, packed_favor, takes_favor
from tokengt.attention.kernels.cuts import find_cuts, make_cuts
from tokengt.attention.kernels.plan import Plan, Tiling, choose_tiling, make_plan, padded_width
from torch import Tensor

from tokengt.attention import AttentionConfig, MultiheadAttention, kernels, softmax_attention
from tokengt.ragged import Segments

ITEMS = torch.zeros(3, 0, dtype=torch.int32)
PLAN = (ITEMS, ITEMS, torch.zeros(0, 4, dtype=torch.int64))
TRITON = importlib.util.find_spec("triton") is not None


@pytest.mark.skipif(not TRITON, reason="Triton is not installed")
@pytest.mark.parametrize("file", ["kernel_cases.py", "favor_cases.py", "../fused_cases.py", "../build_cases.py"])
def test_kernels(file: str) -> None:
    """In a process of its own: the interpreter is chosen before Triton is imported, and type checks stop a trace."""
    interprets = not torch.cuda.is_available() and "build" not in file
    environment = os.environ | {"TRITON_INTERPRET": str(int(interprets))}
    cases = Path(__file__).parent / file
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", str(cases)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


@given(
    st.lists(st.integers(0, 200), max_size=20),
    st.sampled_from([Tiling(), Tiling((16,), 16), Tiling((16, 32, 64), 64), Tiling((32, 64, 128), 32)]),
)
def test_plan_covers_every_row_once(lengths: list[int], tiling: Tiling) -> None:
    segments = Segments.from_lengths(torch.tensor(lengths, dtype=torch.int64))
    plan = make_plan(segments, tiling)
    covered = torch.zeros(segments.total, dtype=torch.int64)
    reached = short_in_loop = 0
    for tile, loops, begin, end in plan.buckets.tolist():
        assert begin == reached
        reached = end
        for start, length, first in plan.items[:, begin:end].T.tolist():
            assert length == lengths[segments.host[:-1].tolist().index(start) + _empty_at(segments, start)]
            covered[start + first : start + min(first + tile, length)] += 1
            assert loops or length <= tile
            short_in_loop += bool(loops and length <= tiling.whole[-1] and first == 0)
            assert first == 0 or loops
    assert reached == plan.items.shape[1]
    assert short_in_loop * 16 <= len(lengths)
    assert (covered == 1).all()


@pytest.mark.parametrize(
    ("lengths", "held"),
    [
        ([10, 20, 20, 60], [1, 2, 1, 0]),
        ([10, *[20] * 16], [0, 17, 0, 0]),
        ([10, *[20] * 14], [1, 14, 0, 0]),
        ([10, *[20] * 16, *[40] * 272], [0, 0, 289, 0]),
        ([10, *[20] * 16, *[40] * 254], [0, 17, 254, 0]),
        ([10, *[200] * 100], [0, 0, 0, 401]),
        ([*[40] * 100, 60, 200], [0, 0, 101, 4]),
        ([*[20] * 100, 60], [0, 100, 1, 0]),
    ],
)
def test_few_sequences_join_the_next_tile(lengths: list[int], held: list[int]) -> None:
    plan = make_plan(Segments.from_lengths(torch.tensor(lengths)), Tiling((16, 32, 64), 64))
    assert [end - begin for *_, begin, end in plan.buckets.tolist()] == held


def test_room_is_what_is_left_of_a_bucket() -> None:
    plan = make_plan(Segments.from_lengths(torch.tensor([20, 10, 70, 12])), Tiling((16, 32), 32))
    assert plan.sizes == [2, 1, 3]
    assert plan.host.tolist() == [[20, 100, 0, 30, 30, 30], [10, 12, 20, 70, 70, 70], [0, 0, 0, 0, 32, 64]]
    roomy = plan.in_room([3, 1, 5])
    assert roomy.buckets.tolist() == [[16, 0, 0, 3], [32, 0, 3, 4], [32, 1, 4, 9]]
    assert roomy.host.tolist() == [
        [20, 100, 0, 0, 30, 30, 30, 0, 0],
        [10, 12, 0, 20, 70, 70, 70, 0, 0],
        [0, 0, 0, 0, 0, 32, 64, 0, 0],
    ]
    assert torch.equal(roomy.items, roomy.host)
    assert torch.equal(plan.with_room([3, 1, 5]), roomy.host)


def _empty_at(segments: Segments, start: int) -> int:
    """Empty sequences begin at the same row as the next one."""
    return int(((segments.host[:-1] == start) & (segments.host_lengths == 0)).sum())


def test_plan_by_hand() -> None:
    plan = make_plan(Segments.from_lengths(torch.tensor([20, 3, 0, 40, 16])), Tiling((16, 32), 16))
    assert plan.items.tolist() == [[20, 63, 0, 23, 23, 23], [3, 16, 20, 40, 40, 40], [0, 0, 0, 0, 16, 32]]
    assert plan.buckets.tolist() == [[16, 0, 0, 2], [32, 0, 2, 3], [16, 1, 3, 6]]
    assert plan.items.dtype == torch.int32
    assert plan.buckets.device.type == "cpu"


def test_other_backends_take_what_the_kernels_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU "auto" leaves the kernels alone, and finds that out once a batch."""
    segments = Segments.from_lengths(torch.tensor([5, 90]))
    sizes = {"dtype": torch.bfloat16, "head_dim": 8, "value_dim": 8}
    assert kernel_plan(segments, "auto", **sizes) is None
    monkeypatch.setattr(kernels, "_decide", None)
    assert kernel_plan(segments, "auto", **sizes) is None
    assert kernel_plan(segments, "bucketed", **sizes) is None
    assert kernel_plan(segments, "varlen", **sizes) is None
    with pytest.raises(TypeError):
        kernel_plan(segments, "auto", **sizes | {"head_dim": 16})


def test_auto_takes_the_kernels_on_a_gpu_where_they_work_and_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_works", lambda device: True)
    monkeypatch.setattr(kernels, "make_plan", lambda segments, tiling: Plan(*PLAN))

    def taken(*lengths: int, dtype: torch.dtype = torch.bfloat16, width: int = 24, device: str = "cuda") -> bool:
        # A device of that name, without one at hand.
        offsets = SimpleNamespace(device=SimpleNamespace(type=device))
        segments = Segments.from_lengths(torch.tensor(lengths))
        object.__setattr__(segments, "offsets", offsets)
        return kernel_plan(segments, "auto", dtype=dtype, head_dim=width, value_dim=24) is not None

    assert taken(1)
    assert taken(512)
    assert taken(45, dtype=torch.float32)
    assert taken(513, *[45] * 200)
    assert not taken(513)
    assert not taken(4000, *[45] * 200)
    assert not taken(0)
    assert not taken(45, dtype=torch.float64)
    assert not taken(45, width=129)
    assert not taken(45, device="cpu")
    monkeypatch.setattr(kernels, "_works", lambda device: False)
    assert not taken(45)


def test_tiles_fit_the_chip() -> None:
    assert [padded_width(width) for width in (1, 8, 16, 17, 24, 32, 65, 128)] == [16, 16, 16, 32, 32, 32, 128, 128]
    assert choose_tiling(24, 24, 2) == Tiling((16, 32, 64, 128), 64)
    assert choose_tiling(128, 128, 2) == Tiling((16, 32, 64), 64)
    assert choose_tiling(24, 24, 4) == Tiling((16, 32, 64), 64)
    assert choose_tiling(128, 128, 4) == Tiling((16,), 16)


def test_asks_for_triton_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    module = MultiheadAttention(8, 2, 4, 4, AttentionConfig(backend="triton"))
    segments = Segments.from_lengths(torch.tensor([3]))
    with pytest.raises(ImportError, match="backend 'triton' needs the package triton, which is not installed"):
        module(torch.randn(3, 8), segments)


@pytest.mark.skipif(not TRITON, reason="Triton is not installed")
def test_asks_for_a_gpu() -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("the interpreter takes CPU tensors")
    q, k, v = torch.randn(3, 5, 2, 8).unbind(0)
    with pytest.raises(ValueError, match=r"'triton' needs a GPU .*; got a tensor on cpu"):
        softmax_attention(q, k, v, Segments.from_lengths(torch.tensor([5])), backend="triton")


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_whether_kernels_work_does_not_depend_on_who_asks(
    mode: Callable[[], AbstractContextManager[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(kernels, "packed_attention", lambda rows, segments, **sizes: 2 * rows)
    works = kernels._works.__wrapped__
    with mode():
        assert works(torch.device("cpu"))

    def broken(*_: object, **__: object) -> torch.Tensor:
        raise RuntimeError("no compiler\nat all")

    monkeypatch.setattr(kernels, "packed_attention", broken)
    with pytest.warns(UserWarning, match=r"do not run on cpu \(RuntimeError: no compiler\); using PyTorch's"):
        assert not works(torch.device("cpu"))


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_favor_falls_back_where_its_kernels_are_not_built(
    mode: Callable[[], AbstractContextManager[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tried with the sizes that are asked for, and saved for a backward, which tensors of inference cannot be."""
    given: list[tuple[int, ...]] = []

    class Saves(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, rows: Tensor, projection: Tensor) -> Tensor:
            ctx.save_for_backward(rows, projection)
            return 2 * rows

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
            assert len(ctx.saved_tensors) == 2
            return 2 * grad, None

    def favor(rows: Tensor, segments: Segments, projection: Tensor, *sizes: Any) -> Tensor:
        given.append((*rows.shape, *projection.shape, *sizes[:3]))
        out: Tensor = Saves.apply(rows, projection)
        return out

    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(kernels, "_works", lambda device: True)
    monkeypatch.setattr(kernels, "_favor", favor)
    works = kernels._favor_works.__wrapped__
    with mode():
        assert works(torch.device("cpu"), torch.bfloat16, 2, 8, 12, 40)
    assert given == [(3, 56, 40, 8, 2, 8, 12)]

    def broken(*_: object) -> Tensor:
        raise RuntimeError("out of resource: shared memory")

    monkeypatch.setattr(kernels, "_favor", broken)
    with pytest.warns(UserWarning, match=r"out of resource: shared memory\); using PyTorch's, which are slower"):
        assert not works(torch.device("cpu"), torch.bfloat16, 2, 8, 12, 40)
    monkeypatch.setattr(kernels, "_works", lambda device: False)
    assert not works(torch.device("cpu"), torch.bfloat16, 2, 8, 12, 40)


@given(st.lists(st.integers(0, 3000), max_size=12), st.integers(1, 300))
def test_cuts_cover_every_row_once(lengths: list[int], units: int) -> None:
    segments = Segments.from_lengths(torch.tensor(lengths, dtype=torch.int64))
    cuts = make_cuts(segments, units)
    filled = [n for n in lengths if n]
    starts = Segments.from_lengths(torch.tensor(filled, dtype=torch.int64)).host.tolist()
    for cut, most in ((cuts.tiles, 64), (cuts.pieces, 10**9)):
        covered = torch.zeros(segments.total, dtype=torch.int64)
        for start, count, sequence in cut.T.tolist():
            assert 0 < count <= most
            assert starts[sequence] <= start
            assert start + count <= starts[sequence + 1]
            covered[start : start + count] += 1
        assert (covered == 1).all()
    assert cuts.bounds.tolist() == [int((cuts.pieces[2] < i).sum()) for i in range(len(filled) + 1)]
    assert find_cuts(segments, 1, 40) is find_cuts(segments, 1, 64)
    whole = cuts.pieces[1, :-1][cuts.pieces[2, 1:] == cuts.pieces[2, :-1]]  # another piece of the sequence follows
    assert (whole % 128 == 0).all()
    assert (whole >= 512).all()


def test_a_sequence_is_cut_into_as_many_pieces_as_fill_a_gpu() -> None:
    for units in (1, 8, 20):
        pieces = make_cuts(Segments.from_lengths(torch.tensor([530_000])), units).pieces.shape[1]
        assert 800 <= pieces * units <= 1100
    segments = Segments.from_lengths(torch.tensor([530_000]))
    assert find_cuts(segments, 8, 29).pieces.shape[1] > find_cuts(segments, 4, 266).pieces.shape[1]


@pytest.mark.parametrize(
    ("lengths", "takes"),
    [([1024], True), ([1023] * 5, False), ([1100, 0, 0], True), ([2000] + [5] * 30, False), ([2000] + [500] * 3, True)],
    ids=str,
)
def test_long_sequences_and_few_go_to_the_kernels_of_favor(lengths: list[int], takes: bool) -> None:
    assert takes_favor(Segments.from_lengths(torch.tensor(lengths)), 100) == takes


def test_without_a_gpu_favor_is_left_to_pytorch() -> None:
    segments = Segments.from_lengths(torch.tensor([1100]))
    for backend in ("auto", "bucketed"):
        found = packed_favor(
            torch.randn(1100, 24), segments, torch.randn(5, 8), num_heads=1, value_dim=8, eps=1e-4, backend=backend
        )
        assert found is None
