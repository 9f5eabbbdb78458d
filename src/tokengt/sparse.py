"""Rows of numbers that are mostly zero, such as bags of words: only the others are kept, until a weight meets them.

A graph of 34,000 papers with 8,400 words each has 290 million features, of which 1.1 million are not zero. They stay
packed, row by row (*CSR*, compressed sparse rows), in a store, in memory and on a GPU, and the first linear map of a
model reads them as they are (:func:`sparse_linear`): no dense matrix of rows by columns is ever made.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.autograd.function import once_differentiable

from tokengt.kernels.attend import sums_of_rows
from tokengt.kernels.runs import Runs, cut_runs
from tokengt.kernels.support import sums_fit, sums_work
from tokengt.ragged import Segments

# The names under which a store keeps the parts of sparse rows, after the name of the whole.
_PARTS = ("offsets", "columns", "values", "width")


def sparse_matrix(
    index: Int[Tensor, "2 entries"], values: Shaped[Tensor, " entries"], shape: Sequence[int], ordered: bool = True
) -> Tensor:
    """One of PyTorch's sparse matrices in coordinates; ``ordered``: entries come row by row, each place once."""
    # A context and not the argument check_invariants, with which torch 2.11 still prints a warning.
    with torch.sparse.check_sparse_tensor_invariants():  # type: ignore[no-untyped-call]
        return torch.sparse_coo_tensor(index, values, tuple(shape), is_coalesced=ordered)


