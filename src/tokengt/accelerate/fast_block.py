"""A block as compiled training wants it: the same equations, cut elsewhere.

Between two blocks stand a sum (what the MLP adds to the stream) and a norm. One kernel does both in one pass over the
rows, so a block may *leave* what its MLP adds, undropped and without its bias, to the next one, which adds it where it
norms.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from tokengt.accelerate.rows import Branch, activate, add_norm, fits, is_plain, linear
from tokengt.attention import AttentionPlan
from tokengt.block import Block, path_factor

# Takes a block, its rows, the plan, the rows asked for, what the block before has left to add, whether this block may
# leave something in turn, and whether row kernels are used outside of compiled code. Returns the rows, what is left to
# add to them, and H.
Run = Callable[
    [Block, Tensor, AttentionPlan, Tensor | None, Branch | None, bool, bool],
    tuple[Tensor, Branch | None, Tensor | None],
]


class FastBlock(nn.Module):
    """A :class:`Block` that can leave what it adds to the next one.

    It is a module of its own, so that FSDP can put its weights together for just this call.
    """

    def __init__(self, block: Block, run: Run, kernels: bool = False) -> None:
        super().__init__()
        self.block = block
        self._run, self._kernels = run, kernels

    def forward(
        self,
        x: Float[Tensor, "tokens dim"],
        plan: AttentionPlan,
        rows: Int[Tensor, " rows"] | None = None,
        pending: Branch | None = None,
        leave: bool = False,
    ) -> tuple[Float[Tensor, "_ dim"], Branch | None]:
        """The rows, and what is left to be added to them: nothing unless ``leave`` allows it.

        ``pending`` is what the block before has left.
        """
        out, left, _ = self._run(self.block, x, plan, rows, pending, leave, self._kernels)
        return out, left


def run_block(
    block: Block,
    x: Tensor,
    plan: AttentionPlan,
    rows: Tensor | None,
    pending: Branch | None,
    leave: bool,
    kernels: bool = False,
) -> tuple[Tensor, Branch | None, Tensor | None]:
    """One block, by row kernels where they apply; in other training also the H between its halves.

    H is returned although nobody reads it: a compiler keeps for the backward what a function returns, and would
    otherwise compute H again, which takes longer.
    """
    if takes_rows(block, x, kernels):
        return *_run_by_rows(block, x, plan, rows, pending, leave), None
    if pending is not None:  # Left by a block in training mode, while this one is not.
        x = pending.added_to(x)
    if not block.training:
        return block(x, plan, rows), None, None
    attended = block.attention(block.attention_norm(x), plan, rows)
    h = (x if rows is None else x.index_select(0, rows)) + block.dropped(attended, plan.segments, rows)
    return h + block.dropped(block.mlp(block.mlp_norm(h)), plan.segments, rows), None, h


def takes_rows(block: Block, x: Float[Tensor, "tokens dim"], kernels: bool) -> bool:
    """Where kernels fit and no layer was replaced or hooked: kernels read weights and call no layer.

    In compiled code only in training: a compiler fuses a forward well enough.
    """
    layers = (block.attention.qkv_proj, block.attention.out_proj, block.mlp.up, block.mlp.down)
    return (
        (kernels or (block.training and torch.compiler.is_compiling()))
        and fits(x)
        and all(is_plain(layer, nn.Linear) for layer in layers)
        and all(is_plain(norm, nn.LayerNorm) for norm in (block.attention_norm, block.mlp_norm))
    )


def _run_by_rows(
    block: Block, x: Tensor, plan: AttentionPlan, rows: Tensor | None, pending: Branch | None, leave: bool
) -> tuple[Tensor, Branch | None]:
    """Biases are added, and their gradients summed up, where rows are read anyway.

    Dropout and drop path draw other numbers than in plain code.
    """
    attention, mlp = block.attention, block.mlp
    assert isinstance(block.attention_norm, nn.LayerNorm)
    assert isinstance(block.mlp_norm, nn.LayerNorm)
    if pending is None:
        normed = block.attention_norm(x)
    else:
        x, normed = add_norm(x, pending, block.attention_norm)
    attended = attention.attend(linear(normed, attention.qkv_proj), plan, rows)
    x = x if rows is None else x.index_select(0, rows)
    out_proj = attention.out_proj
    x, normed = add_norm(
        x, _branch(block, F.linear(attended, out_proj.weight), out_proj.bias, plan, rows), block.mlp_norm
    )
    hidden = F.linear(normed, mlp.up.weight)
    hidden = activate(hidden, mlp.up.bias, dropout=mlp.dropout.rate, gelu=mlp.activation is F.gelu)
    if not leave:
        return x + block.dropped(mlp.down(hidden), plan.segments, rows), None
    # The bias is copied, because FSDP frees the weights of a block before the next one runs.
    return x, _branch(block, F.linear(hidden, mlp.down.weight), mlp.down.bias.clone(), plan, rows)


def _branch(block: Block, x: Tensor, bias: Tensor, plan: AttentionPlan, rows: Tensor | None) -> Branch:
    """A branch before :meth:`Block.dropped`, with what that would draw."""
    if not (block.drops and block.training):
        return Branch(x, bias, None, None, block.dropout.rate)
    ids = plan.segments.ids if rows is None else plan.segments.ids.index_select(0, rows)
    return Branch(x, bias, path_factor(plan.segments, block.drop_rate), ids, block.dropout.rate)
