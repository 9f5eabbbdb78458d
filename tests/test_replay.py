"""Batches filled up to one of few sizes; what is recorded of them needs a GPU (``replay_cases.py``)."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tokengt.ragged import Segments
from tokengt.replay import Size, as_filled, rounded
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
