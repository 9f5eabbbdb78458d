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

from tokengt.batch import GraphBatch
from tokengt.explain.walking import Measure, graphs_of, walk, with_maps
from tokengt.interop.pyg import as_batch
from tokengt.models.tokengt.token_batch import TokenBatch, TokenKind
from tokengt.ragged import segment_sum
from tokengt.structure.distances import LONGEST, hop_distances

# A pair of tokens that has no distance: without a path, or with a token that is no node and no edge.
NONE = -1
# Further than any distance.
_FAR = 2**15 - 1


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

    def _repr_html_(self) -> str:
        from tokengt.explain.pictures import as_html, plot_attention_distance

        return as_html(plot_attention_distance(self.mean))


def attention_distance(model: Any, batch: Any) -> NDArray[np.float64]:
    """The mean attention distance in hops over the graphs of a batch, as an array [layers, heads]."""
    return graph_distances(model, batch).mean


def graph_distances(model: Any, batch: Any) -> Distances:
    """The attention distance in every graph of a batch (whatever a model takes), at evaluation.

    Maps are written out a few at a time and thrown away.

    Raises:
        ValueError: one sentence: why the model or the batch has no attention distance.
    """
    encoder, packed = with_maps(model).config.encoder, as_batch(batch)
    if not len(packed) or not encoder.num_layers:
        return Distances(np.empty((len(packed), encoder.num_layers, encoder.num_heads)), 0, 0)
    between: list[Tensor] = []

    def prepare(tokens: TokenBatch, graphs: GraphBatch) -> tuple[Measure]:
        between.extend(token_distances(tokens, graphs))
        return (lambda weights, bucket, some: mean_distance(weights, between[bucket][some]),)

    walked = walk(model, packed, prepare)
    joined = sum(int((each >= 0).sum()) for each in between)
    pairs = int((walked.tokens.segments.lengths - _specials(walked.tokens)).square().sum())
    return Distances(walked.found[0].numpy(), pairs, pairs - joined)


def token_distances(tokens: TokenBatch, batch: GraphBatch) -> list[Int16[Tensor, "sequences width width"]]:
    """Hops from each token to each other of its graph, one tensor per bucket of sequences; -1 where there are none.

    The least over all pairs of a node of the one and a node of the other token; a step follows an edge as it is listed.
    """
    device, nodes = batch.device, batch.nodes
    hops, endpoints, found = hop_distances(batch, LONGEST).short(), tokens.endpoints, []
    for bucket in tokens.segments.buckets:
        ends, graphs = endpoints[bucket.rows], graphs_of(bucket, tokens)
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


def _specials(tokens: TokenBatch) -> Int[Tensor, " graphs"]:
    """How many tokens of each graph are neither nodes nor edges."""
    special = (tokens.kinds == TokenKind.SPECIAL).to(tokens.values.dtype)[:, None]
    return segment_sum(special, tokens.segments)[:, 0].long()
