"""Masked attention: only rows that share a mark, or where either has none, attend to each other."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tokengt.attention import EluConfig, FavorConfig, MultiheadAttention, SoftmaxConfig, limits, may_attend
from tokengt.attention import plan as plans
from tokengt.attention.marks import bucket_masks
from tokengt.attention.plan import plan_softmax
from tokengt.kernels import support
from tokengt.kernels.heads import Heads
from tokengt.kernels.tiles import Tiles
from tokengt.ragged import Segments

LENGTHS = [5, 0, 1, 9, 3, 10]


def chain(segments: Segments) -> Tensor:
    """Every row shares a mark with the next one of the batch; the last row of every sequence is open."""
    place = torch.arange(segments.total)
    marks = torch.stack([place, place + 1], 1)
    marks[segments.host[1:][segments.host_lengths > 0] - 1] = -1
    return marks.int()


def dense(attention: MultiheadAttention, x: Tensor, segments: Segments, marks: Tensor) -> Tensor:
    """The equation, sequence by sequence."""
    query, key, value = attention.heads.split(attention.qkv_proj(x))
    outputs = []
    for start, stop in zip(segments.host[:-1].tolist(), segments.host[1:].tolist(), strict=True):
        q, k, v = (part[start:stop].transpose(0, 1) for part in (query, key, value))
        own = marks[start:stop].tolist()
        allowed = torch.tensor(
            [[-1 in (*a, *b) or bool(set(a) & set(b)) for b in own] for a in own], dtype=torch.bool
        ).view(len(own), len(own))
        scores = (q @ k.transpose(1, 2) / math.sqrt(q.shape[2])).masked_fill(~allowed, -torch.inf)
        outputs.append((scores.softmax(-1) @ v).transpose(0, 1).flatten(1))
    out: Tensor = attention.out_proj(torch.cat(outputs))
    return out


def test_rows_that_share_a_mark_by_hand() -> None:
    marks = torch.tensor([[0, 0], [1, 1], [0, 1], [1, 2], [-1, -1]])
    assert may_attend(marks).int().tolist() == [
        [1, 0, 1, 0, 1],
        [0, 1, 1, 1, 1],
        [1, 1, 1, 1, 1],
        [0, 1, 1, 1, 1],
        [1, 1, 1, 1, 1],
    ]


@pytest.mark.parametrize("value_dim", [4, 6], ids=["one step of autograd", "plain"])
@pytest.mark.parametrize("lengths", [LENGTHS, [4, 4, 4], [7], [700, 3]], ids=str)
def test_output_and_gradients_are_those_of_the_equation(lengths: list[int], value_dim: int) -> None:
    """Padded buckets, buckets as they lie, and sequences longer than a block of PyTorch's kernel."""
    torch.manual_seed(0)
    segments = Segments.from_lengths(torch.tensor(lengths))
    marks = chain(segments)
    attention = MultiheadAttention(8, 2, 4, value_dim, SoftmaxConfig(), masked=True).double()
    x = torch.randn(segments.total, 8, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(segments.total, 8, dtype=torch.float64)
    inputs = [x, *attention.parameters()]
    results = []
    for out in (attention(x, attention.plan(segments, marks)), dense(attention, x, segments, marks)):
        results.append([out, *torch.autograd.grad((out * weights).sum(), inputs)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        torch.testing.assert_close(attention(x, attention.plan(segments, marks)), results[1][0])


def test_dropout_drops_weights_of_rows_that_share_a_mark() -> None:
    """Values are ones and every row is alone: it is 0 where its one weight is dropped, and 2 elsewhere."""
    segments = Segments.from_lengths(torch.tensor([200] * 10))
    marks = torch.arange(segments.total, dtype=torch.int32)[:, None].expand(-1, 2)
    attention = MultiheadAttention(1, 1, 1, 1, SoftmaxConfig(dropout=0.5), masked=True)
    for parameter in attention.parameters():
        torch.nn.init.ones_(parameter)
    torch.nn.init.zeros_(attention.qkv_proj.weight)
    torch.nn.init.zeros_(attention.out_proj.bias)
    out = attention(torch.zeros(segments.total, 1), attention.plan(segments, marks))
    assert set(out.flatten().tolist()) == {0.0, 2.0}
    assert abs(float(out.detach().mean()) - 1) < 5 / math.sqrt(segments.total)


def test_maps_are_zero_where_no_mark_is_shared() -> None:
    segments = Segments.from_lengths(torch.tensor(LENGTHS))
    marks = chain(segments)
    x = torch.randn(segments.total, 8)
    masked, plain = (MultiheadAttention(8, 2, 4, 4, SoftmaxConfig(), masked=own) for own in (True, False))
    plain.load_state_dict(masked.state_dict())
    plan = masked.plan(segments, marks)
    for own, other, (start, stop) in zip(
        masked.attention_weights(x, plan),
        plain.attention_weights(x, plan),
        zip(segments.host[:-1].tolist(), segments.host[1:].tolist(), strict=True),
        strict=True,
    ):
        allowed = may_attend(marks[start:stop])
        kept = other * allowed
        torch.testing.assert_close(own, kept / kept.sum(-1, keepdim=True).clamp(min=1e-9))
        assert torch.equal(own > 0, allowed.expand(2, -1, -1))


@pytest.mark.parametrize("config", [FavorConfig(), EluConfig(), SoftmaxConfig(backend="varlen")], ids=str)
def test_attention_that_cannot_be_masked_is_refused(config: Any) -> None:
    with pytest.raises(ValueError, match=r"cannot be masked; set encoder.incidence to 'never'"):
        MultiheadAttention(8, 2, 4, 4, config, masked=True)
    attention = MultiheadAttention(8, 2, 4, 4, SoftmaxConfig(), masked=True)
    with pytest.raises(ValueError, match=r"cannot be masked"):
        attention.configure(config)


def test_masked_attention_without_marks_is_refused() -> None:
    attention = MultiheadAttention(8, 2, 4, 4, SoftmaxConfig(), masked=True)
    segments = Segments.from_lengths(torch.tensor([3]))
    for call in (attention, attention.attention_weights):
        with pytest.raises(ValueError, match=r"needs the marks of every row"):
            call(torch.zeros(3, 8), segments)


def test_masks_that_would_fill_the_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCORE_LIMIT_BYTES", 5 * 100)
    segments = Segments.from_lengths(torch.tensor([10]))
    assert len(bucket_masks(chain(segments), segments, torch.float32)) == 1
    longer = Segments.from_lengths(torch.tensor([11]))
    with pytest.raises(ValueError, match=r"in masked layers would hold .* encoder.incidence"):
        bucket_masks(chain(longer), longer, torch.float32)


@pytest.mark.parametrize(("length", "tiled"), [(40, True), (2000, False)])
def test_on_a_gpu_our_kernels_mask_sequences_of_any_length(
    length: int, tiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's kernels take over from some length on where nothing is masked, and cannot where something is."""
    tiles = Tiles(torch.zeros(3, 0, dtype=torch.int32), torch.zeros(0, 4, dtype=torch.int64))
    monkeypatch.setattr(support, "softmax_works", lambda device: True)
    monkeypatch.setattr(plans, "make_tiles", lambda segments, tiling: tiles)
    segments = Segments.from_lengths(torch.tensor([length]))
    marks = chain(segments)
    # A device of that name, without one at hand.
    segments.offsets = SimpleNamespace(device=SimpleNamespace(type="cuda"))  # type: ignore[assignment]
    plan = plan_softmax(segments, Heads(2, 8, 8), torch.bfloat16, "auto", marks=marks)
    assert plan.tiles is (tiles if tiled else None)
    assert plan.masked is not None
    assert plan.masked.tiles is tiles
    assert plan.masked.marks is marks
    assert plan.masked.masks is None
    assert plan_softmax(segments, Heads(2, 8, 8), torch.bfloat16, "auto").masked is None
