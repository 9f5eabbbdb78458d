"""One block of the Transformer: PreLN attention and MLP over packed sequences of tokens."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from tokengt.attention import AttentionConfig, MultiheadAttention
from tokengt.dropout import Dropout
from tokengt.fused import Branch, activate, add_norm, fits, is_plain, linear
from tokengt.ragged import Segments


@dataclass(frozen=True)
class EncoderConfig:
    """Depth, width and regularisers of the encoder.

    Args:
        num_layers: T.
        num_heads: H.
        head_dim: d_H; None for dim / num_heads.
        value_dim: d_v; None for head_dim.
        mlp_dim: d_F; None for 4 dim.
        attention: the attention kernel and its dropout.
        mlp_dropout: after the activation.
        residual_dropout: on what each branch adds.
        input_dropout: on the tokens before the first block.
        drop_path: stochastic depth of the last block; block l drops a sequence's branch with rate
            ``drop_path * (l + 1) / num_layers``.
        input_norm: LayerNorm on the tokens before the first block.
        final_norm: LayerNorm after the last block.
        norm: LayerNorm before each branch; the paper's proofs have none.
        activation: of the MLP.
        sparse_basis_residual: SEB, after each block: rows add the rows linked to them.
    """

    num_layers: int = 4
    num_heads: int = 8
    head_dim: int | None = None
    value_dim: int | None = None
    mlp_dim: int | None = None
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    mlp_dropout: float = 0.0
    residual_dropout: float = 0.0
    input_dropout: float = 0.0
    drop_path: float = 0.0
    input_norm: bool = False
    final_norm: bool = True
    norm: bool = True
    activation: Literal["gelu", "relu"] = "gelu"
    sparse_basis_residual: bool = False

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

    def head_widths(self, dim: int) -> tuple[int, int]:
        """d_H and d_v at this width."""
        if self.head_dim is None and dim % self.num_heads:
            raise ValueError(f"dim {dim} is no multiple of num_heads {self.num_heads}; set head_dim")
        head_dim = self.head_dim or dim // self.num_heads
        return head_dim, self.value_dim or head_dim


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
    return x * _path_factor(segments, rate, x.dtype).index_select(0, ids)[:, None]


def _path_factor(
    segments: Segments, rate: float | Float[Tensor, ""], dtype: torch.dtype = torch.float32
) -> Float[Tensor, " sequences"]:
    """0 for sequences that are dropped, 1 / (1 - rate) for the rest."""
    keep = torch.rand(segments.count, device=segments.offsets.device) >= rate
    return keep.to(dtype) / (1 - rate)


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
    """H = X + MSA(norm(X)), then H + MLP(norm(H))."""

    drop_rate: Tensor

    def __init__(self, dim: int, config: EncoderConfig, drop_rate: float) -> None:
        super().__init__()
        head_dim, value_dim = config.head_widths(dim)
        self.attention_norm = nn.LayerNorm(dim) if config.norm else nn.Identity()
        self.attention = MultiheadAttention(dim, config.num_heads, head_dim, value_dim, config.attention)
        self.mlp_norm = nn.LayerNorm(dim) if config.norm else nn.Identity()
        self.mlp = Mlp(dim, config)
        self.dropout = Dropout(config.residual_dropout)
        self.drops = drop_rate > 0
        # A tensor, so that one piece of compiled code serves the blocks with their different rates.
        self.register_buffer("drop_rate", torch.tensor(drop_rate), persistent=False)
        self.use_run(Block.run)

    def use_run(self, run: Callable[..., tuple[Tensor, Branch | None, Tensor | None]]) -> None:
        """:meth:`run`, or a compiled one: a function of any block, not bound to this one."""
        self._run = run

    def forward(
        self,
        x: Float[Tensor, "tokens dim"],
        segments: Segments,
        rows: Int[Tensor, " rows"] | None = None,
        pending: Branch | None = None,
        leave: bool = False,
    ) -> Float[Tensor, "_ dim"] | tuple[Float[Tensor, "_ dim"], Branch | None]:
        """All rows, or those at ``rows``: they attend to all, and the others are not worked out.

        ``pending`` is what the block before has left to be added to ``x``. With ``leave`` this one may leave something
        too, which then comes with the rows: adding it and the norm of the next block are one pass over them.
        """
        out, left, _ = self._run(self, x, segments, rows, pending, leave)
        return (out, left) if leave else out

    def run(
        self, x: Tensor, segments: Segments, rows: Tensor | None, pending: Branch | None, leave: bool
    ) -> tuple[Tensor, Branch | None, Tensor | None]:
        """:meth:`forward`, with what is left, or None; and in plain training the H between the halves.

        A compiler keeps for the backward what leaves the function, and would compute H again, which takes longer.
        """
        if self._fuses(x):
            return *self._run_fused(x, segments, rows, pending, leave), None
        if pending is not None:  # Of a block that was in another mode.
            x = pending.added_to(x)
        attended = self.attention(self.attention_norm(x), segments, rows)
        middle = (x if rows is None else x.index_select(0, rows)) + self._branch(attended, segments, rows)
        out = middle + self._branch(self.mlp(self.mlp_norm(middle)), segments, rows)
        return out, None, middle if self.training else None

    def _run_fused(
        self, x: Tensor, segments: Segments, rows: Tensor | None, pending: Branch | None, leave: bool
    ) -> tuple[Tensor, Branch | None]:
        """The same by ``tokengt.fused``: biases are added, and their gradients summed up, where rows are read anyway.

        Dropout and drop path draw other numbers than in plain code.
        """
        assert isinstance(self.attention_norm, nn.LayerNorm)
        assert isinstance(self.mlp_norm, nn.LayerNorm)
        attention, mlp = self.attention, self.mlp
        if pending is None:
            normed = self.attention_norm(x)
        else:
            x, normed = add_norm(x, pending, self.attention_norm)
        attended = attention.heads(linear(normed, attention.qkv_proj), segments, rows)
        x = x if rows is None else x.index_select(0, rows)
        branch = self._undropped(F.linear(attended, attention.out_proj.weight), attention.out_proj.bias, segments, rows)
        x, normed = add_norm(x, branch, self.mlp_norm)
        hidden = F.linear(normed, mlp.up.weight)
        hidden = activate(hidden, mlp.up.bias, dropout=mlp.dropout.rate, gelu=mlp.activation is F.gelu)
        if not leave:
            return x + self._branch(mlp.down(hidden), segments, rows), None
        # A copy of the bias: FSDP frees a block's weights before the next one runs.
        return x, self._undropped(F.linear(hidden, mlp.down.weight), mlp.down.bias.clone(), segments, rows)

    def _undropped(self, x: Tensor, bias: Tensor, segments: Segments, rows: Tensor | None) -> Branch:
        """A branch before :meth:`_branch`, with what that would draw."""
        if not self.drops:
            return Branch(x, bias, None, None, self.dropout.rate)
        ids = segments.ids if rows is None else segments.ids.index_select(0, rows)
        return Branch(x, bias, _path_factor(segments, self.drop_rate), ids, self.dropout.rate)

    def _fuses(self, x: Tensor) -> bool:
        """In training, where kernels fit and all layers are what they were made as: kernels read weights, not calls."""
        layers = (self.attention.qkv_proj, self.attention.out_proj, self.mlp.up, self.mlp.down)
        return (
            self.training
            and fits(x)
            and all(is_plain(layer, nn.Linear) for layer in layers)
            and all(is_plain(norm, nn.LayerNorm) for norm in (self.attention_norm, self.mlp_norm))
        )

    def __getstate__(self) -> dict[str, Any]:
        """A copy, or a pickled block, is not compiled: as that of ``nn.Module.compile``."""
        return super().__getstate__() | {"_run": Block.run}  # type: ignore[no-any-return, no-untyped-call]

    def attention_weights(self, x: Float[Tensor, "tokens dim"], segments: Segments) -> list[Float[Tensor, "heads _ _"]]:
        return self.attention.attention_weights(self.attention_norm(x), segments)

    def _branch(self, x: Tensor, segments: Segments, rows: Tensor | None) -> Tensor:
        x = self.dropout(x)
        return drop_path(x, segments, self.drop_rate, rows) if self.training and self.drops else x