@final
@dataclass(frozen=True, eq=False)
class SparseRows:
    """A matrix of floats [rows, width] of which few are not zero.

    Run r of ``entries`` are the entries of row r: their ``columns``, none of them twice in a row, and their ``values``.
    It answers what is asked of a tensor of features: shape, type, device, and some of its rows.
    """

    entries: Segments
    columns: Int[Tensor, " entries"]
    values: Float[Tensor, " entries"]
    width: int

    def __post_init__(self) -> None:
        if not len(self.columns) == len(self.values) == self.entries.total:
            raise ValueError(
                f"sparse rows have {self.entries.total} entries by their offsets, {len(self.columns)} columns and "
                f"{len(self.values)} values; expected as many of each"
            )

    @classmethod
    def of(cls, dense: Float[Tensor, "rows width"]) -> "SparseRows":
        """The entries of a matrix that are not zero, and those that are NaN."""
        row, column = torch.nonzero(dense, as_tuple=True)
        entries = Segments.from_lengths(torch.bincount(row, minlength=len(dense)).cpu(), dense.device)
        return cls(entries, column.int(), dense[row, column], dense.shape[1])

    @classmethod
    def from_entries(
        cls,
        row: Int[Tensor, " entries"],
        column: Int[Tensor, " entries"],
        values: Float[Tensor, " entries"],
        rows: int,
        width: int,
    ) -> "SparseRows":
        """From entries in any order; those at the same place are added up.

        Raises:
            ValueError: an entry lies outside of the matrix.
        """
        for name, places, bound in (("row", row, rows), ("column", column, width)):
            if len(places) and not 0 <= int(places.min()) <= int(places.max()) < bound:
                raise ValueError(f"a sparse entry names {name} {int(places.max())}; expected 0 to {bound - 1}")
        keys, owner = torch.unique(row.long() * width + column.long(), return_inverse=True)
        summed = torch.zeros(len(keys), dtype=values.dtype, device=values.device).index_add(0, owner, values)
        entries = Segments.from_lengths(torch.bincount(keys // max(width, 1), minlength=rows).cpu(), values.device)
        return cls(entries, (keys % max(width, 1)).int(), summed, width)

    @classmethod
    def from_torch(cls, matrix: Tensor) -> "SparseRows":
        """One of PyTorch's own sparse tensors of two dimensions, of whichever layout."""
        found = matrix.to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
        row, column = found.indices()
        return cls.from_entries(row, column, found.values(), *matrix.shape)

    @property
    def shape(self) -> torch.Size:
        return torch.Size([self.entries.count, self.width])

    ndim = 2

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        return self.values.device

    @property
    def nbytes(self) -> int:
        return self.entries.host.nbytes + self.columns.nbytes + self.values.nbytes

    def is_floating_point(self) -> bool:
        return True

    def __len__(self) -> int:
        return self.entries.count

    def __getitem__(self, rows: slice | Int[Tensor, " chosen"]) -> "SparseRows":
        """Some of the rows: a range of them, or those at these places."""
        if isinstance(rows, slice):
            rows = torch.arange(*rows.indices(len(self)))
        return self.index_select(0, rows)

    def index_select(self, dim: int, rows: Int[Tensor, " chosen"]) -> "SparseRows":
        """The rows at these places, in this order; ``dim`` is 0, as for a tensor."""
        assert dim == 0, "rows are selected, and no columns"
        places, entries = self.entries.take(rows.cpu())
        return SparseRows(
            entries, self.columns.index_select(0, places), self.values.index_select(0, places), self.width
        )

    def to(self, device: torch.device | str) -> "SparseRows":
        return SparseRows(self.entries.to(device), self.columns.to(device), self.values.to(device), self.width)

    def float(self) -> "SparseRows":
        return replace(self, values=self.values.float())

    def narrowed(self) -> "SparseRows":
        """As a store keeps them: columns in 32 bits, values in float32."""
        return replace(self, columns=self.columns.int(), values=self.values.float())

    def dense(self) -> Float[Tensor, "rows width"]:
        """The whole matrix, zeros included; for small ones."""
        out = self.values.new_zeros(*self.shape)
        out[self.entries.ids, self.columns.long()] = self.values
        return out

    def to_torch(self) -> Tensor:
        """The same as one of PyTorch's sparse tensors, in coordinates."""
        return sparse_matrix(torch.stack([self.entries.ids, self.columns.long()]), self.values, self.shape)

    def arrays(self, name: str) -> dict[str, Tensor]:
        """The tensors that a store keeps, under names that begin with ``name``; the inverse of :meth:`from_arrays`."""
        kept = (self.entries.host, self.columns, self.values, torch.tensor([self.width]))
        return {f"{name}.{part}": tensor for part, tensor in zip(_PARTS, kept, strict=True)}

    @classmethod
    def from_arrays(cls, name: str, arrays: Any) -> "SparseRows | None":
        """What :meth:`arrays` gave; None where there are no sparse rows of this name."""
        if f"{name}.offsets" not in arrays:
            return None
        offsets, columns, values, width = (arrays[f"{name}.{part}"] for part in _PARTS)
        return cls(Segments.from_offsets(offsets), columns, values, int(width[0]))

    @cached_property
    def offsets(self) -> Int[Tensor, " bounds"]:
        """Where each row begins, and the end, in the integers of the columns."""
        return self.entries.offsets.to(self.columns.dtype)

    @cached_property
    def by_column(self) -> "ByColumn":
        """The same entries in the order of their columns, worked out once: the gradient of a weight sums over them."""
        order = torch.argsort(self.columns, stable=True)
        counts = torch.bincount(self.columns, minlength=self.width)
        bounds = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(self.columns.dtype)
        return ByColumn(order, self.entries.ids.index_select(0, order).to(self.columns.dtype), bounds)

    @cached_property
    def runs(self) -> Runs:
        """The entries row by row, as a kernel sums them."""
        return cut_runs(self.offsets, self.entries.max_length)


@final
@dataclass(frozen=True, eq=False)
class ByColumn:
    """``order`` sorts the entries by column; ``rows`` are their rows then, and column c's begin at ``offsets[c]``."""

    order: Int[Tensor, " entries"]
    rows: Int[Tensor, " entries"]
    offsets: Int[Tensor, " bounds"]

    @cached_property
    def runs(self) -> Runs:
        """The entries column by column, as a kernel sums them; a GPU is waited for."""
        return cut_runs(self.offsets, int(self.offsets.diff().max()) if len(self.rows) else 0)


class _Product(torch.autograd.Function):
    """X W for sparse X. The gradient, X^T G, is the same kind of sum over the entries of each column.

    Every row of either product is one sum in a fixed order, so that the same numbers come out every time, on a GPU too.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, values: Tensor, rows: SparseRows) -> Tensor:
        ctx.rows, ctx.dtype = rows, weight.dtype
        ctx.save_for_backward(values)
        return _summed(rows, rows.columns, values, weight, torch.promote_types(weight.dtype, torch.float32))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (values,) = ctx.saved_tensors
        sorted_ = ctx.rows.by_column
        ordered = values.index_select(0, sorted_.order)
        # Rows are gathered once per entry: in half precision they are half as many bytes.
        return _summed(sorted_, sorted_.rows, ordered, grad.to(ctx.dtype).contiguous(), ctx.dtype), None, None


def _summed(
    runs: "SparseRows | ByColumn", places: Tensor, factors: Tensor, table: Tensor, dtype: torch.dtype
) -> Tensor:
    """For every run of entries the sum of ``factors[e] * table[places[e]]`` over them: in float32 at least."""
    count = len(runs.offsets) - 1
    if not count or not len(places):
        return table.new_zeros(count, table.shape[1], dtype=dtype)
    if sums_fit(table.dtype) and sums_work(table.device):
        return sums_of_rows(table, places, factors, runs.runs, dtype)
    wide = torch.promote_types(table.dtype, torch.float32)
    return F.embedding_bag(
        places,
        table.to(wide),
        runs.offsets,
        mode="sum",
        per_sample_weights=factors.to(wide),
        include_last_offset=True,
    ).to(dtype)


def sparse_product(rows: SparseRows, table: Float[Tensor, "width dim"]) -> Float[Tensor, "rows dim"]:
    """X T, in float32 for a table in half precision, else in the precision of T; with a gradient for T alone."""
    if rows.width != len(table):
        raise ValueError(f"sparse rows have {rows.width} columns; expected {len(table)}, one per row of the table")
    out: Tensor = _Product.apply(table.contiguous(), rows.values, rows)  # type: ignore[no-untyped-call]
    return out


def sparse_linear(
    rows: SparseRows, weight: Float[Tensor, "dim width"], *, dropout: float = 0.0, training: bool = False
) -> Float[Tensor, "rows dim"]:
    """X W^T in the precision of the weight, with a gradient for W alone.

    In training, ``dropout`` sets so large a share of the entries to zero and scales the others up.
    """
    if rows.width != weight.shape[1]:
        raise ValueError(f"sparse rows have {rows.width} columns; this weight expects {weight.shape[1]}")
    values = F.dropout(rows.values.to(weight.dtype), dropout, training)
    out: Tensor = _Product.apply(weight.T.contiguous(), values, rows)  # type: ignore[no-untyped-call]
    return out.to(weight.dtype)


def as_dense(features: "Shaped[Tensor, 'rows _'] | SparseRows | None") -> Shaped[Tensor, "rows _"] | None:
    """Features as a tensor, zeros included: for readers of a few rows."""
    return features.dense() if isinstance(features, SparseRows) else features


def joined_features(parts: "Sequence[Features | None]") -> "Features | None":
    """The rows of all parts, one part after another; a part without features has no rows."""
    present = [part for part in parts if part is not None]
    sparse = [part for part in present if isinstance(part, SparseRows)]
    if sparse:
        return concatenated(sparse)
    return torch.cat([part for part in present if isinstance(part, Tensor)]) if present else None


def chosen_rows(features: "Features | None", rows: Int[Tensor, " chosen"]) -> "Features | None":
    """The rows at these places, where there are features."""
    return None if features is None else features.index_select(0, rows)


def concatenated(parts: Sequence[SparseRows]) -> SparseRows:
    """All rows one after another; they must have the same width."""
    entries = Segments.from_lengths(torch.cat([part.entries.host_lengths for part in parts]), parts[0].device)
    columns, values = (torch.cat([getattr(part, name) for part in parts]) for name in ("columns", "values"))
    return SparseRows(entries, columns, values, parts[0].width)


# Features of nodes may be sparse; all others are dense.
Features = Tensor | SparseRows
