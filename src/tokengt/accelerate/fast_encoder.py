"""The fast twin of an encoder: compiled blocks that hand over what they add, and recorded training steps."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tokengt.accelerate.compiling import compiled, leave_sizes_open
from tokengt.accelerate.fast_block import FastBlock, run_block
from tokengt.accelerate.replaying import Replayer
from tokengt.accelerate.rows import Branch
from tokengt.attention import AttentionConfig, AttentionPlan, SoftmaxAttention
from tokengt.block import Block
from tokengt.ragged import Segments
from tokengt.transformer import Encoder, RowLinks, add_linked_rows


class FastEncoder(nn.Module):
    """Calls like the :class:`Encoder` that it is made of, and computes the same with the same weights.

    Args:
        encoder: the plain one.
        backend: of ``torch.compile``; None to compile nothing.
        record: whether training steps are recorded and replayed, where our attention kernels apply.
    """

    def __init__(self, encoder: Encoder, backend: str | None, *, record: bool) -> None:
        super().__init__()
        run, self._enter = run_block, Encoder.enter
        if backend is not None:
            # Blocks are compiled one at a time, so that three compilations (the first, the last and all others) serve
            # any number of blocks.
            run = compiled(run_block, dynamic=True, backend=backend)
            self._enter = compiled(Encoder.enter, dynamic=True, backend=backend)
        self.input_norm, self.input_dropout = encoder.input_norm, encoder.input_dropout
        self.blocks = nn.ModuleList([FastBlock(block, run) for block in encoder.blocks if isinstance(block, Block)])
        self.final_norm = encoder.final_norm
        self._plain = (encoder,)  # In a tuple, so that its weights are not counted twice.
        self._compiles, self._records = backend is not None, record
        self._replayer: Replayer | None = None
        self._recorded: AttentionConfig | None = None  # The attention that the recordings were made with.

    @property
    def plain(self) -> Encoder:
        return self._plain[0]

    def __reduce__(self) -> tuple[Callable[[Encoder], Encoder], tuple[Encoder]]:
        """A copy, or what a pickle gives back, is a plain encoder: compiled code and recordings are of this one."""
        return _as_it_is, (self.plain,)

    def plan(self, segments: Segments) -> AttentionPlan:
        """The encoder's plan. A replayed step fills the sequences up first, and plans then, once."""
        return AttentionPlan(segments) if self._replays(self._find_replayer()) else self.plain.plan(segments)

    def forward(
        self,
        x: Float[Tensor, "tokens dim"],
        sequences: Segments | AttentionPlan,
        links: RowLinks | None = None,
        rows: Int[Tensor, " rows"] | None = None,
    ) -> Float[Tensor, "_ dim"]:
        """All encoded tokens, or those at ``rows``."""
        plan = sequences if isinstance(sequences, AttentionPlan) else self.plan(sequences)
        replayer = self._find_replayer()
        if replayer is None:
            return self._run(x, plan, links, rows)
        try:
            return self._replay(replayer, x, plan, links, rows)
        except torch.OutOfMemoryError as error:
            reason = str(error)
        # Recordings hold memory that evaluation, or a batch without a recording, may need: free it and try again.
        if not replayer.give_up(reason):
            raise torch.OutOfMemoryError(reason)
        return self._replay(replayer, x, plan, links, rows)

    def attention_weights(
        self, x: Float[Tensor, "tokens dim"], segments: Segments, links: RowLinks | None = None
    ) -> list[list[Float[Tensor, "heads _ _"]]]:
        return self.plain.attention_weights(x, segments, links)

    def configure_attention(self, config: AttentionConfig) -> None:
        self.plain.configure_attention(config)

    def forget(self) -> None:
        """Free the memory that recordings hold, and record no more."""
        self._records, self._replayer, self._recorded = False, None, None

    @property
    def steps_replayed(self) -> int:
        return 0 if self._replayer is None else self._replayer.replays

    def _replay(
        self, replayer: Replayer, x: Tensor, plan: AttentionPlan, links: RowLinks | None, rows: Tensor | None
    ) -> Tensor:
        """Through the replayer in training; as usual elsewhere, and where it cannot take these sequences."""
        if not self._replays(replayer):
            return self._run(x, plan, links, rows)
        out = replayer(x, plan.segments, rows)
        return self._run(x, self.plain.plan(plan.segments), links, rows) if out is None else out

    def _run(self, x: Tensor, plan: AttentionPlan, links: RowLinks | None, rows: Tensor | None) -> Tensor:
        """The loop of :meth:`Encoder.forward`; between blocks what one adds is left to the next."""
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

    def _replays(self, replayer: Replayer | None) -> bool:
        return replayer is not None and self.training and torch.is_grad_enabled()

    def _find_replayer(self) -> Replayer | None:
        """Made in the first training step, when the weights lie where they stay; anew after attention was switched."""
        if self._records and len(self.blocks) and self.training:
            block = self.plain.blocks[0]
            assert isinstance(block, Block)
            kernel = block.attention.kernel
            if kernel.config != self._recorded:
                self._recorded, self._replayer = kernel.config, self._make_replayer(kernel)
        return self._replayer

    def _make_replayer(self, kernel: nn.Module) -> Replayer | None:
        """None where nothing can be recorded."""
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        if not trained or not isinstance(kernel, SoftmaxAttention) or not kernel.may_plan_tiles(trained[0].dtype):
            return None
        # Sharded weights make processes communicate inside a step, and linked rows differ from batch to batch: neither
        # can be recorded.
        in_pieces = any(hasattr(parameter, "device_mesh") for parameter in trained)
        if in_pieces or self.plain.config.sparse_basis_residual:
            return None
        return Replayer(lambda x, plan, rows: self._run(x, plan, None, rows), self.plain.plan, trained)


def _as_it_is(encoder: Encoder) -> Encoder:
    return encoder
