"""The plain Transformer encoder: a stack of blocks."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int, Int32
from torch import Tensor, nn

from tokengt.attention import AttentionConfig, AttentionPlan, MultiheadAttention, refuse_large_maps
from tokengt.block import BasisScale, Block, EncoderConfig
from tokengt.dropout import Dropout
from tokengt.ragged import Segments
from tokengt.sparse import SparseRows, sparse_product


@dataclass(frozen=True, eq=False)
class RowLinks:
    """Which rows are added to which: row ``targets[l]`` receives row ``sources[l]``."""

    sources: Int[Tensor, " links"]
    targets: Int[Tensor, " links"]

    def matrix(self, rows: int, scale: BasisScale = "sum") -> SparseRows:
        """B, whose product with ``rows`` rows is what is added to each: B_ts = 1 for a link s -> t ("sum").

        With "mean", every row of B is divided by its sum, so that it is a row of attention weights. It is made once,
        and kept with the links.
        """
        if (rows, scale) not in self._made:
            # It may be asked for by a prediction in inference mode, and then by a training step.
            with torch.inference_mode(False), torch.no_grad():
                self._made[rows, scale] = self._matrix(rows, scale)
        return self._made[rows, scale]

    @cached_property
    def _made(self) -> dict[tuple[int, BasisScale], SparseRows]:
        return {}

    def _matrix(self, rows: int, scale: BasisScale) -> SparseRows:
        counts = torch.bincount(self.targets, minlength=rows)
        order = torch.argsort(self.targets, stable=True)
        weights = torch.ones(len(order), device=counts.device)
        if scale == "mean":
            weights = counts.index_select(0, self.targets.index_select(0, order)).float().reciprocal()
        entries = Segments.from_lengths(counts.cpu(), counts.device)
        return SparseRows(entries, self.sources.index_select(0, order).int(), weights, rows)


def add_linked_rows(x: Float[Tensor, "tokens dim"], links: SparseRows) -> Float[Tensor, "tokens dim"]:
    """X + B X, the sparse equivariant basis of the paper's last experiment; B as :meth:`RowLinks.matrix` makes it."""
    return x + sparse_product(links, x).to(x.dtype)


class Encoder(nn.Module):
    """A stack of blocks. It knows tokens, sequences and nothing else."""

    def __init__(self, dim: int, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.input_norm = nn.LayerNorm(dim) if config.input_norm else nn.Identity()
        self.input_dropout = Dropout(config.input_dropout)
        rates = [config.drop_path * (layer + 1) / config.num_layers for layer in range(config.num_layers)]
        self.blocks = nn.ModuleList(
            [Block(dim, config, rate, masked=config.masks(layer)) for layer, rate in enumerate(rates)]
        )
        self.final_norm = nn.LayerNorm(dim) if config.final_norm else nn.Identity()

    def plan(self, segments: Segments, marks: Int32[Tensor, "tokens 2"] | None = None) -> AttentionPlan:
        """How all blocks attend to these sequences: made once per batch, under the autocast of the forward pass.

        ``marks`` say which rows may attend to which in masked blocks (:mod:`tokengt.attention.marks`).
        """
        if not len(self.blocks):
            return AttentionPlan(segments)
        # All blocks have the same settings, so the plan of one serves them all; it holds one for masked blocks too.
        block = self.blocks[0]
        assert isinstance(block, Block)
        return block.attention.plan(segments, marks)

    def forward(
        self,
        x: Float[Tensor, "tokens dim"],
        sequences: Segments | AttentionPlan,
        links: RowLinks | None = None,
        rows: Int[Tensor, " rows"] | None = None,
    ) -> Float[Tensor, "_ dim"]:
        """All encoded tokens, or only those at ``rows``.

        ``sequences`` is a plan that :meth:`plan` has made, or segments that are planned for here. ``links`` are added
        after every block where the config has the sparse basis.
        """
        plan = sequences if isinstance(sequences, AttentionPlan) else self.plan(sequences)
        linked = self.linked(links, len(x))
        x = self.enter(x)
        for layer, block in enumerate(self.blocks, 1):
            if layer == len(self.blocks) and linked is None:
                # No later block attends to the other rows, so the last one computes only those that are asked for.
                x, rows = block(x, plan, rows), None
            else:
                x = block(x, plan)
            if linked is not None:
                x = add_linked_rows(x, linked)
        out: Tensor = self.final_norm(x if rows is None else x.index_select(0, rows))
        return out

    def linked(self, links: RowLinks | None, rows: int) -> SparseRows | None:
        """What is added after every block; None where the config has no sparse basis."""
        if links is None or not self.config.sparse_basis_residual:
            return None
        return links.matrix(rows, self.config.sparse_basis_scale)

    def enter(self, x: Float[Tensor, "tokens dim"]) -> Float[Tensor, "tokens dim"]:
        """What is done to tokens before the first block."""
        out: Tensor = self.input_dropout(self.input_norm(x))
        return out

    def attention_weights(
        self, x: Float[Tensor, "tokens dim"], sequences: Segments | AttentionPlan, links: RowLinks | None = None
    ) -> list[list[Float[Tensor, "heads _ _"]]]:
        """The maps of every layer and sequence: ``maps[layer][sequence]``."""
        plan = sequences if isinstance(sequences, AttentionPlan) else self.plan(sequences)
        refuse_large_maps(plan.segments, len(self.blocks) * self.config.num_heads, x.element_size())
        layers = self.attention_inputs(x, plan, links)
        return [attention.attention_weights(rows, plan) for attention, rows in layers]

    def attention_inputs(
        self, x: Float[Tensor, "tokens dim"], sequences: Segments | AttentionPlan, links: RowLinks | None = None
    ) -> Iterator[tuple[MultiheadAttention, Float[Tensor, "tokens dim"]]]:
        """The attention of every layer with the rows that it is given, one layer after another."""
        plan = sequences if isinstance(sequences, AttentionPlan) else self.plan(sequences)
        linked = self.linked(links, len(x))
        x = self.enter(x)
        for block in self.blocks:
            assert isinstance(block, Block)
            yield block.attention, block.attention_norm(x)
            x = block(x, plan)
            if linked is not None:
                x = add_linked_rows(x, linked)

    def set_recompute(self, on: bool) -> None:
        """Whether activations inside blocks are computed again for the gradient instead of kept."""
        for block in self.blocks:
            assert isinstance(block, Block)
            block.recompute = on

    def configure_attention(self, config: AttentionConfig) -> None:
        """Switch every block's attention kernel, weights unchanged."""
        for block in self.blocks:
            assert isinstance(block, Block)
            block.attention.configure(config)
