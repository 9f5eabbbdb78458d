"""What ``accelerate`` gives back: the same model in other clothes, or the model itself."""

import pickle
from copy import deepcopy

import pytest
import torch
from torch import nn

from tests.graphs import odd_graphs, small_model
from tokengt import GraphBatch
from tokengt.accelerate import accelerate, fast_encoders
from tokengt.accelerate.fast_encoder import FastEncoder
from tokengt.block import EncoderConfig
from tokengt.models.tokengt.model import TokenGT
from tokengt.transformer import Encoder


@pytest.fixture(autouse=True)
def _nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' type checks do not trace; ``compilations.py`` compiles."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)


@pytest.fixture
def model() -> TokenGT:
    return small_model()


@pytest.fixture
def batch() -> GraphBatch:
    return GraphBatch.collate(odd_graphs())


def test_a_fast_model_is_the_same_model(model: TokenGT, batch: GraphBatch) -> None:
    fast = accelerate(model, device="cpu")
    assert type(fast) is TokenGT
    assert isinstance(fast.encoder, FastEncoder)
    assert type(model.encoder) is Encoder
    assert {id(p) for p in fast.parameters()} == {id(p) for p in model.parameters()}
    model.eval(), fast.eval()
    torch.testing.assert_close(fast(batch), model(batch))
    torch.testing.assert_close(fast.encode(batch).values, model.encode(batch).values)


def test_what_one_learns_the_other_knows(model: TokenGT, batch: GraphBatch) -> None:
    names, before = list(model.state_dict()), model.eval()(batch)
    fast = accelerate(model, device="cpu").train()
    optimizer = torch.optim.SGD(fast.parameters(), lr=0.1)
    fast(batch).square().sum().backward()
    optimizer.step()
    assert list(model.state_dict()) == names
    assert not torch.allclose(model.eval()(batch), before)
    torch.testing.assert_close(fast.eval()(batch), model(batch))
    model.double(), fast.double()
    assert {p.dtype for p in fast.parameters()} == {torch.float64}
    torch.testing.assert_close(fast(batch), model(batch))


def test_copies_are_plain(model: TokenGT, batch: GraphBatch) -> None:
    fast = accelerate(model, device="cpu").eval()
    for copy in (deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert type(copy.encoder) is Encoder
        assert list(copy.state_dict()) == list(model.state_dict())
        torch.testing.assert_close(copy(batch), fast(batch))


def test_a_model_that_nothing_helps_is_returned_itself(model: TokenGT) -> None:
    assert accelerate(model, device="cpu", compile=False) is model
    assert accelerate(model, device="cpu", compile=False, kernels=True) is model  # Kernels run on a GPU only.
    assert accelerate(model, device="cuda", compile=False) is model
    other = nn.Sequential(nn.Linear(2, 2))
    assert accelerate(other, device="cuda", kernels=True) is other
    assert fast_encoders(model) == fast_encoders(other) == []


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize(("compile", "kernels"), [(False, True), (True, True), (True, False)])
def test_each_means_is_asked_for_by_itself(model: TokenGT, device: str, compile: bool, kernels: bool) -> None:
    found = fast_encoders(accelerate(model, device=device, compile=compile, kernels=kernels))
    assert len(found) == (compile or device == "cuda")
    for encoder in found:
        assert encoder.plain is model.encoder
        assert encoder._compiles == compile
        assert encoder._kernels == (kernels and device == "cuda")


def test_encoders_are_found_wherever_they_are() -> None:
    """Parameters of a module above them stay one and the same, also when the module moves."""

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))
            self.register_buffer("shift", torch.zeros(1))
            self.parts = nn.ModuleList([nn.Linear(8, 8), Encoder(8, EncoderConfig(num_layers=1, num_heads=2))])

    outer = Outer()
    fast = accelerate(outer, device="cuda", compile=False, kernels=True)
    assert isinstance(fast.parts[1], FastEncoder)
    assert fast.parts[0] is outer.parts[0]
    assert type(outer.parts[1]) is Encoder
    fast.double()
    assert outer.scale is fast.scale
    assert outer.scale.dtype == torch.float64
    assert outer.shift is fast.shift
    assert fast_encoders(fast) == [fast.parts[1]]
