"""Which implementation is chosen for a batch, and what is said where the one asked for cannot be had."""

import importlib.util
import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tokengt.attention import (
    AttentionPlan,
    FavorConfig,
    MultiheadAttention,
    SoftmaxConfig,
    plan,
    rename_old_keys,
    softmax_attention,
)
from tokengt.attention.plan import plan_favor, plan_softmax
from tokengt.kernels import support
from tokengt.kernels.heads import Heads
from tokengt.kernels.tiles import Tiles
from tokengt.ragged import Segments

ITEMS = torch.zeros(3, 0, dtype=torch.int32)
TILES = Tiles(ITEMS, torch.zeros(0, 4, dtype=torch.int64))


def test_without_a_gpu_pytorch_attends() -> None:
    segments = Segments.from_lengths(torch.tensor([5, 90]))
    for backend in ("auto", "bucketed", "varlen"):
        plan = plan_softmax(segments, Heads(1, 8, 8), torch.bfloat16, backend)  # type: ignore[arg-type]
        assert (plan.segments, plan.tiles, plan.cuts, plan.dtype) == (segments, None, None, None)
    for backend in ("auto", "bucketed"):
        long = Segments.from_lengths(torch.tensor([1100]))
        plan = plan_favor(long, Heads(1, 8, 8), torch.float32, backend, torch.randn(5, 8))  # type: ignore[arg-type]
        assert plan.cuts is None


def test_auto_takes_the_kernels_on_a_gpu_where_they_work_and_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "softmax_works", lambda device: True)
    monkeypatch.setattr(plan, "make_tiles", lambda segments, tiling: TILES)

    def taken(
        *lengths: int,
        dtype: torch.dtype = torch.bfloat16,
        width: int = 24,
        device: str = "cuda",
        dropout: float = 0.0,
    ) -> bool:
        segments = Segments.from_lengths(torch.tensor(lengths))
        # A device of that name, without one at hand.
        segments.offsets = SimpleNamespace(device=SimpleNamespace(type=device))  # type: ignore[assignment]
        plan = plan_softmax(segments, Heads(1, width, 24), dtype, "auto", dropout)
        assert plan.dtype == (None if plan.tiles is None else dtype)
        return plan.tiles is not None

    assert taken(1)
    longest = plan.LONGEST_TILED[32]
    assert taken(longest)
    assert taken(45, dtype=torch.float32)
    assert taken(longest + 1, *[45] * 200)
    assert not taken(longest + 1)
    assert not taken(8000, *[45] * 200)
    assert not taken(0)
    assert not taken(45, dtype=torch.float64)
    assert not taken(45, width=129)
    assert not taken(45, device="cpu")
    # How long sequences may be is measured, by the width of heads and apart for dropout, which other kernels do.
    monkeypatch.setattr(plan, "LONGEST_TILED", {16: 10, 32: 512, 64: 100, 128: 100})
    monkeypatch.setattr(plan, "LONGEST_TILED_DROPPING", {16: 10, 32: 600, 64: 100, 128: 100})
    assert taken(600, dropout=0.1)
    assert not taken(600)
    assert not taken(601, dropout=0.1)
    assert taken(100, width=33)
    assert not taken(101, width=33)
    monkeypatch.setattr(support, "softmax_works", lambda device: False)
    assert not taken(45)


