"""What a block does between its matrix products, by Triton kernels that each read the rows once.

For compiled training on a GPU. A compiler fuses much of it too. But it does not add up the gradients of norms and
biases where their rows are read anyway, it does not fuse a block with the next one, and its GELU with dropout is bound
by arithmetic. Importing this needs no Triton; calling it does.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout as plain_dropout

from tokengt.kernels.support import TYPES

# The widths that the kernels are used for. :func:`add_norm` holds a whole row in the registers of a program, which
# limits it; and rows of 96 took longer than with the kernels that a compiler makes, where there is one.
_NARROWEST, _WIDEST = 256, 2048


class Branch(NamedTuple):
    """What is still to be added to a stream of rows: rows + bias, after drop path and dropout.

    ``factor`` is what drop path multiplies each sequence by, ``ids`` the sequence of every row (None without drop
    path); ``rate`` is that of dropout, and ``seed`` what its mask is a function of (None: drawn).
    """

    rows: Float[Tensor, "rows dim"]
    bias: Float[Tensor, " dim"]
    factor: Float[Tensor, " sequences"] | None
    ids: Int[Tensor, " rows"] | None
    rate: float
    seed: Int[Tensor, ""] | None = None

    def added_to(self, x: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows dim"]:
        """The sum, in plain PyTorch."""
        branch = plain_dropout(self.rows + self.bias, self.rate)
        if self.factor is not None and self.ids is not None:
            branch = branch * self.factor.index_select(0, self.ids)[:, None]
        return x + branch


def fits(x: Float[Tensor, "rows dim"]) -> bool:
    """Whether kernels take such rows: on a GPU, up to 2,048 wide, bf16, fp16 or fp32; in compiled code from 256 on."""
    width = x.shape[1]
    narrowest = _NARROWEST if torch.compiler.is_compiling() else 0
    return x.is_cuda and x.dtype in TYPES and narrowest <= width <= _WIDEST


def is_plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether the layer is of just this kind and calling it has no side effects: its weights then say all of it."""
    return type(layer) is kind and len(layer._forward_hooks) == 0 and len(layer._forward_pre_hooks) == 0


def norm(x: Float[Tensor, "rows dim"], layer: nn.LayerNorm, dtype: torch.dtype) -> Float[Tensor, "rows dim"]:
    """The layer, in any of the types that kernels take."""
    from tokengt.kernels.rows_op import norm_op

    normed: Tensor = norm_op(x, layer.weight, layer.bias, layer.eps, dtype)[0]
    return normed


def add_norm(
    x: Float[Tensor, "rows dim"], branch: Branch, norm: nn.LayerNorm
) -> tuple[Float[Tensor, "rows dim"], Float[Tensor, "rows dim"]]:
    """H = :meth:`Branch.added_to` x, in x's type, and norm(H), in the branch's."""
    from tokengt.kernels.rows_op import add_norm_op

    rows, bias, factor, ids, rate, seed = branch
    arguments = (x, rows, bias, factor, ids, _seed(rate, x, seed), rate)
    out, normed, _, _ = add_norm_op(*arguments, norm.weight, norm.bias, norm.eps)
    return out, normed


def activate(
    x: Float[Tensor, "rows dim"],
    bias: Float[Tensor, " dim"],
    *,
    dropout: float,
    gelu: bool,
    seed: Int[Tensor, ""] | None = None,
) -> Float[Tensor, "rows dim"]:
    """dropout(activation(x + bias)), GELU or ReLU."""
    from tokengt.kernels.rows_op import activate_op

    out: Tensor = activate_op(x, bias, _seed(dropout, x, seed), dropout, gelu)
    return out


def linear(x: Float[Tensor, "rows dim"], layer: nn.Linear) -> Float[Tensor, "rows out"]:
    """The layer, in the type that autocast asks for; the gradient of its bias by one pass."""
    from tokengt.kernels.rows_op import linear_op

    dtype = autocast_type(x) if torch.is_autocast_enabled(x.device.type) else layer.weight.dtype
    out: Tensor = linear_op(x.to(dtype), layer.weight.to(dtype), layer.bias.to(dtype))
    return out


def autocast_type(x: Tensor) -> torch.dtype:
    """The type that matrix products of such rows are in."""
    mixed = torch.is_autocast_enabled(x.device.type)
    return torch.get_autocast_dtype(x.device.type) if mixed else x.dtype


def _seed(dropout: float, x: Tensor, given: Tensor | None) -> Tensor | None:
    if dropout == 0:
        return None
    return torch.randint(2**62, (), device=x.device) if given is None else given
