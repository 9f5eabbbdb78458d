"""What fast blocks and encoders must do with the row kernels, on a GPU or through Triton's interpreter.

``tests/kernels/test_kernels.py`` runs this file in a process of its own; on a GPU it can be given to pytest directly.
"""

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))
from packed_cases import DEVICE

from tokengt.accelerate import fast_block
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
    monkeypatch.setattr(fast_block, "takes_rows", lambda block, x: True)
    for system in (encoder, FastEncoder(encoder, None, record=False)):
        out = system(x, segments, None, rows)
        results.append([out, *torch.autograd.grad(out.square().sum(), [x, *encoder.parameters()])])
    for plain, fast in zip(*results, strict=True):
        close(fast, plain.double(), 1e-4)


def test_drop_path_by_row_kernels_drops_whole_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a rate that drops all of them, what is left is the input, normed."""
    encoder = encoder_of(drop_path=0.5, final_norm=False, num_layers=2)
    monkeypatch.setattr(fast_block, "takes_rows", lambda block, x: True)
    for block in encoder.blocks:
        block.drop_rate.fill_(1 - 1e-7)  # type: ignore[operator, union-attr]
    segments = Segments.from_lengths(torch.tensor([4, 9]), DEVICE)
    x = torch.randn(13, 24, device=DEVICE)
    torch.testing.assert_close(FastEncoder(encoder, None, record=False)(x, segments), encoder.input_norm(x))


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
    fast = FastEncoder(encoder, "aot_eager" if interpreted() else "inductor", record=False)
    for number in (7, 4):
        for result, exact in zip(run(fast), plain, strict=True):
            close(result, exact, 5e-2 if mixed else 1e-4)
        assert len(calls) == number  # Two calls per block that trains, and one call where nothing is left to it.
        calls.clear()
        fast.blocks[1].eval()
