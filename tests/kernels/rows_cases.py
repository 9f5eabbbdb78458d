"""What the row kernels must do, on a GPU or through Triton's interpreter (TRITON_INTERPRET=1, CPU tensors).

``test_kernels.py`` runs this file in a process of its own; on a GPU it can be given to pytest directly.
"""

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
from packed_cases import DEVICE

from tokengt.accelerate.rows import Branch, activate, add_norm, linear, norm
from tokengt.dropout import dropout_threshold, keep_mask
from tokengt.kernels import rows as kernels
from tokengt.kernels import rows_op
from tokengt.kernels.rows_op import (
    activate_backward_op,
    activate_op,
    add_norm_backward_op,
    add_norm_op,
    linear_op,
    norm_backward_op,
    norm_op,
    sum_rows_op,
)

# Few, so that each has several tiles of rows here, and the interpreter takes a millisecond for each.
rows_op.PROGRAMS, rows_op.SUM_PROGRAMS = 6, 5

TOLERANCE = {torch.float32: 3e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}
# One row, none, more than programs have rows at a time; widths that fill a tile, that do not, odd ones.
SIZES = [(1, 16), (0, 16), (5, 7), (9, 48), (110, 33), (3, 300)]
SEED = 3**37


def seed() -> Tensor:
    return torch.tensor(SEED, device=DEVICE)


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype).requires_grad_()


def close(found: Tensor, exact: Tensor, tolerance: float) -> None:
    assert found.shape == exact.shape
    found, exact = found.detach().double(), exact.detach()
    assert float((found - exact).norm()) <= tolerance * max(float(exact.norm()), 1.0)


