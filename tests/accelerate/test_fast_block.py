"""Blocks that leave what they add to the next one; with the kernels themselves in ``fast_block_cases.py``."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tokengt.accelerate import fast_block, fast_encoder
from tokengt.accelerate import rows as row_functions
from tokengt.accelerate.fast_block import BlockDraws, draw_for, takes_rows
from tokengt.accelerate.fast_encoder import FastEncoder
from tokengt.accelerate.rows import Branch, fits
from tokengt.block import Block, EncoderConfig
from tokengt.ragged import Segments
from tokengt.transformer import Encoder, RowLinks

DIM = 12


def add_norm(x: Tensor, branch: Branch, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    """What the kernel computes, in plain PyTorch."""
    out = branch.added_to(x)
    return out, norm(out)


def activate(x: Tensor, bias: Tensor, *, dropout: float, gelu: bool, seed: Tensor | None = None) -> Tensor:
    return F.dropout(F.gelu(x + bias) if gelu else F.relu(x + bias), dropout)


@pytest.fixture
def by_rows(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Fast blocks take the way of the row kernels."""
    monkeypatch.setattr(fast_block, "add_norm", add_norm)
    monkeypatch.setattr(fast_block, "activate", activate)
    monkeypatch.setattr(fast_block, "linear", lambda x, layer: layer(x))
    monkeypatch.setattr(fast_block, "takes_rows", lambda block, x, eager: True)
    return monkeypatch


def pair_of(**changes: Any) -> tuple[Encoder, FastEncoder]:
    """An encoder and its fast twin, which nothing compiles here."""
    torch.manual_seed(0)
    settings = {"num_layers": 3, "num_heads": 2, "mlp_dim": 20, "input_norm": True} | changes
    encoder = Encoder(DIM, EncoderConfig(**settings)).double().train()
    for parameter in encoder.parameters():
        nn.init.normal_(parameter, std=0.5)
    return encoder, FastEncoder(encoder)


