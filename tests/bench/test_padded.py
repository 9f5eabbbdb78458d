"""The padded reference computes what the model computes: outputs, gradients, and drop path, one graph at a time."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tokengt import (
    EluConfig,
    EncoderConfig,
    FavorConfig,
    HeadConfig,
    LaplacianIds,
    SoftmaxConfig,
    TokenGT,
    TokenGTConfig,
)
from tokengt.batch import GraphBatch
from tokengt.bench.padded import PaddedTokenGT, _branch, plain_favor
from tokengt.bench.shapes import make_sample
from tokengt.presets import molecule_tokens

ENCODER = EncoderConfig(num_layers=2, num_heads=3, head_dim=4, value_dim=6, mlp_dim=10, input_norm=True)


def molecules() -> GraphBatch:
    return make_sample("pcqm4mv2", 7, seed=1).graphs.select(list(range(7)))


def model(encoder: EncoderConfig = ENCODER, head: HeadConfig | None = None, **tokens: str) -> TokenGT:
    """Weights far from their start, so that attention is not uniform."""
    torch.manual_seed(0)
    ids = LaplacianIds(5, sign_flip=False)
    config = TokenGTConfig(8, replace(molecule_tokens(), **tokens), ids, encoder, head or HeadConfig())
    built = TokenGT(config).double()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.normal_(0, 0.5)
    return built


@pytest.mark.parametrize("layout", ["directed", "undirected"])
@pytest.mark.parametrize("kind", ["softmax", "favor"])
@pytest.mark.parametrize("head", [HeadConfig(), HeadConfig("node", 3), HeadConfig(readout="sum")])
def test_outputs_and_gradients_agree_in_training_mode(layout: str, kind: str, head: HeadConfig) -> None:
    attention = FavorConfig() if kind == "favor" else SoftmaxConfig()
    packed = model(replace(ENCODER, attention=attention), head, layout=layout)
    padded, batch = PaddedTokenGT(packed), molecules()
    padded.train()
    outputs, gradients = [], []
    for system in (packed, padded):
        packed.zero_grad()
        out: Tensor = system(batch)
        out.square().sum().backward()
        outputs.append(out.detach())
        gradients.append([p.grad.clone() for p in packed.parameters() if p.grad is not None])
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-10, atol=1e-10)
    assert len(gradients[0]) > 20
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-8, atol=1e-10)


def test_an_attention_without_a_padded_way_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"the padded way has softmax and FAVOR.*'elu'"):
        PaddedTokenGT(model(replace(ENCODER, attention=EluConfig())))(molecules())


def test_padding_reaches_no_output() -> None:
    """A graph alone, without any padding, gives what it gives among longer ones."""
    padded, batch = PaddedTokenGT(model()).eval(), molecules()
    together = padded(batch)
    assert len(set(batch.nodes.host_lengths.tolist())) > 1
    for place in range(batch.num_graphs):
        torch.testing.assert_close(padded(batch.select(torch.tensor([place])))[0], together[place])


def test_drop_path_drops_whole_graphs_branches() -> None:
    packed = model(replace(ENCODER, drop_path=0.5))
    block = packed.train().encoder.blocks[1]
    ones = torch.ones(2000, 3, 2, dtype=torch.float64)
    dropped = _branch(block, ones)  # type: ignore[arg-type]
    assert set(dropped.flatten().tolist()) == {0.0, 2.0}
    assert torch.equal(dropped, dropped[:, :1, :1].expand(-1, 3, 2))
    assert 0.4 < float((dropped[:, 0, 0] == 0).double().mean()) < 0.6
    assert _branch(block.eval(), ones) is ones  # type: ignore[arg-type]


def test_favor_by_hand() -> None:
    """One head, one feature W = 1, d_H = 1: phi(x) = exp(x - x^2 / 2 - stabiliser)."""
    query, key, value = (
        torch.tensor(x, dtype=torch.float64).view(1, 1, 2, 1) for x in ([0.0, 1.0], [0.5, 2.0], [3.0, 7.0])
    )
    out = plain_favor(query, key, value, torch.ones(1, 2, dtype=torch.bool), torch.ones(1, 1), 0.0)
    first, second = torch.exp(torch.tensor([0.5 - 0.125, 2.0 - 2.0], dtype=torch.float64)).tolist()
    expected = (3 * first + 7 * second) / (first + second)
    torch.testing.assert_close(out.flatten(), torch.full((2,), expected, dtype=torch.float64))


def test_the_sparse_basis_residual_is_refused() -> None:
    with pytest.raises(ValueError, match="no sparse basis residual"):
        PaddedTokenGT(model(replace(ENCODER, sparse_basis_residual=True)))


def test_masked_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="no masked layers"):
        PaddedTokenGT(model(replace(ENCODER, incidence="alternate")))
