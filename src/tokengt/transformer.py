"""The plain Transformer encoder: a stack of blocks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tokengt.attention import AttentionConfig, refuse_large_maps
from tokengt.block import Block, EncoderConfig
from tokengt.dropout import Dropout
from tokengt.fused import Branch
from tokengt.ragged import Segments
from tokengt.replay import Replayer
from tokengt.tracing import compiled


@dataclass(frozen=True, eq=False)
class RowLinks:
    """Row ``targets[l]`` receives row ``sources[l]``."""

    sources: Int[Tensor, " links"]
    targets: Int[Tensor, " links"]


def add_linked_rows(x: Float[Tensor, "tokens dim"], links: RowLinks) -> Float[Tensor, "tokens dim"]:
    """x_t + sum of x_s over all links s -> t: the sparse equivariant basis of the paper's last experiment."""
    return x.index_add(0, links.targets, x.index_select(0, links.sources))


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
        linked = self._linked(links)
        if linked:
            for block in self.blocks:
                x = self._step(block, x, segments, links)
        else:
            pending: Branch | None = None
            for block in self.blocks[:-1]:
                x, pending = block(x, segments, pending=pending, leave=True)
            for block in self.blocks[-1:]:
                x = block(x, segments, rows, pending)
        if rows is not None and (linked or not len(self.blocks)):
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
        """Put what is done before the first block, and the blocks, through ``torch.compile``.

        Blocks one at a time, so that three compilations serve any number of them: the first, the last and all others.
        """
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
        out: Tensor = block(x, segments)
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
