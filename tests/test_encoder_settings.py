"""Every setting of the encoder does what its description says: each is changed by itself, and its effect worked out."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.effects import Effects, assert_dropped, set_all
from tests.graphs import random_graph, small_model
from tokengt import EncoderConfig, FavorConfig, LaplacianIds, SoftmaxConfig
from tokengt.attention import FavorAttention, MultiheadAttention, SoftmaxAttention
from tokengt.block import Block, Mlp
from tokengt.ragged import Segments
from tokengt.transformer import Encoder, RowLinks

effects = Effects(EncoderConfig)


def test_every_setting_here_has_a_test_of_its_effect() -> None:
    assert effects.missing == []


def one_sequence(length: int) -> Segments:
    return Segments.from_lengths(torch.tensor([length]))


def encoder_of(dim: int = 6, **options: Any) -> Encoder:
    torch.manual_seed(0)
    encoder = Encoder(dim, EncoderConfig(**{"num_layers": 2, "num_heads": 2, **options}))
    for parameter in encoder.parameters():
        nn.init.normal_(parameter, std=0.5)
    return encoder.double().eval()


def rows(count: int = 5, dim: int = 6) -> Tensor:
    return 2 + torch.randn(count, dim, dtype=torch.float64)


@effects.of(EncoderConfig, "num_layers")
def test_num_layers_is_the_number_of_blocks_one_after_the_other() -> None:
    x, segments = rows(), one_sequence(5)
    for layers in (0, 1, 3):
        encoder = encoder_of(num_layers=layers)
        assert len(encoder.blocks) == layers
        by_hand = x
        for block in encoder.blocks:
            assert isinstance(block, Block)
            by_hand = block(by_hand, block.attention.plan(segments))
        torch.testing.assert_close(encoder(x, segments), encoder.final_norm(by_hand))


@effects.of(EncoderConfig, "num_heads", "head_dim", "value_dim")
@pytest.mark.parametrize(
    ("options", "widths"),
    [
        ({"num_heads": 2}, (2, 3, 3)),
        ({"num_heads": 3}, (3, 2, 2)),
        ({"num_heads": 2, "head_dim": 5}, (2, 5, 5)),
        ({"num_heads": 2, "value_dim": 4}, (2, 3, 4)),
        ({"num_heads": 1, "head_dim": 7, "value_dim": 2}, (1, 7, 2)),
    ],
)
def test_heads_attend_by_queries_and_keys_of_head_dim_and_add_values_of_value_dim(
    options: dict[str, int], widths: tuple[int, int, int]
) -> None:
    count, head, value = widths
    attention = encoder_of(**options).blocks[0].attention
    assert isinstance(attention, MultiheadAttention)
    x, segments = rows(), one_sequence(5)
    q, k, v = attention.qkv_proj(x).split([count * head, count * head, count * value], 1)
    outputs, maps = [], []
    for place in range(count):
        at = slice(place * head, (place + 1) * head)
        maps.append((q[:, at] @ k[:, at].T / math.sqrt(head)).softmax(1))
        outputs.append(maps[-1] @ v[:, place * value : (place + 1) * value])
    torch.testing.assert_close(attention(x, segments), attention.out_proj(torch.cat(outputs, 1)))
    torch.testing.assert_close(attention.attention_weights(x, segments)[0], torch.stack(maps))


@effects.of(EncoderConfig, "mlp_dim", "activation")
@pytest.mark.parametrize(("wanted", "width"), [(None, 24), (5, 5)])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_the_mlp_has_its_hidden_width_and_its_activation(wanted: int | None, width: int, activation: str) -> None:
    mlp = encoder_of(mlp_dim=wanted, activation=activation).blocks[0].mlp
    assert isinstance(mlp, Mlp)
    x = rows()
    hidden = mlp.up(x)
    assert hidden.shape[1] == width
    acted = hidden.clamp(min=0) if activation == "relu" else hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2
    torch.testing.assert_close(mlp(x), mlp.down(acted))


@effects.of(EncoderConfig, "attention")
def test_attention_is_of_the_kind_that_is_asked_for() -> None:
    for config, kernel in (
        (SoftmaxConfig(dropout=0.3), SoftmaxAttention),
        (FavorConfig(num_features=9), FavorAttention),
    ):
        for block in encoder_of(attention=config).blocks:
            assert isinstance(block, Block)
            assert type(block.attention.kernel) is kernel
            assert block.attention.kernel.config == config


@effects.of(EncoderConfig, "mlp_dropout")
def test_mlp_dropout_drops_hidden_numbers_after_the_activation() -> None:
    """W_up = 0 and W_down = I: what comes out are the hidden numbers, relu(bias) = 3, as they were dropped."""
    for rate in (0.2, 0.5):
        mlp = Mlp(50, EncoderConfig(mlp_dim=50, activation="relu", mlp_dropout=rate))
        set_all(mlp, 0.0)
        nn.init.constant_(mlp.up.bias, 3.0)
        nn.init.eye_(mlp.down.weight)
        x = torch.zeros(100, 50)
        assert_dropped(mlp(x), x + 3, rate)
        assert torch.equal(mlp.eval()(x), x + 3)


def constant_branches(config: EncoderConfig, attention: list[float], mlp: list[float]) -> Encoder:
    """An encoder whose attention adds one constant in every layer, and whose MLP another."""
    encoder = Encoder(8, replace(config, norm=False, final_norm=False))
    set_all(encoder, 0.0)
    for block, one, other in zip(encoder.blocks, attention, mlp, strict=True):
        assert isinstance(block, Block)
        nn.init.constant_(block.attention.out_proj.bias, one)
        nn.init.constant_(block.mlp.down.bias, other)
    return encoder


@effects.of(EncoderConfig, "residual_dropout")
def test_residual_dropout_drops_what_each_branch_adds() -> None:
    """Attention adds 1 to zeros and the MLP 10, or nothing: which of them was dropped shows in the sum."""
    for rate in (0.2, 0.5):
        encoder = constant_branches(EncoderConfig(1, 2, residual_dropout=rate), [1.0], [10.0])
        x, segments = torch.zeros(600, 8), Segments.uniform(60, 10)
        sums = encoder(x, segments) * (1 - rate)
        by_mlp = (sums > 5).to(sums.dtype)
        assert_dropped(by_mlp * 10 / (1 - rate), torch.full_like(sums, 10.0), rate)
        assert_dropped((sums - 10 * by_mlp).round() / (1 - rate), torch.ones_like(sums), rate)
        assert torch.equal(encoder.eval()(x, segments), x + 11)


@effects.of(EncoderConfig, "input_dropout")
def test_input_dropout_drops_numbers_of_the_tokens_before_the_first_block() -> None:
    x, segments = 1 + torch.rand(500, 8), Segments.uniform(50, 10)
    for rate in (0.2, 0.5):
        encoder = Encoder(8, EncoderConfig(num_layers=0, final_norm=False, input_dropout=rate))
        assert_dropped(encoder(x, segments), x, rate)
        # A block that adds nothing shows that the block itself begins with the dropped tokens.
        assert_dropped(constant_branches(EncoderConfig(1, 2, input_dropout=rate), [0.0], [0.0])(x, segments), x, rate)
        assert torch.equal(encoder.eval()(x, segments), x)


@effects.of(EncoderConfig, "input_dropout")
def test_input_dropout_reaches_the_whole_model() -> None:
    """Everything else is without chance: two passes in training differ by this alone."""
    graph = random_graph(6, 8)
    encoder = EncoderConfig(num_layers=1, num_heads=3)
    ids = LaplacianIds(5, sign_flip=False)
    plain, dropping = (
        small_model(ids=ids, encoder=each).train() for each in (encoder, replace(encoder, input_dropout=0.5))
    )
    assert torch.equal(plain(graph), plain(graph))
    assert not torch.equal(dropping(graph), dropping(graph))
    assert torch.equal(dropping.eval()(graph), plain.eval()(graph))


@effects.of(EncoderConfig, "drop_path")
def test_drop_path_drops_whole_branches_of_whole_sequences_at_rates_that_rise_with_depth() -> None:
    """Layers add 1 and 100 by attention, 10 and 1000 by their MLPs: the digits say which were dropped."""
    encoder = constant_branches(EncoderConfig(2, 2, drop_path=0.4), [0.8, 60.0], [8.0, 600.0])
    segments = Segments.uniform(4000, 2)
    out = encoder(torch.zeros(8000, 8), segments)
    assert torch.equal(out, out[::2, :1].repeat_interleave(2, 0).expand(-1, 8))
    digits = out[::2, 0].round().long()  # 0.8 / (1 - 0.2) = 1, 60 / (1 - 0.4) = 100.
    for place, rate in ((1, 0.2), (10, 0.2), (100, 0.4), (1000, 0.4)):
        digit = (digits // place % 10).double()
        assert set(digit.tolist()) == {0.0, 1.0}
        assert abs(1 - digit.mean().item() - rate) < 5 * math.sqrt(rate * (1 - rate) / 4000)
    still = encoder.eval()(torch.zeros(2, 8), one_sequence(2))
    torch.testing.assert_close(still, torch.full((2, 8), 668.8))


def normed(x: Tensor) -> Tensor:
    return (x - x.mean(1, keepdim=True)) / (x.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()


@effects.of(EncoderConfig, "input_norm", "final_norm", "norm")
@pytest.mark.parametrize("where", ["input_norm", "norm", "final_norm", None])
def test_norms_stand_where_they_are_asked_for_and_nowhere_else(where: str | None) -> None:
    asked = {name: name == where for name in ("input_norm", "norm", "final_norm")}
    encoder = encoder_of(num_layers=1, **asked)
    for module in encoder.modules():
        if isinstance(module, nn.LayerNorm):
            module.reset_parameters()
    x, segments = rows(), one_sequence(5)
    (block,) = encoder.blocks
    assert isinstance(block, Block)
    start = normed(x) if where == "input_norm" else x
    branch = normed if where == "norm" else lambda x: x
    h = start + block.attention(branch(start), segments)
    h = h + block.mlp(branch(h))
    torch.testing.assert_close(encoder(x, segments), normed(h) if where == "final_norm" else h)


@effects.of(EncoderConfig, "sparse_basis_residual")
def test_the_sparse_basis_adds_linked_rows_after_every_block_where_it_is_asked_for() -> None:
    x, segments = rows(), one_sequence(5)
    links = RowLinks(torch.tensor([1, 2]), torch.tensor([0, 0]))
    for asked in (False, True):
        encoder = encoder_of(sparse_basis_residual=asked)
        by_hand, maps = x, []
        for block in encoder.blocks:
            assert isinstance(block, Block)
            maps.append(block.attention.attention_weights(block.attention_norm(by_hand), segments)[0])
            by_hand = block(by_hand, block.attention.plan(segments))
            if asked:
                by_hand = torch.cat([by_hand[:1] + by_hand[1:2] + by_hand[2:3], by_hand[1:]])
        torch.testing.assert_close(encoder(x, segments, links), encoder.final_norm(by_hand))
        torch.testing.assert_close([layer[0] for layer in encoder.attention_weights(x, segments, links)], maps)


@effects.of(EncoderConfig, "sparse_basis_scale")
def test_the_mean_of_linked_rows_is_added_where_it_is_asked_for() -> None:
    x, segments = rows(), one_sequence(5)
    links = RowLinks(torch.tensor([1, 2]), torch.tensor([0, 0]))
    for scale, factor in (("sum", 1.0), ("mean", 0.5)):
        encoder = encoder_of(num_layers=1, sparse_basis_residual=True, sparse_basis_scale=scale)
        by_hand = encoder.blocks[0](x, encoder.plan(segments))
        by_hand = torch.cat([by_hand[:1] + factor * (by_hand[1:2] + by_hand[2:3]), by_hand[1:]])
        torch.testing.assert_close(encoder(x, segments, links), encoder.final_norm(by_hand))


@effects.of(EncoderConfig, "incidence")
def test_incidence_masks_every_other_block_or_most_of_them() -> None:
    """Rows 0 and 1 share a mark, 1 and 2 another, 3 is alone and 4 is open: worked out by hand from their scores."""
    x, segments = rows(), one_sequence(5)
    marks = torch.tensor([[0, 0], [0, 1], [1, 2], [3, 3], [-1, -1]], dtype=torch.int32)
    allowed = torch.tensor([[1, 1, 0, 0, 1], [1, 1, 1, 0, 1], [0, 1, 1, 0, 1], [0, 0, 0, 1, 1], [1, 1, 1, 1, 1]]) > 0
    some = {"never": [False] * 4, "alternate": [True, False, True, False], "most": [True, True, True, False]}
    for asked, masked in some.items():
        encoder = encoder_of(num_layers=4, incidence=asked)
        plan, by_hand, maps = encoder.plan(segments, marks), x, []
        for block, own in zip(encoder.blocks, masked, strict=True):
            assert isinstance(block, Block)
            attention = block.attention
            q, k, v = (part[None] for part in attention.qkv_proj(block.attention_norm(by_hand)).chunk(3, 1))
            q, k, v = (part.view(5, 2, 3).transpose(0, 1) for part in (q, k, v))
            scores = q @ k.transpose(1, 2) / math.sqrt(3)
            weights = (scores.masked_fill(~allowed, -math.inf) if own else scores).softmax(-1)
            maps.append(weights)
            h = by_hand + attention.out_proj((weights @ v).transpose(0, 1).flatten(1))
            by_hand = h + block.mlp(block.mlp_norm(h))
        torch.testing.assert_close(encoder(x, plan), encoder.final_norm(by_hand))
        torch.testing.assert_close([layer[0] for layer in encoder.attention_weights(x, plan)], maps)
