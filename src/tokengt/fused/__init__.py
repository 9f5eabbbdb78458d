"""What a block does between its matrix products, in one pass over the rows each. Importing this needs no Triton.

For compiled training on a GPU. A compiler fuses much of it too; it does not add up the gradients of norms and biases
where their rows are read anyway, fuse a block with the next one, or draw random bits for two numbers at once.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

__all__ = ["Branch", "activate", "add_norm", "fits", "linear"]

_TYPES = (torch.bfloat16, torch.float16, torch.float32)
# A row is one tile.
_WIDEST = 2048


class Branch(NamedTuple):
    """What is still to be added to a stream of rows: dropped(rows + bias).

    ``factor`` is what drop path multiplies each sequence by, ``ids`` the sequence of every row; None without it.
    """

    rows: Float[Tensor, "rows dim"]
    bias: Float[Tensor, " dim"]
    factor: Float[Tensor, " sequences"] | None
    ids: Int[Tensor, " rows"] | None


def fits(x: Float[Tensor, "rows dim"], *widths: int) -> bool:
    """Whether to use the kernels here: their launches, and the operators', are cheap where they are compiled."""
    return x.is_cuda and torch.compiler.is_compiling() and x.dtype in _TYPES and max(widths) <= _WIDEST


def add_norm(
    x: Float[Tensor, "rows dim"], branch: Branch, norm: nn.LayerNorm, *, dropout: float = 0.0
) -> tuple[Float[Tensor, "rows dim"], Float[Tensor, "rows dim"]]:
    """H = x + dropped(branch), in x's type, and norm(H), in the branch's."""
    from tokengt.fused.op import add_norm_op

    seed = _seed(dropout, x)
    out, normed, _, _ = add_norm_op(x, *branch, seed, dropout, norm.weight, norm.bias, norm.eps)
    return out, normed


def activate(
    x: Float[Tensor, "rows dim"], bias: Float[Tensor, " dim"], *, dropout: float, gelu: bool
) -> Float[Tensor, "rows dim"]:
    """dropout(activation(x + bias)), GELU or ReLU."""
    from tokengt.fused.op import activate_op

    out: Tensor = activate_op(x, bias, _seed(dropout, x), dropout, gelu)
    return out


def linear(x: Float[Tensor, "rows dim"], layer: nn.Linear) -> Float[Tensor, "rows out"]:
    """The layer, in the type that autocast asks for; the gradient of its bias by one pass."""
    from tokengt.fused.op import linear_op

    mixed = torch.is_autocast_enabled(x.device.type)
    dtype = torch.get_autocast_dtype(x.device.type) if mixed else layer.weight.dtype
    out: Tensor = linear_op(x.to(dtype), layer.weight.to(dtype), layer.bias.to(dtype))
    return out


def _seed(dropout: float, x: Tensor) -> Tensor | None:
    return torch.randint(2**62, (), device=x.device) if dropout > 0 else None
