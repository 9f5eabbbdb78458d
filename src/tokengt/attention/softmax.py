"""Exact softmax attention over packed sequences; one signature, several backends.

alpha = softmax(Q K^T / sqrt(d_H)), output alpha V, for every sequence by itself. Inputs stay packed: on the CPU
sequences of similar length share one SDPA call, on a GPU ``varlen_attn`` reads the packed rows as they are. Our own
kernels (:mod:`tokengt.attention.kernels`) want queries, keys and values as one linear layer writes them: multi-head
attention takes them by itself, this function when they are asked for by name.
"""

import warnings
from contextlib import nullcontext
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tokengt.attention.kernels import packed_attention
from tokengt.ragged import Segments, into_buckets, out_of_buckets
from tokengt.tracing import eager_only

Backend = Literal["auto", "bucketed", "varlen", "triton"]

_STEADY = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
# Score matrices of one call may take this much memory before we refuse to write them out.
SCORE_LIMIT_BYTES = 8 * 2**30
# Where scores are written out in training: scores, weights, and weights after dropout, kept for the backward.
_TRAINING_COPIES = 3
# Work of one call above which a person would want to know before waiting (about ten seconds on either).
WORK_WARNING_FLOP = {"cpu": 1e12, "cuda": 1e15}


@eager_only
def softmax_attention(
    query: Float[Tensor, "tokens heads head_dim"],
    key: Float[Tensor, "tokens heads head_dim"],
    value: Float[Tensor, "tokens heads value_dim"],
    segments: Segments,
    *,
    dropout: float = 0.0,
    backend: Backend = "auto",
) -> Float[Tensor, "tokens heads value_dim"]:
    """Attention of every sequence to itself.

    ``dropout`` zeroes attention weights with that probability (give 0 outside training). On a CPU, and in float64, it
    needs the scores written out, so what is too long for that is refused with a ValueError; elsewhere memory is linear
    in tokens and only the work is quadratic.
    """
    if backend == "triton":
        warn_of_work(segments, query, value)
        qkv = torch.cat([x.flatten(1) for x in (query, key, value)], 1)
        heads, width = query.shape[1:]
        return packed_attention(
            qkv, segments, num_heads=heads, head_dim=width, value_dim=value.shape[2], dropout=dropout
        )
    # A GPU has fused kernels with dropout, in all precisions but the highest.
    if dropout > 0 and (not query.is_cuda or query.dtype == torch.float64):
        advice = "use attention kind 'favor', which is linear in tokens, or set the attention dropout to 0"
        copies = _TRAINING_COPIES * query.shape[1]
        refuse_large_scores(segments, copies, query.element_size(), "with attention dropout", advice)
    else:
        warn_of_work(segments, query, value)
    fits = _varlen_fits(query, value, dropout)
    if backend == "varlen" and not fits:
        raise ValueError(
            f"attention backend 'varlen' needs a GPU, bf16 or fp16, head sizes that are equal multiples of 8 up to 256 "
            f"and no dropout; got {query.dtype} on {query.device.type}, sizes {query.shape[2]} and {value.shape[2]}, "
            f"dropout {dropout}"
        )
    if fits and backend != "bucketed":
        return _varlen(query, key, value, segments)
    return _bucketed(query, key, value, segments, dropout)


def attention_weights(
    query: Float[Tensor, "tokens heads head_dim"],
    key: Float[Tensor, "tokens heads head_dim"],
    segments: Segments,
) -> list[Float[Tensor, "heads _ _"]]:
    """The matrices alpha themselves, one [heads, length, length] tensor a sequence."""
    refuse_large_maps(segments, query.shape[1], query.element_size())
    maps = []
    for start, stop in zip(segments.host[:-1].tolist(), segments.host[1:].tolist(), strict=True):
        rows_q, rows_k = query[start:stop].transpose(0, 1), key[start:stop].transpose(0, 1)
        scores = rows_q @ rows_k.transpose(1, 2) * query.shape[2] ** -0.5
        maps.append(scores.softmax(-1))
    return maps


