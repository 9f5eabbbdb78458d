"""The kernels' host side, and the kernels themselves (*_cases.py) on a GPU or through Triton's interpreter."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tokengt.kernels import support
from tokengt.kernels import tiles as tiles_module
from tokengt.kernels.cuts import make_cuts
from tokengt.kernels.edge_orders import EdgeOrders
from tokengt.kernels.heads import Heads
from tokengt.kernels.tiles import StepTiles, Tiles, Tiling, choose_tiling, make_tiles, padded_width, tile_parts
from tokengt.ragged import Segments

CASES = [
    *("packed_cases.py", "favor_cases.py", "rows_cases.py", "neighbours_cases.py", "sums_cases.py", "build_cases.py"),
    "../accelerate/fast_block_cases.py",
]
TRITON = importlib.util.find_spec("triton") is not None


@pytest.mark.skipif(not TRITON, reason="Triton is not installed")
@pytest.mark.parametrize("file", CASES)
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
    st.sampled_from([Tiling(), Tiling((16,), 16), Tiling((16, 48, 64, 96), 64), Tiling((32, 64, 128), 32)]),
)
def test_tiles_cover_every_row_once(lengths: list[int], tiling: Tiling) -> None:
    segments = Segments.from_lengths(torch.tensor(lengths, dtype=torch.int64))
    tiles = make_tiles(segments, tiling)
    covered = torch.zeros(segments.total, dtype=torch.int64)
    reached = short_in_loop = 0
    for tile, loops, begin, end in tiles.buckets.tolist():
        assert begin == reached
        reached = end
        for start, length, first in tiles.items[:, begin:end].T.tolist():
            assert length == lengths[segments.host[:-1].tolist().index(start) + _empty_at(segments, start)]
            covered[start + first : start + min(first + tile, length)] += 1
            assert loops or length <= tile
            short_in_loop += bool(loops and length <= tiling.whole[-1] and first == 0)
            assert first == 0 or loops
    assert reached == tiles.items.shape[1]
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
    tiles = make_tiles(Segments.from_lengths(torch.tensor(lengths)), Tiling((16, 32, 64), 64))
    assert [end - begin for *_, begin, end in tiles.buckets.tolist()] == held


def sizes_of(tiles: Tiles) -> list[int]:
    """Entries of every bucket."""
    sizes: list[int] = (tiles.buckets[:, 3] - tiles.buckets[:, 2]).tolist()
    return sizes


def in_room(tiles: Tiles, room: Sequence[int]) -> Tiles:
    """The same entries in buckets of these sizes, bucket by bucket; what is not taken has length 0."""
    items, place = tiles.items.new_zeros(3, sum(room)), 0
    for (_, _, begin, end), size in zip(tiles.buckets.tolist(), room, strict=True):
        items[:, place : place + end - begin] = tiles.items[:, begin:end]
        place += size
    ends = torch.tensor(room).cumsum(0)
    return Tiles(items, torch.stack((tiles.buckets[:, 0], tiles.buckets[:, 1], ends - torch.tensor(room), ends), 1))


def test_room_is_what_is_left_of_a_bucket() -> None:
    """Of several steps and of one, worked out by hand."""
    lengths, tiling = torch.tensor([20, 10, 70, 12]), Tiling((16, 32), 32)
    tiles = make_tiles(Segments.from_lengths(lengths), tiling)
    assert sizes_of(tiles) == [2, 1, 3]
    assert tiles.items.tolist() == [[20, 100, 0, 30, 30, 30], [10, 12, 20, 70, 70, 70], [0, 0, 0, 0, 32, 64]]
    many = StepTiles.decide(tiling, lengths, 5000)
    assert many.buckets([3, 1, 5]).tolist() == [[16, 0, 0, 3], [32, 0, 3, 4], [32, 1, 4, 9]]
    assert many.items(np.array([[0, 20, 30, 100]]), lengths.numpy()[None], [3, 1, 5])[0].tolist() == [
        [20, 100, 0, 0, 30, 30, 30, 0, 0],
        [10, 12, 0, 20, 70, 70, 70, 0, 0],
        [0, 0, 0, 0, 0, 32, 64, 0, 0],
    ]


TILINGS = st.sampled_from([Tiling(), Tiling((16,), 16), Tiling((16, 48, 64, 96), 64), Tiling((32, 64, 128), 32)])


@given(
    st.integers(1, 6).flatmap(
        lambda width: st.lists(st.lists(st.integers(0, 300), min_size=width, max_size=width), min_size=1, max_size=5)
    ),
    st.lists(st.integers(0, 300), min_size=1, max_size=40),
    TILINGS,
    st.sampled_from([10, 5000]),
    st.integers(0, 20),
)
def test_tiles_of_many_steps_are_those_of_each(
    lengths: list[list[int]], usual: list[int], tiling: Tiling, programs: int, more: int
) -> None:
    """Empty sequences and long ones, which have several entries; with more room than is needed, or just enough."""
    many = StepTiles.decide(tiling, torch.tensor(usual), programs)
    table = np.array(lengths)
    starts = np.cumsum(table, 1) - table
    needed = many.needed(table)
    room = (needed + more).tolist()
    items, buckets = many.items(starts, table, room), many.buckets(room)
    assert items.dtype == np.int32
    sizes = []
    with mock.patch.object(tiles_module, "_with_company", lambda group, whole: torch.from_numpy(many.joins)[group]):
        for step, own in zip(items, lengths, strict=True):
            alone = make_tiles(Segments.from_lengths(torch.tensor(own)), tiling)
            sizes.append(sizes_of(alone))
            roomy = in_room(alone, room)
            assert torch.equal(torch.from_numpy(step), roomy.items)
            assert torch.equal(buckets, roomy.buckets)
    assert needed.tolist() == np.array(sizes).max(0).tolist()


@given(st.lists(st.integers(0, 300), min_size=1, max_size=40), TILINGS)
def test_many_programs_are_tiled_as_a_batch_is(usual: list[int], tiling: Tiling) -> None:
    lengths = torch.tensor(usual)
    many, alone = StepTiles.decide(tiling, lengths, 5000), make_tiles(Segments.from_lengths(lengths), tiling)
    assert many.needed(lengths.numpy()[None]).tolist() == sizes_of(alone)


def test_few_programs_share_the_largest_tile() -> None:
    """They all run at once, so that the largest tile takes no longer than smaller ones before it."""
    usual = torch.tensor([10] * 50 + [30] * 50 + [60] * 50)
    few, many = (StepTiles.decide(Tiling(), usual, programs) for programs in (1024, 1025))
    assert few.needed(usual.numpy()[None]).tolist() == [0, 0, 150, 0, 0]
    assert many.needed(usual.numpy()[None]).tolist() == [50, 50, 50, 0, 0]
    # Longer ones than usual keep the tiles that hold them, and the loop.
    assert few.needed(np.array([[10, 100, 200]])).tolist() == [0, 0, 1, 1, 4]


def test_step_tiles_by_hand() -> None:
    many = StepTiles.decide(Tiling((16, 32), 16), torch.tensor([5, 20, 5, 40]), 5000)
    lengths = np.array([[20, 3, 0, 40, 16], [1, 1, 1, 1, 1]])
    assert many.needed(lengths).tolist() == [5, 1, 3]
    items = many.items(np.cumsum(lengths, 1) - lengths, lengths, [5, 1, 4])
    assert items[0].tolist() == [
        [20, 63, 0, 0, 0, 0, 23, 23, 23, 0],
        [3, 16, 0, 0, 0, 20, 40, 40, 40, 0],
        [0, 0, 0, 0, 0, 0, 0, 16, 32, 0],
    ]
    assert items[1].tolist() == [[0, 1, 2, 3, 4, *[0] * 5], [1] * 5 + [0] * 5, [0] * 10]
    assert many.buckets([5, 1, 4]).tolist() == [[16, 0, 0, 5], [32, 0, 5, 6], [16, 1, 6, 10]]


def _empty_at(segments: Segments, start: int) -> int:
    """Empty sequences begin at the same row as the next one."""
    return int(((segments.host[:-1] == start) & (segments.host_lengths == 0)).sum())


def test_tiles_by_hand() -> None:
    tiles = make_tiles(Segments.from_lengths(torch.tensor([20, 3, 0, 40, 16])), Tiling((16, 32), 16))
    assert tiles.items.tolist() == [[20, 63, 0, 23, 23, 23], [3, 16, 20, 40, 40, 40], [0, 0, 0, 0, 16, 32]]
    assert tiles.buckets.tolist() == [[16, 0, 0, 2], [32, 0, 2, 3], [16, 1, 3, 6]]
    assert tiles.items.dtype == torch.int32
    assert tiles.buckets.device.type == "cpu"


def test_a_tile_is_one_power_of_two_or_two() -> None:
    assert [tile_parts(tile) for tile in (16, 24, 48, 64, 96)] == [(16, 0), (16, 8), (32, 16), (64, 0), (64, 32)]
    with pytest.raises(AssertionError, match="112 is no sum"):
        tile_parts(112)


def test_tiles_fit_the_chip() -> None:
    assert [padded_width(width) for width in (1, 8, 16, 17, 24, 32, 65, 128)] == [16, 16, 16, 32, 32, 32, 128, 128]
    assert choose_tiling(24, 24, 2) == Tiling((16, 32, 64, 96, 128), 64)
    assert choose_tiling(64, 64, 2) == Tiling((16, 32, 64, 128), 64)
    assert choose_tiling(16, 16, 4) == Tiling((16, 32, 64, 128), 64)
    assert choose_tiling(128, 128, 2) == Tiling((16, 32, 64), 64)
    assert choose_tiling(24, 24, 4) == Tiling((16, 32, 64), 64)
    assert choose_tiling(128, 128, 4) == Tiling((16,), 16)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_whether_kernels_work_does_not_depend_on_who_asks(
    mode: Callable[[], AbstractContextManager[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(support, "tiled_attention", lambda rows, tiles, heads: 2 * rows)
    works = support.softmax_works.__wrapped__
    with mode():
        assert works(torch.device("cpu"))

    def broken(*_: object, **__: object) -> torch.Tensor:
        raise RuntimeError("no compiler\nat all")

    monkeypatch.setattr(support, "tiled_attention", broken)
    with pytest.warns(UserWarning, match=r"do not run on cpu \(RuntimeError: no compiler\); using PyTorch's"):
        assert not works(torch.device("cpu"))


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_favor_falls_back_where_its_kernels_are_not_built(
    mode: Callable[[], AbstractContextManager[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tried with the sizes that are asked for, and saved for a backward, which tensors of inference cannot be."""
    calls: list[tuple[Any, ...]] = []

    class Saves(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, rows: Tensor, projection: Tensor) -> Tensor:
            ctx.save_for_backward(rows, projection)
            return 2 * rows

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
            assert len(ctx.saved_tensors) == 2
            return 2 * grad, None

    def favor(rows: Tensor, projection: Tensor, cuts: Any, heads: Heads, eps: float) -> Tensor:
        calls.append((*rows.shape, *projection.shape, heads))
        out: Tensor = Saves.apply(rows, projection)
        return out

    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(support, "softmax_works", lambda device: True)
    monkeypatch.setattr(support, "cut_favor", favor)
    works = support.favor_works.__wrapped__
    with mode():
        assert works(torch.device("cpu"), torch.bfloat16, Heads(2, 8, 12), 40)
    assert calls == [(3, 56, 40, 8, Heads(2, 8, 12))]

    def broken(*_: object) -> Tensor:
        raise RuntimeError("out of resource: shared memory")

    monkeypatch.setattr(support, "cut_favor", broken)
    with pytest.warns(UserWarning, match=r"out of resource: shared memory\); using PyTorch's own, which are slower"):
        assert not works(torch.device("cpu"), torch.bfloat16, Heads(2, 8, 12), 40)
    monkeypatch.setattr(support, "softmax_works", lambda device: False)
    assert not works(torch.device("cpu"), torch.bfloat16, Heads(2, 8, 12), 40)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_attention_to_neighbours_falls_back_where_its_kernels_are_not_built(
    mode: Callable[[], AbstractContextManager[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tried with the sizes that are asked for; a CPU has none, unless a test interprets them."""
    calls: list[tuple[Any, ...]] = []

    def attend(left: Tensor, right: Tensor, att: Tensor, orders: EdgeOrders) -> Tensor:
        calls.append((left.dtype, *left.shape, orders.rows))
        return left + right

    cpu = torch.device("cpu")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert not support.edges_work.__wrapped__(cpu, torch.float32, 2, 3)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(support, "edge_attention", attend)
    with mode():
        assert support._edges_tried(cpu, torch.bfloat16, 2, 3)
    assert calls == [(torch.bfloat16, 3, 2, 3, 3)]

    def broken(*_: object) -> Tensor:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(support, "edge_attention", broken)
    with pytest.warns(UserWarning, match=r"no compiler\); using PyTorch's own, which are slower"):
        assert not support._edges_tried(cpu, torch.bfloat16, 2, 3)


@given(st.lists(st.integers(0, 3000), max_size=12), st.integers(1, 300))
def test_cuts_cover_every_row_once(lengths: list[int], num_heads: int) -> None:
    segments = Segments.from_lengths(torch.tensor(lengths, dtype=torch.int64))
    cuts = make_cuts(segments, num_heads, 40)
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
    whole = cuts.pieces[1, :-1][
        cuts.pieces[2, 1:] == cuts.pieces[2, :-1]
    ]  # Pieces that are not the last of their sequence.
    assert (whole % 128 == 0).all()
    assert (whole >= 512).all()


def test_a_sequence_is_cut_into_as_many_pieces_as_fill_a_gpu() -> None:
    for units in (1, 8, 20):
        pieces = make_cuts(Segments.from_lengths(torch.tensor([530_000])), units, 64).pieces.shape[1]
        assert 800 <= pieces * units <= 1100
    segments = Segments.from_lengths(torch.tensor([530_000]))
    assert make_cuts(segments, 8, 29).pieces.shape[1] > make_cuts(segments, 4, 266).pieces.shape[1]
