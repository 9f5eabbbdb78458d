"""Multi-head self-attention with its projections; softmax or FAVOR+ behind the same weights."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tokengt.attention.favor import default_num_features, draw_projection, favor_attention
from tokengt.attention.kernels import Plan, keep_plan, kernel_plan, kernels_fit, packed_favor, planned_attention
from tokengt.attention.softmax import Backend, attention_weights, softmax_attention
from tokengt.ragged import Segments
from tokengt.tracing import eager_only


@dataclass(frozen=True)
class AttentionConfig:
    """How scores become weights.

    Args:
        kind: "softmax" (exact) or "favor" (FAVOR+, linear in tokens).
        dropout: probability of dropping an attention weight in training (softmax only: FAVOR+ has none).
        num_features: random features of FAVOR+; None for int(d_H ln d_H).
        redraw_interval: training forwards between new draws of the features; None keeps the first draw.
        eps: added to every FAVOR+ feature.
        backend: which implementation; "auto" picks the fastest that applies. On a GPU that is "triton", our own
            kernels, for softmax over sequences of up to some 512 tokens and FAVOR+ from 1,024 on; PyTorch's elsewhere.
    """

    kind: Literal["softmax", "favor"] = "softmax"
    dropout: float = 0.0
    num_features: int | None = None
    redraw_interval: int | None = 100
    eps: float = 1e-4
    backend: Backend = "auto"

    def __post_init__(self) -> None:
        if self.kind not in ("softmax", "favor"):
            raise ValueError(f"attention kind is {self.kind!r}; expected 'softmax' or 'favor'")
        if self.backend not in get_args(Backend):
            raise ValueError(f"attention backend is {self.backend!r}; expected one of {', '.join(get_args(Backend))}")
        for name in ("num_features", "redraw_interval"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; expected at least 1, or None")
        if self.eps < 0:
            raise ValueError(f"eps is {self.eps}; expected 0 or more")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"attention dropout is {self.dropout}; expected 0 or more and below 1")


class MultiheadAttention(nn.Module):
    r"""MSA(X)_i = sum_h sum_j alpha^h_ij X_j w^V_h w^O_h (the paper's Eq. for multi-head self-attention).

    Head and value widths are free of ``dim / num_heads``. All projections carry biases; the proofs need those of
    query and key.

    Shapes: [tokens, dim] -> [tokens, dim].
    """

    projection: Tensor | None
    draw_age: Tensor | None

    def __init__(self, dim: int, num_heads: int, head_dim: int, value_dim: int, config: AttentionConfig) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.value_dim = num_heads, head_dim, value_dim
        self.qkv_proj = nn.Linear(dim, num_heads * (2 * head_dim + value_dim))
        self.out_proj = nn.Linear(num_heads * value_dim, dim)
        self.configure(config)
        self.register_load_state_dict_post_hook(_forget_age)  # type: ignore[no-untyped-call]

    def configure(self, config: AttentionConfig) -> None:
        """Switch the kernel under the same weights; FAVOR+ draws its features here."""
        self.config = config
        self._age: int | None = None
        projection = age = None
        if config.kind == "favor":
            features = config.num_features or default_num_features(self.head_dim)
            weight = self.out_proj.weight
            projection = draw_projection(features, self.head_dim, device=weight.device).to(weight.dtype)
            age = torch.zeros((), dtype=torch.int64, device=weight.device)
        self.register_buffer("projection", projection)
        self.register_buffer("draw_age", age)

    def forward(
        self, x: Float[Tensor, "tokens dim"], segments: Segments, rows: Int[Tensor, " rows"] | None = None
    ) -> Float[Tensor, "_ dim"]:
        """What every row attends to, or only those at ``rows``."""
        out: Tensor = self.out_proj(self.heads(self.qkv_proj(x), segments, rows))
        return out

    def heads(
        self,
        qkv: Float[Tensor, "tokens width"],
        segments: Segments,
        rows: Int[Tensor, " rows"] | None = None,
    ) -> Float[Tensor, "_ values"]:
        """All heads side by side, before ``out_proj``, from what ``qkv_proj`` has made of every row."""
        attended = self._attend(qkv, segments).flatten(1)
        return attended if rows is None else attended.index_select(0, rows)

    def prepare(self, segments: Segments) -> Plan | None:
        """Decide how to attend to these sequences: a compiled :meth:`forward` would stop to decide.

        The plan of our own kernels, or None where they are not used.
        """
        return self._plan(segments, self._dtype(segments))

    @property
    def may_use_kernels(self) -> bool:
        """Whether :meth:`prepare` may find a plan of our own kernels for any sequences at all."""
        fits = kernels_fit(self.qkv_proj.weight.dtype, self.head_dim, self.value_dim)
        return self.projection is None and fits and self.config.backend in ("auto", "triton")

    def use_plan(self, segments: Segments, plan: Plan) -> None:
        """Attend to these sequences by this plan from now on."""
        dtype, backend = self._dtype(segments), self.config.backend
        keep_plan(segments, plan, backend, dtype=dtype, head_dim=self.head_dim, value_dim=self.value_dim)

    def _dtype(self, segments: Segments) -> torch.dtype:
        """Of the projected rows."""
        device = segments.offsets.device.type
        mixed = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        return torch.get_autocast_dtype(device) if mixed else self.qkv_proj.weight.dtype

    def _plan(self, segments: Segments, dtype: torch.dtype) -> Plan | None:
        if self.projection is not None:
            return None
        backend = self.config.backend
        return kernel_plan(segments, backend, dtype=dtype, head_dim=self.head_dim, value_dim=self.value_dim)

    def _attend(self, qkv: Tensor, segments: Segments) -> Tensor:
        dropout = self.config.dropout if self.training else 0.0
        plan = self._plan(segments, qkv.dtype)
        if plan is not None:
            # These kernels read the layer's rows as they are, and write one gradient for them.
            heads, width, value_dim = self.num_heads, self.head_dim, self.value_dim
            return planned_attention(qkv, plan, num_heads=heads, head_dim=width, value_dim=value_dim, dropout=dropout)
        if self.projection is None:
            return softmax_attention(*self._split(qkv), segments, dropout=dropout, backend=self.config.backend)
        self._redraw_when_due()
        out = packed_favor(
            qkv,
            segments,
            self.projection,
            num_heads=self.num_heads,
            value_dim=self.value_dim,
            eps=self.config.eps,
            backend=self.config.backend,
        )
        if out is not None:
            return out
        return favor_attention(*self._split(qkv), segments, projection=self.projection, eps=self.config.eps)

    def attention_weights(self, x: Float[Tensor, "tokens dim"], segments: Segments) -> list[Float[Tensor, "heads _ _"]]:
        """The softmax weights alpha^h of every sequence (for FAVOR+: those it approximates)."""
        query, key, _ = self._split(self.qkv_proj(x))
        return attention_weights(query, key, segments)

    def _split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of every head."""
        widths = [self.num_heads * w for w in (self.head_dim, self.head_dim, self.value_dim)]
        query, key, value = torch.split(qkv, widths, dim=1)
        rows, heads = len(qkv), self.num_heads
        return (
            query.view(rows, heads, self.head_dim),
            key.view(rows, heads, self.head_dim),
            value.view(rows, heads, self.value_dim),
        )

    @eager_only
    def _redraw_when_due(self) -> None:
        """Count training forwards; the count is a buffer, so that a resumed run redraws at the same step."""
        interval = self.config.redraw_interval
        if not self.training or interval is None or self.projection is None or self.draw_age is None:
            return
        if self._age is None:
            self._age = int(self.draw_age)
        if self._age >= interval:
            # Not in place: the last step's backward may still need the old values.
            fresh = draw_projection(len(self.projection), self.head_dim, device=self.projection.device)
            self.projection = fresh.to(self.projection.dtype)
            self._age = 0
        self._age += 1
        self.draw_age.fill_(self._age)


def _forget_age(module: nn.Module, _: object) -> None:
    """A loaded state brings its own count."""
    assert isinstance(module, MultiheadAttention)
    module._age = None
