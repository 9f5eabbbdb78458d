"""An encoder that records its steps: when it does, when not, and what a copy of it has."""

import pickle
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tokengt.attention import AttentionConfig
from tokengt.block import Block, EncoderConfig
from tokengt.ragged import Segments
from tokengt.replay import Replayer, Size
from tokengt.transformer import Encoder


@pytest.fixture
def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder(16, EncoderConfig(num_layers=2, num_heads=2, input_norm=True))


def recording(encoder: Encoder) -> Replayer:
    encoder.record_steps()
    assert encoder._replayer is not None
    return encoder._replayer


def test_an_encoder_replays_in_training_alone(encoder: Encoder) -> None:
    replayer, segments = recording(encoder), Segments.from_lengths(torch.tensor([5, 9]))
    asked: list[bool] = []
    replayer.attention = SimpleNamespace(prepare=lambda s: asked.append(True), use_plan=None)  # type: ignore[assignment]
    x = torch.randn(14, 16)
    expected = encoder(x, segments)
    assert len(asked) == 1
    with torch.no_grad():
        torch.testing.assert_close(encoder(x, segments), expected)
    encoder.eval()
    torch.testing.assert_close(encoder(x, segments), expected)
    assert len(asked) == 1
    encoder.forget_steps()
    torch.testing.assert_close(encoder.train()(x, segments), expected)
    assert len(asked) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"num_layers": 0},
        {"sparse_basis_residual": True},
        {"attention": AttentionConfig(kind="favor")},
        {"attention": AttentionConfig(backend="bucketed")},
        {"attention": AttentionConfig(backend="varlen")},
        {"head_dim": 129},
    ],
    ids=str,
)
def test_what_the_kernels_never_take_is_not_recorded(encoder: Encoder, changes: dict[str, Any]) -> None:
    other = Encoder(16, replace(encoder.config, **changes))
    other.record_steps()
    assert other._replayer is None
    assert other.steps_replayed == 0


def test_nothing_is_recorded_in_double_or_with_frozen_weights(encoder: Encoder) -> None:
    encoder.double().record_steps()
    assert encoder._replayer is None
    encoder.float().requires_grad_(False).record_steps()
    assert encoder._replayer is None


def test_other_attention_begins_anew(encoder: Encoder) -> None:
    before = recording(encoder)
    encoder.configure_attention(AttentionConfig(dropout=0.5))
    assert encoder._replayer is not None
    assert encoder._replayer is not before
    encoder.configure_attention(AttentionConfig(kind="favor"))
    assert encoder._replayer is None


def test_a_copy_does_not_replay_the_original(encoder: Encoder) -> None:
    recording(encoder)
    for block in encoder.blocks:
        assert isinstance(block, Block)
        block.use_run(lambda *given: Block.run(*given))  # as little to be pickled as a compiled one
    encoder._enter = lambda *given: Encoder.enter(*given)
    segments, x = Segments.from_lengths(torch.tensor([5, 9])), torch.randn(14, 16)
    with torch.no_grad():
        expected = encoder.eval()(x, segments)
        for copy in (deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
            assert copy._replayer is None
            torch.testing.assert_close(copy(x, segments), expected)
            for parameter in copy.parameters():
                parameter.mul_(3)
            assert not torch.allclose(copy(x, segments), expected)


def test_memory_that_recordings_hold_is_given_to_who_needs_it(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayer, segments = recording(encoder), Segments.from_lengths(torch.tensor([5, 9]))
    x = torch.randn(14, 16)
    expected, run = encoder.eval()(x, segments), encoder._run

    def full(*given: Any) -> Tensor:
        if replayer.recordings:
            raise torch.OutOfMemoryError("no memory left")
        return run(*given)

    monkeypatch.setattr(encoder, "_run", full)
    replayer.recordings[Size(64, 16, None)] = None  # type: ignore[assignment]
    with pytest.warns(UserWarning, match="goes on without CUDA graphs"):
        torch.testing.assert_close(encoder(x, segments), expected)

    def always(*_: Any) -> Tensor:
        raise torch.OutOfMemoryError("none at all")

    monkeypatch.setattr(encoder, "_run", always)
    with pytest.warns(UserWarning, match="goes on"), pytest.raises(torch.OutOfMemoryError, match="none at all"):
        encoder(x, segments)
