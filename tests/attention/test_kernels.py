"""The kernels' host side, and the kernels themselves (kernel_cases.py) on a GPU or through Triton's interpreter."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tokengt.attention import AttentionConfig, MultiheadAttention, softmax_attention
from tokengt.attention.kernels.plan import Tiling, choose_tiling, make_plan, padded_width, plan_of
from tokengt.ragged import Segments

TRITON = importlib.util.find_spec("triton") is not None


@pytest.mark.skipif(not TRITON, reason="Triton is not installed")
def test_kernels() -> None:
    """In a process of its own: the interpreter is chosen before Triton is imported, and type checks stop a trace."""
    environment = os.environ | ({} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"})
    cases = Path(__file__).with_name("kernel_cases.py")
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", str(cases)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cases.parents[2])
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


@given(
    st.lists(st.integers(0, 200), max_size=20),
    st.sampled_from([Tiling(), Tiling((16,), 16), Tiling((16, 32, 64), 64), Tiling((32, 64, 128), 32)]),
)
def test_plan_covers_every_row_once(lengths: list[int], tiling: Tiling) -> None:
    segments = Segments.from_lengths(torch.tensor(lengths, dtype=torch.int64))
    plan = make_plan(segments, tiling)
    covered = torch.zeros(segments.total, dtype=torch.int64)
    reached = 0
    for tile, loops, begin, end in plan.buckets.tolist():
        assert begin == reached
        reached = end
        for start, length, first in plan.items[:, begin:end].T.tolist():
            assert length == lengths[segments.host[:-1].tolist().index(start) + _empty_at(segments, start)]
            covered[start + first : start + min(first + tile, length)] += 1
            smaller = max([0, *(size for size in tiling.whole if size < tile)])
            assert length > tiling.whole[-1] if loops else smaller < length <= tile
            assert first == 0 or loops
    assert reached == plan.items.shape[1]
    assert (covered == 1).all()


def _empty_at(segments: Segments, start: int) -> int:
    """Empty sequences begin at the same row as the next one."""
    return int(((segments.host[:-1] == start) & (segments.host_lengths == 0)).sum())


def test_plan_by_hand() -> None:
    plan = make_plan(Segments.from_lengths(torch.tensor([20, 3, 0, 40, 16])), Tiling((16, 32), 16))
    assert plan.items.tolist() == [[20, 63, 0, 23, 23, 23], [3, 16, 20, 40, 40, 40], [0, 0, 0, 0, 16, 32]]
    assert plan.buckets.tolist() == [[16, 0, 0, 2], [32, 0, 2, 3], [16, 1, 3, 6]]
    assert plan.items.dtype == torch.int32
    assert plan.buckets.device.type == "cpu"


def test_plan_is_made_once() -> None:
    segments = Segments.from_lengths(torch.tensor([5, 90]))
    narrow, wide = Tiling((16, 32, 64), 64), Tiling((16, 32), 32)
    assert plan_of(segments, narrow) is plan_of(segments, narrow)
    assert plan_of(segments, wide) is not plan_of(segments, narrow)
    assert plan_of(segments.to("cpu"), narrow) is not plan_of(segments, narrow)


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
