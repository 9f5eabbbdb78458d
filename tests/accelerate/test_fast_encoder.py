"""The fast twin of an encoder: what it shares with the plain one, and the tiles that are given to it."""

import pickle
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.training.forced import attend_by_tiles
from tokengt.accelerate.fast_encoder import FastEncoder
from tokengt.attention import AttentionPlan, FavorConfig, SoftmaxConfig, softmax
from tokengt.block import EncoderConfig
from tokengt.kernels.tiles import Tiling, choose_tiling, make_tiles
from tokengt.ragged import Segments
from tokengt.transformer import Encoder


@pytest.fixture
def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder(16, EncoderConfig(num_layers=2, num_heads=2, input_norm=True))


def sequences() -> tuple[Tensor, Segments]:
    return torch.randn(14, 16), Segments.from_lengths(torch.tensor([5, 9]))


def test_given_tiles_say_where_sequences_lie(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the lengths on the host are: those are of the step that was recorded."""
    monkeypatch.setattr(softmax, "tiled_attention", attend_by_tiles)
    fast = FastEncoder(encoder)
    x, segments = sequences()
    expected = encoder(x, segments)
    stale = Segments(segments.offsets, torch.tensor([0, 9, 14]))
    tiles = make_tiles(segments, Tiling((16,), 16))
    with fast.given(tiles):
        assert fast.plan(stale).tiles is tiles
        torch.testing.assert_close(fast(x, stale), expected)
    assert fast.plan(segments).tiles is None
    torch.testing.assert_close(fast(x, segments), expected)
    with pytest.raises(KeyError), fast.given(tiles):
        raise KeyError
    assert fast.plan(segments).tiles is None


def test_steps_are_tiled_where_our_kernels_attend(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    fast, lengths = FastEncoder(encoder), torch.tensor([5, 9, 40])
    assert fast.step_tiles(lengths, 100) is None  # There is no GPU here.

    def planned(self: Encoder, segments: Segments) -> AttentionPlan:
        return AttentionPlan(segments, tiles=make_tiles(segments, Tiling()), dtype=torch.bfloat16)

    monkeypatch.setattr(Encoder, "plan", planned)
    # Two heads: 1,024 programs, which share the largest tile, or some more.
    for per_step, places in ((512, [3, 3, 3]), (513, [0, 1, 3])):
        tiles = fast.step_tiles(torch.tensor([5, 20, 90]), per_step)
        assert tiles is not None
        assert tiles.tiling == choose_tiling(8, 8, 2)
        assert [int(tiles.needed(np.array([[length]])).argmax()) for length in (5, 20, 90)] == places
    assert fast.step_tiles(lengths[:0], 100) is None
    none = FastEncoder(Encoder(16, EncoderConfig(num_layers=0, num_heads=2)))
    assert none.step_tiles(lengths, 100) is None


def test_attention_is_switched_on_both(encoder: Encoder) -> None:
    fast = FastEncoder(encoder)
    fast.configure_attention(SoftmaxConfig(dropout=0.5))
    assert encoder.blocks[0].attention.kernel.config == SoftmaxConfig(dropout=0.5)  # type: ignore[union-attr]
    encoder.configure_attention(FavorConfig())
    assert isinstance(fast.plain.blocks[0].attention.kernel.config, FavorConfig)  # type: ignore[union-attr]


def test_a_copy_is_plain_and_has_its_own_weights(encoder: Encoder) -> None:
    fast = FastEncoder(encoder, "aot_eager", kernels=True)
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


@pytest.mark.slow
def test_blocks_share_their_compilations_and_recorded_steps_add_none() -> None:
    """In a process of its own: the tests' type checks do not trace."""
    script = Path(__file__).with_name("compilations.py")
    subprocess.run([sys.executable, str(script)], check=True)
