"""One block of the Transformer: PreLN attention and MLP over packed sequences of tokens."""

from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from tokengt.attention import AttentionConfig, AttentionPlan, MultiheadAttention, SoftmaxConfig
from tokengt.dropout import Dropout
from tokengt.ragged import Segments
from tokengt.recomputing import recomputed

BasisScale = Literal["sum", "mean"]
Incidence = Literal["never", "alternate", "most"]


@dataclass(frozen=True)
class EncoderConfig:
    """Depth, width and regularisers of the encoder.

    Args:
        num_layers: number of blocks, the paper's T.
        num_heads: heads per block, H.
        head_dim: width of a head's queries and keys, d_H; None for dim / num_heads.
        value_dim: width of a head's values, d_v; None for head_dim.
        mlp_dim: hidden width of the MLP, d_F; None for 4 dim.
        attention: the kind of attention, with its own settings.
        mlp_dropout: dropout after the MLP's activation.
        residual_dropout: dropout on what each branch (attention, MLP) adds.
        input_dropout: dropout on the tokens before the first block.
        drop_path: stochastic depth of the last block; block l drops what a branch adds to a sequence with rate
            ``drop_path * (l + 1) / num_layers``.
        input_norm: LayerNorm on the tokens before the first block.
        final_norm: LayerNorm after the last block.
        norm: LayerNorm before each branch; the paper's proofs have none.
        activation: activation of the MLP.
        sparse_basis_residual: after each block, every row adds the rows linked to it (the sparse equivariant basis).
        sparse_basis_scale: "sum" adds all of them up, as the paper's equation does; "mean" adds their mean, as a head
            of attention would that shows this basis, whose rows sum to one. A sum of many rows drowns the row that it
            is added to.
        incidence: "alternate" masks the first block, the third, and so on, "most" all but every fourth: there a token
            attends only to tokens that share a mark with it, and to those without marks, which attend to all. TokenGT
            gives every token its two endpoints as marks, and special tokens none. "never" masks no block.
    """

    num_layers: int = 4
    num_heads: int = 8
    head_dim: int | None = None
    value_dim: int | None = None
    mlp_dim: int | None = None
    attention: AttentionConfig = field(default_factory=SoftmaxConfig)
    mlp_dropout: float = 0.0
    residual_dropout: float = 0.0
    input_dropout: float = 0.0
    drop_path: float = 0.0
    input_norm: bool = False
    final_norm: bool = True
    norm: bool = True
    activation: Literal["gelu", "relu"] = "gelu"
    sparse_basis_residual: bool = False
    incidence: Incidence = field(default="never", metadata={"late": True})
    sparse_basis_scale: BasisScale = field(default="sum", metadata={"late": True})

    def __post_init__(self) -> None:
        if self.num_layers < 0 or self.num_heads < 1:
            raise ValueError(
                f"num_layers is {self.num_layers} and num_heads {self.num_heads}; expected at least 0 and 1"
            )
        for name in ("head_dim", "value_dim", "mlp_dim"):
            width = getattr(self, name)
            if width is not None and width < 1:
                raise ValueError(f"{name} is {width}; expected at least 1, or None")
        for name in ("mlp_dropout", "residual_dropout", "input_dropout", "drop_path"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 0 or more and below 1")
        if self.activation not in ("gelu", "relu"):
            raise ValueError(f"activation is {self.activation!r}; expected 'gelu' or 'relu'")
        if self.sparse_basis_scale not in get_args(BasisScale):
            raise ValueError(f"sparse_basis_scale is {self.sparse_basis_scale!r}; expected 'sum' or 'mean'")
        if self.incidence not in get_args(Incidence):
            raise ValueError(f"incidence is {self.incidence!r}; expected 'never', 'alternate' or 'most'")

    def head_widths(self, dim: int) -> tuple[int, int]:
        """d_H and d_v at this width."""
        if self.head_dim is None and dim % self.num_heads:
            raise ValueError(f"dim {dim} is no multiple of num_heads {self.num_heads}; set head_dim")
        head_dim = self.head_dim or dim // self.num_heads
        return head_dim, self.value_dim or head_dim

    def masks(self, layer: int) -> bool:
        """Whether the block of this number, counted from 0, is masked."""
        return {"never": False, "alternate": layer % 2 == 0, "most": layer % 4 != 3}[self.incidence]

    def activation_bytes(self, dim: int, itemsize: int) -> int:
        """About how many bytes per token training keeps of all blocks, where products are ``itemsize`` bytes wide.

        Per block: the two rows that norms read, in full precision; what products and activations read (two normed rows,
        queries, keys and values, what was attended to, the MLP's hidden row twice); and the masks of dropout.
        """
        key, value = self.head_widths(dim)
        hidden = self.mlp_dim or 4 * dim
        read = 2 * dim + self.num_heads * (2 * key + 2 * value) + 2 * hidden
        masks = 2 * dim * (self.residual_dropout > 0) + hidden * (self.mlp_dropout > 0)
        return self.num_layers * (8 * dim + itemsize * (read + masks))


def path_factor(
    segments: Segments, rate: float | Float[Tensor, ""], dtype: torch.dtype = torch.float32
) -> Float[Tensor, " sequences"]:
    """0 for the sequences that drop path drops, 1 / (1 - rate) for the rest."""
    keep = torch.rand(segments.count, device=segments.offsets.device) >= rate
    return keep.to(dtype) / (1 - rate)


def drop_path(
    x: Float[Tensor, "rows dim"],
    segments: Segments,
    rate: float | Float[Tensor, ""],
    rows: Int[Tensor, " rows"] | None = None,
) -> Float[Tensor, "rows dim"]:
    """Drop whole sequences' rows with probability ``rate`` and rescale the rest (stochastic depth).

    ``rows`` says which of the sequences' rows ``x`` holds; None for all.
    """
    ids = segments.ids if rows is None else segments.ids.index_select(0, rows)
    return x * path_factor(segments, rate, x.dtype).index_select(0, ids)[:, None]


class Mlp(nn.Module):
    """Two linear layers with the activation between them, token by token."""

    def __init__(self, dim: int, config: EncoderConfig) -> None:
        super().__init__()
        hidden = config.mlp_dim or 4 * dim
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)
        self.activation = F.gelu if config.activation == "gelu" else F.relu
        self.dropout = Dropout(config.mlp_dropout)

    def forward(self, x: Float[Tensor, "tokens dim"]) -> Float[Tensor, "tokens dim"]:
        out: Tensor = self.down(self.dropout(self.activation(self.up(x))))
        return out


