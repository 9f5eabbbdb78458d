"""FAVOR+: softmax attention through positive orthogonal random features, linear in tokens.

exp(q.k) = E[phi(q).phi(k)] / m with phi(x) = exp(W x - |x|^2 / 2), the m rows of W Gaussian in direction and length
but orthogonal to each other (Choromanski et al. 2021). Then

    output_i = phi(q_i) (sum_j phi(k_j) v_j^T) / phi(q_i) (sum_j phi(k_j)),

the paper's Eq. for kernel attention: one matrix product per sequence instead of a length x length table.
"""

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from tokengt.attention.favor_chunks import chunked_attention, default_chunk_entries
from tokengt.attention.plan import AttentionPlan, FavorBackend, plan_favor
from tokengt.attention.softmax import softmax_weights
from tokengt.kernels.attend import cut_favor
from tokengt.kernels.heads import Heads
from tokengt.ragged import Segments, into_buckets, out_of_buckets
from tokengt.recomputing import is_again
from tokengt.tracing import eager_only

# A GPU takes sequences of at least this many tokens in chunks, however few of them there are.
_LONG = 1024


def default_num_features(head_dim: int) -> int:
    """int(d ln d), as the authors' code has it."""
    return max(1, int(head_dim * math.log(head_dim)))


def draw_projection(
    num_features: int,
    head_dim: int,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> Float[Tensor, "features head_dim"]:
    """Rows with Gaussian lengths and Haar directions, orthogonal within each block of ``head_dim`` rows."""
    blocks = math.ceil(num_features / head_dim)
    source = None if generator is None else generator.device
    gaussian = torch.randn(blocks, head_dim, head_dim, generator=generator, device=source, dtype=torch.float64)
    lengths = torch.randn(num_features, head_dim, generator=generator, device=source, dtype=torch.float64).norm(dim=1)
    q, r = torch.linalg.qr(gaussian)
    # QR leaves the signs of its columns open. They are made those of a positive diagonal, because otherwise the
    # directions would not be Haar distributed (uniform over all rotations).
    directions = q * r.diagonal(dim1=1, dim2=2).sign()[:, None, :]
    rows: Tensor = directions.transpose(1, 2).flatten(0, 1)[:num_features] * lengths[:, None]
    return rows.to(device=device, dtype=torch.get_default_dtype())


@eager_only
def favor_attention(
    query: Float[Tensor, "tokens heads head_dim"],
    key: Float[Tensor, "tokens heads head_dim"],
    value: Float[Tensor, "tokens heads value_dim"],
    segments: Segments,
    *,
    projection: Float[Tensor, "features head_dim"],
    eps: float = 1e-4,
) -> Float[Tensor, "tokens heads value_dim"]:
    """Linear attention of every sequence to itself; the key stabiliser is per sequence and head.

    There are no attention weights to drop, so attention dropout does not apply here. Many tokens are taken one
    chunk at a time. On a GPU multi-head attention takes long sequences by kernels of our own, which want queries, keys
    and values as one linear layer writes them.
    """
    if not segments.total:
        return value
    outputs = []
    parts = (into_buckets(x, segments) for x in (query, key, value))
    for bucket, *qkv in zip(segments.buckets, *parts, strict=True):
        q, k, v = (x.transpose(1, 2) for x in qkv)
        many = q.shape[:3].numel() * len(projection) > default_chunk_entries(q)
        # On a GPU in bfloat16, chunks are five times as exact, and long sequences are faster in them.
        many = many or (q.is_cuda and q.shape[2] >= _LONG)
        # A projection that is trained needs the plain formula: chunks have no gradient for it.
        if many and not projection.requires_grad:
            output = chunked_attention(q, k, v, projection, eps, bucket.mask)
        else:
            output = _attend(q, k, v, projection.to(q.dtype), eps, bucket.mask)
        outputs.append(output.transpose(1, 2))
    return out_of_buckets(outputs, segments)


def _attend(query: Tensor, key: Tensor, value: Tensor, projection: Tensor, eps: float, mask: Tensor | None) -> Tensor:
    """phi(Q) (phi(K)^T V), row by row over phi(Q) (phi(K)^T 1): [sequences, heads, width, value_dim]."""
    phi_q, phi_k = query_features(query, projection, eps), key_features(key, projection, eps, mask)
    normaliser = phi_q @ phi_k.sum(2)[..., None]
    return phi_q @ (phi_k.transpose(2, 3) @ value) / normaliser


def query_features(
    query: Float[Tensor, "sequences heads width head_dim"],
    projection: Float[Tensor, "features head_dim"],
    eps: float,
) -> Float[Tensor, "sequences heads width features"]:
    """phi(q), each row divided by its largest factor: a per-row constant that the normaliser cancels."""
    projected, half_norm = _exponents(query, projection)
    stabiliser = projected.detach().amax(-1, keepdim=True)
    return torch.exp(projected - (half_norm + stabiliser)) + eps


def key_features(
    key: Float[Tensor, "sequences heads width head_dim"],
    projection: Float[Tensor, "features head_dim"],
    eps: float,
    mask: Bool[Tensor, "sequences width"] | None,
) -> Float[Tensor, "sequences heads width features"]:
    """phi(k), divided by the largest factor of the sequence and head; padding gives zero rows."""
    projected, half_norm = _exponents(key, projection)
    if mask is None:
        stabiliser = projected.detach().amax((-2, -1), keepdim=True)
        return torch.exp(projected - (half_norm + stabiliser)) + eps
    inside = mask[:, None, :, None]
    stabiliser = projected.detach().masked_fill(~inside, -torch.inf).amax((-2, -1), keepdim=True)
    # Padding repeats a real row of the sequence, so its exponent cannot overflow before the mask makes it zero.
    return (torch.exp(projected - (half_norm + stabiliser)) + eps) * inside


def _exponents(x: Tensor, projection: Tensor) -> tuple[Tensor, Tensor]:
    """W x and |x|^2 / 2, with the softmax temperature 1/sqrt(d_H) split evenly between query and key."""
    scaled = x * x.shape[-1] ** -0.25
    return scaled @ projection.T, scaled.square().sum(-1, keepdim=True) / 2


@dataclass(frozen=True)
class FavorConfig:
    """FAVOR+ attention. It has no attention weights, so that there is no dropout of them.

    Args:
        kind: says which attention this is where configs become JSON.
        num_features: m, the number of random features; None for int(d_H ln d_H).
        redraw_interval: training forwards between new draws of the features; None keeps the first draw.
        eps: added to every feature.
        backend: "bucketed" is plain PyTorch; "triton", our own kernels, is taken where it applies, which on a GPU is
            from 1,024 tokens per sequence on; "auto" is the same.
    """

    kind: Literal["favor"] = field(default="favor", init=False)
    num_features: int | None = None
    redraw_interval: int | None = 100
    eps: float = 1e-4
    backend: FavorBackend = "auto"

    def __post_init__(self) -> None:
        for name in ("num_features", "redraw_interval"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; expected at least 1, or None")
        if self.eps < 0:
            raise ValueError(f"eps is {self.eps}; expected 0 or more")
        if self.backend not in get_args(FavorBackend):
            allowed = ", ".join(get_args(FavorBackend))
            raise ValueError(f"attention backend is {self.backend!r}; expected one of {allowed}")

    def build(self, heads: Heads, device: torch.device, dtype: torch.dtype) -> "FavorAttention":
        """The kernel that this describes, with features drawn now."""
        features = self.num_features or default_num_features(heads.key)
        return FavorAttention(self, heads, draw_projection(features, heads.key, device=device).to(dtype))


class FavorAttention(nn.Module):
    """:func:`favor_attention` of rows [queries | keys | values]; its features are drawn anew now and then in training.

    ``draw_age`` counts the training forwards since the last draw. It is a buffer, so that a resumed run draws at the
    same step as an unbroken one.
    """

    projection: Tensor
    draw_age: Tensor

    def __init__(self, config: FavorConfig, heads: Heads, projection: Float[Tensor, "features head_dim"]) -> None:
        super().__init__()
        self.config, self.heads = config, heads
        self.register_buffer("projection", projection)
        self.register_buffer("draw_age", torch.zeros((), dtype=torch.int64, device=projection.device))
        # The same count as a plain number, because reading the buffer in every forward would make the host wait for a
        # GPU. None: the buffer has to be read first.
        self._age: int | None = 0
        self._drew = False
        self.register_load_state_dict_post_hook(_forget_age)  # type: ignore[no-untyped-call]

    def plan(self, segments: Segments, dtype: torch.dtype) -> AttentionPlan:
        """How rows of this type will be attended to."""
        return plan_favor(segments, self.heads, dtype, self.config.backend, self.projection)

    def forward(
        self, qkv: Float[Tensor, "tokens width"], plan: AttentionPlan
    ) -> Float[Tensor, "tokens heads value_dim"]:
        self._redraw_when_due()
        if plan.cuts is not None:
            return _by_kernels(qkv, self.projection, plan, self.heads, self.config.eps)
        query, key, value = self.heads.split(qkv)
        return favor_attention(query, key, value, plan.segments, projection=self.projection, eps=self.config.eps)

    def weights(
        self,
        query: Float[Tensor, "sequences heads width head_dim"],
        key: Float[Tensor, "sequences heads width head_dim"],
        mask: Bool[Tensor, "sequences _ width"] | None = None,
    ) -> Float[Tensor, "sequences heads width width"]:
        """The softmax weights that the features approximate; :meth:`forward` computes no weights."""
        return softmax_weights(query, key, mask)

    @eager_only
    def _redraw_when_due(self) -> None:
        interval = self.config.redraw_interval
        if not self.training or interval is None:
            return
        if is_again():
            # A forward that is run again for its gradient sees the features that it saw before, and the random numbers
            # after those that they were drawn with.
            if self._drew:
                draw_projection(len(self.projection), self.heads.key, device=self.projection.device)
            return
        if self._age is None:
            self._age = int(self.draw_age)
        self._drew = self._age >= interval
        if self._drew:
            # A new tensor, because the backward of the last step may still need the values of the old one.
            fresh = draw_projection(len(self.projection), self.heads.key, device=self.projection.device)
            self.projection = fresh.to(self.projection.dtype)
            self._age = 0
        self._age += 1
        self.draw_age.fill_(self._age)


@eager_only
def _by_kernels(qkv: Tensor, projection: Tensor, plan: AttentionPlan, heads: Heads, eps: float) -> Tensor:
    assert plan.cuts is not None
    return cut_favor(qkv, projection, plan.cuts, heads, eps)


def _forget_age(module: nn.Module, _: object) -> None:
    """A loaded state brings its own count."""
    assert isinstance(module, FavorAttention)
    module._age = None
