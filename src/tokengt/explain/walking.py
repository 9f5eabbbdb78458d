"""Attention maps of many graphs, layer by layer: a few are written out at a time, measured and thrown away."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokengt.attention import FavorConfig, MultiheadAttention, may_attend, refuse_large_maps
from tokengt.batch import GraphBatch
from tokengt.interop.pyg import as_batch
from tokengt.models.contract import Model
from tokengt.models.passes import evaluating
from tokengt.models.tokengt.model import TokenGT
from tokengt.models.tokengt.token_batch import TokenBatch
from tokengt.ragged import Bucket, into_buckets

# How many weights are written out at once: 32 MiB in float64.
_AT_ONCE = 2**22

# What is measured of weights [sequences, heads, width, width], those of the given sequences of the given bucket:
# a tensor [sequences, heads, ...].
Measure = Callable[[Float[Tensor, "sequences heads width width"], int, slice], Tensor]


@dataclass(frozen=True, eq=False)
class Walked:
    """What was measured of the maps of a batch.

    Args:
        found: [graphs, layers, heads, ...] one tensor per measure.
        tokens: the tokens of all graphs.
        batch: the graphs.
    """

    found: tuple[Tensor, ...]
    tokens: TokenBatch
    batch: GraphBatch


def with_maps(model: Any) -> TokenGT:
    """The model, if it attends between tokens by weights that can be looked at.

    Raises:
        ValueError: one sentence: why it has none.
    """
    if not isinstance(model, TokenGT):
        name = model.config.describe().name if isinstance(model, Model) else type(model).__name__
        raise ValueError(f"{name} has no attention maps between tokens of nodes and edges; expected a TokenGT")
    if isinstance(model.config.encoder.attention, FavorConfig):
        raise ValueError(
            "FAVOR+ attends through random features and computes no attention weights; take the softmax run that it "
            "was fine-tuned from, or switch the model back with set_attention"
        )
    return model


@torch.no_grad()
def walk(model: Any, batch: Any, prepare: Callable[[TokenBatch, GraphBatch], tuple[Measure, ...]]) -> Walked:
    """Measure the maps of every graph of a batch (whatever a model takes), at evaluation.

    ``prepare`` makes the measures for the tokens of this batch, once for all layers.

    Raises:
        ValueError: one sentence: why the model or the batch has no maps of nodes and edges.
    """
    tokengt, packed = with_maps(model), as_batch(batch)
    if packed.num_hyperedges:
        raise ValueError(
            f"the batch has {packed.num_hyperedges} hyperedges; attention is measured between nodes and edges (or "
            "k-tuples)"
        )
    with evaluating(tokengt):
        tokens, layers = tokengt.attention_inputs(packed)
        refuse_large_maps(tokens.segments, 1, tokens.values.element_size())
        measures = prepare(tokens, packed)
        by_layer = [_of_layer(attention, rows, tokens, measures) for attention, rows in layers]
    order = torch.cat([graphs_of(bucket, tokens) for bucket in tokens.segments.buckets])
    return Walked(tuple(_in_order(order, parts) for parts in zip(*by_layer, strict=True)), tokens, packed)


def graphs_of(bucket: Bucket, tokens: TokenBatch) -> Int[Tensor, " sequences"]:
    """Which graph each sequence of a bucket is."""
    return tokens.segments.ids[bucket.rows[:, 0]]


def _in_order(order: Int[Tensor, " graphs"], layers: tuple[Tensor, ...]) -> Tensor:
    """Layers [graphs, heads, ...], in the order of the buckets, as [graphs, layers, heads, ...] on the CPU."""
    together = torch.stack(layers, 1)
    return torch.empty_like(together).index_copy(0, order, together).cpu()


def _of_layer(
    attention: MultiheadAttention, rows: Float[Tensor, "tokens dim"], tokens: TokenBatch, measures: tuple[Measure, ...]
) -> tuple[Tensor, ...]:
    """Every measure of all heads, sequences in the order of their buckets; few enough at once to fit into memory."""
    query, key, _ = attention.heads.split(attention.qkv_proj(rows))
    ends = tokens.endpoints if attention.masked else None
    parts = (into_buckets(x, tokens.segments) for x in (query, key))
    found: list[list[Tensor]] = [[] for _ in measures]
    for place, (bucket, q, k) in enumerate(zip(tokens.segments.buckets, *parts, strict=True)):
        width = max(1, bucket.rows.shape[1] ** 2)
        sequences = max(1, _AT_ONCE // width)
        heads = max(1, _AT_ONCE // (width * min(len(q), sequences)))
        for start in range(0, len(q), sequences):
            some = slice(start, start + sequences)
            mask = _mask(bucket, some, ends)
            of_heads = [
                [measure(weights, place, some) for measure in measures]
                for one, other in zip(*(x[some].transpose(1, 2).split(heads, 1) for x in (q, k)), strict=True)
                for weights in [attention.kernel.weights(one, other, mask)]
            ]
            for own, pieces in zip(found, zip(*of_heads, strict=True), strict=True):
                own.append(torch.cat(pieces, 1))
    return tuple(torch.cat(each) for each in found)


def _mask(
    bucket: Bucket, some: slice, ends: Int[Tensor, "tokens order"] | None
) -> Bool[Tensor, "sequences #width width"] | None:
    """Which keys there are for some sequences of a bucket: no padding and, with ``ends``, those that share a node."""
    there = None if bucket.mask is None else bucket.mask[some, None]
    if ends is None:
        return there
    shared = may_attend(ends[bucket.rows[some]])
    return shared if there is None else shared & there
