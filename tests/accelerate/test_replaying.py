"""Batches filled up to one of few sizes; what is recorded of them needs a GPU (``replay_cases.py``)."""

import importlib.util
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tokengt.accelerate import replaying
from tokengt.accelerate.recording import Recording, Run, run_filled
from tokengt.accelerate.replaying import Replayer
from tokengt.accelerate.sizes import Size, rounded, with_margin
from tokengt.attention import AttentionPlan
from tokengt.block import EncoderConfig
from tokengt.kernels.tiles import Tiling, make_tiles
from tokengt.ragged import Segments
from tokengt.transformer import Encoder

GPU = torch.cuda.is_available() and importlib.util.find_spec("triton") is not None


@pytest.mark.skipif(not GPU, reason="needs a GPU and Triton")
def test_recordings() -> None:
    cases = Path(__file__).with_name("replay_cases.py")
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", str(cases)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cases.parents[2])
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


@given(st.integers(0, 10**7), st.sampled_from([1, 16, 64]))
def test_sizes_are_few_and_close(count: int, least: int) -> None:
    size = rounded(count, least)
    assert count <= size <= count + max(count // 64 + 1, least)
    assert rounded(size, least) == size
    assert size % least == 0
    assert size == 0 or size % max(1, (1 << size.bit_length() - 1) // 64) == 0


def test_between_a_number_and_its_double_are_64_sizes() -> None:
    assert len({rounded(count) for count in range(2**14 + 1, 2**15 + 1)}) == 64
    assert len({rounded(count, 64) for count in range(2**10 + 1, 2**11 + 1)}) == 16


@given(st.lists(st.integers(0, 300), min_size=1, max_size=40), st.booleans())
def test_a_filled_batch_has_the_same_sequences_first(lengths: list[int], reads: bool) -> None:
    segments = Segments.from_lengths(torch.tensor(lengths))
    size = Size.of(segments, segments.starts if reads else None)
    filled = size.fill(segments)
    assert filled.host_lengths[: len(lengths)].tolist() == lengths
    assert (filled.total, filled.count) == (size.rows, size.sequences)
    assert filled.host_lengths[len(lengths) :].max() <= 64
    assert size.read == (rounded(len(lengths), 64) if reads else None)


@pytest.mark.parametrize("reads", [True, False])
def test_filling_changes_no_output_and_no_gradient(reads: bool) -> None:
    torch.manual_seed(0)
    encoder = Encoder(16, EncoderConfig(num_layers=2, num_heads=2, input_norm=True)).double()
    segments = Segments.from_lengths(torch.tensor([5, 70, 1, 131]))
    rows = segments.starts if reads else None
    size = Size.of(segments, rows)
    assert size.rows > segments.total
    x = torch.randn(segments.total, 16, dtype=torch.float64, requires_grad=True)
    inputs = [x, *encoder.parameters()]
    plain = encoder(x, segments, None, rows)
    plan = encoder.plan(size.fill(segments))
    wide = run_filled(lambda y, plan, r: encoder(y, plan, None, r), size, x, plan, rows)
    torch.testing.assert_close(wide, plain)
    weights = torch.randn_like(plain)
    for one, other in zip(
        torch.autograd.grad(wide, inputs, weights), torch.autograd.grad(plain, inputs, weights), strict=True
    ):
        torch.testing.assert_close(one, other)


@dataclass
class PythonTape:
    """In the place of a CUDA graph: computes anew, into the same memory."""

    call: Callable[[], None]

    def replay(self) -> None:
        self.call()


def python_record(
    run: Run, size: Size, x: Tensor, plan: AttentionPlan, parameters: Sequence[Any], gradients: list[Tensor], pool: Any
) -> Recording:
    """A recording in ordinary memory; what nothing may read begins as NaN."""
    static = x.new_full((size.rows, x.shape[1]), 0.5).requires_grad_(x.requires_grad)
    rows = None if size.read is None else torch.zeros(size.read, dtype=torch.int64)
    out, grad_out, grad_x = (
        torch.full((n, 16), torch.nan).double() for n in (size.read or size.rows,) * 2 + (size.rows,)
    )
    kept: list[Tensor] = []

    def forward() -> None:
        with torch.enable_grad():
            kept[:] = [run(static, plan, rows)]
        out.copy_(kept[0].detach())

    def backward() -> None:
        inputs = [*([static] if x.requires_grad else []), *parameters]
        grads = torch.autograd.grad(kept.pop(), inputs, grad_out)
        torch._foreach_copy_(gradients, grads[-len(gradients) :])
        if x.requires_grad:
            grad_x.copy_(grads[0])

    own = grad_x if x.requires_grad else None
    return Recording(static, plan, rows, out, grad_out, own, PythonTape(forward), PythonTape(backward))


def tiled(segments: Segments) -> AttentionPlan:
    """In the place of attention's: tiles wherever the data lies."""
    return AttentionPlan(segments, tiles=make_tiles(segments, Tiling()))


class Toy(torch.nn.Module):
    """Rows that see the mean of their sequence, which they find by ``segments.ids`` alone, as recorded kernels do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.own, self.others = (torch.nn.Parameter(torch.randn(16, 16).double()) for _ in range(2))

    def forward(self, x: Tensor, given: Segments | AttentionPlan, rows: Tensor | None) -> Tensor:
        segments = given.segments if isinstance(given, AttentionPlan) else given
        y = (x @ self.own).tanh()
        sums = y.new_zeros(segments.count, 16).index_add(0, segments.ids, y @ self.others)
        z = y + sums.index_select(0, segments.ids).tanh()
        return z if rows is None else z.index_select(0, rows)


@pytest.fixture
def toy() -> Toy:
    return Toy()


@pytest.fixture
def replayer(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> Replayer:
    monkeypatch.setattr(replaying, "record", python_record)
    monkeypatch.setattr(Replayer, "pool", None)
    return Replayer(toy, tiled, list(toy.parameters()))


def gradients(model: Any, call: Any, lengths: list[int], *, keep: bool = False, learns: bool = True) -> list[Tensor]:
    """The output, the gradient of the rows and those of the weights, after one backward."""
    if not keep:
        model.zero_grad()
    segments = Segments.from_lengths(torch.tensor(lengths))
    x = torch.randn(segments.total, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(lengths)))
    out = call(x.requires_grad_(learns), segments, segments.starts)
    out.square().sum().backward()
    grads = [p.grad for p in model.parameters()]
    return [out.detach().clone(), *([] if x.grad is None else [x.grad]), *(g.clone() for g in grads if g is not None)]


def same(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


BATCHES = [[30, 20, 60, 20], [31, 20, 59, 21], [90, 20, 20], [129]]


def test_steps_are_the_same_however_they_are_run(toy: Toy, replayer: Replayer) -> None:
    for lengths in BATCHES * 3:
        same(gradients(toy, replayer, lengths), gradients(toy, toy, lengths))
    sizes = {Size.of(Segments.from_lengths(torch.tensor(lengths)), torch.arange(len(lengths))) for lengths in BATCHES}
    assert replayer.replays == len(BATCHES) * 3 - len(sizes)


def test_all_rows_may_be_read(toy: Toy, replayer: Replayer) -> None:
    for lengths in BATCHES * 3:
        every = lambda x, segments, _: replayer(x, segments, None)  # noqa: E731
        plain = lambda x, segments, _: toy(x, segments, None)  # noqa: E731
        same(gradients(toy, every, lengths), gradients(toy, plain, lengths))
    assert replayer.replays


def test_parts_of_a_step_add_up(toy: Toy, replayer: Replayer) -> None:
    """Recorded or not, in any order."""
    for _ in range(3):
        alone = [gradients(toy, toy, lengths)[2:] for lengths in BATCHES]
        toy.zero_grad()
        for lengths in BATCHES:
            of_weights = gradients(toy, replayer, lengths, keep=True)[2:]
        same(of_weights, [sum(parts[1:], start=parts[0]) for parts in zip(*alone, strict=True)])


def test_weights_learn_where_the_rows_do_not(toy: Toy, replayer: Replayer) -> None:
    for _ in range(3):
        result = gradients(toy, replayer, BATCHES[0], learns=False)
    same(result, gradients(toy, toy, BATCHES[0], learns=False))
    assert replayer.replays == 2
    same(gradients(toy, replayer, BATCHES[0]), gradients(toy, toy, BATCHES[0]))


def test_a_batch_that_does_not_fit_is_recorded_with_more_room(toy: Toy, replayer: Replayer) -> None:
    """Both have 2,048 rows: of 32 sequences, or of 31 shorter ones and a long one."""
    first, second = [64] * 32, [32] * 31 + [1056]
    for lengths in (first, first, second, first, second):
        same(gradients(toy, replayer, lengths), gradients(toy, toy, lengths))
    (recording,) = replayer.recordings.values()
    for lengths in (first, second):
        segments = Segments.from_lengths(torch.tensor(lengths))
        needed = make_tiles(Size.of(segments, torch.arange(32)).fill(segments), Tiling()).sizes
        assert all(with_margin(n) <= room for n, room in zip(needed, recording.tiles.sizes, strict=True))
    assert replayer.replays == 4


def test_room_is_for_what_batches_of_any_size_had(
    toy: Toy, replayer: Replayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both kinds come in two sizes; each size is recorded once, though its first batches were of one kind."""
    made = []
    monkeypatch.setattr(replaying, "record", lambda *given: made.append(given[1]) or python_record(*given))
    short, shorter = [64] * 32, [64] * 30
    long, longer = [32] * 31 + [1056], [32] * 29 + [992]
    for lengths in (long, shorter, short, shorter, longer, long, short):
        same(gradients(toy, replayer, lengths), gradients(toy, toy, lengths))
    assert [size.rows for size in made] == [2048, 1920]
    assert replayer.replays == 5


def test_another_number_of_tile_sizes_is_recorded_anew(toy: Toy, replayer: Replayer) -> None:
    """As another type of numbers has."""
    for tiling in (Tiling(), Tiling((16, 32), 32), Tiling()):
        replayer.plan = lambda s, t=tiling: AttentionPlan(s, tiles=make_tiles(s, t))  # type: ignore[misc]
        for _ in range(2):
            same(gradients(toy, replayer, BATCHES[0]), gradients(toy, toy, BATCHES[0]))
    assert replayer.replays == 5


@given(st.integers(0, 10**6))
def test_room_has_a_margin_as_counts_have(entries: int) -> None:
    room = with_margin(entries)
    assert entries + 4 * int(entries**0.5) <= room < entries + 4 * entries**0.5 + 16
    assert room % 16 == 0
    assert with_margin(0) == 0


def test_more_sizes_than_are_recorded_are_not_recorded_over_and_over(
    toy: Toy, replayer: Replayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    monkeypatch.setattr(replaying, "_MOST", 3)
    monkeypatch.setattr(replaying, "record", lambda *given: made.append(given[1]) or python_record(*given))
    for lengths in [[64] * count for count in range(1, 8)] * 4:
        same(gradients(toy, replayer, lengths), gradients(toy, toy, lengths))
    assert [size.rows for size in made] == [64, 128, 192]
    assert replayer.replays == 9


def test_what_cannot_be_recorded_is_run(toy: Toy, replayer: Replayer, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what the attempt has taken is free before the cache is emptied."""
    alive: list[Any] = []

    def refuse(*_: Any) -> None:
        taken = torch.zeros(3)
        alive.append(weakref.ref(taken))
        raise torch.OutOfMemoryError("no memory left\nat all")

    monkeypatch.setattr(replaying, "record", refuse)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: alive.append(alive[0]()))
    gradients(toy, replayer, BATCHES[0])
    with pytest.warns(UserWarning, match=r"goes on without CUDA graphs, slower: no memory left$"):
        result = gradients(toy, replayer, BATCHES[0])
    assert alive[1] is None
    same(result, gradients(toy, toy, BATCHES[0]))
    same(gradients(toy, replayer, BATCHES[0]), result)
    assert not replayer.replays


def test_one_backward_follows_each_forward(replayer: Replayer) -> None:
    segments = Segments.from_lengths(torch.tensor(BATCHES[0]))
    _, first, second = (replayer(torch.randn(segments.total, 16, dtype=torch.float64), segments, None) for _ in "123")
    assert first is not None
    assert second is not None
    with pytest.raises(RuntimeError, match="no other forward may come between"):
        first.sum().backward()
    second.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="has one backward"):
        second.sum().backward()


def test_other_attention_is_left_to_the_encoder(replayer: Replayer) -> None:
    replayer.plan = AttentionPlan
    segments = Segments.from_lengths(torch.tensor(BATCHES[0]))
    assert replayer(torch.randn(segments.total, 16, dtype=torch.float64), segments, None) is None
