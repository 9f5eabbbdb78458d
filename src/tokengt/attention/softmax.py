"""Exact softmax attention over packed sequences.

alpha = softmax(Q K^T / sqrt(d_H)), output alpha V, for every sequence by itself. Inputs stay packed (the rows of all
sequences one after another, without padding): on the CPU sequences of similar length share one SDPA call, on a GPU
``varlen_attn`` reads the packed rows as they are. Our own kernels (:mod:`tokengt.kernels`) want queries, keys and
values as one linear layer writes them. Multi-head attention passes them so; :func:`softmax_attention` alone uses these
kernels only when they are asked for by name.
"""

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int32
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tokengt.attention.bucketed import bucketed_attention, takes_bucketed
from tokengt.attention.limits import refuse_large_maps, refuse_large_scores, warn_of_work
from tokengt.attention.plan import AttentionPlan, SoftmaxBackend, plan_softmax, takes_varlen
from tokengt.kernels.attend import tiled_attention
from tokengt.kernels.heads import Heads
from tokengt.ragged import Segments, into_buckets, out_of_buckets
from tokengt.tracing import eager_only

_STEADY = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
# Where scores are written out in training, three matrices are kept for the backward: scores, weights, and the weights
# after dropout.
_TRAINING_COPIES = 3


@eager_only
def softmax_attention(
    query: Float[Tensor, "tokens heads head_dim"],
    key: Float[Tensor, "tokens heads head_dim"],
    value: Float[Tensor, "tokens heads value_dim"],
    segments: Segments,
    *,
    dropout: float = 0.0,
    backend: SoftmaxBackend = "auto",
    masks: tuple[Bool[Tensor, "_ 1 _ _"], ...] | None = None,
) -> Float[Tensor, "tokens heads value_dim"]:
    """Attention of every sequence to itself.

    ``dropout`` zeroes attention weights with that probability (give 0 outside training). On a CPU, and in float64, it
    needs the scores written out, so what is too long for that is refused with a ValueError; elsewhere memory is linear
    in tokens and only the work is quadratic.

    ``masks`` say for every bucket of sequences which rows may attend to which (:func:`tokengt.attention.marks`), and
    leave out padding; None where all may. Of the backends, "bucketed" alone can mask.
    """
    heads = Heads(query.shape[1], query.shape[2], value.shape[2])
    if masks is not None:
        backend = "bucketed"
    if backend == "triton":
        warn_of_work(segments, heads, query.device)
        tiles = plan_softmax(segments, heads, query.dtype, backend).tiles
        assert tiles is not None
        return tiled_attention(torch.cat([x.flatten(1) for x in (query, key, value)], 1), tiles, heads, dropout=dropout)
    # On a GPU, PyTorch has kernels with dropout that write no scores, in all precisions but float64.
    if dropout > 0 and (not query.is_cuda or query.dtype == torch.float64):
        advice = "use attention kind 'favor', which is linear in tokens, or set the attention dropout to 0"
        copies = _TRAINING_COPIES * heads.count
        refuse_large_scores(segments, copies, query.element_size(), "with attention dropout", advice)
    else:
        warn_of_work(segments, heads, query.device)
    if takes_varlen(backend, heads, query.dtype, query.device, dropout):
        return _varlen(query, key, value, segments)
    return _bucketed(query, key, value, segments, dropout, masks)


def attention_weights(
    query: Float[Tensor, "tokens heads head_dim"],
    key: Float[Tensor, "tokens heads head_dim"],
    segments: Segments,
) -> list[Float[Tensor, "heads _ _"]]:
    """The matrices alpha themselves, one [heads, length, length] tensor per sequence."""
    refuse_large_maps(segments, query.shape[1], query.element_size())
    maps = []
    for start, stop in zip(segments.host[:-1].tolist(), segments.host[1:].tolist(), strict=True):
        rows_q, rows_k = query[start:stop].transpose(0, 1), key[start:stop].transpose(0, 1)
        maps.append(softmax_weights(rows_q[None], rows_k[None])[0])
    return maps


def softmax_weights(
    query: Float[Tensor, "sequences heads width head_dim"],
    key: Float[Tensor, "sequences heads width head_dim"],
    mask: Bool[Tensor, "sequences _ width"] | None = None,
) -> Float[Tensor, "sequences heads width width"]:
    """alpha of sequences of one width: no row attends where ``mask`` [sequences, 1 or width, width] is False."""
    scores = query @ key.transpose(2, 3) * query.shape[3] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None], -torch.inf)
    weights: Tensor = scores.softmax(-1)
    return weights


