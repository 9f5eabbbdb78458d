"""Arithmetic counted by hand, and a peak that is a speed."""

import torch

from tokengt import (
    AttentionConfig,
    EluConfig,
    EncoderConfig,
    FavorConfig,
    HeadConfig,
    LaplacianIds,
    SoftmaxConfig,
    TokenGT,
    TokenGTConfig,
)
from tokengt.bench.counting import _attention_flop, forward_flop, measured_peak


def model(attention: AttentionConfig, head: HeadConfig | None = None) -> TokenGT:
    encoder = EncoderConfig(num_layers=2, num_heads=2, head_dim=4, value_dim=3, mlp_dim=16, attention=attention)
    return TokenGT(
        TokenGTConfig(8, identifiers=LaplacianIds(dim=5), encoder=encoder, head=head or HeadConfig(out_dim=3))
    )


# A block: 8 -> 2 (4 + 4 + 3) = 22, 2 x 3 = 6 -> 8, 8 -> 16 -> 8; identifiers: 2 x 5 -> 8.
BLOCK, IDS, HEAD = 8 * 22 + 6 * 8 + 8 * 16 + 16 * 8, 10 * 8, 8 * 3
# Behind attention the last of the two blocks has the two rows that the head reads.
FRONT, BACK = 8 * 22, 6 * 8 + 8 * 16 + 16 * 8
LINEAR = 2 * (BLOCK + FRONT + IDS) * 8 + 2 * BACK * 2 + 2 * HEAD * 2
LENGTHS = torch.tensor([3, 5])


def test_softmax() -> None:
    scores = 2 * (2 * 2 * (4 + 3) * (9 + 25))
    assert forward_flop(model(SoftmaxConfig()), LENGTHS, rows=2) == LINEAR + scores


def test_a_sum_over_all_tokens_needs_all() -> None:
    linear = 2 * (2 * BLOCK + IDS) * 8 + 2 * HEAD * 2
    scores = 2 * (2 * 2 * (4 + 3) * (9 + 25))
    summed = model(SoftmaxConfig(), HeadConfig(out_dim=3, readout="sum"))
    assert forward_flop(summed, LENGTHS, rows=2) == linear + scores


def test_favor_is_linear_in_tokens() -> None:
    features = 2 * (4 * 2 * 11 * (4 + 3) * 8)
    assert forward_flop(model(FavorConfig(num_features=11)), LENGTHS, rows=2) == LINEAR + features


def test_elu_is_linear_in_tokens_too() -> None:
    """Its features are as many as a head is wide, and cost no product: phi(K)^T V and phi(Q) times that."""
    softmax, elu = (model(config).encoder.blocks[0].attention for config in (SoftmaxConfig(), EluConfig()))
    heads = softmax.heads
    assert _attention_flop(elu, 100.0, 10_000.0) == 4 * heads.count * heads.key * heads.value * 100
    assert _attention_flop(softmax, 100.0, 10_000.0) == 2 * heads.count * (heads.key + heads.value) * 10_000


def test_the_peak_is_more_than_a_plain_loop_and_less_than_any_machine() -> None:
    assert 1e8 < measured_peak(torch.device("cpu"), 256) < 1e15
