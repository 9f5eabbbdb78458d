from typing import Any

import pytest
import torch

from tokengt import EncoderConfig, SoftmaxConfig
from tokengt.block import Block, drop_path
from tokengt.ragged import Segments
from tokengt.transformer import Encoder, RowLinks, add_linked_rows

DIM = 12


def test_block_by_its_equations() -> None:
    """H = X + MSA(LN(X)); out = H + W2 gelu(W1 LN(H)), with one sequence and explicit heads."""
    config = EncoderConfig(num_heads=2, head_dim=5, value_dim=3, mlp_dim=7)
    block = Block(DIM, config, 0.0).double()
    x = torch.randn(6, DIM, dtype=torch.float64)
    norm = torch.nn.functional.layer_norm(x, (DIM,))
    a = block.attention
    q, k, v = (norm @ a.qkv_proj.weight.T + a.qkv_proj.bias).split([10, 10, 6], 1)
    heads = []
    for h in range(2):
        scores = q[:, 5 * h : 5 * h + 5] @ k[:, 5 * h : 5 * h + 5].T / 5**0.5
        heads.append(scores.softmax(1) @ v[:, 3 * h : 3 * h + 3])
    hidden = x + torch.cat(heads, 1) @ a.out_proj.weight.T + a.out_proj.bias
    up = torch.nn.functional.layer_norm(hidden, (DIM,)) @ block.mlp.up.weight.T + block.mlp.up.bias
    gelu = up * 0.5 * (1 + torch.erf(up / 2**0.5))
    expected = hidden + gelu @ block.mlp.down.weight.T + block.mlp.down.bias
    out = block(x, block.attention.plan(Segments.from_lengths(torch.tensor([6]))))
    assert torch.allclose(out, expected, atol=1e-12)


def test_without_norms_and_with_relu() -> None:
    config = EncoderConfig(num_layers=2, num_heads=2, norm=False, final_norm=False, activation="relu")
    encoder = Encoder(DIM, config)
    assert not any(isinstance(m, torch.nn.LayerNorm) for m in encoder.modules())
    for parameter in encoder.parameters():
        torch.nn.init.zeros_(parameter)
    x = torch.randn(4, DIM)
    assert torch.equal(encoder(x, Segments.from_lengths(torch.tensor([4]))), x)


def test_drop_path_keeps_or_drops_whole_sequences() -> None:
    segments = Segments.from_lengths(torch.tensor([2, 3] * 2000))
    out = drop_path(torch.ones(segments.total, 1), segments, 0.2)[:, 0]
    starts, ends = out[segments.starts], out[segments.offsets[1:] - 1]
    assert torch.equal(starts, ends)
    assert set(out.tolist()) == {0.0, 1.25}
    assert abs(float((starts > 0).float().mean()) - 0.8) < 0.03


def test_drop_rates_rise_linearly() -> None:
    encoder = Encoder(DIM, EncoderConfig(num_layers=4, num_heads=2, drop_path=0.1))
    assert [round(float(block.drop_rate), 6) for block in encoder.blocks] == [0.025, 0.05, 0.075, 0.1]


def test_linked_rows_by_hand() -> None:
    x = torch.tensor([[1.0], [10.0], [100.0], [1000.0]])
    links = RowLinks(torch.tensor([1, 2, 2]), torch.tensor([0, 0, 3]))
    assert add_linked_rows(x, links.matrix(4)).flatten().tolist() == [111.0, 10.0, 100.0, 1100.0]
    assert add_linked_rows(x, links.matrix(4, "mean")).flatten().tolist() == [56.0, 10.0, 100.0, 1100.0]


def test_sparse_basis_residual_comes_after_every_block() -> None:
    config = EncoderConfig(num_layers=2, num_heads=2, norm=False, final_norm=False, sparse_basis_residual=True)
    encoder = Encoder(2, config)
    for parameter in encoder.parameters():
        torch.nn.init.zeros_(parameter)
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    links = RowLinks(torch.tensor([1]), torch.tensor([0]))
    assert encoder(x, Segments.from_lengths(torch.tensor([2])), links).tolist() == [[1.0, 2.0], [0.0, 1.0]]


def test_input_norm_comes_first() -> None:
    encoder = Encoder(DIM, EncoderConfig(num_layers=0, input_norm=True, final_norm=False))
    out = encoder(3 + 5 * torch.randn(4, DIM), Segments.from_lengths(torch.tensor([4])))
    assert out.mean(1).abs().max() < 1e-5
    assert (out.std(1, unbiased=False) - 1).abs().max() < 1e-3


@pytest.mark.parametrize(
    "options",
    [
        {"attention": SoftmaxConfig(dropout=0.5)},
        {"mlp_dropout": 0.5},
        {"residual_dropout": 0.5},
        {"input_dropout": 0.5},
        {"drop_path": 0.5},
    ],
)
def test_every_dropout_acts_by_itself_and_in_training_only(options: dict[str, Any]) -> None:
    """Together they would hide one that does nothing. Their rates are measured in tests/test_encoder_settings.py."""
    torch.manual_seed(3)
    plain, encoder = (Encoder(DIM, EncoderConfig(num_layers=1, num_heads=2, **each)) for each in ({}, options))
    encoder.load_state_dict(plain.state_dict())
    x, segments = torch.randn(20, DIM), Segments.from_lengths(torch.tensor([8, 12]))
    assert torch.equal(plain(x, segments), plain(x, segments))
    first, second = encoder(x, segments), encoder(x, segments)
    assert not torch.allclose(first, second)
    assert torch.equal(encoder.eval()(x, segments), plain.eval()(x, segments))


@pytest.mark.parametrize("links", [None, RowLinks(torch.tensor([1, 4]), torch.tensor([0, 3]))])
@pytest.mark.parametrize("layers", [0, 1, 3])
def test_wanted_rows_are_those_of_all(links: RowLinks | None, layers: int) -> None:
    """Outputs and gradients, with and without the sparse basis, which needs all rows to the end."""
    config = EncoderConfig(num_layers=layers, num_heads=2, mlp_dim=9, sparse_basis_residual=links is not None)
    encoder = Encoder(DIM, config).double()
    segments = Segments.from_lengths(torch.tensor([3, 1, 4]))
    x = torch.randn(segments.total, DIM, dtype=torch.float64, requires_grad=True)
    rows = torch.tensor([0, 3, 4, 6])
    weights = torch.randn(4, DIM, dtype=torch.float64)
    chosen, everything = encoder(x, segments, links, rows), encoder(x, segments, links)
    assert torch.allclose(chosen, everything[rows], atol=1e-12)
    inputs = [x, *(p for p in encoder.parameters() if p.requires_grad)]
    for ours, theirs in zip(
        torch.autograd.grad((chosen * weights).sum(), inputs),
        torch.autograd.grad((everything[rows] * weights).sum(), inputs),
        strict=True,
    ):
        assert torch.allclose(ours, theirs, atol=1e-12)


def test_wanted_rows_are_dropped_with_their_sequence() -> None:
    segments = Segments.from_lengths(torch.tensor([2, 3] * 500))
    rows = torch.cat([segments.starts, segments.offsets[1:] - 1])
    out = drop_path(torch.ones(len(rows), 1), segments, 0.5, rows)[:, 0]
    assert torch.equal(out[:1000], out[1000:])
    assert set(out.tolist()) == {0.0, 2.0}
