"""The kernels of attention and of sparse sums as functions of tensors. Importing this needs no Triton; calling does."""

import torch
from jaxtyping import Float, Int, Int32
from torch import Tensor

from tokengt.kernels.cuts import Cuts
from tokengt.kernels.edge_orders import EdgeOrders
from tokengt.kernels.heads import Heads
from tokengt.kernels.runs import Runs
from tokengt.kernels.tiles import Tiles


def tiled_attention(
    qkv: Float[Tensor, "tokens width"],
    tiles: Tiles,
    heads: Heads,
    *,
    dropout: float = 0.0,
    seed: Int[Tensor, ""] | None = None,
    marks: Int32[Tensor, "tokens 2"] | None = None,
) -> Float[Tensor, "tokens heads value"]:
    """Exact softmax attention of every sequence to itself.

    With ``marks`` two rows attend to each other where they have a mark in common, or where either has none (-1).

    ``dropout`` zeroes attention weights with that probability. ``seed`` (one int64, where the data lies) decides which
    ones, and is drawn from PyTorch's generator when it is None: two calls with the same seed drop the same weights.
    """
    from tokengt.kernels.packed_op import packed_attention_op

    if dropout == 0:
        seed = None
    elif seed is None:
        seed = torch.randint(2**62, (), device=qkv.device)
    sizes = (heads.count, heads.key, heads.value)
    out, _ = packed_attention_op(qkv, tiles.items, tiles.buckets, seed, *sizes, dropout, marks)
    assert isinstance(out, Tensor)
    return out


def cut_favor(
    qkv: Float[Tensor, "tokens width"],
    projection: Float[Tensor, "features key"],
    cuts: Cuts,
    heads: Heads,
    eps: float,
) -> Float[Tensor, "tokens heads value"]:
    """FAVOR+ attention of every sequence to itself; the projection gets no gradient."""
    from tokengt.kernels.favor_launch import favor_rows

    return favor_rows(qkv, projection, cuts, heads, eps)


def edge_attention(
    left: Float[Tensor, "rows heads channels"],
    right: Float[Tensor, "rows heads channels"],
    att: Float[Tensor, "heads channels"],
    orders: EdgeOrders,
) -> Float[Tensor, "rows heads channels"]:
    """Sums of left_u over the edges u -> v to each row v, by the softmax of ``att`` . LeakyReLU(left_u + right_v).

    Every row needs an edge that leads to it. The output has the type that products of ``left`` and ``att`` have.
    """
    from tokengt.kernels.neighbours_op import attend_edges

    return attend_edges(left, right, att, orders)


def sums_of_rows(
    table: Float[Tensor, "rows width"],
    places: Int[Tensor, " entries"],
    factors: Float[Tensor, " entries"],
    runs: Runs,
    dtype: torch.dtype,
) -> Float[Tensor, "runs width"]:
    """For every run of entries, the sum of ``factors[e] * table[places[e]]``: in float32, given in ``dtype``."""
    from tokengt.kernels.sums_op import weighted_sums

    return weighted_sums(table, places, factors, runs, dtype)
