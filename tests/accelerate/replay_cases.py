"""What recorded training steps must do. Needs a GPU with Triton: ``pytest --noconftest -c /dev/null`` runs it there."""

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from tokengt.accelerate import rows as row_functions
from tokengt.accelerate.fast_encoder import FastEncoder
from tokengt.attention import SoftmaxConfig
from tokengt.block import EncoderConfig
from tokengt.ragged import Segments
from tokengt.transformer import Encoder

DIM = 48
row_functions._NARROWEST = 0  # The rows here are narrower than the kernels are used for.
LENGTHS = [[9, 30, 60, 3], [30, 9, 3, 58], [64, 20, 9, 11], [9, 33, 58, 1]]


def make(dropout: float, drop_path: float = 0.0) -> Encoder:
    config = EncoderConfig(
        num_layers=3,
        num_heads=2,
        attention=SoftmaxConfig(dropout=dropout),
        mlp_dropout=dropout,
        residual_dropout=dropout,
        drop_path=drop_path,
        input_norm=True,
    )
    torch.manual_seed(1)
    return Encoder(DIM, config).cuda().train()


def recording(dropout: float, drop_path: float = 0.0, *, compiled: bool = False) -> FastEncoder:
    return FastEncoder(make(dropout, drop_path), "inductor" if compiled else None, record=True)


def batch(lengths: list[int]) -> tuple[Tensor, Segments, Tensor]:
    segments = Segments.from_lengths(torch.tensor(lengths), "cuda")
    generator = torch.Generator("cuda").manual_seed(sum(lengths))
    return torch.randn(segments.total, DIM, device="cuda", generator=generator), segments, segments.starts


def step(encoder: nn.Module, lengths: list[int], *, read: bool = True, seed: int = 5) -> list[Tensor]:
    """The output, the gradient of the tokens and those of the weights, bf16 products."""
    encoder.zero_grad()
    return add(encoder, lengths, read=read, seed=seed)


def add(encoder: nn.Module, lengths: list[int], *, read: bool = True, seed: int = 5) -> list[Tensor]:
    x, segments, rows = batch(lengths)
    x.requires_grad_()
    torch.manual_seed(seed)
    with torch.autocast("cuda", torch.bfloat16):
        out = encoder(x, segments, None, rows if read else None)
    (out * torch.linspace(0, 1, DIM, device="cuda")).sum().backward()
    assert x.grad is not None
    return [out.detach().clone(), x.grad.clone(), *[p.grad.clone() for p in encoder.parameters() if p.grad is not None]]


def far(found: list[Tensor], expected: list[Tensor]) -> float:
    assert len(found) == len(expected)
    return max(float((a - b).norm() / b.norm().clamp(min=1e-3)) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("read", [True, False])
def test_replayed_steps_equal_plain_ones(read: bool) -> None:
    plain, recorded = make(0.0), recording(0.0)
    for round_ in range(4):
        for lengths in LENGTHS:
            exact = step(plain, lengths, read=read)
            assert far(step(recorded, lengths, read=read), exact) < 2e-2, (round_, lengths)
    assert recorded._replayer is not None
    assert recorded._replayer.recordings
    assert recorded.steps_replayed > 8


@pytest.mark.parametrize("compiled", [False, True])
def test_a_recorded_step_has_the_bits_of_the_same_step_not_recorded(compiled: bool) -> None:
    """The first of a size is run, the second recorded: same seed, same masks, same bits."""
    recorded = recording(0.1, drop_path=0.2, compiled=compiled)
    for lengths in LENGTHS:
        first, graphs = step(recorded, lengths), counters["stats"]["unique_graphs"]
        others = [step(recorded, lengths) for _ in range(3)]
        # The same code: another version of it, compiled for the recording, may add up in another order.
        assert counters["stats"]["unique_graphs"] == graphs
        for number, other in enumerate(others):
            names = ["out", "x", *[name for name, _ in recorded.named_parameters()]]
            pairs = zip(names, first, other, strict=True)
            differ = {name: float((a - b).abs().max()) for name, a, b in pairs if not torch.equal(a, b)}
            assert not differ, (number, differ)
        assert not torch.equal(step(recorded, lengths, seed=6)[0], first[0])
    assert recorded.steps_replayed >= 15


def test_parts_of_a_step_add_up() -> None:
    recorded = recording(0.0)
    alone = [step(recorded, lengths)[2:] for _ in range(3) for lengths in LENGTHS][-2:]
    recorded.zero_grad()
    add(recorded, LENGTHS[-2])
    both = add(recorded, LENGTHS[-1])[2:]
    assert far(both, [a + b for a, b in zip(*alone, strict=True)]) < 1e-5


def test_weights_may_change_in_place() -> None:
    plain, recorded = make(0.0), recording(0.0)
    for _ in range(3):
        step(recorded, LENGTHS[0])
    for encoder in (plain, recorded):
        with torch.no_grad():
            for parameter in encoder.parameters():
                parameter.mul_(0.5).add_(0.01)
    assert far(step(recorded, LENGTHS[0]), step(plain, LENGTHS[0])) < 2e-2


def test_a_forward_in_between_is_refused() -> None:
    recorded = recording(0.0)
    for _ in range(3):
        step(recorded, LENGTHS[0])
    x, segments, rows = batch(LENGTHS[0])
    x.requires_grad_()
    with torch.autocast("cuda", torch.bfloat16):
        first = recorded(x, segments, None, rows)
        recorded(x, segments, None, rows)
    with pytest.raises(RuntimeError, match="no other forward may come between"):
        first.sum().backward()


def test_evaluation_is_not_recorded() -> None:
    recorded = recording(0.1)
    for _ in range(3):
        step(recorded, LENGTHS[0])
    calls = recorded.steps_replayed
    assert calls
    x, segments, rows = batch(LENGTHS[0])
    recorded.eval()
    with torch.no_grad():
        assert torch.equal(recorded(x, segments, None, rows), recorded(x, segments, None, rows))
    assert recorded.steps_replayed == calls


def test_weights_learn_where_the_rows_do_not() -> None:
    plain, recorded = make(0.0), recording(0.0)
    for encoder in (plain, recorded):
        for _ in range(3):
            encoder.zero_grad()
            x, segments, rows = batch(LENGTHS[0])
            with torch.autocast("cuda", torch.bfloat16):
                encoder(x, segments, None, rows).square().sum().backward()
    assert recorded.steps_replayed == 2
    actual, expected = ([p.grad for p in encoder.parameters() if p.grad is not None] for encoder in (recorded, plain))
    assert far(actual, expected) < 2e-2


def test_a_second_backward_is_refused() -> None:
    recorded = recording(0.0)
    for _ in range(3):
        step(recorded, LENGTHS[0])
    x, segments, rows = batch(LENGTHS[0])
    with torch.autocast("cuda", torch.bfloat16):
        loss = recorded(x, segments, None, rows).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="has one backward"):
        loss.backward()
