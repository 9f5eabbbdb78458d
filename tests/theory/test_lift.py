"""What a k-IGN computes, its lift computes one order higher."""

import pytest
import torch

from tokengt.ragged import Segments
from tokengt.theory.ign import IGNConfig, InvariantGraphNetwork
from tokengt.theory.lift import lift_ign, lift_tensor
from tokengt.theory.tuples import Tuples


def test_a_lifted_matrix_lies_where_the_last_two_indices_agree() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])[..., None]
    lifted = lift_tensor(x)[..., 0]
    assert lifted.shape == (2, 2, 2)
    assert lifted[0].tolist() == [[1, 0], [0, 2]]
    assert lifted[1].tolist() == [[3, 0], [0, 4]]


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("num_nodes", [1, 2, 4])
def test_the_lift_gives_the_same_number(order: int, num_nodes: int) -> None:
    torch.manual_seed(order)
    ign = InvariantGraphNetwork(IGNConfig(order, (2, 3, 2), "gelu", invariant_dim=3, mlp_dims=(4,), out_dim=2)).double()
    for parameter in ign.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(*[num_nodes] * order, 2, dtype=torch.float64)
    nodes = Segments.uniform(1, num_nodes)
    with torch.no_grad():
        plain = ign(x.flatten(0, -2), Tuples.dense(nodes, order))
        lifted = lift_ign(ign)(lift_tensor(x).flatten(0, -2), Tuples.dense(nodes, order + 1))
    assert torch.allclose(lifted, plain, rtol=1e-11, atol=1e-11)
    assert float(plain.abs().max()) > 0
