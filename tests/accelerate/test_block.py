"""Blocks that leave what they add to the next one. The kernels themselves are in ``fused_cases.py``."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tokengt.fused import Branch
from torch import Tensor, nn

from tokengt import block as block_module
from tokengt import fused
from tokengt.block import Block, EncoderConfig
from tokengt.ragged import Segments
from tokengt.transformer import Encoder, RowLinks

DIM = 12


def add_norm(x: Tensor, branch: Branch, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    """What the kernel computes, in plain PyTorch."""
    out = branch.added_to(x)
    return out, norm(out)


def activate(x: Tensor, bias: Tensor, *, dropout: float, gelu: bool) -> Tensor:
    return F.dropout(F.gelu(x + bias) if gelu else F.relu(x + bias), dropout)


@pytest.fixture
def fuses(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Blocks take the way of the kernels; set ``Block._fuses`` again to take the other one."""
    monkeypatch.setattr(block_module, "add_norm", add_norm)
    monkeypatch.setattr(block_module, "activate", activate)
    monkeypatch.setattr(block_module, "linear", lambda x, layer: layer(x))
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
        block.register_forward_hook(lambda module, given, out: left.append(out[1] if isinstance(out, tuple) else None))
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


def test_what_a_block_left_is_added_by_one_in_another_mode(fuses: pytest.MonkeyPatch) -> None:
    """Kernels are used in training alone, and a block may be set to evaluation by itself."""
    encoder = encoder_of()
    segments, x = Segments.from_lengths(torch.tensor([4, 8])), torch.randn(12, DIM, dtype=torch.float64)
    encoder.blocks[1].eval()
    fuses.setattr(Block, "_fuses", lambda self, x: self.training)
    found = encoder(x, segments)
    fuses.setattr(Block, "_fuses", lambda self, x: False)
    torch.testing.assert_close(found, encoder(x, segments))


def test_each_rate_goes_where_it_belongs(fuses: pytest.MonkeyPatch) -> None:
    encoder = encoder_of(residual_dropout=0.25, mlp_dropout=0.5)
    encoder.blocks[1].dropout.p = 0.125  # type: ignore[union-attr]
    rates: list[float] = []

    def note_norm(x: Tensor, branch: Branch, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
        rates.append(branch.rate)
        return add_norm(x, branch, norm)

    def note_activation(x: Tensor, bias: Tensor, *, dropout: float, gelu: bool) -> Tensor:
        rates.append(dropout)
        return activate(x, bias, dropout=dropout, gelu=gelu)

    fuses.setattr(block_module, "add_norm", note_norm)
    fuses.setattr(block_module, "activate", note_activation)
    segments, x = Segments.from_lengths(torch.tensor([4, 8])), torch.randn(12, DIM, dtype=torch.float64)
    encoder(x, segments)
    # The branch of attention, the activation, the branch of the MLP (in the next block; the last adds its own).
    assert rates == [0.25, 0.5, 0.25, 0.125, 0.5, 0.125, 0.25, 0.5]
    rates.clear()
    for module in encoder.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    encoder(x, segments)
    assert rates == [0.0] * 8


def test_a_branch_is_dropped_as_a_plain_one() -> None:
    """Rate and rescaling; whole sequences by their factor."""
    ids = torch.arange(40) // 10
    branch = Branch(torch.ones(40, 500), torch.ones(500), torch.tensor([0.0, 1.0, 2.0, 3.0]), ids, 0.5)
    torch.manual_seed(0)
    added = branch.added_to(torch.zeros(40, 500)).view(4, 10, 500)
    for factor, part in enumerate(added):
        assert set(part.unique().tolist()) == {0.0, 4.0 * factor}
        assert float(part.mean()) == pytest.approx(2 * factor, rel=0.1)
    assert torch.equal(branch._replace(rate=0.0, factor=None).added_to(torch.ones(40, 500)), torch.full((40, 500), 3.0))


def test_only_compiled_training_on_a_gpu_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = encoder_of()
    part, x = encoder.blocks[0], torch.randn(3, DIM)
    assert isinstance(part, Block)
    monkeypatch.setattr(fused, "_NARROWEST", DIM)
    assert not fused.fits(x)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not fused.fits(x)  # no GPU
    monkeypatch.setattr(Tensor, "is_cuda", True)
    assert fused.fits(x)
    assert not fused.fits(x.double())
    assert not fused.fits(x[:, 1:])
    assert fused.fits(torch.randn(1, 2048))
    assert not fused.fits(torch.randn(1, 2049))
    assert part._fuses(x)
    assert not Block(DIM, EncoderConfig(num_heads=2, norm=False), 0.0)._fuses(x)
    handle = part.mlp.up.register_forward_pre_hook(lambda module, given: None)
    assert not part._fuses(x)  # old-style weight norm is such a hook
    handle.remove()
    assert part._fuses(x)
    nn.utils.parametrizations.weight_norm(part.attention.qkv_proj)
    assert not part._fuses(x)
    assert not encoder.blocks[1].eval()._fuses(x)  # type: ignore[operator]
