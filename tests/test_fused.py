"""Blocks that leave what they add to the next one. The kernels themselves are in ``fused_cases.py``."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tokengt import fused, transformer
from tokengt.fused import Branch
from tokengt.ragged import Segments
from tokengt.transformer import Block, Encoder, EncoderConfig, RowLinks

DIM = 12


def add_norm(x: Tensor, branch: Branch, norm: nn.LayerNorm, *, dropout: float = 0.0) -> tuple[Tensor, Tensor]:
    """What the kernel computes, in plain PyTorch."""
    added = branch.rows + branch.bias
    if branch.factor is not None and branch.ids is not None:
        added = added * branch.factor[branch.ids, None]
    out = x + F.dropout(added, dropout)
    return out, norm(out)


def activate(x: Tensor, bias: Tensor, *, dropout: float, gelu: bool) -> Tensor:
    return F.dropout(F.gelu(x + bias) if gelu else F.relu(x + bias), dropout)


@pytest.fixture
def fuses(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Blocks take the way of the kernels; set ``Block._fuses`` again to take the other one."""
    monkeypatch.setattr(transformer, "add_norm", add_norm)
    monkeypatch.setattr(transformer, "activate", activate)
    monkeypatch.setattr(transformer, "linear", lambda x, layer: layer(x))
    monkeypatch.setattr(Block, "_fuses", lambda self, x: True)
    return monkeypatch


def encoder_of(**changes: Any) -> Encoder:
    torch.manual_seed(0)
    settings = {"num_layers": 3, "num_heads": 2, "mlp_dim": 20, "input_norm": True} | changes
    encoder = Encoder(DIM, EncoderConfig(**settings)).double().train()
    for parameter in encoder.parameters():
        nn.init.normal_(parameter, std=0.5)
    return encoder


@pytest.mark.parametrize("asks", ["all rows", "some rows", "linked rows"])
@pytest.mark.parametrize("changes", [{}, {"num_layers": 1}, {"activation": "relu"}, {"final_norm": False}], ids=str)
def test_the_result_is_that_of_plain_blocks(fuses: pytest.MonkeyPatch, asks: str, changes: dict[str, Any]) -> None:
    encoder = encoder_of(**changes, sparse_basis_residual=asks == "linked rows")
    segments = Segments.from_lengths(torch.tensor([4, 0, 7, 1]))
    links = RowLinks(torch.tensor([0, 5, 5]), torch.tensor([3, 4, 2])) if asks == "linked rows" else None
    rows = torch.tensor([0, 4, 11]) if asks == "some rows" else None
    x = torch.randn(12, DIM, dtype=torch.float64, requires_grad=True)
    found = encoder(x, segments, links, rows)
    gradients = torch.autograd.grad(found.square().sum(), [x, *encoder.parameters()])
    fuses.setattr(Block, "_fuses", lambda self, x: False)
    expected = encoder(x, segments, links, rows)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    plain = torch.autograd.grad(expected.square().sum(), [x, *encoder.parameters()])
    for one, other in zip(gradients, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


def test_every_block_but_the_last_leaves_its_branch(fuses: pytest.MonkeyPatch) -> None:
    encoder, left = encoder_of(), []
    for block in encoder.blocks:
        block.register_forward_hook(lambda module, given, out: left.append(out[1]))
    encoder(torch.randn(6, DIM, dtype=torch.float64), Segments.from_lengths(torch.tensor([6])))
    assert [branch is None for branch in left] == [False, False, True]
    assert left[0].factor is None
    # The weights of a block may be gone when the next one adds its branch.
    bias = encoder.blocks[0].mlp.down.bias
    assert torch.equal(left[0].bias, bias)
    assert left[0].bias.data_ptr() != bias.data_ptr()


@pytest.mark.parametrize("rows", [None, torch.tensor([0, 4, 11])], ids=["all", "some"])
def test_drop_path_drops_a_sequence_as_a_whole(fuses: pytest.MonkeyPatch, rows: Tensor | None) -> None:
    """Blocks one after another, of which the second adds what the first has left, under a rate of one half."""
    encoder = encoder_of(num_layers=2, drop_path=0.5)
    kept = iter([[1, 1, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]])
    fuses.setattr(torch, "rand", lambda *_, **__: torch.tensor(next(kept)).double())
    segments = Segments.from_lengths(torch.tensor([4, 7, 1]))
    x = torch.randn(12, DIM, dtype=torch.float64)
    found = encoder(x, segments, None, rows)
    fuses.setattr(Block, "_fuses", lambda self, x: False)
    kept = iter([[1, 1, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]])
    torch.testing.assert_close(found, encoder(x, segments, None, rows))


def test_only_compiled_training_on_a_gpu_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = encoder_of()
    block, x = encoder.blocks[0], torch.randn(3, DIM, dtype=torch.float64)
    assert not fused.fits(x, DIM)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not fused.fits(x.float(), DIM)  # no GPU
    monkeypatch.setattr(Tensor, "is_cuda", True)
    assert fused.fits(x.float(), DIM)
    assert not fused.fits(x, DIM)  # float64
    assert not fused.fits(x.float(), DIM, 4096)
    assert isinstance(block, Block)
    assert block._fuses(x.float())
    assert not block.eval()._fuses(x.float())
    assert not Block(DIM, EncoderConfig(num_heads=2, norm=False), 0.0)._fuses(x.float())
