"""What fast blocks and encoders must do with the row kernels, on a GPU or through Triton's interpreter.

``tests/kernels/test_kernels.py`` runs this file in a process of its own; on a GPU it can be given to pytest directly.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))
from packed_cases import DEVICE

from tokengt.accelerate import fast_block, fast_encoder
from tokengt.accelerate import rows as row_functions
from tokengt.accelerate.fast_encoder import FastEncoder
from tokengt.attention import SoftmaxConfig
from tokengt.block import EncoderConfig
from tokengt.kernels import rows as kernels
from tokengt.kernels import rows_op
from tokengt.kernels.packed_launch import interpreted
from tokengt.ragged import Segments
from tokengt.transformer import Encoder

# Few, so that each has several tiles of rows here, and the interpreter takes a millisecond for each.
rows_op.PROGRAMS, rows_op.SUM_PROGRAMS = 6, 5


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE).requires_grad_()


def close(found: Tensor, exact: Tensor, tolerance: float) -> None:
    assert found.shape == exact.shape
    found, exact = found.detach().double(), exact.detach().double()
    assert float((found - exact).norm()) <= tolerance * max(float(exact.norm()), 1.0)


def encoder_of(**changes: object) -> Encoder:
    settings = {"num_layers": 3, "num_heads": 2, "mlp_dim": 40, "input_norm": True} | changes
    torch.manual_seed(1)
    return Encoder(24, EncoderConfig(**settings, attention=SoftmaxConfig(backend="bucketed"))).to(DEVICE).train()  # type: ignore[arg-type]


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("asks", ["all rows", "some rows", "one block"])
def test_row_kernels_give_the_plain_encoder(asks: str, activation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = encoder_of(activation=activation, **({"num_layers": 1} if asks == "one block" else {}))
    for parameter in encoder.parameters():
        nn.init.normal_(parameter, std=0.3)
    segments = Segments.from_lengths(torch.tensor([4, 0, 9, 1]), DEVICE)
    x = randn(segments.total, 24)
    rows = segments.starts[torch.tensor([0, 2], device=DEVICE)] if asks == "some rows" else None
    results = []
    monkeypatch.setattr(fast_block, "takes_rows", lambda block, x, eager: True)
    for system in (encoder, FastEncoder(encoder)):
        out = system(x, segments, None, rows)
        results.append([out, *torch.autograd.grad(out.square().sum(), [x, *encoder.parameters()])])
    for plain, fast in zip(*results, strict=True):
        close(fast, plain.double(), 1e-4)


def test_drop_path_by_row_kernels_drops_whole_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a rate that drops all of them, what is left is the input, normed."""
    encoder = encoder_of(drop_path=0.5, final_norm=False, num_layers=2)
    monkeypatch.setattr(fast_block, "takes_rows", lambda block, x, eager: True)
    for block in encoder.blocks:
        block.drop_rate.fill_(1 - 1e-7)  # type: ignore[operator, union-attr]
    segments = Segments.from_lengths(torch.tensor([4, 9]), DEVICE)
    x = torch.randn(13, 24, device=DEVICE)
    torch.testing.assert_close(FastEncoder(encoder)(x, segments), encoder.input_norm(x))


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Kernels take these rows on a CPU too, where they are interpreted; the names of those that were launched."""
    if interpreted():
        monkeypatch.setattr(fast_block, "fits", lambda x: True)
        monkeypatch.setattr(fast_encoder, "fits", lambda x: True)
    launched: list[str] = []
    for name in ("add_norm_forward", "activate_forward"):
        kernel = getattr(kernels, name)
        monkeypatch.setattr(kernel, "run", _noting(kernel.run, launched, name))
    return launched


def _noting(launch: Callable[..., Any], launched: list[str], name: str) -> Callable[..., Any]:
    def run(*given: Any, **sizes: Any) -> Any:
        launched.append(name)
        return launch(*given, **sizes)

    return run


@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("asks", ["all rows", "some rows", "one block", "no norms"])
def test_kernels_outside_of_compiled_code_give_the_plain_encoder(
    asks: str, training: bool, mixed: bool, eager: list[str]
) -> None:
    """As in recorded steps, and in the evaluation between them; norms at the input and at the end included."""
    changes = {"one block": {"num_layers": 1}, "no norms": {"input_norm": False, "final_norm": False}}.get(asks, {})
    encoder = encoder_of(**changes).train(training)
    for parameter in encoder.parameters():
        nn.init.normal_(parameter, std=0.2)
    segments = Segments.from_lengths(torch.tensor([4, 0, 9, 1]), DEVICE)
    x = randn(segments.total, 24)
    rows = segments.starts[torch.tensor([0, 2], device=DEVICE)] if asks == "some rows" else None
    results = []
    for system in (encoder, FastEncoder(encoder, kernels=True).train(training)):
        eager.clear()
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=mixed):
            out = system(x, segments, None, rows)
        results.append([out, *torch.autograd.grad(out.float().square().sum(), [x, *encoder.parameters()])])
    # Every block has two norms and an activation; beside them are the norms at the input and at the end.
    layers, ends = len(encoder.blocks), 0 if asks == "no norms" else 2
    assert eager.count("add_norm_forward") == 2 * layers + ends
    assert eager.count("activate_forward") == layers
    for plain, fast in zip(*results, strict=True):
        close(fast, plain, 5e-2 if mixed else 1e-4)


def test_kernels_outside_of_compiled_code_draw_for_all_blocks_at_once(eager: list[str]) -> None:
    """Same seed, same output; another seed, another; no chance at all in evaluation."""
    encoder = encoder_of(residual_dropout=0.2, mlp_dropout=0.2, drop_path=0.4, input_dropout=0.1)
    fast = FastEncoder(encoder, kernels=True)
    segments = Segments.from_lengths(torch.tensor([4, 0, 9, 1]), DEVICE)
    x = torch.randn(segments.total, 24, device=DEVICE)

    def run(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return fast(x, segments).detach()

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))
    fast.eval()
    assert torch.equal(run(1), run(2))
    close(run(1), encoder.eval()(x, segments), 1e-4)


def test_drop_path_drawn_at_once_drops_whole_branches(eager: list[str]) -> None:
    """With a rate that drops nearly all of them, what is left is the input, normed."""
    encoder = encoder_of(drop_path=0.5, final_norm=False, num_layers=2)
    for block in encoder.blocks:
        block.drop_rate.fill_(1 - 1e-7)  # type: ignore[operator, union-attr]
    segments = Segments.from_lengths(torch.tensor([4, 9]), DEVICE)
    x = torch.randn(13, 24, device=DEVICE)
    out = FastEncoder(encoder, kernels=True)(x, segments)
    torch.testing.assert_close(out, encoder.input_norm(x), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("default")  # PyTorch hides one of its own
@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "autocast"])
def test_a_compiled_encoder_is_the_plain_one(mixed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """First, last and other blocks; on a GPU through Inductor. A block in evaluation adds what one in training left."""
    monkeypatch.setattr(row_functions, "_NARROWEST", 0)
    if interpreted():
        monkeypatch.setattr(fast_block, "fits", lambda x: torch.compiler.is_compiling())
    encoder = encoder_of(num_layers=4, residual_dropout=0.0)
    for parameter in encoder.parameters():
        nn.init.normal_(parameter, std=0.2)
    segments = Segments.from_lengths(torch.tensor([4, 0, 9, 1]), DEVICE)
    x = randn(segments.total, 24)

    def run(system: nn.Module) -> list[Tensor]:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=mixed):
            out = system(x, segments)
        return [out, *torch.autograd.grad(out.square().sum(), [x, *encoder.parameters()])]

    plain = run(encoder)
    calls = []
    launch = kernels.add_norm_forward.run
    monkeypatch.setattr(kernels.add_norm_forward, "run", lambda *a, **k: (calls.append(1), launch(*a, **k))[1])
    fast = FastEncoder(encoder, "aot_eager" if interpreted() else "inductor")
    for number in (7, 4):
        for result, exact in zip(run(fast), plain, strict=True):
            close(result, exact, 5e-2 if mixed else 1e-4)
        assert len(calls) == number  # Two calls per block that trains, and one call where nothing is left to it.
        calls.clear()
        fast.blocks[1].eval()