@pytest.mark.parametrize("training", [True, False])
def test_dropout_counts_in_training_alone(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(plan, "longest_tiled", lambda heads, dropout: asked.append(dropout) or 0)
    segments = Segments.from_lengths(torch.tensor([3]))
    segments.offsets = SimpleNamespace(device=SimpleNamespace(type="cuda"))  # type: ignore[assignment]
    SoftmaxConfig(dropout=0.1).build(Heads(1, 8, 8), torch.device("cpu"), torch.float32).train(training).plan(
        segments, torch.bfloat16
    )
    assert asked == [0.1 if training else 0.0]


def test_every_width_that_the_kernels_take_has_its_longest_sequence() -> None:
    for width in range(1, support.WIDEST_HEAD + 1):
        for dropout in (0.0, 0.1):
            assert (
                plan.longest_tiled(Heads(1, width, 1), dropout) == plan.longest_tiled(Heads(1, 1, width), dropout) > 0
            )


@pytest.mark.parametrize(
    ("lengths", "takes"),
    [([1024], True), ([1023] * 5, False), ([1100, 0, 0], True), ([2000] + [5] * 30, False), ([2000] + [500] * 3, True)],
    ids=str,
)
def test_long_sequences_and_few_go_to_the_kernels_of_favor(
    lengths: list[int], takes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(support, "interpreted", lambda: True)
    segments = Segments.from_lengths(torch.tensor(lengths))
    plan = plan_favor(segments, Heads(1, 8, 8), torch.float32, "triton", torch.randn(100, 8))
    assert (plan.cuts is not None) == takes
    learned = torch.randn(100, 8, requires_grad=True)
    assert plan_favor(segments, Heads(1, 8, 8), torch.float32, "triton", learned).cuts is None


@pytest.mark.parametrize("config", [SoftmaxConfig(), FavorConfig(num_features=7)], ids=lambda config: config.kind)
def test_a_plan_serves_layers_as_segments_do(config: SoftmaxConfig | FavorConfig) -> None:
    layers = [MultiheadAttention(8, 2, 4, 3, config).eval() for _ in range(2)]
    segments, x = Segments.from_lengths(torch.tensor([3, 0, 5])), torch.randn(8, 8)
    plan = layers[0].plan(segments)
    for layer in layers:
        assert torch.equal(layer(x, plan), layer(x, segments))
        assert torch.allclose(layer(x, plan, torch.tensor([1, 4])), layer(x, segments)[[1, 4]], atol=1e-6)


def test_a_plan_for_another_type_is_refused() -> None:
    layer = MultiheadAttention(8, 2, 4, 4, SoftmaxConfig())
    stale = AttentionPlan(Segments.from_lengths(torch.tensor([3])), tiles=TILES, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"for torch.bfloat16 and the rows are torch.float32"):
        layer(torch.randn(3, 8), stale)


def test_a_kernel_is_switched_under_the_same_weights() -> None:
    layer = MultiheadAttention(8, 2, 4, 4, SoftmaxConfig(dropout=0.5)).eval()
    segments, x = Segments.from_lengths(torch.tensor([6])), torch.randn(6, 8)
    exact = layer(x, segments)
    layer.configure(FavorConfig(num_features=3000, eps=0.0))
    assert not layer.kernel.training
    assert set(layer.state_dict()) >= {"kernel.projection", "kernel.draw_age"}
    assert torch.allclose(layer(x, segments), exact, atol=0.1)
    layer.configure(SoftmaxConfig())
    assert torch.equal(layer(x, segments), exact)


def test_old_names_of_favors_tensors_are_read() -> None:
    """Format 1 had them beside the projections."""
    layer = MultiheadAttention(8, 2, 4, 4, FavorConfig(num_features=5))
    prefix = "encoder.blocks.0.attention."
    new = {prefix + name: tensor for name, tensor in layer.state_dict().items()}
    old: dict[str, Tensor] = {name.replace("attention.kernel.", "attention."): x for name, x in new.items()}
    assert prefix + "projection" in old
    assert rename_old_keys(old) == new
    assert rename_old_keys(new) == new
    assert list(rename_old_keys({"attention_norm.projection": ITEMS})) == ["attention_norm.projection"]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: SoftmaxConfig(dropout=1.5), "below 1"),
        (lambda: FavorConfig(num_features=0), "num_features is 0"),
        (lambda: FavorConfig(redraw_interval=0), "at least 1"),
        (lambda: FavorConfig(eps=-1.0), "eps is -1"),
    ],
)
def test_bad_configs(make: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()


def test_asks_for_triton_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    module = MultiheadAttention(8, 2, 4, 4, SoftmaxConfig(backend="triton"))
    segments = Segments.from_lengths(torch.tensor([3]))
    with pytest.raises(ImportError, match="backend 'triton' needs the package triton, which is not installed"):
        module(torch.randn(3, 8), segments)


@pytest.mark.skipif(not support.installed(), reason="Triton is not installed")
def test_asks_for_a_gpu() -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("the interpreter takes CPU tensors")
    q, k, v = torch.randn(3, 5, 2, 8).unbind(0)
    with pytest.raises(ValueError, match=r"'triton' needs a GPU .*; got a tensor on cpu"):
        softmax_attention(q, k, v, Segments.from_lengths(torch.tensor([5])), backend="triton")
