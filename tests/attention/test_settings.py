"""Every setting of attention does what its description says: each is changed by itself, and its effect worked out."""

import math

import pytest
import torch
from torch import Tensor, nn

from tests.effects import Effects, assert_dropped, set_all
from tokengt.attention import (
    EluConfig,
    FavorAttention,
    FavorConfig,
    MultiheadAttention,
    SoftmaxConfig,
    elu_attention,
    favor_attention,
)
from tokengt.attention.favor import default_num_features
from tokengt.kernels import support
from tokengt.kernels.heads import Heads
from tokengt.ragged import Segments

effects = Effects(SoftmaxConfig, FavorConfig, EluConfig)


def test_every_setting_here_has_a_test_of_its_effect() -> None:
    assert effects.missing == []


def one_sequence(length: int) -> Segments:
    return Segments.from_lengths(torch.tensor([length]))


@effects.of(SoftmaxConfig, "dropout")
def test_attention_dropout_drops_attention_weights() -> None:
    """Queries and keys are 0, so that all weights are 1/40; values and both projections are the identity: the output is
    the table of weights as they were dropped, here on a CPU."""
    for rate in (0.1, 0.5):
        attention = MultiheadAttention(40, 1, 4, 40, SoftmaxConfig(dropout=rate))
        set_all(attention, 0.0)
        nn.init.eye_(attention.out_proj.weight)
        with torch.no_grad():
            attention.qkv_proj.weight[8:].copy_(torch.eye(40))
        x = torch.eye(40).repeat(3, 1)
        uniform = torch.full((120, 40), 1 / 40)
        assert_dropped(attention(x, Segments.uniform(3, 40)), uniform, rate)
        # Sequences of other lengths share a padded table: nothing of the padding may come in.
        unequal = Segments.from_lengths(torch.tensor([40, 39]))
        assert_dropped(attention(x[:79], unequal)[:40], uniform[:40], rate)
        torch.testing.assert_close(attention.eval()(x, Segments.uniform(3, 40)), uniform)


@effects.of([SoftmaxConfig, FavorConfig], "backend")
def test_backends_are_taken_or_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    x, segments = torch.randn(5, 6), one_sequence(5)

    def attended(config: SoftmaxConfig | FavorConfig) -> Tensor:
        torch.manual_seed(0)
        return MultiheadAttention(6, 2, 3, 3, config)(x, segments)

    assert torch.equal(attended(SoftmaxConfig(backend="auto")), attended(SoftmaxConfig(backend="bucketed")))
    with pytest.raises(ValueError, match="attention backend 'varlen' needs a GPU"):
        attended(SoftmaxConfig(backend="varlen"))
    with pytest.raises((ImportError, ValueError), match="attention backend 'triton' needs"):
        attended(SoftmaxConfig(backend="triton"))
    assert torch.equal(attended(FavorConfig(backend="auto")), attended(FavorConfig(backend="bucketed")))
    # As on a machine that interprets kernels of our own for tests: asked for by name, they are planned for.
    monkeypatch.setattr(support, "interpreted", lambda: True)
    for backend, ours in (("auto", False), ("bucketed", False), ("triton", True)):
        kernel = FavorConfig(backend=backend).build(Heads(2, 16, 16), torch.device("cpu"), torch.float32)  # type: ignore[arg-type]
        assert (kernel.plan(one_sequence(5000), torch.float32).cuts is not None) == ours


@effects.of(FavorConfig, "num_features", "eps")
def test_favor_has_its_number_of_features_and_its_eps() -> None:
    x = torch.randn(7, 8, dtype=torch.float64)
    for features, eps in ((None, 1e-4), (5, 1e-4), (5, 1.0)):
        attention = MultiheadAttention(8, 2, 4, 4, FavorConfig(num_features=features, eps=eps)).double().eval()
        kernel = attention.kernel
        assert isinstance(kernel, FavorAttention)
        assert len(kernel.projection) == (features or default_num_features(4)) == (features or int(4 * math.log(4)))
        q, k, v = (part.view(7, 2, 4) for part in attention.qkv_proj(x).split(8, 1))
        expected = favor_attention(q, k, v, one_sequence(7), projection=kernel.projection, eps=eps)
        other = favor_attention(q, k, v, one_sequence(7), projection=kernel.projection, eps=3 * eps)
        out = attention(x, one_sequence(7))
        torch.testing.assert_close(out, attention.out_proj(expected.flatten(1)), rtol=1e-12, atol=1e-12)
        assert (out - attention.out_proj(other.flatten(1))).abs().max() > 1e-7


@effects.of(EluConfig, "eps")
def test_elu_features_have_their_eps() -> None:
    x = torch.randn(7, 8, dtype=torch.float64)
    for eps in (1e-6, 1.0):
        attention = MultiheadAttention(8, 2, 4, 4, EluConfig(eps=eps)).double()
        q, k, v = (part.view(7, 2, 4) for part in attention.qkv_proj(x).split(8, 1))
        expected, other = (elu_attention(q, k, v, one_sequence(7), eps=each) for each in (eps, 3 * eps))
        out = attention(x, one_sequence(7))
        torch.testing.assert_close(out, attention.out_proj(expected.flatten(1)), rtol=1e-12, atol=1e-12)
        assert (out - attention.out_proj(other.flatten(1))).abs().max() > 1e-8


@effects.of(FavorConfig, "redraw_interval")
def test_favor_draws_its_features_anew_after_so_many_training_forwards() -> None:
    x, segments = torch.randn(5, 8), one_sequence(5)
    for interval, drawn_at in ((3, [3, 6]), (1, [1, 2, 3, 4, 5, 6]), (None, [])):
        attention = MultiheadAttention(8, 2, 4, 4, FavorConfig(redraw_interval=interval)).train()
        kernel = attention.kernel
        assert isinstance(kernel, FavorAttention)
        changed, before = [], kernel.projection.clone()
        for forward in range(7):
            attention(x, segments)
            if not torch.equal(kernel.projection, before):
                changed.append(forward)
            before = kernel.projection.clone()
        assert changed == drawn_at
        attention.eval()
        for _ in range(4):
            attention(x, segments)
        assert torch.equal(kernel.projection, before)
