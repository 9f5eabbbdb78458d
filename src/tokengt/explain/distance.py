"""Attention distance: how many hops lie between a token and those that it attends to, by layer and head.

As the paper's figures have it: special tokens are removed from a map of attention and its rows divided by what is left
of them; two tokens are as far apart as the nearest of their nodes; the mean is over tokens, then over graphs. Pairs of
tokens without a path between them have no distance: they are left out like special tokens, and counted.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int, Int16
from numpy.typing import NDArray
from torch import Tensor

from tokengt.attention import FavorConfig, MultiheadAttention, may_attend, refuse_large_maps
from tokengt.batch import GraphBatch
from tokengt.interop.pyg import as_batch
from tokengt.models.contract import Model
from tokengt.models.passes import evaluating
from tokengt.models.tokengt.model import TokenGT
from tokengt.models.tokengt.tokens import TokenBatch, TokenKind
from tokengt.ragged import Bucket, into_buckets, segment_sum
from tokengt.structure.distances import LONGEST, hop_distances

# A pair of tokens that has no distance: without a path, or with a token that is no node and no edge.
NONE = -1
# Further than any distance.
_FAR = 2**15 - 1
# How many weights are written out at once: 32 MiB in float64.
_AT_ONCE = 2**22


@dataclass(frozen=True, eq=False)
class Distances:
    """Attention distances of some graphs.

    Args:
        hops: the mean over tokens [graphs, layers, heads].
        pairs: ordered pairs of tokens of one graph, special tokens not counted.
        unreachable: those among them that were left out, because no path of at most 127 steps joins them.
    """

    hops: NDArray[np.float64]
    pairs: int
    unreachable: int

    @property
    def mean(self) -> NDArray[np.float64]:
        """Over graphs: [layers, heads]; NaN if there are none."""
        return self.hops.mean(0) if len(self.hops) else np.full(self.hops.shape[1:], np.nan)


def attention_distance(model: Any, batch: Any) -> NDArray[np.float64]:
    """The mean attention distance in hops over the graphs of a batch, as an array [layers, heads]."""
    return graph_distances(model, batch).mean


@torch.no_grad()
def graph_distances(model: Any, batch: Any) -> Distances:
    """The attention distance in every graph of a batch (whatever a model takes), at evaluation.

    Maps are written out a few at a time and thrown away.

    Raises:
        ValueError: one sentence: why the model or the batch has no attention distance.
    """
    tokengt, packed = with_maps(model), as_batch(batch)
    encoder = tokengt.config.encoder
    if not len(packed):
        return Distances(np.empty((0, encoder.num_layers, encoder.num_heads)), 0, 0)
    if packed.num_hyperedges:
        raise ValueError(
            f"the batch has {packed.num_hyperedges} hyperedges; attention distance is of nodes and edges (or k-tuples)"
        )
    with evaluating(tokengt):
        tokens, layers = tokengt.attention_inputs(packed)
        refuse_large_maps(tokens.segments, 1, tokens.values.element_size())
        between = token_distances(tokens, packed)
        measured = [_of_layer(attention, rows, tokens, between) for attention, rows in layers]
    hops = torch.empty(len(packed), encoder.num_layers, encoder.num_heads, dtype=torch.float64)
    if measured:
        # Sequences lie in the order of their buckets, and each goes back to its graph's place.
        hops[torch.cat([_graphs(bucket, tokens) for bucket in tokens.segments.buckets]).cpu()] = torch.stack(
            measured, 1
        ).cpu()
    joined = sum(int((each >= 0).sum()) for each in between)
    pairs = int((tokens.segments.lengths - _specials(tokens)).square().sum())
    return Distances(hops.numpy(), pairs, pairs - joined)


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


def token_distances(tokens: TokenBatch, batch: GraphBatch) -> list[Int16[Tensor, "sequences width width"]]:
    """Hops from each token to each other of its graph, one tensor per bucket of sequences; -1 where there are none.

    The least over all pairs of a node of the one and a node of the other token; a step follows an edge as it is listed.
    """
    device, nodes = batch.device, batch.nodes
    hops, endpoints, found = hop_distances(batch, LONGEST).short(), tokens.endpoints, []
    for bucket in tokens.segments.buckets:
        ends, graphs = endpoints[bucket.rows], _graphs(bucket, tokens)
        real = ends[..., 0] >= 0
        real = real if bucket.mask is None else real & bucket.mask
        both = real[:, :, None] & real[:, None, :]
        first, size = nodes.pairs.starts[graphs][:, None, None], nodes.lengths[graphs][:, None, None]
        place = nodes.positions[ends]
        nearest = torch.full(both.shape, _FAR, dtype=torch.int16, device=device)
        for one, other in product(range(tokens.order), repeat=2):
            pair = first + place[:, :, None, one] * size + place[:, None, :, other]
            steps = hops[torch.where(both, pair, 0)]
            nearest = torch.minimum(nearest, torch.where(both & (steps >= 0), steps, _FAR))
        found.append(torch.where(nearest < _FAR, nearest, NONE))
    return found


def mean_distance(
    weights: Float[Tensor, "sequences heads width width"], distance: Int16[Tensor, "sequences width width"]
) -> Float64[Tensor, "sequences heads"]:
    """sum_j alpha_ij d_ij / sum_j alpha_ij over pairs with a distance (not -1), then the mean over rows that have any.

    NaN for a sequence without such a row.
    """
    kept = weights.double() * (distance >= 0)[:, None]
    total = kept.sum(-1)
    # A row has no weight left if all of it lies on removed tokens, by rounding: it then says nothing of distances.
    there = total > 0
    hops = (kept * distance.clamp(min=0)[:, None]).sum(-1) / torch.where(there, total, 1.0)
    return hops.sum(-1) / there.sum(-1)


def _of_layer(
    attention: MultiheadAttention,
    rows: Float[Tensor, "tokens dim"],
    tokens: TokenBatch,
    between: list[Int16[Tensor, "_ _ _"]],
) -> Float64[Tensor, "sequences heads"]:
    """The distances of all heads, sequences in the order of their buckets; few enough at once to fit into memory."""
    query, key, _ = attention.heads.split(attention.qkv_proj(rows))
    ends = tokens.endpoints if attention.masked else None
    parts = (into_buckets(x, tokens.segments) for x in (query, key))
    found = []
    for bucket, q, k, distance in zip(tokens.segments.buckets, *parts, between, strict=True):
        width = max(1, distance.shape[1] ** 2)
        sequences = max(1, _AT_ONCE // width)
        heads = max(1, _AT_ONCE // (width * min(len(q), sequences)))
        for start in range(0, len(q), sequences):
            some = slice(start, start + sequences)
            mask = None if bucket.mask is None else bucket.mask[some, None]
            if ends is not None:
                shared = may_attend(ends[bucket.rows[some]])
                mask = shared if mask is None else shared & mask
            found.append(
                torch.cat(
                    [
                        mean_distance(attention.kernel.weights(one, other, mask), distance[some])
                        for one, other in zip(
                            *(x[some].transpose(1, 2).split(heads, 1) for x in (q, k)),
                            strict=True,
                        )
                    ],
                    1,
                )
            )
    return torch.cat(found)


def _graphs(bucket: Bucket, tokens: TokenBatch) -> Int[Tensor, " sequences"]:
    """Which graph each sequence of a bucket is."""
    return tokens.segments.ids[bucket.rows[:, 0]]


def _specials(tokens: TokenBatch) -> Int[Tensor, " graphs"]:
    """How many tokens of each graph are neither nodes nor edges."""
    special = (tokens.kinds == TokenKind.SPECIAL).to(tokens.values.dtype)[:, None]
    return segment_sum(special, tokens.segments)[:, 0].long()