@pytest.mark.parametrize("asks", ["all rows", "some rows", "linked rows"])
@pytest.mark.parametrize("changes", [{}, {"num_layers": 1}, {"activation": "relu"}, {"final_norm": False}], ids=str)
def test_the_result_is_that_of_plain_blocks(by_rows: pytest.MonkeyPatch, asks: str, changes: dict[str, Any]) -> None:
    encoder, fast = pair_of(**changes, sparse_basis_residual=asks == "linked rows")
    segments = Segments.from_lengths(torch.tensor([4, 0, 7, 1]))
    links = RowLinks(torch.tensor([0, 5, 5]), torch.tensor([3, 4, 2])) if asks == "linked rows" else None
    rows = torch.tensor([0, 4, 11]) if asks == "some rows" else None
    x = torch.randn(12, DIM, dtype=torch.float64, requires_grad=True)
    output = fast(x, segments, links, rows)
    gradients = torch.autograd.grad(output.square().sum(), [x, *fast.parameters()])
    expected = encoder(x, segments, links, rows)
    torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9)
    plain = torch.autograd.grad(expected.square().sum(), [x, *encoder.parameters()])
    for one, other in zip(gradients, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


def test_every_block_but_the_last_leaves_its_branch(by_rows: pytest.MonkeyPatch) -> None:
    encoder, fast = pair_of()
    left: list[Any] = []
    for part in fast.blocks:
        part.register_forward_hook(lambda module, given, out: left.append(out[1]))
    fast(torch.randn(6, DIM, dtype=torch.float64), Segments.from_lengths(torch.tensor([6])))
    assert [branch is None for branch in left] == [False, False, True]
    assert left[0].factor is None
    # The weights of a block may be gone when the next one adds its branch.
    bias = encoder.blocks[0].mlp.down.bias  # type: ignore[union-attr]
    assert torch.equal(left[0].bias, bias)
    assert left[0].bias.data_ptr() != bias.data_ptr()


@pytest.mark.parametrize("rows", [None, torch.tensor([0, 4, 11])], ids=["all", "some"])
def test_drop_path_drops_a_sequence_as_a_whole(by_rows: pytest.MonkeyPatch, rows: Tensor | None) -> None:
    """Blocks one after another, of which the second adds what the first has left, under a rate of one half."""
    encoder, fast = pair_of(num_layers=2, drop_path=0.5)
    kept = iter([[1, 1, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]])
    by_rows.setattr(torch, "rand", lambda *_, **__: torch.tensor(next(kept)).double())
    segments = Segments.from_lengths(torch.tensor([4, 7, 1]))
    x = torch.randn(12, DIM, dtype=torch.float64)
    output = fast(x, segments, None, rows)
    kept = iter([[1, 1, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]])
    torch.testing.assert_close(output, encoder(x, segments, None, rows))


def test_what_a_block_left_is_added_by_one_in_another_mode(by_rows: pytest.MonkeyPatch) -> None:
    """Kernels are used in training alone, and a block may be set to evaluation by itself."""
    encoder, fast = pair_of()
    segments, x = Segments.from_lengths(torch.tensor([4, 8])), torch.randn(12, DIM, dtype=torch.float64)
    fast.blocks[1].eval()
    by_rows.setattr(fast_block, "takes_rows", lambda block, x, eager: block.training)
    output = fast(x, segments)
    torch.testing.assert_close(output, encoder(x, segments))


def test_each_rate_goes_where_it_belongs(by_rows: pytest.MonkeyPatch) -> None:
    encoder, fast = pair_of(residual_dropout=0.25, mlp_dropout=0.5)
    encoder.blocks[1].dropout.p = 0.125  # type: ignore[union-attr]
    rates: list[float] = []

    def note_norm(x: Tensor, branch: Branch, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
        rates.append(branch.rate)
        return add_norm(x, branch, norm)

    def note_activation(x: Tensor, bias: Tensor, *, dropout: float, gelu: bool, seed: Tensor | None) -> Tensor:
        rates.append(dropout)
        return activate(x, bias, dropout=dropout, gelu=gelu)

    by_rows.setattr(fast_block, "add_norm", note_norm)
    by_rows.setattr(fast_block, "activate", note_activation)
    segments, x = Segments.from_lengths(torch.tensor([4, 8])), torch.randn(12, DIM, dtype=torch.float64)
    fast(x, segments)
    # The branch of attention, the activation, the branch of the MLP (in the next block; the last adds its own).
    assert rates == [0.25, 0.5, 0.25, 0.125, 0.5, 0.125, 0.25, 0.5]
    rates.clear()
    for module in encoder.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    fast(x, segments)
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


@pytest.mark.parametrize("asks", ["all rows", "some rows"])
def test_the_h_that_compiled_training_keeps_changes_nothing(asks: str) -> None:
    """The equations of a plain block stand in two places; they give the same bits, draws included."""
    encoder, fast = pair_of(residual_dropout=0.25, mlp_dropout=0.5, drop_path=0.5)
    x, plan = torch.randn(12, DIM, dtype=torch.float64), encoder.plan(Segments.from_lengths(torch.tensor([4, 8])))
    rows = torch.tensor([0, 4]) if asks == "some rows" else None
    for mode in (True, False):
        fast.train(mode)
        for plain, twin in zip(encoder.blocks, fast.blocks, strict=True):
            torch.manual_seed(1)
            expected = plain(x, plan, rows)
            torch.manual_seed(1)
            output, left = twin(x, plan, rows)
            assert torch.equal(output, expected)
            assert left is None


def test_row_kernels_are_for_a_gpu_in_compiled_training_or_where_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, _ = pair_of()
    part, x = encoder.blocks[0], torch.randn(3, DIM)
    assert isinstance(part, Block)
    monkeypatch.setattr(row_functions, "_NARROWEST", DIM)
    assert not fits(x)  # There is no GPU here.
    monkeypatch.setattr(Tensor, "is_cuda", True)
    assert fits(x[:, 1:])  # A compiler makes better kernels for narrow rows; without one, ours are.
    assert not takes_rows(part, x, eager=False)
    assert takes_rows(part, x, eager=True)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert fits(x)
    assert not fits(x.double())
    assert not fits(x[:, 1:])
    assert fits(torch.randn(1, 2048))
    assert not fits(torch.randn(1, 2049))
    assert takes_rows(part, x, eager=False)
    assert not takes_rows(Block(DIM, EncoderConfig(num_heads=2, norm=False), 0.0), x, eager=True)
    handle = part.mlp.up.register_forward_pre_hook(lambda module, given: None)
    assert not takes_rows(part, x, eager=True)  # The old kind of weight norm is such a hook.
    handle.remove()
    assert takes_rows(part, x, eager=False)
    nn.utils.parametrizations.weight_norm(part.attention.qkv_proj)
    assert not takes_rows(part, x, eager=True)
    other = encoder.blocks[1].eval()
    assert isinstance(other, Block)
    assert not takes_rows(other, x, eager=False)  # A compiler fuses a forward well enough.
    assert takes_rows(other, x, eager=True)


@pytest.fixture
def by_kernels(by_rows: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Row kernels outside of compiled code: what they compute, in plain PyTorch."""
    by_rows.setattr(fast_encoder, "fits", lambda x: True)
    by_rows.setattr(fast_encoder, "norm", lambda x, layer, dtype: layer(x).to(dtype))
    by_rows.setattr(fast_block, "norm", lambda x, layer, dtype: layer(x).to(dtype))
    return by_rows


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("asks", ["all rows", "some rows", "linked rows"])
@pytest.mark.parametrize("changes", [{}, {"num_layers": 1}, {"input_norm": False, "final_norm": False}], ids=str)
def test_kernels_outside_of_compiled_code_give_the_plain_result(
    by_kernels: pytest.MonkeyPatch, asks: str, changes: dict[str, Any], training: bool
) -> None:
    encoder, _ = pair_of(**changes, sparse_basis_residual=asks == "linked rows")
    fast = FastEncoder(encoder, kernels=True).train(training)
    segments = Segments.from_lengths(torch.tensor([4, 0, 7, 1]))
    links = RowLinks(torch.tensor([0, 5, 5]), torch.tensor([3, 4, 2])) if asks == "linked rows" else None
    rows = torch.tensor([0, 4, 11]) if asks == "some rows" else None
    x = torch.randn(12, DIM, dtype=torch.float64, requires_grad=True)
    results = []
    for system in (fast, encoder):
        out = system(x, segments, links, rows)
        results.append([out, *torch.autograd.grad(out.square().sum(), [x, *encoder.parameters()])])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


def test_what_all_blocks_draw_is_drawn_at_once(by_kernels: pytest.MonkeyPatch) -> None:
    """Each block gets its own factors, at its own rate, and its own seeds; nothing in evaluation."""
    encoder, _ = pair_of(drop_path=0.5, residual_dropout=0.25)
    segments = Segments.from_lengths(torch.ones(4000, dtype=torch.int64))
    torch.manual_seed(0)
    drawn = draw_for([part for part in encoder.blocks if isinstance(part, Block)], segments)
    rates = [float(part.drop_rate) for part in encoder.blocks]  # type: ignore[arg-type]
    assert rates == sorted(set(rates))
    seeds = set()
    for rate, own in zip(rates, drawn, strict=True):
        assert own.factors is not None
        assert own.seeds is not None
        assert own.factors.shape == (2, 4000)
        dropped = own.factors == 0
        assert (dropped.double().mean(1) - rate).abs().max() < 0.03
        torch.testing.assert_close(own.factors[~dropped], torch.full_like(own.factors[~dropped], 1 / (1 - rate)))
        assert rate == 0 or not torch.equal(dropped[0], dropped[1])
        seeds |= set(own.seeds.tolist())
    assert len(seeds) == 9
    encoder.eval()
    assert draw_for([part for part in encoder.blocks if isinstance(part, Block)], segments) == [BlockDraws()] * 3


def test_blocks_use_what_was_drawn_for_them(by_kernels: pytest.MonkeyPatch) -> None:
    """Attention's branch, the hidden rows and the MLP's branch: seeds 0, 1 and 2, factors 0 and 1."""
    encoder, _ = pair_of(drop_path=0.5, num_layers=2)
    segments, x = Segments.from_lengths(torch.tensor([4, 8])), torch.randn(12, DIM, dtype=torch.float64)
    ones = [BlockDraws(torch.full((2, 2), 1.0 + n).double(), torch.arange(3) + 10 * n) for n in range(2)]
    ones[0].factors[1] = 5.0  # type: ignore[index]
    used: list[tuple[str, int, float]] = []

    def note_norm(x: Tensor, branch: Branch, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
        assert branch.seed is not None
        assert branch.factor is not None
        used.append(("branch", int(branch.seed), float(branch.factor[0])))
        return add_norm(x, branch, norm)

    def note_activation(x: Tensor, bias: Tensor, *, dropout: float, gelu: bool, seed: Tensor | None) -> Tensor:
        assert seed is not None
        used.append(("hidden", int(seed), 0.0))
        return activate(x, bias, dropout=dropout, gelu=gelu)

    by_kernels.setattr(fast_encoder, "draw_for", lambda blocks, segments: ones)
    by_kernels.setattr(fast_block, "add_norm", note_norm)
    by_kernels.setattr(fast_block, "activate", note_activation)
    FastEncoder(encoder, kernels=True)(x, segments)
    # The second block adds what the first one left, then its own; what its MLP adds, it adds itself.
    first = [("branch", 0, 1.0), ("hidden", 1, 0.0), ("branch", 2, 5.0)]
    assert used == [*first, ("branch", 10, 2.0), ("hidden", 11, 0.0)]


def test_biases_are_copied_only_where_weights_may_be_gone(by_kernels: pytest.MonkeyPatch) -> None:
    """Recorded steps have all weights at hand; FSDP, which frees them, takes the other way."""
    encoder, _ = pair_of()
    fast = FastEncoder(encoder, kernels=True)
    left: list[Any] = []
    for part in fast.blocks:
        part.register_forward_hook(lambda module, given, out: left.append(out[1]))
    fast(torch.randn(6, DIM, dtype=torch.float64), Segments.from_lengths(torch.tensor([6])))
    assert left[0].bias is encoder.blocks[0].mlp.down.bias  # type: ignore[union-attr]
