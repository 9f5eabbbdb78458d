"""FAVOR+ of long sequences by the Triton kernels: their launches, what is added up between them, and the gradient.

Needs Triton to be imported. ``favor_chunks`` has the equations, and does the same in plain PyTorch.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Float32
from torch import Tensor
from torch.autograd.function import once_differentiable

from tokengt.kernels import favor
from tokengt.kernels.cuts import TILE, WIDE_TILE, Cuts, feature_block
from tokengt.kernels.heads import Heads
from tokengt.kernels.tiles import padded_width

# Measured on an H200 with 530,000 tokens in 8 heads of 12 or 4 heads of 64: with eight warps the kernels take up to
# twice as long.
_WARPS = 4
# Columns that one program of ``over_pieces`` adds up.
_COLUMNS = 256


class Tables(NamedTuple):
    """[V, N] of every sequence and head, or their gradient: V a factor of products, N and the floors in float32.

    ``floors`` is eps times the sum over features. Rows of features that only fill W up are zero.
    """

    values: Float[Tensor, "sequences heads features value_dim"]
    norms: Float32[Tensor, "sequences heads features"]
    floors: Float32[Tensor, "sequences heads columns"]


def favor_rows(
    qkv: Float[Tensor, "tokens width"],
    projection: Float[Tensor, "features head_dim"],
    cuts: Cuts,
    heads: Heads,
    eps: float,
) -> Float[Tensor, "tokens heads value_dim"]:
    """FAVOR+ of every sequence to itself, from rows [queries | keys | values] of all heads.

    Kept for the backward: the rows, the output less its centre, two numbers per token and head, and the tables.
    """
    result = _Favor.apply(qkv, projection, cuts, heads, eps)  # type: ignore[no-untyped-call]
    out: Tensor = result[0]
    return out


class _Favor(torch.autograd.Function):
    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        qkv, projection, cuts, heads, eps = inputs
        return _Pass(qkv.contiguous(), projection, cuts, heads, eps).forward()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        qkv, projection, ctx.cuts, ctx.heads, ctx.eps = inputs
        ctx.set_materialize_grads(False)  # Otherwise zeros would be made as gradients of the other outputs.
        ctx.save_for_backward(qkv, projection, *output[1:])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        qkv, projection, *kept = ctx.saved_tensors
        run = _Pass(qkv.contiguous(), projection, ctx.cuts, ctx.heads, ctx.eps)
        return run.backward(grad_out.contiguous(), *kept), None, None, None, None


@dataclass(eq=False)
class _Pass:
    """The kernels of a forward or a backward, and what is done between them."""

    qkv: Tensor
    projection: Tensor
    cuts: Cuts
    heads: Heads
    eps: float

    def forward(self) -> tuple[Tensor, ...]:
        """Output, itself less its centre, stabilisers and denominators of queries; of keys; centres and tables."""
        tokens, count, width = len(self.qkv), self.heads.count, self.heads.value
        tops, *sums = self._sums()
        peaks = self._over_pieces(tops.amax(2), largest=True)
        shrink = torch.exp(tops - self._of_piece(peaks)[..., None])[..., None]
        sums[0].mul_(shrink[..., None])
        sums[1].mul_(shrink)
        table = self._table(*sums)
        ends = table.sum(2)
        centres = ends[..., :width] / ends[..., width:]
        table[..., :width] -= table[..., width:] * centres[:, :, None]
        tables = self._tables(table)
        out, centred = (self.qkv.new_empty(tokens, count, width) for _ in range(2))
        offsets, normalisers = (peaks.new_empty(count, tokens) for _ in range(2))
        self._by_tile(favor.answer_queries, tables, centres, out, centred, offsets, normalisers)
        return out, centred, offsets, normalisers, peaks, centres, *tables

    def backward(
        self,
        grad_out: Tensor,
        centred: Tensor,
        offsets: Tensor,
        normalisers: Tensor,
        peaks: Tensor,
        centres: Tensor,
        *table: Tensor,
    ) -> Float[Tensor, "tokens width"]:
        grad_qkv = torch.empty_like(self.qkv)
        rows = (centred, offsets, normalisers)
        self._by_tile(favor.queries_backward, Tables(*table), *rows, grad_out, grad_qkv)
        _, *sums = self._sums((grad_out, *rows))
        self._by_tile(favor.keys_backward, self._tables(self._table(*sums)), centres, peaks, grad_qkv)
        return grad_qkv

    def _sums(self, by_query: tuple[Tensor, ...] | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of every piece, head and block: the stabiliser, and sums of e y^T, e z and (y, z); of keys, or of queries."""
        pieces, count, width = self.cuts.pieces.shape[1], self.heads.count, self.heads.value
        shape = (pieces, count, self.blocks)
        tops, values, norms, totals = (
            self.qkv.new_empty(*shape, *rest, dtype=torch.float32)
            for rest in ((), (self.block, width), (self.block,), (width + 1,))
        )
        others = by_query or (self.qkv,) * 4  # The kernel reads them for queries only; for keys any tensor will do.
        tensors = (self.qkv, self.weights, self.cuts.pieces, tops, values, norms, totals, *others)
        tile = TILE if self.qkv.dtype == torch.float32 else WIDE_TILE
        self._launch(favor.sum_tables, pieces * count * self.blocks, tensors, tile, KEYS=by_query is None)
        return tops, values, norms, totals

    def _table(
        self, values: Tensor, norms: Tensor, totals: Tensor
    ) -> Float32[Tensor, "sequences heads features columns"]:
        """All pieces of a sequence together, with the part that eps has."""
        both = self._over_pieces(torch.cat([values, norms[..., None]], -1).flatten(2, 3))
        both += self.eps * self._over_pieces(totals[:, :, 0])[:, :, None]
        both[:, :, len(self.projection) :] = 0.0
        return both

    def _tables(self, table: Float32[Tensor, "sequences heads features columns"]) -> Tables:
        values = table[..., :-1].to(self.qkv.dtype).contiguous()
        return Tables(values, table[..., -1].contiguous(), self.eps * table.sum(2))

    def _over_pieces(
        self, x: Float32[Tensor, "pieces *rest"], *, largest: bool = False
    ) -> Float32[Tensor, "sequences *rest"]:
        """The sum, or the largest, in the same order every time, which PyTorch's sums by an index are not."""
        if len(self.cuts.bounds) == 2:
            return x.amax(0, keepdim=True) if largest else x.sum(0, keepdim=True)
        x = x.contiguous()
        out = x.new_empty(len(self.cuts.bounds) - 1, *x.shape[1:])
        width = x.shape[1:].numel()
        with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
            favor.over_pieces[(len(out) * -(-width // _COLUMNS),)](
                x, self.cuts.bounds, out, width, MAX=largest, COLUMNS=_COLUMNS
            )
        return out

    def _of_piece(self, x: Float32[Tensor, "sequences *rest"]) -> Float32[Tensor, "pieces *rest"]:
        return x.index_select(0, self.cuts.pieces[2])

    def _by_tile(self, kernel: Any, tables: Tables, *tensors: Tensor) -> None:
        rows = (self.qkv, self.weights, self.cuts.tiles, *tables, *tensors)
        self._launch(kernel, self.cuts.tiles.shape[1] * self.heads.count, rows, TILE)

    def _launch(self, kernel: Any, programs: int, tensors: tuple[Tensor, ...], tile: int, **constants: Any) -> None:
        constants |= {
            "HEADS": self.heads.count,
            "KEY": self.heads.key,
            "VALUE": self.heads.value,
            "KEY_PAD": padded_width(self.heads.key),
            "VALUE_PAD": padded_width(self.heads.value),
            "TILE": tile,
            "FEATURES": self.block,
            "PRECISION": "tf32x3",
        }
        # Two stages of loads take 5% less time; of float32 factors, which are held as two parts, there is room for one.
        stages = 1 if self.qkv.dtype == torch.float32 else 2
        with torch.cuda.device_of(self.qkv):  # type: ignore[no-untyped-call]
            kernel[(programs,)](*tensors, len(self.qkv), self.blocks, **constants, num_warps=_WARPS, num_stages=stages)

    @property
    def block(self) -> int:
        return feature_block(len(self.projection))

    @property
    def blocks(self) -> int:
        return -(-len(self.projection) // self.block)

    @cached_property
    def weights(self) -> Float[Tensor, "padded_features head_dim"]:
        """W with the temperature, filled up to whole blocks."""
        scaled: Tensor = self.projection.float() * self.heads.key**-0.25
        spare = scaled[:1].expand(self.blocks * self.block - len(scaled), -1)
        return torch.cat([scaled, spare]).to(self.qkv.dtype)