def kept(rows: int, width: int, rate: float) -> Tensor:
    """What dropout multiplies by."""
    return keep_mask(seed(), rows, width, rate).double() / dropout_threshold(rate)[1]


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(("rows", "width"), SIZES, ids=str)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_add_norm(rows: int, width: int, dropout: float, dtype: torch.dtype) -> None:
    """Against float64, gradients of all five included; the stream in float32, as under autocast."""
    torch.manual_seed(rows)
    norm = nn.LayerNorm(width, eps=1e-3, device=DEVICE)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x, branch, bias = randn(rows, width), randn(rows, width, dtype=dtype), randn(width)
    ids = torch.arange(rows, device=DEVICE) // 3
    factor = torch.rand(rows // 3 + 1, device=DEVICE) * 2
    inputs = (x, branch, bias, norm.weight, norm.bias)
    arguments = (x, branch, bias, factor, ids, seed() if dropout else None, dropout)
    out, normed, *_ = add_norm_op(*arguments, norm.weight, norm.bias, norm.eps)
    assert (out.dtype, normed.dtype) == (torch.float32, dtype)
    u, v = randn(rows, width), randn(rows, width)
    gradients = torch.autograd.grad([out, normed], inputs, [u, v.to(dtype)])

    exact_inputs = [tensor.detach().double().requires_grad_() for tensor in inputs]
    x64, branch64, bias64, weight64, shift64 = exact_inputs
    scaled = factor.double()[ids][:, None] * (kept(rows, width, dropout) if dropout else 1.0)
    exact_out = x64 + scaled * (branch64 + bias64)
    exact_normed = F.layer_norm(exact_out, (width,), weight64, shift64, norm.eps)
    exact = torch.autograd.grad([exact_out, exact_normed], exact_inputs, [u.double(), v.to(dtype).double()])
    close(out, exact_out, TOLERANCE[torch.float32])
    close(normed, exact_normed, TOLERANCE[dtype])
    for one, other, given_to in zip(gradients, exact, inputs, strict=True):
        assert one.dtype == given_to.dtype
        close(one, other, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(("rows", "width"), SIZES, ids=str)
@pytest.mark.parametrize(("gelu", "dropout"), [(True, 0.0), (True, 0.3), (False, 0.3)])
def test_activate(rows: int, width: int, gelu: bool, dropout: float, dtype: torch.dtype) -> None:
    torch.manual_seed(width)
    x, bias = randn(rows, width, dtype=dtype), randn(width)
    out = activate_op(x, bias, seed() if dropout else None, dropout, gelu)
    u = randn(rows, width, dtype=dtype)
    gradients = torch.autograd.grad(out, (x, bias), u)
    exact_inputs = [tensor.detach().double().requires_grad_() for tensor in (x, bias)]
    total = exact_inputs[0] + exact_inputs[1]
    exact_out = (F.gelu(total) if gelu else F.relu(total)) * (kept(rows, width, dropout) if dropout else 1.0)
    exact = torch.autograd.grad(exact_out, exact_inputs, u.double())
    assert out.dtype == dtype
    close(out, exact_out, TOLERANCE[dtype])
    for one, other in zip(gradients, exact, strict=True):
        close(one, other, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(("rows", "width"), [*SIZES, (40, 96), (70, 20), (5, 768)], ids=str)
@pytest.mark.parametrize("stream", [torch.float32, torch.bfloat16], ids=str)
def test_norm(rows: int, width: int, stream: torch.dtype, dtype: torch.dtype) -> None:
    """Against float64, its three gradients included; rows of one type, normed into another."""
    torch.manual_seed(rows)
    layer = nn.LayerNorm(width, eps=1e-3, device=DEVICE)
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    x = randn(rows, width, dtype=stream)
    inputs = (x, layer.weight, layer.bias)
    normed = norm(x, layer, dtype)
    assert normed.dtype == dtype
    u = torch.randn(rows, width, device=DEVICE).to(dtype)
    gradients = torch.autograd.grad(normed, inputs, u)
    exact_inputs = [tensor.detach().double().requires_grad_() for tensor in inputs]
    exact_normed = F.layer_norm(exact_inputs[0], (width,), *exact_inputs[1:], layer.eps)
    exact = torch.autograd.grad(exact_normed, exact_inputs, u.double())
    close(normed, exact_normed, TOLERANCE[dtype])
    for one, other, given_to in zip(gradients, exact, inputs, strict=True):
        assert one.dtype == given_to.dtype
        close(one, other, max(TOLERANCE[dtype], TOLERANCE[given_to.dtype]))


def test_few_rows_make_few_parts_of_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the sums are the same: rows on both sides of the border."""
    monkeypatch.setattr(rows_op, "_FEW_PROGRAMS", 2)
    monkeypatch.setattr(rows_op, "_FEW_ROWS", 20)
    assert [rows_op._programs(count) for count in (0, 20, 21)] == [2, 2, rows_op.PROGRAMS]
    layer = nn.LayerNorm(24, device=DEVICE)
    for rows in (19, 20, 21, 60):
        x, branch, bias = randn(rows, 24), randn(rows, 24), randn(24)
        inputs = (bias, layer.weight, layer.bias)
        outputs = add_norm(x, Branch(branch, bias, None, None, 0.0), layer)
        found = torch.autograd.grad(sum(out.square().sum() for out in outputs), inputs)
        h = x.double() + branch.double() + bias.double()
        normed = F.layer_norm(h, (24,), layer.weight.double(), layer.bias.double(), layer.eps)
        exact = torch.autograd.grad(h.square().sum() + normed.square().sum(), inputs)
        for one, other in zip(found, exact, strict=True):
            close(one, other.double(), 1e-5)
        (found_bias,) = torch.autograd.grad(activate(x, bias, dropout=0.0, gelu=True).sum(), bias)
        (exact_bias,) = torch.autograd.grad(F.gelu(x.double() + bias.double()).sum(), bias)
        close(found_bias, exact_bias.double(), 1e-5)


def test_outputs_that_nothing_is_learned_through_have_no_gradient() -> None:
    """Only the sum, or only its norm, is read: the other one's gradient counts as zero."""
    layer = nn.LayerNorm(24, device=DEVICE)
    x, branch, bias = randn(7, 24), randn(7, 24, dtype=torch.bfloat16), randn(24)
    inputs = (x, branch, bias)
    for number in range(2):
        out = add_norm(x, Branch(branch, bias, None, None, 0.0), layer)[number]
        found = torch.autograd.grad(out.float().square().sum(), inputs)
        h = x.double() + branch.double() + bias.double()
        exact_out = (h, F.layer_norm(h, (24,), layer.weight.double(), layer.bias.double(), layer.eps))[number]
        exact = torch.autograd.grad(exact_out.square().sum(), inputs)
        for one, other, given_to in zip(found, exact, inputs, strict=True):
            assert one.dtype == given_to.dtype
            close(one, other.double(), 5e-2 if number else 2e-2)


def test_gelu_in_its_tails() -> None:
    """Within 6e-7 everywhere, and within a hundredth of its value down to -4."""
    x = torch.linspace(-12, 12, 2001, device=DEVICE)[:, None].contiguous().requires_grad_()
    out = activate(x, torch.zeros(1, device=DEVICE), dropout=0.0, gelu=True)
    (slope,) = torch.autograd.grad(out.sum(), x)
    wide = x.detach().double().requires_grad_()
    exact = 0.5 * wide * torch.erfc(-wide / 2**0.5)
    (exact_slope,) = torch.autograd.grad(exact.sum(), wide)
    out, exact, wide = out.detach(), exact.detach(), wide.detach()
    assert float((out - exact).abs().max()) < 6e-7  # 12 has no digits below
    assert float((slope - exact_slope).abs().max()) < 6e-7
    middle = (wide > -4) & (wide < -0.5)
    assert float((out / exact - 1)[middle].abs().max()) < 1e-2


@pytest.mark.parametrize("gelu", [True, False])
def test_not_a_number_stays_one(gelu: bool) -> None:
    x = torch.tensor([[torch.nan, 1.0]], device=DEVICE)
    assert activate(x, torch.zeros(2, device=DEVICE), dropout=0.0, gelu=gelu).isnan().tolist() == [[True, False]]


def test_every_call_draws_its_own_mask() -> None:
    """As the generator says, and at the rate asked for."""
    x, bias = torch.ones(60, 50, device=DEVICE), torch.ones(50, device=DEVICE)
    norm = nn.LayerNorm(50, device=DEVICE)
    calls = (
        lambda: activate(x, bias, dropout=0.5, gelu=False),
        lambda: add_norm(torch.zeros_like(x), Branch(x, bias, None, None, 0.5), norm)[0],
    )
    for call in calls:
        torch.manual_seed(3)
        first, second = call(), call()
        torch.manual_seed(3)
        assert torch.equal(call(), first)
        assert not torch.equal(first, second)
        assert set(first.unique().tolist()) == {0.0, 4.0}
        assert abs(float(first.detach().mean()) - 2) < 0.25


def test_gradients_need_not_lie_in_order() -> None:
    """Transposed ones, and rows that are every second of a tensor."""
    x, bias, norm = randn(40, 24), randn(24), nn.LayerNorm(24, device=DEVICE)
    turned = torch.randn(24, 40, device=DEVICE).t()
    sparse = torch.randn(80, 24, device=DEVICE)[::2]
    for inputs in (x, x.detach().t().contiguous().t().requires_grad_()):
        outputs = (
            *add_norm(inputs, Branch(inputs, bias, None, None, 0.0), norm),
            activate(inputs, bias, dropout=0.0, gelu=True),
        )
        for out in outputs:
            for gradient in (turned, sparse):
                gradient_x = torch.autograd.grad(out, inputs, gradient, retain_graph=True)[0]
                straight = torch.autograd.grad(out, inputs, gradient.contiguous(), retain_graph=True)[0]
                torch.testing.assert_close(gradient_x, straight)
                plain = x if inputs is x else x.detach()
                torch.testing.assert_close(inputs.detach(), plain.detach())
    close(sum_rows_op(turned).sum(0), turned.double().sum(0), 1e-6)
    close(outputs[2], F.gelu(x.double() + bias.double()), 1e-6)
    close(outputs[0], 2 * x.double() + bias.double(), 1e-6)


def test_linear() -> None:
    layer = nn.Linear(20, 30, device=DEVICE)
    x = randn(700, 20)
    output, exact = linear(x, layer), layer(x)
    close(output, exact.double(), 1e-6)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        assert linear(x, layer).dtype == torch.bfloat16
    weights = torch.randn_like(output)
    for one, other in zip(
        *(torch.autograd.grad(y, (x, *layer.parameters()), weights) for y in (output, exact)), strict=True
    ):
        close(one, other.double(), 1e-5)


@pytest.mark.parametrize(("rows", "width"), [*SIZES, (400, 260)], ids=str)
def test_sums_over_rows(rows: int, width: int) -> None:
    x = torch.randn(rows, width, device=DEVICE).bfloat16()
    close(sum_rows_op(x).sum(0), x.double().sum(0), 1e-6)


@pytest.mark.parametrize("width", [24, 33])
def test_every_place_is_written_and_none_behind(width: int) -> None:
    """Outputs that begin as not-a-number, with a row too many, which must stay so."""
    rows = 7
    x, bias = torch.randn(rows, width, device=DEVICE), torch.randn(width, device=DEVICE)
    out, normed, grad = (torch.full((rows + 1, width), torch.nan, device=DEVICE) for _ in range(3))
    means, scales = (torch.full((rows + 1,), torch.nan, device=DEVICE) for _ in range(2))
    parts = torch.full((3, 3, width), torch.nan, device=DEVICE)
    sizes = {"WIDTH": width, "PAD": 64}
    kernels.add_norm_forward[(4,)](
        x, x, bias, None, None, seed(), bias, bias, out, normed, means, scales, rows, 1e-5, 9, 1.0, **sizes, TILE=2
    )
    written = [out, normed, means, scales]
    kernels.add_norm_backward[(2,)](
        x, x, out, means, scales, bias, None, None, seed(), normed, grad, parts, rows, 9, 1.0,
        **sizes, TILE=1, PROGRAMS=2,
    )  # fmt: skip
    for tensor in (*written, grad):
        assert bool(tensor[:rows].isfinite().all())
        assert bool(tensor[rows:].isnan().all())
    assert bool(parts[:2].isfinite().all())
    assert bool(parts[2:].isnan().all())
    sizes = {"WIDTH": width, "COLUMNS": 16, "GELU": True}
    activated, grad = (torch.full((rows + 1, width), torch.nan, device=DEVICE) for _ in range(2))
    parts = torch.full((3, width), torch.nan, device=DEVICE)
    kernels.activate_forward[(2, 2)](x, bias, seed(), activated, rows, 9, 1.0, **sizes, TILE=4)
    kernels.activate_backward[(2, 2)](x, x, bias, seed(), grad, parts, rows, 9, 1.0, **sizes, TILE=2, PROGRAMS=2)
    for tensor, end in ((activated, rows), (grad, rows), (parts, 2)):
        assert bool(tensor[:end].isfinite().all())
        assert bool(tensor[end:].isnan().all())


def test_operators_describe_themselves() -> None:
    """Shapes without data, gradients and aliasing: what a compiler relies on."""
    norm = nn.LayerNorm(8, device=DEVICE)
    x, branch, bias = randn(6, 8), randn(6, 8), randn(8)
    ids, factor = torch.zeros(6, dtype=torch.int64, device=DEVICE), torch.ones(1, device=DEVICE)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    arguments = (x, branch, bias, factor, ids, seed(), 0.2, norm.weight, norm.bias, 1e-5)
    torch.library.opcheck(add_norm_op, arguments, test_utils=checks)
    torch.library.opcheck(activate_op, (x, bias, seed(), 0.2, True), test_utils=checks)
    torch.library.opcheck(sum_rows_op, (x.detach(),), test_utils=checks)
    torch.library.opcheck(linear_op, (x, randn(5, 8), randn(5)), test_utils=checks)
    torch.library.opcheck(norm_op, (x, norm.weight, norm.bias, 1e-5, torch.bfloat16), test_utils=checks)
    out, normed, means, scales = (tensor.detach() for tensor in add_norm_op(*arguments))
    torch.library.opcheck(norm_backward_op, (normed, out, means, scales, norm.weight.detach(), 3), test_utils=checks)
    left = (out, normed, out, means, scales, norm.weight.detach(), factor, ids, seed(), 0.2, 3)
    torch.library.opcheck(add_norm_backward_op, left, test_utils=checks)
    left = (out, x.detach(), bias.detach(), seed(), 0.2, True, 3)
    torch.library.opcheck(activate_backward_op, left, test_utils=checks)
