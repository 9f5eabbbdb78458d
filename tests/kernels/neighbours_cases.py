"""What the kernels of attention to neighbours must do, on a GPU or through Triton's interpreter (TRITON_INTERPRET=1).

``test_kernels.py`` runs this file in a process of its own; on a GPU it can be given to pytest directly.
"""

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
from packed_cases import DEVICE
from torch_geometric.nn import GATv2Conv

from tokengt.kernels import neighbours as kernels
from tokengt.kernels import neighbours_op
from tokengt.kernels.attend import edge_attention
from tokengt.kernels.edge_orders import order_with_loops
from tokengt.kernels.support import edges_fit, edges_work
from tokengt.kernels.tiles import padded_width
from tokengt.models.message_passing.rounds import Joined, gat_round, without_features

# Few, so that each has several rows here.
neighbours_op.PROGRAMS = 3

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
SIZES = [(1, 7), (4, 16), (2, 33), (3, 1)]


def hubs(rows: int, edges: int) -> Tensor:
    """Half of the edges lead to node 0, and a third of them begin at node 1; loops and repeated ones are likely."""
    index = torch.randint(0, rows, (2, edges), generator=torch.Generator().manual_seed(edges))
    index[1, : edges // 2] = 0
    index[0, edges // 3 : 2 * edges // 3] = 1
    return index


GRAPHS = {
    "no nodes": (0, torch.zeros(2, 0, dtype=torch.int64)),
    "one node": (1, torch.zeros(2, 0, dtype=torch.int64)),
    "one node with loops": (1, torch.zeros(2, 3, dtype=torch.int64)),
    "no edges": (4, torch.zeros(2, 0, dtype=torch.int64)),
    "only loops": (3, torch.tensor([[0, 0, 2], [0, 0, 2]])),
    "repeated and loops": (4, torch.tensor([[0, 0, 0, 1, 2, 2, 3], [1, 1, 1, 1, 1, 0, 3]])),
    "disconnected": (6, torch.tensor([[0, 1, 4], [1, 0, 5]])),
    "hubs": (13, hubs(13, 90)),
}


def exact(index: Tensor, left: Tensor, right: Tensor, att: Tensor) -> Tensor:
    """PyG's layer in float64, whose linear maps change nothing."""
    _, heads, channels = left.shape
    conv: Any = GATv2Conv(heads * channels, channels, heads=heads, bias=False).double().to(left.device)
    # The layer as it is called with a pair adds loops by the same rule.
    conv.lin_l, conv.lin_r = nn.Identity(), nn.Identity()
    del conv.att
    conv.att = att[None]
    out: Tensor = conv((left.flatten(1), right.flatten(1)), index)
    return out.view_as(left)


def close(found: Tensor, wanted: Tensor, tolerance: float) -> None:
    assert found.shape == wanted.shape
    found, wanted = found.detach().double(), wanted.detach()
    assert float((found - wanted).norm()) <= tolerance * max(float(wanted.norm()), 1.0)


def drawn(rows: int, heads: int, channels: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    left, right = (torch.randn(rows, heads, channels, device=DEVICE).to(dtype).requires_grad_() for _ in range(2))
    return left, right, torch.randn(heads, channels, device=DEVICE).requires_grad_()


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(("heads", "channels"), SIZES, ids=str)
@pytest.mark.parametrize("graph", GRAPHS)
def test_output_and_gradients(graph: str, heads: int, channels: int, dtype: torch.dtype) -> None:
    """Against PyG in float64; rows in half precision meet an ``att`` in float32, as under autocast."""
    torch.manual_seed(channels)
    rows, index = GRAPHS[graph]
    inputs = drawn(rows, heads, channels, dtype)
    orders = order_with_loops(index.to(DEVICE), rows)
    out = edge_attention(*inputs, orders)
    u = torch.randn(out.shape, device=DEVICE)
    gradients = torch.autograd.grad(out, inputs, u)
    wide = tuple(tensor.detach().double().requires_grad_() for tensor in inputs)
    wanted = exact(index.to(DEVICE), *wide)
    assert out.dtype == torch.float32
    close(out, wanted, 2e-6)
    of_wide = torch.autograd.grad(wanted, wide, u.double())
    for one, other, given_to in zip(gradients, of_wide, inputs, strict=True):
        assert one.dtype == given_to.dtype
        close(one, other, TOLERANCE[dtype])


def test_the_same_bits_every_time() -> None:
    rows, index = GRAPHS["hubs"]
    inputs = drawn(rows, 2, 33, torch.float32)
    found = []
    for _ in range(2):
        out = edge_attention(*inputs, order_with_loops(index.to(DEVICE), rows))
        found.append((out, *torch.autograd.grad(out.square().sum(), inputs)))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_sizes_of_tiles_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One edge at a time, a few, and more than any row has; one program for all rows, and one for each."""
    rows, index = GRAPHS["hubs"]
    inputs = drawn(rows, 2, 20, torch.float32)
    orders = order_with_loops(index.to(DEVICE), rows)
    found = []
    for most, programs in ((1, 1), (4, 5), (64, 100)):
        monkeypatch.setattr(neighbours_op, "MOST_EDGES", most)
        monkeypatch.setattr(neighbours_op, "PROGRAMS", programs)
        out = edge_attention(*inputs, orders)
        found.append((out, *torch.autograd.grad(out.square().sum(), inputs)))
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            close(one, two.double(), 1e-5)


def test_tiles_of_wide_and_of_narrow_heads() -> None:
    assert neighbours_op.tile((4096, 4), 256) == {"EDGES": 16, "PAD": 256, "num_warps": 4}
    assert neighbours_op.tile((4096, 4), 1024) == {"EDGES": 4, "PAD": 1024, "num_warps": 4}
    assert neighbours_op.tile((512, 4), 1000) == {"EDGES": 1, "PAD": 1024, "num_warps": 4}
    assert neighbours_op.tile((4096, 4), 1) == {"EDGES": 16, "PAD": 16, "num_warps": 1}


def test_great_scores_do_not_overflow() -> None:
    """Scores of some thousands: only their differences count."""
    rows, index = GRAPHS["hubs"]
    left, right, att = drawn(rows, 2, 8, torch.float32)
    with torch.no_grad():
        for tensor in (left, right, att):
            tensor.mul_(30)
    inputs = (left, right, att)
    out = edge_attention(*inputs, order_with_loops(index.to(DEVICE), rows))
    wide = tuple(tensor.detach().double().requires_grad_() for tensor in inputs)
    wanted = exact(index.to(DEVICE), *wide)
    close(out, wanted, 1e-3)
    u = torch.randn_like(out)
    for one, other in zip(
        torch.autograd.grad(out, inputs, u), torch.autograd.grad(wanted, wide, u.double()), strict=True
    ):
        close(one, other, 1e-2)


def test_not_a_number_stays_one_where_it_is_heard() -> None:
    left, right, att = drawn(4, 1, 3, torch.float32)
    with torch.no_grad():
        left[0, 0, 1] = torch.nan
    out = edge_attention(left, right, att, order_with_loops(torch.tensor([[0, 2], [1, 3]], device=DEVICE), 4))
    assert out.flatten(1).isnan().any(1).tolist() == [True, True, False, False]


def test_inputs_need_not_lie_in_order() -> None:
    """Parts of a wider table, and a gradient that is transposed."""
    rows, index = GRAPHS["hubs"]
    table = torch.randn(rows, 2, 3, 5, device=DEVICE, requires_grad=True)
    att = torch.randn(5, 3, device=DEVICE).t().requires_grad_()
    orders = order_with_loops(index.to(DEVICE), rows)
    turned = torch.randn(5, 3, rows, device=DEVICE).permute(2, 1, 0)
    out = edge_attention(table[:, 0], table[:, 1], att, orders)
    found = torch.autograd.grad(out, (table, att), turned)
    straight = edge_attention(table[:, 0].contiguous(), table[:, 1].contiguous(), att.contiguous(), orders)
    for one, other in zip(
        (out, *found), (straight, *torch.autograd.grad(straight, (table, att), turned.contiguous())), strict=True
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("graph", ["one node", "no edges", "repeated and loops", "hubs"])
@pytest.mark.parametrize("mixed", [False, True])
def test_the_whole_round(graph: str, mixed: bool) -> None:
    """The module of the model, its weights and its states: as near to PyG's way in float64 as PyG's way is."""
    torch.manual_seed(3)
    rows, index = GRAPHS[graph]
    index = index.to(DEVICE)
    conv: Any = gat_round(24, 3).to(DEVICE)
    nn.init.normal_(conv.bias)
    states, u = torch.randn(rows, 24, device=DEVICE, requires_grad=True), torch.randn(rows, 24, device=DEVICE)
    inputs = [states, *conv.parameters()]
    with torch.autocast(DEVICE.type, torch.bfloat16, enabled=mixed):
        shorter = without_features(conv, states)
        assert shorter is not None
        outputs = (shorter(states, Joined(index, rows)), conv(states, index))
    assert [out.dtype for out in outputs] == [torch.float32, torch.float32]
    found, pygs = ((out, *torch.autograd.grad(out, inputs, u)) for out in outputs)
    wide = conv.double()
    wide_states = states.detach().double().requires_grad_()
    assert without_features(wide, wide_states) is None
    wanted = wide(wide_states, index)
    of_wide = torch.autograd.grad(wanted, [wide_states, *wide.parameters()], u.double())
    for one, pyg, other in zip(found, pygs, (wanted, *of_wide), strict=True):
        error, norm = float((pyg.double() - other).detach().norm()), max(float(other.detach().norm()), 1.0)
        close(one, other, 1.5 * error / norm + (5e-3 if mixed else 3e-6))


def test_a_prediction_may_come_before_a_step() -> None:
    """What follows from the edges is kept from a prediction in inference mode to a training step."""
    rows, index = GRAPHS["hubs"]
    conv, states = gat_round(8, 2).to(DEVICE), torch.randn(rows, 8, device=DEVICE)
    joined, shorter = Joined(index.to(DEVICE), rows), without_features(conv, states)
    assert shorter is not None
    with torch.inference_mode():
        first = shorter(states, joined)
    out = shorter(states, joined)
    out.sum().backward()
    assert torch.equal(first, out)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_graph(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 6))
    ends = st.integers(0, rows - 1)
    pairs = data.draw(st.lists(st.tuples(ends, ends), max_size=25))
    index = torch.tensor(pairs, dtype=torch.int64, device=DEVICE).view(-1, 2).t()
    inputs = drawn(rows, data.draw(st.integers(1, 3)), data.draw(st.integers(1, 20)), torch.float32)
    out = edge_attention(*inputs, order_with_loops(index, rows))
    wide = tuple(tensor.detach().double().requires_grad_() for tensor in inputs)
    wanted = exact(index, *wide)
    close(out, wanted, 3e-6)
    u = torch.randn_like(out)
    of_wide = torch.autograd.grad(wanted, wide, u.double())
    for one, other in zip(torch.autograd.grad(out, inputs, u), of_wide, strict=True):
        close(one, other, 1e-5)


def test_orders_by_hand() -> None:
    """A loop in the list is left out, and every row has one: edges 0 -> 1, 2 -> 1, 1 -> 0 and three loops."""
    orders = order_with_loops(torch.tensor([[0, 1, 2, 1], [1, 1, 1, 0]], device=DEVICE), 3)
    assert orders.rows == 3
    assert orders.to_offsets.tolist() == [0, 2, 5, 6]
    assert orders.sources[:6].tolist() == [1, 0, 0, 2, 1, 2]
    assert orders.from_offsets.tolist() == [0, 2, 4, 6]
    assert orders.targets[:6].tolist() == [1, 0, 0, 1, 1, 2]
    assert orders.places[:6].tolist() == [2, 1, 0, 4, 3, 5]


@pytest.mark.parametrize(("heads", "channels"), [(2, 5), (3, 16)])
def test_every_place_is_written_and_none_behind(heads: int, channels: int) -> None:
    """Outputs that begin as not-a-number, with a row too many, which must stay so."""
    rows, index = GRAPHS["repeated and loops"]
    orders = order_with_loops(index.to(DEVICE), rows)
    left, right, att = (tensor.detach() for tensor in drawn(rows, heads, channels, torch.float32))
    edges = int(orders.to_offsets[-1])
    sizes = {"HEADS": heads, "WIDTH": channels, "PAD": padded_width(channels), "EDGES": 2, "SLOPE": 0.2}
    out, of_left, of_right = (torch.full((rows + 1, heads, channels), torch.nan, device=DEVICE) for _ in range(3))
    log_sums = torch.full((heads * rows + 1,), torch.nan, device=DEVICE)
    alphas, slopes = (torch.full((heads * edges + 1,), torch.nan, device=DEVICE) for _ in range(2))
    parts = torch.full((3, heads, channels), torch.nan, device=DEVICE)
    ends = (orders.to_offsets, orders.sources)
    kernels.neighbours_forward[(rows, heads)](left, right, att, *ends, out, log_sums, rows, **sizes)
    kernels.neighbours_backward_targets[(2, heads)](
        left, out, left, right, att, *ends, log_sums, of_right, alphas, slopes, parts, rows, edges, **sizes
    )
    ends = (orders.from_offsets, orders.targets, orders.places)
    kernels.neighbours_backward_sources[(rows, heads)](
        left, left, right, att, *ends, alphas, slopes, of_left, edges, **sizes
    )
    written = ((out, rows), (of_left, rows), (of_right, rows), (log_sums, heads * rows), (parts, 2))
    for tensor, end in (*written, (alphas, heads * edges), (slopes, heads * edges)):
        assert bool(tensor[:end].isfinite().all())
        assert bool(tensor[end:].isnan().all())
    # Of every row and head the shares add up to one, and their gradients to zero.
    bounds = orders.to_offsets.tolist()
    for begin, end in pairwise(bounds):
        torch.testing.assert_close(alphas[:-1].view(heads, -1)[:, begin:end].sum(1), torch.ones(heads, device=DEVICE))
        assert float(slopes[:-1].view(heads, -1)[:, begin:end].sum(1).abs().max()) < 1e-4


def test_what_the_kernels_take() -> None:
    assert edges_fit(torch.bfloat16, 1024)
    assert not edges_fit(torch.bfloat16, 1025)
    assert not edges_fit(torch.float64, 8)
    assert edges_work(DEVICE, torch.float32, 2, 8)
