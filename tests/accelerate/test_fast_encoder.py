"""The fast twin of an encoder: when it records, when not, and what it shares with the plain one."""

import pickle
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokengt.accelerate.replaying import Replayer
from tokengt.accelerate.sizes import Size
from torch import Tensor

from tokengt.accelerate.fast_encoder import FastEncoder
from tokengt.attention import AttentionPlan, FavorConfig, SoftmaxConfig
from tokengt.block import EncoderConfig
from tokengt.ragged import Segments
from tokengt.transformer import Encoder


@pytest.fixture
def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder(16, EncoderConfig(num_layers=2, num_heads=2, input_norm=True))


def recording(encoder: Encoder) -> tuple[FastEncoder, Replayer]:
    fast = FastEncoder(encoder, None, record=True)
    replayer = fast._find_replayer()
    assert replayer is not None
    return fast, replayer


def sequences() -> tuple[Tensor, Segments]:
    return torch.randn(14, 16), Segments.from_lengths(torch.tensor([5, 9]))


def test_steps_are_replayed_in_training_alone(encoder: Encoder) -> None:
    fast, replayer = recording(encoder)
    x, segments = sequences()
    asked: list[int] = []
    replayer.plan = lambda s: asked.append(s.total) or AttentionPlan(s)  # type: ignore[func-returns-value]
    expected = encoder(x, segments)
    torch.testing.assert_close(fast(x, segments), expected)
    assert asked == [64]  # The batch was filled up to 64 rows.
    with torch.no_grad():
        torch.testing.assert_close(fast(x, segments), expected)
    fast.eval()
    torch.testing.assert_close(fast(x, segments), expected)
    fast.forget()
    torch.testing.assert_close(fast.train()(x, segments), expected)
    assert asked == [64]


def test_a_replayed_step_is_planned_for_once(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model asks for a plan before the forward, which fills the sequences up and needs one of those."""
    fast, replayer = recording(encoder)
    x, segments = sequences()
    planned: list[int] = []
    plan = encoder.plan
    monkeypatch.setattr(encoder, "plan", lambda s: planned.append(s.total) or plan(s))  # type: ignore[func-returns-value]
    replayer.plan = encoder.plan
    monkeypatch.setattr(Replayer, "__call__", lambda self, x, s, rows: self.plan(Size.of(s, rows).fill(s)) and x)
    fast(x, fast.plan(segments))
    assert planned == [64]
    fast.eval()(x, fast.plan(segments))
    assert planned == [64, 14]


@pytest.mark.parametrize(
    "changes",
    [
        {"num_layers": 0},
        {"sparse_basis_residual": True},
        {"attention": FavorConfig()},
        {"attention": SoftmaxConfig(backend="bucketed")},
        {"attention": SoftmaxConfig(backend="varlen")},
        {"head_dim": 129},
    ],
    ids=str,
)
def test_what_the_kernels_never_take_is_not_recorded(encoder: Encoder, changes: dict[str, Any]) -> None:
    other = FastEncoder(Encoder(16, replace(encoder.config, **changes)), None, record=True)
    assert other._find_replayer() is None
    assert other.steps_replayed == 0


def test_nothing_is_recorded_in_double_with_frozen_weights_or_unasked(encoder: Encoder) -> None:
    assert FastEncoder(encoder, None, record=False)._find_replayer() is None
    assert FastEncoder(encoder.double(), None, record=True)._find_replayer() is None
    assert FastEncoder(encoder.float().requires_grad_(False), None, record=True)._find_replayer() is None


def test_other_attention_begins_anew(encoder: Encoder) -> None:
    """Whether it was switched on the plain encoder or on its twin."""
    fast, before = recording(encoder)
    fast.configure_attention(SoftmaxConfig(dropout=0.5))
    after = fast._find_replayer()
    assert after is not None
    assert after is not before
    encoder.configure_attention(FavorConfig())
    assert fast._find_replayer() is None


def test_a_copy_is_plain_and_has_its_own_weights(encoder: Encoder) -> None:
    fast = FastEncoder(encoder, "aot_eager", record=True)
    x, segments = sequences()
    with torch.no_grad():
        expected = fast.plain.eval()(x, segments)
        for copy in (deepcopy(fast), pickle.loads(pickle.dumps(fast))):
            assert type(copy) is Encoder
            torch.testing.assert_close(copy(x, segments), expected)
            for parameter in copy.parameters():
                parameter.mul_(3)
            assert not torch.allclose(copy(x, segments), expected)
        torch.testing.assert_close(encoder(x, segments), expected)


def test_memory_that_recordings_hold_is_given_to_who_needs_it(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, replayer = recording(encoder)
    x, segments = sequences()
    expected, run = encoder.eval()(x, segments), fast._run
    fast.eval()

    def full(*given: Any) -> Tensor:
        if replayer.recordings:
            raise torch.OutOfMemoryError("no memory left")
        return run(*given)

    monkeypatch.setattr(fast, "_run", full)
    replayer.recordings[Size(64, 16, None)] = None  # type: ignore[assignment]
    with pytest.warns(UserWarning, match="goes on without CUDA graphs"):
        torch.testing.assert_close(fast(x, segments), expected)

    def always(*_: Any) -> Tensor:
        raise torch.OutOfMemoryError("none at all")

    monkeypatch.setattr(fast, "_run", always)
    with pytest.warns(UserWarning, match="goes on"), pytest.raises(torch.OutOfMemoryError, match="none at all"):
        fast(x, segments)


def test_blocks_share_their_compilations_and_recordings_add_none() -> None:
    """In a process of its own: the tests' type checks do not trace."""
    script = Path(__file__).with_name("compilations.py")
    subprocess.run([sys.executable, str(script)], check=True)
