"""Recorded training steps on a CPU: a recording there is what calls the work again.

With ``tiled`` they go the whole way of a GPU: attention reads the tiles that lie on the device, and the host keeps the
numbers of the first step of a frame, whatever step is taken.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from tokengt.accelerate import Recorder, apply
from tokengt.accelerate.fast_encoder import FastEncoder
from tokengt.attention import may_attend, softmax
from tokengt.data.frames import Frame
from tokengt.kernels.heads import Heads
from tokengt.kernels.tiles import StepTiles, Tiles, Tiling
from tokengt.models.contract import Model
from tokengt.training import loop, recorded
from tokengt.training.recorded import RecordedSteps


class Again:
    """A tape that calls the work again."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work

    def replay(self) -> None:
        self.work()


def force(patch: pytest.MonkeyPatch, *, tiled: bool = False) -> None:
    """Have every :class:`Trainer` record its steps."""
    patch.setattr(loop, "why_not", lambda *_: None)
    patch.setattr(loop, "accelerate", _fast)
    patch.setattr(RecordedSteps, "applies", True)
    patch.setattr(recorded, "Recorder", lambda enabled: Recorder(enabled, lambda work, pool: Again(work)))
    if tiled:
        patch.setattr(FastEncoder, "step_tiles", _step_tiles)
        patch.setattr(softmax, "tiled_attention", attend_by_tiles)
        patch.setattr(RecordedSteps, "_buffers_of", _apart(RecordedSteps._buffers_of))


def _fast(model: Model, **_: Any) -> Model:
    fast = apply._replaced(model, FastEncoder)
    assert isinstance(fast, Model)
    return fast


def _step_tiles(self: FastEncoder, lengths: Int[Tensor, " sequences"], per_step: int) -> StepTiles:
    # Small ones, so that graphs of a test are in several buckets, the loop's among them.
    return StepTiles.decide(Tiling((16, 32), 16), lengths, 5000)


def attend_by_tiles(
    qkv: Tensor, tiles: Tiles, heads: Heads, *, dropout: float = 0.0, marks: Tensor | None = None
) -> Tensor:
    """What the kernels do, tile by tile; every row that has a sequence is written once."""
    assert dropout == 0
    query, key, value = heads.split(qkv)
    rows, outputs = [], []
    for tile, _, begin, end in tiles.buckets.tolist():
        for start, length, first in tiles.items[:, begin:end].T.tolist():
            stop = min(first + tile, length)
            if stop <= first:
                continue
            q, k, v = (
                part.transpose(0, 1)
                for part in (query[start + first : start + stop], key[start:][:length], value[start:][:length])
            )
            scores = q @ k.transpose(1, 2) * heads.key**-0.5
            if marks is not None:
                scores = scores.masked_fill(~may_attend(marks[start:][:length])[first:stop], -torch.inf)
            weights = scores.softmax(-1)
            rows.append(torch.arange(start + first, start + stop))
            outputs.append((weights @ v).transpose(0, 1))
    index = torch.cat(rows)
    assert torch.equal(index.sort().values, torch.arange(len(qkv)))
    return qkv.new_zeros(len(qkv), heads.count, heads.value).index_copy(0, index, torch.cat(outputs))


def _apart(make: Callable[..., Any]) -> Callable[..., Any]:
    """The host's numbers in memory of their own, as where the others lie on a GPU."""

    def made(self: RecordedSteps, level: int, frame: Frame, example: NDArray[np.int64]) -> Any:
        known = level in self._buffers
        buffers = make(self, level, frame, example)
        if not known:
            buffers.placement = replace(buffers.placement, example=torch.from_numpy(example.copy()))
        return buffers

    return made
