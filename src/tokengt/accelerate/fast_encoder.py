"""The fast twin of an encoder: compiled blocks, row kernels, blocks that hand over what they add."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jaxtyping import Float, Int
from torch import Tensor, nn

from tokengt.accelerate.compiling import compiled, leave_sizes_open
from tokengt.accelerate.fast_block import FastBlock, run_block
from tokengt.accelerate.rows import Branch
from tokengt.attention import AttentionConfig, AttentionPlan
from tokengt.block import Block
from tokengt.kernels.tiles import StepTiles, Tiles, choose_tiling
from tokengt.ragged import Segments
from tokengt.transformer import Encoder, RowLinks, add_linked_rows


class FastEncoder(nn.Module):
    """Calls like the :class:`Encoder` that it is made of, and computes the same with the same weights.

    Args:
        encoder: the plain one.
        backend: of ``torch.compile``; None to compile nothing.
        kernels: whether row kernels are also used in code that is not compiled. They cost the host more than they save
            the GPU, unless the launches are recorded.
    """

    def __init__(self, encoder: Encoder, backend: str | None = None, *, kernels: bool = False) -> None:
        super().__init__()
        run, self._enter = run_block, Encoder.enter
        if backend is not None:
            # Blocks are compiled one at a time, so that three compilations (the first, the last and all others) serve
            # any number of blocks.
            run = compiled(run_block, dynamic=True, backend=backend)
            self._enter = compiled(Encoder.enter, dynamic=True, backend=backend)
        self.input_norm, self.input_dropout = encoder.input_norm, encoder.input_dropout
        blocks = [block for block in encoder.blocks if isinstance(block, Block)]
        self.blocks = nn.ModuleList([FastBlock(block, run, kernels) for block in blocks])
        self.final_norm = encoder.final_norm
        self._plain = (encoder,)  # In a tuple, so that its weights are not counted twice.
        self._compiles = backend is not None
        self._tiles: Tiles | None = None

    @property
    def plain(self) -> Encoder:
        return self._plain[0]

    def __reduce__(self) -> tuple[Callable[[Encoder], Encoder], tuple[Encoder]]:
        """A copy, or what a pickle gives back, is a plain encoder: compiled code is of this one."""
        return _as_it_is, (self.plain,)

    def plan(self, segments: Segments) -> AttentionPlan:
        """As the plain encoder plans, or with the tiles that are :meth:`given`."""
        if self._tiles is None:
            return self.plain.plan(segments)
        _ = segments.ids
        return AttentionPlan(segments, tiles=self._tiles)

    @contextmanager
    def given(self, tiles: Tiles) -> Iterator[None]:
        """Attend by these tiles meanwhile, which say where sequences lie in place of their segments' lengths."""
        self._tiles = tiles
        try:
            yield
        finally:
            self._tiles = None

    def step_tiles(self, lengths: Int[Tensor, " sequences"]) -> StepTiles | None:
        """How to tile steps of sequences that are about as long; None where our own kernels do not attend to them.

        Call it under the autocast of the forward.
        """
        if not len(self.blocks) or not len(lengths):
            return None
        block = self.plain.blocks[0]
        assert isinstance(block, Block)
        device = block.attention.out_proj.weight.device
        plan = self.plain.plan(Segments.from_lengths(lengths, device))
        if plan.tiles is None or plan.dtype is None:
            return None
        heads = block.attention.heads
        return StepTiles.decide(choose_tiling(heads.key, heads.value, plan.dtype.itemsize), lengths)

    def forward(
        self,
        x: Float[Tensor, "tokens dim"],
        sequences: Segments | AttentionPlan,
        links: RowLinks | None = None,
        rows: Int[Tensor, " rows"] | None = None,
    ) -> Float[Tensor, "_ dim"]:
        """All encoded tokens, or those at ``rows``; between blocks what one adds is left to the next."""
        plan = sequences if isinstance(sequences, AttentionPlan) else self.plan(sequences)
        if self._compiles:
            leave_sizes_open(plan)
        x = self._enter(self.plain, x)
        linked = links if self.plain.config.sparse_basis_residual else None
        pending: Branch | None = None
        for layer, block in enumerate(self.blocks, 1):
            last = layer == len(self.blocks)
            if last and linked is None:
                (x, _), rows = block(x, plan, rows, pending), None
            else:
                x, pending = block(x, plan, None, pending, leave=linked is None)
            if linked is not None:
                x = add_linked_rows(x, linked)
        out: Tensor = self.final_norm(x if rows is None else x.index_select(0, rows))
        return out

    def attention_weights(
        self, x: Float[Tensor, "tokens dim"], segments: Segments, links: RowLinks | None = None
    ) -> list[list[Float[Tensor, "heads _ _"]]]:
        return self.plain.attention_weights(x, segments, links)

    def configure_attention(self, config: AttentionConfig) -> None:
        self.plain.configure_attention(config)


def _as_it_is(encoder: Encoder) -> Encoder:
    return encoder