def _bucketed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segments: Segments,
    dropout: float,
    masks: tuple[Tensor, ...] | None,
) -> Tensor:
    scale, width = query.shape[2] ** -0.5, value.shape[2]
    # The kernels of SDPA that write no scores want one width for all three. Columns of zeros change neither the scores
    # nor the values.
    common = max(query.shape[2], width)
    widened = (x if x.shape[2] == common else F.pad(x, (0, common - x.shape[2])) for x in (query, key, value))
    parts = (into_buckets(x, segments) for x in widened)
    outputs = []
    for place, (bucket, *qkv) in enumerate(zip(segments.buckets, *parts, strict=True)):
        mask = None if bucket.mask is None else bucket.mask[:, None, None, :]
        mask = mask if masks is None else masks[place]
        q, k, v = (x.transpose(1, 2) for x in qkv)
        output = _attend(q, k, v, mask, dropout, scale)
        outputs.append(output.transpose(1, 2)[..., :width])
    return out_of_buckets(outputs, segments)


def fused_attention(
    query: Float[Tensor, "sequences heads width head_dim"],
    key: Float[Tensor, "sequences heads width head_dim"],
    value: Float[Tensor, "sequences heads width value_dim"],
    mask: Bool[Tensor, "sequences 1 _ width"] | None,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Float[Tensor, "sequences heads width value_dim"]:
    """SDPA without cuDNN, which plans for tenths of a second at every new shape: here every batch has new ones."""
    with sdpa_kernel(_STEADY) if query.is_cuda else nullcontext():
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, scale=scale)


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, scale: float) -> Tensor:
    """SDPA, except with dropout on a CPU: it has no kernel for that, and its fallback is slower than plain code."""
    if dropout == 0 or query.is_cuda:
        return fused_attention(query, key, value, mask, dropout, scale)
    scores = (query * scale) @ key.transpose(2, 3)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return F.dropout(scores.softmax(-1), dropout) @ value


def _varlen(query: Tensor, key: Tensor, value: Tensor, segments: Segments) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    offsets, longest = segments.offsets.int(), segments.max_length
    output = varlen_attn(query.contiguous(), key.contiguous(), value.contiguous(), offsets, offsets, longest, longest)
    assert isinstance(output, Tensor)
    return output


@dataclass(frozen=True)
class SoftmaxConfig:
    """Exact softmax attention.

    Args:
        kind: says which attention this is where configs become JSON.
        dropout: probability of dropping an attention weight in training.
        backend: which implementation; "auto" picks the fastest that applies. On a GPU that is "triton", our own
            kernels, for sequences of up to some 512 tokens; PyTorch's elsewhere.
    """

    kind: Literal["softmax"] = field(default="softmax", init=False)
    dropout: float = 0.0
    backend: SoftmaxBackend = "auto"

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise ValueError(f"attention dropout is {self.dropout}; expected 0 or more and below 1")
        if self.backend not in get_args(SoftmaxBackend):
            allowed = ", ".join(get_args(SoftmaxBackend))
            raise ValueError(f"attention backend is {self.backend!r}; expected one of {allowed}")

    def build(self, heads: Heads, device: torch.device, dtype: torch.dtype) -> "SoftmaxAttention":
        """The kernel that this describes. It holds no tensors, so that device and type do not matter to it."""
        return SoftmaxAttention(self, heads)


class SoftmaxAttention(nn.Module):
    """:func:`softmax_attention` of rows [queries | keys | values], with dropout in training."""

    def __init__(self, config: SoftmaxConfig, heads: Heads) -> None:
        super().__init__()
        self.config, self.heads = config, heads

    def plan(
        self, segments: Segments, dtype: torch.dtype, marks: Int32[Tensor, "tokens 2"] | None = None
    ) -> AttentionPlan:
        """How rows of this type will be attended to, in masked layers by ``marks``."""
        dropout = self.config.dropout if self.training else 0.0
        return plan_softmax(segments, self.heads, dtype, self.config.backend, dropout, marks)

    def forward(
        self, qkv: Float[Tensor, "tokens width"], plan: AttentionPlan
    ) -> Float[Tensor, "tokens heads value_dim"]:
        dropout = self.config.dropout if self.training else 0.0
        if plan.tiles is not None:
            # These kernels read the rows of the linear layer as they are, and write one gradient for all of them.
            return tiled_attention(qkv, plan.tiles, self.heads, dropout=dropout, marks=plan.marks)
        # A backend that is asked for by name and cannot be used here is refused below.
        if self.config.backend in ("auto", "bucketed") and takes_bucketed(qkv, self.heads, dropout):
            warn_of_work(plan.segments, self.heads, qkv.device)
            out = bucketed_attention(qkv, plan.segments, self.heads, plan.masks)
            return out.view(len(qkv), self.heads.count, self.heads.value)
        query, key, value = self.heads.split(qkv)
        backend, masks = self.config.backend, plan.masks
        return softmax_attention(query, key, value, plan.segments, dropout=dropout, backend=backend, masks=masks)

    def weights(
        self,
        query: Float[Tensor, "sequences heads width head_dim"],
        key: Float[Tensor, "sequences heads width head_dim"],
        mask: Bool[Tensor, "sequences _ width"] | None = None,
    ) -> Float[Tensor, "sequences heads width width"]:
        """:func:`softmax_weights`, without dropout."""
        return softmax_weights(query, key, mask)
