"""FAVOR+ of long sequences, a chunk of tokens at a time: no tensor of tokens x features outlives its chunk.

With e = exp(W x - |x|^2 / 2 - stabiliser), so that phi = e + eps, and u = [v, 1] the values with a one beside them:

    T = sum_j e(k_j) u_j^T + eps sum_j u_j^T,       [features, value_dim + 1]
    [num_i, den_i] = e(q_i) T + eps 1^T T,  output_i = num_i / den_i.

Keys are read once: their stabiliser is the largest exponent so far, and T's first sum is rescaled when it grows. The
second sum stands apart from it, so that eps meets the final stabiliser only. Values are then measured from a centre, an
average of theirs that output_i gets back: what is left is what outputs differ by, and survives the rounding of T.

With G_i = [g_i, -g_i . output_i] / den_i, g the gradient of the output, the backward computes every e again and needs

    dT = sum_i e(q_i) G_i^T + eps sum_i G_i^T,  de(q_i) = T G_i,  de(k_j) = dT u_j,  dv_j = e(k_j) dT + eps 1^T dT,
    dx = (de * e) W - <de, e> x, where <de, e> is -eps G_i (1^T T) for a query and u_j (e(k_j) dT) for a key.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from tokengt.attention.favor_one_chunk import absorb_keys, answer_queries, keys_backward, queries_backward, wide

# How large the features of a chunk may be: on a CPU so many entries, which fit into its cache; on a GPU, where each
# chunk costs launches, many more: as many as fit into so many bytes. On an H200, 530,000 tokens in bfloat16 took 65 ms
# with a quarter of this, 52 ms with this and 49 ms with four times as much, at 2.4, 3.1 and 5.1 GiB.
_CPU_ENTRIES, _GPU_BYTES = 2**19, 2**27

Part = tuple[slice, slice, slice]


def default_chunk_entries(rows: Tensor) -> int:
    """Sequences x heads x tokens x features of a chunk of such rows."""
    return _CPU_ENTRIES if rows.device.type == "cpu" else _GPU_BYTES // rows.element_size()


def chunked_attention(
    query: Float[Tensor, "sequences heads width dim"],
    key: Float[Tensor, "sequences heads width dim"],
    value: Float[Tensor, "sequences heads width value_dim"],
    projection: Float[Tensor, "features dim"],
    eps: float,
    mask: Bool[Tensor, "sequences width"] | None = None,
    *,
    chunk_entries: int | None = None,
) -> Float[Tensor, "sequences heads width value_dim"]:
    """The module's equations, with float32 sums at least; padding must repeat rows of its own sequence.

    Kept for the backward: query, key, value, one number per token and head, and T where it is no larger.
    """
    sequences, heads, width, _ = query.shape
    chunking = Chunking(sequences, heads, width, len(projection), chunk_entries or default_chunk_entries(query))
    result = _Chunked.apply(query, key, value, projection, mask, eps, chunking)  # type: ignore[no-untyped-call]
    out: Tensor = result[0]
    return out


@dataclass(frozen=True)
class Chunking:
    """Which sequences go together, and which of their tokens: a chunk has at most ``entries`` features, or one row."""

    sequences: int
    heads: int
    width: int
    features: int
    entries: int

    @property
    def groups(self) -> list[slice]:
        """Several whole sequences, or one."""
        return _pieces(self.sequences, max(1, self._rows // self.width))

    @property
    def chunks(self) -> list[slice]:
        """The tokens of every group."""
        return _pieces(self.width, max(1, self._rows))

    @property
    def keeps_table(self) -> bool:
        """Whether T is kept for the backward: only where it has no more entries than the values of a sequence."""
        return self.features <= self.width

    @property
    def _rows(self) -> int:
        return self.entries // (self.heads * self.features)


def _pieces(total: int, size: int) -> list[slice]:
    """Slices of at most ``size``, as equal as can be."""
    size = -(-total // -(-total // size))
    return [slice(start, min(start + size, total)) for start in range(0, total, size)]


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        run = _Pass(*inputs)
        with torch.autocast(run.query.device.type, enabled=False):
            return run.forward()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.eps, ctx.chunking = inputs
        ctx.set_materialize_grads(False)  # Otherwise zeros would be made as gradients of the other outputs.
        ctx.save_for_backward(*tensors, *output[1:])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        query, key, value, projection, mask, *kept = ctx.saved_tensors
        run = _Pass(query, key, value, projection, mask, ctx.eps, ctx.chunking)
        with torch.autocast(gradient.device.type, enabled=False):
            return (*run.backward(gradient, *kept), None, None, None, None)


@dataclass(eq=False)
class _Pass:
    """The loops over groups of sequences and their chunks."""

    query: Float[Tensor, "sequences heads width dim"]
    key: Float[Tensor, "sequences heads width dim"]
    value: Float[Tensor, "sequences heads width value_dim"]
    projection: Float[Tensor, "features dim"]
    mask: Bool[Tensor, "sequences width"] | None
    eps: float
    chunking: Chunking

    def forward(self) -> tuple[Tensor, ...]:
        """The output, |q|^2 / 2 + stabiliser of every query, the keys' stabilisers, the centres, and T or nothing."""
        chunking, dim = self.chunking, self.value.shape[3]
        # In memory the heads of a token lie side by side, as the layer that reads the output wants them.
        out = torch.empty_like(self.value.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)
        offset = self.query.new_empty(*self.query.shape[:3], 1, dtype=self.sums)
        peak, centre = offset.new_empty(*offset.shape[:2], 1, 1), offset.new_empty(*offset.shape[:2], 1, dim)
        tables = offset.new_empty(
            chunking.sequences * chunking.heads * chunking.keeps_table, len(self.scaled), self.columns
        )
        for group in chunking.groups:
            top, middle, table = self._table(group)
            peak[group], centre[group] = top.view_as(peak[group]), middle.view_as(centre[group])
            if chunking.keeps_table:
                tables[self._batch(group)] = table
            factors, floor = self._with_floor(table)
            for part in self._parts(group):
                both, offsets = answer_queries(self._rows(self.query[part]), self.scaled, factors, floor)
                offset[part] = offsets.view_as(offset[part])
                out[part] = (both[..., :dim] / both[..., dim : dim + 1] + middle).view_as(out[part])
        return out, offset, peak, centre, tables

    def backward(
        self, gradient: Tensor, offset: Tensor, peak: Tensor, centre: Tensor, tables: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of query, key and value."""
        inputs = (self.query, self.key, self.value)
        query, key, value = (torch.empty_like(x.transpose(1, 2)).transpose(1, 2) for x in inputs)
        for group in self.chunking.groups:
            table = tables[self._batch(group)] if self.chunking.keeps_table else self._table(group)[2]
            change = self._queries_backward(group, table, offset, gradient, query)
            self._keys_backward(group, change, peak[group].flatten(0, 1), centre[group], key, value)
        return query, key, value

    def _table(self, group: slice) -> tuple[Tensor, Tensor, Tensor]:
        """The stabilisers, centres and T of a group of sequences."""
        batch = (group.stop - group.start) * self.chunking.heads
        peak = self.key.new_full((batch, 1, 1), -torch.inf, dtype=self.sums)
        sums = peak.new_zeros(batch, len(self.scaled), self.columns)
        total = peak.new_zeros(batch, 1, self.columns)
        for part in self._parts(group):
            ones = self._ones(part)
            peak, sums = absorb_keys(self._rows(self.key[part]), ones, self.scaled, peak, sums)
            total += ones.sum(1, keepdim=True, dtype=self.sums)
        table, dim = self._without_spare(sums + total * self.eps), self.value.shape[3]
        ends = table.sum(1, keepdim=True)
        centre = ends[..., :dim] / ends[..., dim : dim + 1]
        table[..., :dim] -= table[..., dim : dim + 1] * centre
        return peak, centre, table

    def _queries_backward(self, group: slice, table: Tensor, offset: Tensor, gradient: Tensor, into: Tensor) -> Tensor:
        """Writes dq; returns dT."""
        change, total = torch.zeros_like(table), table.new_zeros(len(table), 1, self.columns)
        factors, floor = self._with_floor(table)
        for part in self._parts(group):
            rows, offsets = self._rows(self.query[part]), offset[part].flatten(0, 1)
            slope, change, total = queries_backward(
                rows, gradient[part].flatten(0, 1), offsets, self.scaled, factors, floor, change, total
            )
            into[part] = slope.view_as(into[part])
        return self._without_spare(change + total * self.eps)

    def _keys_backward(
        self, group: slice, change: Tensor, peak: Tensor, centre: Tensor, into_key: Tensor, into_value: Tensor
    ) -> None:
        """Writes dk and dv."""
        factors, floor = self._with_floor(change)
        for part in self._parts(group):
            rows, ones = self._rows(self.key[part]), self._ones(part, centre)
            slope, values = keys_backward(rows, ones, self.scaled, peak, factors, floor)
            into_key[part] = slope.view_as(into_key[part])
            into_value[part] = values[..., : self.value.shape[3]].view_as(into_value[part])
            if self.mask is not None:
                into_value[part] *= self.mask[part[0], None, part[2], None]

    def _with_floor(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """T as a factor, and eps 1^T T."""
        return table.to(self.factors), table.sum(1, keepdim=True) * self.eps

    def _without_spare(self, table: Tensor) -> Tensor:
        """Rows of features that only fill W up weigh nothing: not for a query, and not in the gradient of a key."""
        table[:, self.chunking.features :] = 0.0
        return table

    def _parts(self, group: slice) -> Iterator[Part]:
        return ((group, slice(None), tokens) for tokens in self.chunking.chunks)

    def _batch(self, group: slice) -> slice:
        return slice(group.start * self.chunking.heads, group.stop * self.chunking.heads)

    def _rows(self, x: Float[Tensor, "sequences heads chunk _"]) -> Float[Tensor, "batch chunk _"]:
        return x.to(self.factors).flatten(0, 1)

    def _ones(
        self, part: Part, centre: Float[Tensor, "sequences heads 1 value_dim"] | None = None
    ) -> Float[Tensor, "batch chunk columns"]:
        """u = [v - centre, 1] and zeros; padding gives zero rows."""
        value = self.value[part]
        out = value.new_zeros(*value.shape[:3], self.columns, dtype=self.factors)
        out[..., : value.shape[3]] = value if centre is None else value - centre
        out[..., value.shape[3]] = 1.0
        if self.mask is not None:
            out *= self.mask[part[0], None, part[2], None]
        return out.flatten(0, 1)

    @property
    def columns(self) -> int:
        """Of u and T: value_dim + 1, up to a multiple of 8 for tensor cores."""
        return (self.value.shape[3] // 8 + 1) * 8

    @property
    def sums(self) -> torch.dtype:
        return wide(self.key.dtype)

    @property
    def factors(self) -> torch.dtype:
        """Of products: bfloat16 where they can give float32. Half's range is too small for sums over many tokens."""
        return torch.bfloat16 if self.key.dtype == torch.bfloat16 and self.key.is_cuda else self.sums

    @cached_property
    def scaled(self) -> Float[Tensor, "padded_features dim"]:
        """W with the softmax temperature 1/sqrt(d_H), split evenly between query and key.

        The first row is repeated up to a multiple of 8, for tensor cores; a repetition changes no maximum.
        """
        scaled: Tensor = self.projection.to(self.sums) * self.key.shape[3] ** -0.25
        spare = scaled[:1].expand(-len(scaled) % 8, -1)
        return torch.cat([scaled, spare]).to(self.factors)
