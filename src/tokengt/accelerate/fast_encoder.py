"""The fast twin of an encoder: compiled blocks, row kernels, blocks that hand over what they add."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jaxtyping import Float, Int, Int32
from torch import Tensor, nn

from tokengt.accelerate.compiling import compiled, leave_sizes_open
from tokengt.accelerate.fast_block import FastBlock, draw_for, run_block
from tokengt.accelerate.rows import Branch, fits, is_plain, norm
from tokengt.attention import AttentionConfig, AttentionPlan, MultiheadAttention
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
            the GPU, unless the launches are recorded or the batches large.
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
        self.blocks = nn.ModuleList([FastBlock(block, run) for block in blocks])
        self._all_blocks = tuple(blocks)
        self.final_norm = encoder.final_norm
        self._plain = (encoder,)  # In a tuple, so that its weights are not counted twice.
        self._compiles, self._kernels = backend is not None, kernels
        self._tiles: Tiles | None = None

    @property
    def plain(self) -> Encoder:
        return self._plain[0]

    def __reduce__(self) -> tuple[Callable[[Encoder], Encoder], tuple[Encoder]]:
        """A copy, or what a pickle gives back, is a plain encoder: compiled code is of this one."""
        return _as_it_is, (self.plain,)

    def plan(self, segments: Segments, marks: Int32[Tensor, "tokens 2"] | None = None) -> AttentionPlan:
        """As the plain encoder plans, or with the tiles that are :meth:`given`."""
        if self._tiles is None:
            return self.plain.plan(segments, marks)
        _ = segments.ids
        masked = None if marks is None else AttentionPlan(segments, tiles=self._tiles, marks=marks)
        return AttentionPlan(segments, tiles=self._tiles, masked=masked)

    @contextmanager
    def given(self, tiles: Tiles) -> Iterator[None]:
        """Attend by these tiles meanwhile, which say where sequences lie in place of their segments' lengths."""
        self._tiles = tiles
        try:
            yield
        finally:
            self._tiles = None

    def step_tiles(self, lengths: Int[Tensor, " sequences"], per_step: int) -> StepTiles | None:
        """How to tile steps of ``per_step`` sequences that are about as long as these.

        None where our own kernels do not attend to them.

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
        tiling = choose_tiling(heads.key, heads.value, plan.dtype.itemsize)
        return StepTiles.decide(tiling, lengths, per_step * heads.count)

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
            leave_sizes_open(plan, rows)
        by_kernels = self._kernels and fits(x)
        drawn = draw_for(self._all_blocks, plan.segments) if by_kernels else None
        x = self._entered(x) if by_kernels else self._enter(self.plain, x)
        linked = self.plain.linked(links, len(x))
        pending: Branch | None = None
        for layer, block in enumerate(self.blocks, 1):
            last, own = layer == len(self.blocks), None if drawn is None else drawn[layer - 1]
            if last and linked is None:
                (x, _), rows = block(x, plan, rows, pending, drawn=own), None
            else:
                x, pending = block(x, plan, None, pending, leave=linked is None, drawn=own)
            if linked is not None:
                x = add_linked_rows(x, linked)
        x = x if rows is None else x.index_select(0, rows)
        return self._normed(x, self.final_norm) if by_kernels else self.final_norm(x)

    def _entered(self, x: Float[Tensor, "tokens dim"]) -> Float[Tensor, "tokens dim"]:
        """:meth:`Encoder.enter` by a kernel."""
        out: Tensor = self.input_dropout(self._normed(x, self.input_norm))
        return out

    def _normed(self, x: Float[Tensor, "rows dim"], layer: nn.Module) -> Float[Tensor, "rows dim"]:
        if is_plain(layer, nn.LayerNorm):
            assert isinstance(layer, nn.LayerNorm)
            return norm(x, layer, x.dtype)
        out: Tensor = layer(x)
        return out

    def attention_weights(
        self, x: Float[Tensor, "tokens dim"], sequences: Segments | AttentionPlan, links: RowLinks | None = None
    ) -> list[list[Float[Tensor, "heads _ _"]]]:
        return self.plain.attention_weights(x, sequences, links)

    def attention_inputs(
        self, x: Float[Tensor, "tokens dim"], sequences: Segments | AttentionPlan, links: RowLinks | None = None
    ) -> Iterator[tuple[MultiheadAttention, Float[Tensor, "tokens dim"]]]:
        return self.plain.attention_inputs(x, sequences, links)

    def configure_attention(self, config: AttentionConfig) -> None:
        self.plain.configure_attention(config)


def _as_it_is(encoder: Encoder) -> Encoder:
    return encoder