def refuse_large_maps(segments: Segments, maps: int, bytes_each: int) -> None:
    """Raise before ``maps`` maps of every sequence (heads times layers) are written out that would not fit."""
    refuse_large_scores(segments, maps, bytes_each, "with attention maps", "ask for the maps of fewer tokens")


def refuse_large_scores(segments: Segments, copies: int, bytes_each: int, why: str, advice: str) -> None:
    """Raise before ``copies`` score matrices of every sequence are written out that would not fit."""
    needed = copies * _squared_lengths(segments) * bytes_each
    if needed > SCORE_LIMIT_BYTES:
        limit = SCORE_LIMIT_BYTES / 2**30
        raise ValueError(
            f"softmax attention {why} would hold {needed / 2**30:,.1f} GiB of scores for up to "
            f"{segments.max_length:,} tokens a sequence (the limit is {limit:g} GiB); {advice}"
        )


def warn_of_work(segments: Segments, query: Tensor, value: Tensor) -> None:
    """Say how much a call costs when a person would wait for it."""
    flop = 2 * query.shape[1] * (query.shape[2] + value.shape[2]) * _squared_lengths(segments)
    if flop > WORK_WARNING_FLOP.get(query.device.type, 1e15):
        warnings.warn(
            f"softmax attention over up to {segments.max_length:,} tokens a sequence costs about "
            f"{flop / 1e12:,.1f} TFLOP a layer; attention kind 'favor' is linear in tokens",
            stacklevel=3,
        )


def _squared_lengths(segments: Segments) -> float:
    return float(segments.host_lengths.double().square().sum())


def _bucketed(query: Tensor, key: Tensor, value: Tensor, segments: Segments, dropout: float) -> Tensor:
    scale, width = query.shape[2] ** -0.5, value.shape[2]
    # SDPA's fused kernels want one width for all three; columns of zeros change neither scores nor values.
    common = max(query.shape[2], width)
    widened = (x if x.shape[2] == common else F.pad(x, (0, common - x.shape[2])) for x in (query, key, value))
    parts = (into_buckets(x, segments) for x in widened)
    outputs = []
    for bucket, *qkv in zip(segments.buckets, *parts, strict=True):
        mask = None if bucket.mask is None else bucket.mask[:, None, None, :]
        q, k, v = (x.transpose(1, 2) for x in qkv)
        output = _attend(q, k, v, mask, dropout, scale)
        outputs.append(output.transpose(1, 2)[..., :width])
    return out_of_buckets(outputs, segments)


def fused_attention(
    query: Float[Tensor, "sequences heads width head_dim"],
    key: Float[Tensor, "sequences heads width head_dim"],
    value: Float[Tensor, "sequences heads width value_dim"],
    mask: Bool[Tensor, "sequences 1 1 width"] | None,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Float[Tensor, "sequences heads width value_dim"]:
    """SDPA without cuDNN, which plans for tenths of a second at every new shape: here every batch has new ones."""
    with sdpa_kernel(_STEADY) if query.is_cuda else nullcontext():
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, scale=scale)


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, scale: float) -> Tensor:
    """SDPA; with dropout on a CPU it has no fused kernel, and its fallback passes over the scores more often."""
    if dropout == 0 or query.is_cuda:
        return fused_attention(query, key, value, mask, dropout, scale)
    scores = (query * scale) @ key.transpose(2, 3)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return F.dropout(scores.softmax(-1), dropout) @ value


def _varlen_fits(query: Tensor, value: Tensor, dropout: float) -> bool:
    half = query.dtype in (torch.bfloat16, torch.float16)
    same = query.shape[2] == value.shape[2] and query.shape[2] % 8 == 0 and query.shape[2] <= 256
    return query.is_cuda and half and same and dropout == 0


def _varlen(query: Tensor, key: Tensor, value: Tensor, segments: Segments) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    offsets, longest = segments.offsets.int(), segments.max_length
    output = varlen_attn(query.contiguous(), key.contiguous(), value.contiguous(), offsets, offsets, longest, longest)
    assert isinstance(output, Tensor)
    return output
