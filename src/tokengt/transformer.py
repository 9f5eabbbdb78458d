"""The plain Transformer encoder: PreLN blocks over packed sequences of tokens."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from tokengt.attention import AttentionConfig, MultiheadAttention, refuse_large_maps
from tokengt.dropout import Dropout
from tokengt.fused import Branch, activate, add_norm, fits, linear
from tokengt.ragged import Segments
from tokengt.replay import Replayer
from tokengt.tracing import compiled


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


@dataclass(frozen=True, eq=False)
class RowLinks:
    """Row ``targets[l]`` receives row ``sources[l]``."""

    sources: Int[Tensor, " links"]
    targets: Int[Tensor, " links"]


def add_linked_rows(x: Float[Tensor, "tokens dim"], links: RowLinks) -> Float[Tensor, "tokens dim"]:
    """x_t + sum of x_s over all links s -> t: the sparse equivariant basis of the paper's last experiment."""
    return x.index_add(0, links.targets, x.index_select(0, links.sources))


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

    def use_run(self, run: Callable[..., tuple[Tensor, Branch | None]]) -> None:
        """:meth:`run`, or a compiled one: a function of any block, not bound to this one."""
        self._run = run

    def forward(
        self,
        x: Float[Tensor, "tokens dim"],
        segments: Segments,
        rows: Int[Tensor, " rows"] | None = None,
        pending: Branch | None = None,
        leave: bool = False,
    ) -> tuple[Float[Tensor, "_ dim"], Branch | None]:
        """All rows, or those at ``rows``: they attend to all, and the others are not worked out.

        ``pending`` is what the block before has left to be added to ``x``; with ``leave`` this one may leave something
        too: adding it and the norm of the next block are then one pass over the rows.
        """
        return self._run(self, x, segments, rows, pending, leave)

    def run(
        self,
        x: Float[Tensor, "tokens dim"],
        segments: Segments,
        rows: Int[Tensor, " rows"] | None = None,
        pending: Branch | None = None,
        leave: bool = False,
    ) -> tuple[Float[Tensor, "_ dim"], Branch | None]:
        if self._fuses(x):
            return self._run_fused(x, segments, rows, pending, leave)
        attended = self.attention(self.attention_norm(x), segments, rows)
        x = (x if rows is None else x.index_select(0, rows)) + self._branch(attended, segments, rows)
        return x + self._branch(self.mlp(self.mlp_norm(x)), segments, rows), None

    def _run_fused(
        self, x: Tensor, segments: Segments, rows: Tensor | None, pending: Branch | None, leave: bool
    ) -> tuple[Tensor, Branch | None]:
        """The same by ``tokengt.fused``: biases are added, and their gradients summed up, where rows are read anyway.

        Dropout and drop path draw other numbers than in plain code.
        """
        assert isinstance(self.attention_norm, nn.LayerNorm)
        assert isinstance(self.mlp_norm, nn.LayerNorm)
        if pending is None:
            normed = self.attention_norm(x)
        else:
            x, normed = add_norm(x, pending, self.attention_norm, dropout=self.dropout.p)
        attended = self.attention.heads(linear(normed, self.attention.qkv_proj), segments, rows)
        x = x if rows is None else x.index_select(0, rows)
        branch = self._left(F.linear(attended, self.attention.out_proj.weight), self.attention.out_proj, segments, rows)
        x, normed = add_norm(x, branch, self.mlp_norm, dropout=self.dropout.p)
        hidden = F.linear(normed, self.mlp.up.weight)
        gelu = self.mlp.activation is F.gelu
        hidden = activate(hidden, self.mlp.up.bias, dropout=self.mlp.dropout.p, gelu=gelu)
        if leave:
            return x, self._left(F.linear(hidden, self.mlp.down.weight), self.mlp.down, segments, rows)
        return x + self._branch(self.mlp.down(hidden), segments, rows), None

    def _left(self, x: Tensor, layer: nn.Linear, segments: Segments, rows: Tensor | None) -> Branch:
        bias = layer.bias.clone()  # FSDP frees a block's weights before the next one runs.
        if not self.drops:
            return Branch(x, bias, None, None)
        ids = segments.ids if rows is None else segments.ids.index_select(0, rows)
        return Branch(x, bias, _path_factor(segments, self.drop_rate), ids)

    def _fuses(self, x: Tensor) -> bool:
        normed = isinstance(self.attention_norm, nn.LayerNorm)
        return self.training and normed and fits(x, x.shape[1], self.mlp.up.out_features)

    def __getstate__(self) -> dict[str, Any]:
        """A copy, or a pickled block, is not compiled: as that of ``nn.Module.compile``."""
        return super().__getstate__() | {"_run": Block.run}  # type: ignore[no-any-return, no-untyped-call]

    def attention_weights(self, x: Float[Tensor, "tokens dim"], segments: Segments) -> list[Float[Tensor, "heads _ _"]]:
        return self.attention.attention_weights(self.attention_norm(x), segments)

    def _branch(self, x: Tensor, segments: Segments, rows: Tensor | None) -> Tensor:
        x = self.dropout(x)
        return drop_path(x, segments, self.drop_rate, rows) if self.training and self.drops else x


