"""Batches filled up to one of few sizes; what is recorded of them needs a GPU (``replay_cases.py``)."""

import importlib.util
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tokengt import replay
from tokengt.attention.kernels.plan import Plan, Tiling, make_plan
from tokengt.ragged import Segments
from tokengt.replay import Recording, Replayer, Size, as_filled, rounded
from tokengt.transformer import Encoder, EncoderConfig

GPU = torch.cuda.is_available() and importlib.util.find_spec("triton") is not None


@pytest.mark.skipif(not GPU, reason="needs a GPU and Triton")
def test_recordings() -> None:
    cases = Path(__file__).with_name("replay_cases.py")
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", str(cases)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cases.parents[1])
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


@given(st.integers(0, 10**7))
def test_sizes_are_few_and_close(count: int) -> None:
    size = rounded(count)
    assert count <= size <= count + count // 64 + 1
    assert rounded(size) == size
    assert size == 0 or size % max(1, (1 << size.bit_length() - 1) // 64) == 0


def test_between_a_number_and_its_double_are_64_sizes() -> None:
    assert len({rounded(count) for count in range(2**14 + 1, 2**15 + 1)}) == 64


@given(st.lists(st.integers(0, 300), min_size=1, max_size=40), st.booleans())
def test_a_filled_batch_has_the_same_sequences_first(lengths: list[int], reads: bool) -> None:
    segments = Segments.from_lengths(torch.tensor(lengths))
    size = Size.of(segments, segments.starts if reads else None)
    filled = size.fill(segments)
    assert filled.host_lengths[: len(lengths)].tolist() == lengths
    assert (filled.total, filled.count) == (size.rows, size.sequences)
    assert filled.host_lengths[len(lengths) :].max() <= 64
    assert size.read == (rounded(len(lengths)) if reads else None)


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
    wide = as_filled(lambda y, s, r: encoder(y, s, None, r), size, x, size.fill(segments), rows)
    torch.testing.assert_close(wide, plain)
    weights = torch.randn_like(plain)
    for one, other in zip(
        torch.autograd.grad(wide, inputs, weights), torch.autograd.grad(plain, inputs, weights), strict=True
    ):
        torch.testing.assert_close(one, other)


class EagerRecording(Recording):
    """What a recording does, computed anew each time: for all that is decided around it."""

    def __init__(self, replayer: Replayer, size: Size, x: Tensor, filled: Segments, plan: Plan, rows: Any) -> None:
        vars(self).update(replayer=replayer, size=size, plan=plan)

    def replay_forward(self, x: Tensor, filled: Segments, plan: Plan, rows: Tensor | None) -> Tensor:
        assert self.fits(plan)
        own: Any = vars(self)
        own["x"] = x.detach().requires_grad_()
        with torch.enable_grad():
            own["out"] = as_filled(own["replayer"].run, own["size"], own["x"], filled, rows)
        return self.out.detach()

    def replay_backward(self, grad: Tensor, rows: int) -> Tensor:
        assert rows == len(self.x)
        replayer: Replayer = vars(self)["replayer"]
        grad_x, *grads = torch.autograd.grad(self.out, (self.x, *replayer.parameters), grad)
        torch._foreach_copy_(replayer.gradients, grads)
        return grad_x


@dataclass
class Tiles:
    """In the place of attention: plans wherever the data lies."""

    applies: bool = True

    def prepare(self, segments: Segments) -> Plan | None:
        return make_plan(segments, Tiling()) if self.applies else None

    def use_plan(self, segments: Segments, plan: Plan) -> None:
        raise NotImplementedError


@pytest.fixture
def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder(16, EncoderConfig(num_layers=2, num_heads=2, input_norm=True)).double()


@pytest.fixture
def replayer(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> Replayer:
    monkeypatch.setattr(replay, "record", EagerRecording)
    return Replayer(lambda x, s, rows: encoder(x, s, None, rows), Tiles(), list(encoder.parameters()))


def gradients(
    encoder: Encoder, call: Any, lengths: list[int], *, keep: bool = False, learns: bool = True
) -> list[Tensor]:
    """The output, the gradient of the rows and those of the weights, after one backward."""
    if not keep:
        encoder.zero_grad()
    segments = Segments.from_lengths(torch.tensor(lengths))
    x = torch.randn(segments.total, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(lengths)))
    out = call(x.requires_grad_(learns), segments, segments.starts)
    out.square().sum().backward()
    found = [p.grad for p in encoder.parameters()]
    return [out.detach(), *([] if x.grad is None else [x.grad]), *(g.clone() for g in found if g is not None)]


def plain(encoder: Encoder) -> Any:
    return lambda x, segments, rows: encoder(x, segments, None, rows)


def same(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


BATCHES = [[30, 20, 60, 20], [31, 20, 59, 21], [90, 20, 20], [129]]


def test_steps_are_the_same_however_they_are_run(encoder: Encoder, replayer: Replayer) -> None:
    for lengths in BATCHES * 3:
        expected = gradients(encoder, plain(encoder), lengths)
        same(gradients(encoder, replayer, lengths), expected)
    sizes = {Size.of(Segments.from_lengths(torch.tensor(lengths)), torch.arange(len(lengths))) for lengths in BATCHES}
    assert replayer.calls == len(BATCHES) * 3 - len(sizes)


def test_parts_of_a_step_add_up(encoder: Encoder, replayer: Replayer) -> None:
    """Recorded or not, in any order."""
    for _ in range(3):
        alone = [gradients(encoder, plain(encoder), lengths)[2:] for lengths in BATCHES]
        encoder.zero_grad()
        for lengths in BATCHES:
            found = gradients(encoder, replayer, lengths, keep=True)[2:]
        same(found, [sum(parts[1:], start=parts[0]) for parts in zip(*alone, strict=True)])


def test_weights_learn_where_the_rows_do_not(encoder: Encoder, replayer: Replayer) -> None:
    for _ in range(3):
        found = gradients(encoder, replayer, BATCHES[0], learns=False)
    same(found, gradients(encoder, plain(encoder), BATCHES[0], learns=False))
    assert replayer.calls == 2


def test_a_batch_that_does_not_fit_is_recorded_with_more_room(encoder: Encoder, replayer: Replayer) -> None:
    """Both have 2,048 rows: of 32 sequences, or of 31 shorter ones and a long one."""
    first, second = [64] * 32, [32] * 31 + [1056]
    for lengths in (first, first, second, first, second):
        same(gradients(encoder, replayer, lengths), gradients(encoder, plain(encoder), lengths))
    (recording,) = replayer.recordings.values()
    for lengths in (first, second):
        size = Size.of(Segments.from_lengths(torch.tensor(lengths)), torch.arange(32))
        needed = make_plan(size.fill(Segments.from_lengths(torch.tensor(lengths))), Tiling()).sizes
        assert all(a <= b for a, b in zip(needed, recording.plan.sizes, strict=True))
    assert replayer.calls == 4


def test_the_recording_that_was_not_used_for_longest_goes(
    encoder: Encoder, replayer: Replayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "_MOST", 2)
    sizes = [[64] * count for count in (10, 20, 40)]
    for lengths in (*sizes[:2], *sizes, *sizes[:1], *sizes[2:], *sizes[2:]):
        gradients(encoder, replayer, lengths)
    assert [size.rows for size in replayer.recordings] == [640, 2560]


def test_what_cannot_be_recorded_is_run(encoder: Encoder, replayer: Replayer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise torch.OutOfMemoryError("no memory left\nat all")

    monkeypatch.setattr(replay, "record", refuse)
    gradients(encoder, replayer, BATCHES[0])
    with pytest.warns(UserWarning, match=r"goes on without CUDA graphs, slower: no memory left$"):
        found = gradients(encoder, replayer, BATCHES[0])
    same(found, gradients(encoder, plain(encoder), BATCHES[0]))
    same(gradients(encoder, replayer, BATCHES[0]), found)
    assert not replayer.calls


def test_a_forward_in_between_is_refused(encoder: Encoder, replayer: Replayer) -> None:
    segments = Segments.from_lengths(torch.tensor(BATCHES[0]))
    _, first, second = (replayer(torch.randn(segments.total, 16, dtype=torch.float64), segments, None) for _ in "123")
    assert first is not None
    assert second is not None
    with pytest.raises(RuntimeError, match="came between a recorded forward and its backward"):
        first.sum().backward()
    second.sum().backward()


def test_other_attention_is_left_to_the_encoder(encoder: Encoder, replayer: Replayer) -> None:
    replayer.attention = Tiles(applies=False)
    segments = Segments.from_lengths(torch.tensor(BATCHES[0]))
    assert replayer(torch.randn(segments.total, 16, dtype=torch.float64), segments, None) is None


def test_an_encoder_records_only_in_training_and_where_kernels_apply(encoder: Encoder) -> None:
    """On a CPU nothing is recorded, and nothing changes."""
    expected = gradients(encoder, plain(encoder), BATCHES[0])
    encoder.record_steps()
    for _ in range(3):
        same(gradients(encoder, plain(encoder), BATCHES[0]), expected)
    assert encoder._replayer is not None
    assert not encoder._replayer.calls
    encoder.forget_steps()
    assert encoder._replayer is None
    for parameter in encoder.parameters():
        parameter.requires_grad_(False)
    encoder.record_steps()
    assert encoder._replayer is None
