"""Multi-head self-attention: projections, and between them a kernel of one kind or another."""

import re

import torch
from jaxtyping import Float, Int, Int32
from torch import Tensor, nn

from tokengt.attention.elu import EluAttention, EluConfig
from tokengt.attention.favor import FavorAttention, FavorConfig
from tokengt.attention.limits import refuse_large_maps
from tokengt.attention.marks import may_attend
from tokengt.attention.plan import AttentionPlan
from tokengt.attention.softmax import SoftmaxAttention, SoftmaxConfig
from tokengt.kernels.heads import Heads
from tokengt.ragged import Segments
from tokengt.tracing import eager_only

# A kind of attention is a config that builds its kernel, and a kernel that plans for sequences and attends to them.
AttentionConfig = SoftmaxConfig | FavorConfig | EluConfig


class MultiheadAttention(nn.Module):
    r"""MSA(X)_i = sum_h sum_j alpha^h_ij X_j w^V_h w^O_h (the paper's Eq. for multi-head self-attention).

    Head and value widths are free of ``dim / num_heads``. All projections carry biases; the proofs need those of
    query and key. A ``masked`` one attends only between rows that share a mark (:mod:`tokengt.attention.marks`).

    Shapes: [tokens, dim] -> [tokens, dim].
    """

    kernel: SoftmaxAttention | FavorAttention | EluAttention

    def __init__(
        self,
        dim: int,
        num_heads: int,
        head_dim: int,
        value_dim: int,
        config: AttentionConfig,
        *,
        masked: bool = False,
    ) -> None:
        super().__init__()
        self.masked = masked
        self.heads = Heads(num_heads, head_dim, value_dim)
        self.qkv_proj = nn.Linear(dim, self.heads.width)
        self.out_proj = nn.Linear(num_heads * value_dim, dim)
        self.configure(config)

    def configure(self, config: AttentionConfig) -> None:
        """Switch the kernel under the same weights; FAVOR+ draws its features here."""
        if self.masked and not (isinstance(config, SoftmaxConfig) and config.backend != "varlen"):
            kind = config.kind if not isinstance(config, SoftmaxConfig) else f"softmax, backend {config.backend!r},"
            raise ValueError(f"attention {kind} cannot be masked; set encoder.incidence to 'never'")
        weight = self.out_proj.weight
        self.kernel = config.build(self.heads, weight.device, weight.dtype).train(self.training)

    @eager_only
    def plan(self, segments: Segments, marks: Int32[Tensor, "tokens 2"] | None = None) -> AttentionPlan:
        """How to attend to these sequences, for all layers that are made alike, masked ones by ``marks``.

        Call it under the same autocast as the forward: which kernels apply depends on the type of the rows.
        """
        _ = segments.ids  # Computed and cached here, because compiled layers would have to stop to compute it.
        device = segments.offsets.device.type
        mixed = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if mixed else self.qkv_proj.weight.dtype
        if isinstance(self.kernel, SoftmaxAttention):
            return self.kernel.plan(segments, dtype, marks)
        return self.kernel.plan(segments, dtype)

    def forward(
        self,
        x: Float[Tensor, "tokens dim"],
        sequences: Segments | AttentionPlan,
        rows: Int[Tensor, " rows"] | None = None,
    ) -> Float[Tensor, "_ dim"]:
        """What every row attends to, or only those at ``rows``."""
        plan = sequences if isinstance(sequences, AttentionPlan) else self.plan(sequences)
        out: Tensor = self.out_proj(self.attend(self.qkv_proj(x), plan, rows))
        return out

    def attend(
        self,
        qkv: Float[Tensor, "tokens width"],
        plan: AttentionPlan,
        rows: Int[Tensor, " rows"] | None = None,
    ) -> Float[Tensor, "_ values"]:
        """All heads side by side, before ``out_proj``, from what ``qkv_proj`` has made of every row."""
        plan = self._own(plan)
        if plan.dtype is not None and plan.dtype != qkv.dtype:
            raise ValueError(
                f"the plan was made for {plan.dtype} and the rows are {qkv.dtype}; plan under one autocast"
            )
        attended: Tensor = self.kernel(qkv, plan).flatten(1)
        return attended if rows is None else attended.index_select(0, rows)

    def _own(self, plan: AttentionPlan) -> AttentionPlan:
        """The plan of masked layers for a masked one."""
        if not self.masked:
            return plan
        if plan.masked is None:
            raise ValueError("masked attention needs the marks of every row; give it a plan that was made with them")
        return plan.masked

    def attention_weights(
        self, x: Float[Tensor, "tokens dim"], sequences: Segments | AttentionPlan
    ) -> list[Float[Tensor, "heads _ _"]]:
        """The weights alpha^h of every sequence (for FAVOR+: those of softmax, which it approximates)."""
        plan = self._own(sequences if isinstance(sequences, AttentionPlan) else AttentionPlan(sequences))
        segments = plan.segments
        query, key, _ = self.heads.split(self.qkv_proj(x))
        refuse_large_maps(segments, query.shape[1], query.element_size())
        bounds, maps = segments.host.tolist(), []
        for rows in map(slice, bounds[:-1], bounds[1:]):
            one, other = (each[rows].transpose(0, 1)[None] for each in (query, key))
            mask = None if plan.marks is None else may_attend(plan.marks[rows])[None]
            maps.append(self.kernel.weights(one, other, mask)[0])
        return maps


def rename_old_keys(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A state dict with today's names: in files of format 1 FAVOR+'s tensors lie beside the projections."""
    return {
        re.sub(r"\battention\.(projection|draw_age)$", r"attention.kernel.\1", name): x for name, x in state.items()
    }
