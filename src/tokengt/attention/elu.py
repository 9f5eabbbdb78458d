"""Linear attention with the feature map elu + 1 (Katharopoulos et al. 2020): no random numbers, work linear in tokens.

    output_i = phi(q_i) (sum_j phi(k_j) v_j^T) / phi(q_i) (sum_j phi(k_j)),   phi(x) = elu(x) + 1,

the paper's Eq. for kernel attention, as in FAVOR+ but with as many features as a head is wide. Every feature is
positive, so that an output is a weighted mean of values. The weights are not those of softmax, nor near them.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from tokengt.attention.plan import AttentionPlan
from tokengt.kernels.heads import Heads
from tokengt.ragged import Segments, into_buckets, out_of_buckets
from tokengt.tracing import eager_only


def elu_features(x: Float[Tensor, "*rows head_dim"], eps: float) -> Float[Tensor, "*rows head_dim"]:
    """phi(x) = elu(x) + 1, plus ``eps``: above 0 everywhere."""
    # elu(x) + 1 as it is written would round exp(x) away beside the 1 that elu subtracts and this adds again.
    return x.clamp(max=0).exp() + x.relu() + eps


@eager_only
def elu_attention(
    query: Float[Tensor, "tokens heads head_dim"],
    key: Float[Tensor, "tokens heads head_dim"],
    value: Float[Tensor, "tokens heads value_dim"],
    segments: Segments,
    *,
    eps: float = 1e-6,
) -> Float[Tensor, "tokens heads value_dim"]:
    """Linear attention of every sequence to itself; sums are made in float32 at least, whatever the inputs are.

    Features take no more memory than queries and keys themselves, so that many tokens need no chunks.
    """
    if not segments.total:
        return value
    wide = torch.promote_types(value.dtype, torch.float32)
    outputs = []
    # Under autocast the products would be made in half precision, in which a sum over many tokens has no digits left.
    with torch.autocast(query.device.type, enabled=False):
        parts = (into_buckets(x.to(wide), segments) for x in (query, key, value))
        for bucket, *qkv in zip(segments.buckets, *parts, strict=True):
            q, k, v = (x.transpose(1, 2) for x in qkv)
            outputs.append(_attend(q, k, v, eps, bucket.mask).transpose(1, 2))
    return out_of_buckets(outputs, segments).to(value.dtype)


def _attend(query: Tensor, key: Tensor, value: Tensor, eps: float, mask: Tensor | None) -> Tensor:
    """phi(Q) (phi(K)^T V), row by row over phi(Q) (phi(K)^T 1): [sequences, heads, width, value_dim]."""
    phi_q, phi_k = elu_features(query, eps), elu_features(key, eps)
    if mask is not None:
        phi_k = phi_k * mask[:, None, :, None]
    return phi_q @ (phi_k.transpose(2, 3) @ value) / (phi_q @ phi_k.sum(2)[..., None])


@dataclass(frozen=True)
class EluConfig:
    """Linear attention with elu + 1 as its features. It writes no attention weights, so there is no dropout of them.

    Args:
        kind: says which attention this is where configs become JSON.
        eps: added to every feature, against a division by zero where all of them are far below it.
    """

    kind: Literal["elu"] = field(default="elu", init=False)
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if not self.eps >= 0:
            raise ValueError(f"eps is {self.eps}; expected 0 or more")

    def build(self, heads: Heads, device: torch.device, dtype: torch.dtype) -> "EluAttention":
        """The kernel that this describes. It holds no tensors, so that device and type do not matter to it."""
        return EluAttention(self, heads)


class EluAttention(nn.Module):
    """:func:`elu_attention` of rows [queries | keys | values]."""

    def __init__(self, config: EluConfig, heads: Heads) -> None:
        super().__init__()
        self.config, self.heads = config, heads

    def plan(self, segments: Segments, dtype: torch.dtype) -> AttentionPlan:
        """PyTorch attends: there are no kernels of our own to choose from."""
        return AttentionPlan(segments)

    def forward(
        self, qkv: Float[Tensor, "tokens width"], plan: AttentionPlan
    ) -> Float[Tensor, "tokens heads value_dim"]:
        query, key, value = self.heads.split(qkv)
        return elu_attention(query, key, value, plan.segments, eps=self.config.eps)

    def weights(
        self,
        query: Float[Tensor, "sequences heads width head_dim"],
        key: Float[Tensor, "sequences heads width head_dim"],
        mask: Bool[Tensor, "sequences _ width"] | None = None,
    ) -> Float[Tensor, "sequences heads width width"]:
        """phi(Q) phi(K)^T, each row divided by its sum: what :meth:`forward` weighs values with, written out."""
        scores = elu_features(query, self.config.eps) @ elu_features(key, self.config.eps).transpose(2, 3)
        scores = scores if mask is None else scores * mask[:, None]
        return scores / scores.sum(-1, keepdim=True)
