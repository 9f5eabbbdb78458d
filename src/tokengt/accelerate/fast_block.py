"""A block as compiled training wants it: the same equations, cut elsewhere.

Between two blocks stand a sum (what the MLP adds to the stream) and a norm. One kernel does both in one pass over the
rows, so a block may *leave* what its MLP adds, undropped and without its bias, to the next one, which adds it where it
norms.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from tokengt.accelerate.rows import Branch, activate, add_norm, autocast_type, fits, is_plain, linear, norm
from tokengt.attention import AttentionPlan
from tokengt.block import Block, path_factor
from tokengt.ragged import Segments


class BlockDraws(NamedTuple):
    """All that a block draws in training, drawn for all blocks together; nothing outside of training.

    ``factors`` are what drop path multiplies the sequences by, in attention's branch and in the MLP's. ``seeds`` are
    those of dropout: of attention's branch, of the MLP's hidden rows, and of its branch.
    """

    factors: Float[Tensor, "2 sequences"] | None = None
    seeds: Int[Tensor, "3"] | None = None

    def seed(self, number: int) -> Int[Tensor, ""] | None:
        return None if self.seeds is None else self.seeds[number]


# Takes a block, its rows, the plan, the rows asked for, what the block before has left to add, whether this block may
# leave something in turn, and what was drawn for it: with that, row kernels are used outside of compiled code too.
# Returns the rows, what is left to add to them, and H.
Run = Callable[
    [Block, Tensor, AttentionPlan, Tensor | None, Branch | None, bool, BlockDraws | None],
    tuple[Tensor, Branch | None, Tensor | None],
]


def draw_for(blocks: Sequence[Block], segments: Segments) -> list[BlockDraws]:
    """What each block draws, in a few launches for all of them."""
    if not any(block.training for block in blocks):
        return [BlockDraws()] * len(blocks)
    device = segments.offsets.device
    rates = torch.stack([block.drop_rate for block in blocks]).repeat_interleave(2)[:, None]
    keep = torch.rand(len(rates), segments.count, device=device) >= rates
    factors = (keep / (1 - rates)).view(len(blocks), 2, -1)
    seeds = torch.randint(2**62, (len(blocks), 3), device=device)
    return [BlockDraws(*drawn) for drawn in zip(factors, seeds, strict=True)]


class FastBlock(nn.Module):
    """A :class:`Block` that can leave what it adds to the next one.

    It is a module of its own, so that FSDP can put its weights together for just this call.
    """

    def __init__(self, block: Block, run: Run) -> None:
        super().__init__()
        self.block = block
        self._run = run

    def forward(
        self,
        x: Float[Tensor, "tokens dim"],
        plan: AttentionPlan,
        rows: Int[Tensor, " rows"] | None = None,
        pending: Branch | None = None,
        leave: bool = False,
        drawn: BlockDraws | None = None,
    ) -> tuple[Float[Tensor, "_ dim"], Branch | None]:
        """The rows, and what is left to be added to them: nothing unless ``leave`` allows it.

        ``pending`` is what the block before has left, ``drawn`` what was drawn for this one.
        """
        out, left, _ = self._run(self.block, x, plan, rows, pending, leave, drawn)
        return out, left


def run_block(
    block: Block,
    x: Tensor,
    plan: AttentionPlan,
    rows: Tensor | None,
    pending: Branch | None,
    leave: bool,
    drawn: BlockDraws | None = None,
) -> tuple[Tensor, Branch | None, Tensor | None]:
    """One block, by row kernels where they apply; in other training also the H between its halves.

    H is returned although nobody reads it: a compiler keeps for the backward what a function returns, and would
    otherwise compute H again, which takes longer.
    """
    if takes_rows(block, x, drawn is not None):
        return *_run_by_rows(block, x, plan, rows, pending, leave, drawn), None
    if pending is not None:  # Left by a block in training mode, while this one is not.
        x = pending.added_to(x)
    if not block.training:
        return block(x, plan, rows), None, None
    attended = block.attention(block.attention_norm(x), plan, rows)
    h = (x if rows is None else x.index_select(0, rows)) + block.dropped(attended, plan.segments, rows)
    return h + block.dropped(block.mlp(block.mlp_norm(h)), plan.segments, rows), None, h


def takes_rows(block: Block, x: Float[Tensor, "tokens dim"], eager: bool) -> bool:
    """Where kernels fit and no layer was replaced or hooked: kernels read weights and call no layer.

    In compiled code only in training: a compiler fuses a forward well enough.
    """
    layers = (block.attention.qkv_proj, block.attention.out_proj, block.mlp.up, block.mlp.down)
    return (
        (eager or (block.training and torch.compiler.is_compiling()))
        and fits(x)
        and all(is_plain(layer, nn.Linear) for layer in layers)
        and all(is_plain(norm, nn.LayerNorm) for norm in (block.attention_norm, block.mlp_norm))
    )


def _run_by_rows(
    block: Block,
    x: Tensor,
    plan: AttentionPlan,
    rows: Tensor | None,
    pending: Branch | None,
    leave: bool,
    drawn: BlockDraws | None,
) -> tuple[Tensor, Branch | None]:
    """Biases are added, and their gradients summed up, where rows are read anyway.

    Dropout and drop path draw other numbers than in plain code.
    """
    attention, mlp = block.attention, block.mlp
    assert isinstance(block.attention_norm, nn.LayerNorm)
    assert isinstance(block.mlp_norm, nn.LayerNorm)
    if pending is not None:
        x, normed = add_norm(x, pending, block.attention_norm)
    elif drawn is None:
        normed = block.attention_norm(x)
    else:
        normed = norm(x, block.attention_norm, autocast_type(x))
    attended = attention.attend(linear(normed, attention.qkv_proj), plan, rows)
    x = x if rows is None else x.index_select(0, rows)
    out_proj = attention.out_proj
    x, normed = add_norm(
        x, _branch(block, F.linear(attended, out_proj.weight), out_proj.bias, plan, rows, drawn, 0), block.mlp_norm
    )
    hidden = F.linear(normed, mlp.up.weight)
    seed = None if drawn is None else drawn.seed(1)
    hidden = activate(hidden, mlp.up.bias, dropout=mlp.dropout.rate, gelu=mlp.activation is F.gelu, seed=seed)
    if not leave:
        return x + block.dropped(mlp.down(hidden), plan.segments, rows), None
    # The bias is copied, because FSDP frees the weights of a block before the next one runs.
    bias = mlp.down.bias if drawn is not None else mlp.down.bias.clone()
    return x, _branch(block, F.linear(hidden, mlp.down.weight), bias, plan, rows, drawn, 1)


def _branch(
    block: Block,
    x: Tensor,
    bias: Tensor,
    plan: AttentionPlan,
    rows: Tensor | None,
    drawn: BlockDraws | None,
    number: int,
) -> Branch:
    """A branch (0 attention's, 1 the MLP's) before :meth:`Block.dropped`, with what that would draw."""
    seed = None if drawn is None else drawn.seed(2 * number)
    if not (block.drops and block.training):
        return Branch(x, bias, None, None, block.dropout.rate, seed)
    ids = plan.segments.ids if rows is None else plan.segments.ids.index_select(0, rows)
    given = None if drawn is None or drawn.factors is None else drawn.factors[number]
    factor = path_factor(plan.segments, block.drop_rate) if given is None else given
    return Branch(x, bias, factor, ids, block.dropout.rate, seed)
