"""What the kernel of sparse sums must do, on a GPU or through Triton's interpreter (TRITON_INTERPRET=1, CPU tensors).

``test_kernels.py`` runs this file in a process of its own; on a GPU it can be given to pytest directly.
"""

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from packed_cases import DEVICE

from tokengt.kernels import support
from tokengt.kernels.runs import Runs, cut_runs
from tokengt.kernels.sums_op import weighted_sums
from tokengt.ragged import Segments
from tokengt.sparse import SparseRows, sparse_linear, sparse_product

TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def drawn(rows: int, width: int, share: float, dim: int, dtype: torch.dtype) -> tuple[SparseRows, Tensor]:
    """A matrix of which so large a share is not zero; its first row and its first column are full."""
    dense = torch.randn(rows, width, dtype=torch.float64)
    dense *= torch.rand(rows, width) < share
    if rows and width:
        dense[0], dense[:, 0] = 1.0, -0.5
    table = torch.randn(width, dim, device=DEVICE).to(dtype).requires_grad_()
    return SparseRows.of(dense.float()).to(DEVICE), table


def close(found: Tensor, wanted: Tensor, tolerance: float) -> None:
    assert found.shape == wanted.shape
    found, wanted = found.detach().double(), wanted.detach().double()
    assert float((found - wanted).norm()) <= tolerance * max(float(wanted.norm()), 1.0)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(
    ("rows", "width", "dim"), [(1, 1, 1), (7, 5, 16), (5, 600, 7), (530, 3, 33), (3, 4, 300), (0, 3, 4), (3, 0, 4)]
)
def test_products_and_gradients(rows: int, width: int, dim: int, dtype: torch.dtype) -> None:
    """Runs of more than 512 entries, in rows and in columns, and columns of the table in more than one program."""
    matrix, table = drawn(rows, width, 0.2, dim, dtype)
    out = sparse_product(matrix, table)
    assert out.dtype == torch.float32
    exact = matrix.dense().double()
    close(out, exact @ table.double(), TOLERANCE[dtype])
    slope = torch.randn_like(out)
    (grad,) = torch.autograd.grad(out, table, slope)
    assert grad.dtype == dtype
    close(grad, exact.T @ slope.double(), TOLERANCE[dtype])


def test_float64_is_not_rounded() -> None:
    matrix, table = drawn(6, 9, 0.5, 4, torch.float64)
    torch.testing.assert_close(sparse_product(matrix, table), matrix.dense().double() @ table, rtol=1e-13, atol=1e-13)


def test_a_linear_map_of_sparse_features() -> None:
    matrix, _ = drawn(20, 30, 0.3, 1, torch.float32)
    weight = torch.randn(8, 30, device=DEVICE, requires_grad=True)
    out = sparse_linear(matrix, weight)
    close(out, matrix.dense().double() @ weight.double().T, 1e-6)
    (grad,) = torch.autograd.grad(out.square().sum(), weight)
    close(grad, 2 * out.double().T @ matrix.dense().double(), 1e-6)


def test_two_calls_have_the_same_bits() -> None:
    matrix, table = drawn(700, 40, 0.5, 24, torch.bfloat16)
    assert torch.equal(sparse_product(matrix, table), sparse_product(matrix, table))


def test_the_kernel_is_tried_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    assert support._sums_tried(torch.device(DEVICE))


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 4))
def test_cut_runs_have_the_sums_of_whole_ones(lengths: list[int], longest: int) -> None:
    segments = Segments.from_lengths(torch.tensor(lengths, dtype=torch.int64), DEVICE)
    cut = cut_runs(segments.offsets, segments.max_length, longest)
    pieces = cut.offsets.diff()
    assert not len(pieces) or int(pieces.max()) <= longest
    table = torch.randn(5, 3, device=DEVICE)
    places, factors = torch.randint(0, 5, (segments.total,), device=DEVICE), torch.randn(segments.total, device=DEVICE)
    whole, parts = (
        weighted_sums(table, places, factors, runs, torch.float32) for runs in (Runs(segments.offsets, None), cut)
    )
    close(parts, whole, 1e-6)
    exact = torch.zeros(len(lengths), 3, dtype=torch.float64, device=DEVICE)
    exact.index_add_(0, segments.ids, (factors[:, None] * table[places]).double())
    close(whole, exact, 1e-6)