class Encoder(nn.Module):
    """A stack of blocks. It knows tokens, sequences and nothing else."""

    def __init__(self, dim: int, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.input_norm = nn.LayerNorm(dim) if config.input_norm else nn.Identity()
        self.input_dropout = Dropout(config.input_dropout)
        rates = [config.drop_path * (layer + 1) / config.num_layers for layer in range(config.num_layers)]
        self.blocks = nn.ModuleList([Block(dim, config, rate) for rate in rates])
        self.final_norm = nn.LayerNorm(dim) if config.final_norm else nn.Identity()
        self._enter: Callable[[Encoder, Tensor], Tensor] = Encoder.enter
        self._replayer: Replayer | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy, or a pickled encoder, is not compiled and records nothing: recordings are of this one's weights."""
        own = {"_enter": Encoder.enter, "_replayer": None}
        return super().__getstate__() | own  # type: ignore[no-any-return, no-untyped-call]

    def prepare(self, segments: Segments) -> None:
        """Work out what a forward needs to know of the sequences' lengths: compiled code would stop for it."""
        if self._replaying:
            return  # They are filled up first.
        self._prepare(segments)

    def _prepare(self, segments: Segments) -> None:
        _ = segments.ids
        if len(self.blocks):
            # What is found is kept with the segments: one block asks for all.
            block = self.blocks[0]
            assert isinstance(block, Block)
            block.attention.prepare(segments)

    def forward(
        self,
        x: Float[Tensor, "tokens dim"],
        segments: Segments,
        links: RowLinks | None = None,
        rows: Int[Tensor, " rows"] | None = None,
    ) -> Float[Tensor, "_ dim"]:
        """All encoded tokens, or those at ``rows``, which the last block then works out alone."""
        if self._replayer is None:
            return self._run(x, segments, links, rows)
        try:
            return self._replay(self._replayer, x, segments, links, rows)
        except torch.OutOfMemoryError as error:
            reason = str(error)
        # Recordings hold memory that evaluation, or a batch that is not recorded, may need.
        if not self._replayer.give_up(reason):
            raise torch.OutOfMemoryError(reason)
        return self._replay(self._replayer, x, segments, links, rows)

    def _replay(
        self, replayer: Replayer, x: Tensor, segments: Segments, links: RowLinks | None, rows: Tensor | None
    ) -> Tensor:
        """By a recording where there is one to be."""
        out = replayer(x, segments, rows) if self._replaying else None
        if out is not None:
            return out
        self._prepare(segments)
        return self._run(x, segments, links, rows)

    def _run(self, x: Tensor, segments: Segments, links: RowLinks | None = None, rows: Tensor | None = None) -> Tensor:
        x = self._enter(self, x)
        if self._linked(links):
            for block in self.blocks:
                x = self._step(block, x, segments, links)
        else:
            pending, last = None, len(self.blocks) - 1
            for place, block in enumerate(self.blocks):
                x, pending = block(x, segments, rows if place == last else None, pending, place < last)
        if rows is not None and (self._linked(links) or not len(self.blocks)):
            x = x.index_select(0, rows)
        out: Tensor = self.final_norm(x)
        return out

    def enter(self, x: Float[Tensor, "tokens dim"]) -> Float[Tensor, "tokens dim"]:
        """What is done to tokens before the first block."""
        out: Tensor = self.input_dropout(self.input_norm(x))
        return out

    def attention_weights(
        self, x: Float[Tensor, "tokens dim"], segments: Segments, links: RowLinks | None = None
    ) -> list[list[Float[Tensor, "heads _ _"]]]:
        """The maps of every layer and sequence: ``maps[layer][sequence]``."""
        refuse_large_maps(segments, len(self.blocks) * self.config.num_heads, x.element_size())
        maps: list[list[Tensor]] = []
        x = self.enter(x)
        for block in self.blocks:
            assert isinstance(block, Block)
            maps.append(block.attention_weights(x, segments))
            x = self._step(block, x, segments, links)
        return maps

    def compile_blocks(self, **options: Any) -> None:
        """Put the blocks through ``torch.compile``: one at a time, so that one compilation serves them all."""
        run = compiled(Block.run, dynamic=True, **options)
        for block in self.blocks:
            assert isinstance(block, Block)
            block.use_run(run)
        self._enter = compiled(Encoder.enter, dynamic=True, **options)

    def record_steps(self) -> None:
        """From now on record what a training step does on the GPU, once a size, and replay it (``tokengt.replay``).

        For a training loop of one process that calls ``backward()`` once after each forward, under one kind of
        autocast, with weights that keep their place in memory; the gradients that it leaves are written over by the
        next step. Where our attention kernels do not apply nothing is recorded.
        """
        self.forget_steps()
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        # Linked rows are other ones in every batch.
        if len(self.blocks) and trained and not self.config.sparse_basis_residual:
            block = self.blocks[0]
            assert isinstance(block, Block)
            if block.attention.may_use_kernels:
                self._replayer = Replayer(lambda x, s, rows: self._run(x, s, None, rows), block.attention, trained)

    def forget_steps(self) -> None:
        """Free the memory that :meth:`record_steps` has taken."""
        self._replayer = None

    def configure_attention(self, config: AttentionConfig) -> None:
        """Switch every block's attention kernel, weights unchanged."""
        for block in self.blocks:
            assert isinstance(block, Block)
            block.attention.configure(config)
        if self._replayer is not None:
            self.record_steps()  # what was recorded is another kernel

    def _step(self, block: nn.Module, x: Tensor, segments: Segments, links: RowLinks | None) -> Tensor:
        out: Tensor = block(x, segments)[0]
        return add_linked_rows(out, links) if links is not None and self._linked(links) else out

    @property
    def steps_replayed(self) -> int:
        """How many forwards were replayed since :meth:`record_steps`."""
        return 0 if self._replayer is None else self._replayer.replays

    @property
    def _replaying(self) -> bool:
        return self._replayer is not None and self.training and torch.is_grad_enabled()

    def _linked(self, links: RowLinks | None) -> bool:
        return self.config.sparse_basis_residual and links is not None