class Block(nn.Module):
    """H = X + MSA(norm(X)), then H + MLP(norm(H)).

    ``recompute``: what is inside either of the two is computed again for the gradient, and not kept.
    """

    drop_rate: Tensor

    def __init__(self, dim: int, config: EncoderConfig, drop_rate: float, *, masked: bool = False) -> None:
        super().__init__()
        head_dim, value_dim = config.head_widths(dim)
        self.attention_norm = nn.LayerNorm(dim) if config.norm else nn.Identity()
        self.attention = MultiheadAttention(dim, config.num_heads, head_dim, value_dim, config.attention, masked=masked)
        self.mlp_norm = nn.LayerNorm(dim) if config.norm else nn.Identity()
        self.mlp = Mlp(dim, config)
        self.dropout = Dropout(config.residual_dropout)
        self.drops = drop_rate > 0
        self.recompute = False
        # The rate is a tensor, so that blocks differ in their tensors alone and code generated for one serves them all.
        self.register_buffer("drop_rate", torch.tensor(drop_rate), persistent=False)

    def forward(
        self, x: Float[Tensor, "tokens dim"], plan: AttentionPlan, rows: Int[Tensor, " rows"] | None = None
    ) -> Float[Tensor, "_ dim"]:
        """All rows, or only those at ``rows``: these attend to all tokens, and the other rows are not computed."""
        h = recomputed(self.attend, x, plan, rows, on=self.recompute)
        return recomputed(self.transform, h, plan, rows, on=self.recompute)

    def attend(
        self, x: Float[Tensor, "tokens dim"], plan: AttentionPlan, rows: Int[Tensor, " rows"] | None
    ) -> Float[Tensor, "_ dim"]:
        """H = X + MSA(norm(X))."""
        attended = self.attention(self.attention_norm(x), plan, rows)
        return (x if rows is None else x.index_select(0, rows)) + self.dropped(attended, plan.segments, rows)

    def transform(
        self, h: Float[Tensor, "rows dim"], plan: AttentionPlan, rows: Int[Tensor, " rows"] | None
    ) -> Float[Tensor, "rows dim"]:
        """H + MLP(norm(H))."""
        return h + self.dropped(self.mlp(self.mlp_norm(h)), plan.segments, rows)

    def dropped(
        self, branch: Float[Tensor, "rows dim"], segments: Segments, rows: Int[Tensor, " rows"] | None
    ) -> Float[Tensor, "rows dim"]:
        """What a branch adds to the residual stream: in training, after dropout and drop path."""
        branch = self.dropout(branch)
        return drop_path(branch, segments, self.drop_rate, rows) if self.training and self.drops else branch
