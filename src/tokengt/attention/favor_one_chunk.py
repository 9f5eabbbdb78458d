"""What FAVOR+ does with one chunk of tokens: pure functions of tensors.

``favor_chunks`` has the equations. A batch is sequences x heads; products are of factors in one type, sums are wider.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type of sums: float32 at least."""
    return torch.promote_types(dtype, torch.float32)


def product(a: Float[Tensor, "batch n k"], b: Float[Tensor, "batch k m"]) -> Float[Tensor, "batch n m"]:
    """a b, summed in float32 at least and never rounded to less."""
    if a.dtype == torch.bfloat16:
        return torch.bmm(a, b, out_dtype=torch.float32) if a.is_cuda else torch.bmm(a.float(), b.float())
    return torch.bmm(a, b)


def _exponents(x: Tensor, projection: Tensor) -> tuple[Tensor, Tensor]:
    """W x and |x|^2 / 2; ``projection`` carries the temperature d^(-1/4) of x already."""
    half_norm = x.to(wide(x.dtype)).square().sum(-1, keepdim=True) * (x.shape[-1] ** -0.5 / 2)
    return product(x, projection.mT.expand(len(x), -1, -1)), half_norm


def absorb_keys(
    key: Float[Tensor, "batch chunk dim"],
    ones: Float[Tensor, "batch chunk columns"],
    projection: Float[Tensor, "features dim"],
    peak: Float[Tensor, "batch 1 1"],
    sums: Float[Tensor, "batch features columns"],
) -> tuple[Float[Tensor, "batch 1 1"], Float[Tensor, "batch features columns"]]:
    """The stabiliser and sum_j e(k_j) u_j^T with one more chunk of keys; ``ones`` holds u."""
    exponents, half_norm = _exponents(key, projection)
    top = torch.maximum(peak, exponents.amax((1, 2), keepdim=True))
    e = exponents.sub_(half_norm + top).exp_().to(key.dtype)
    return top, product(e.mT, ones).add_(sums * torch.exp(peak - top))


def answer_queries(
    query: Float[Tensor, "batch chunk dim"],
    projection: Float[Tensor, "features dim"],
    table: Float[Tensor, "batch features columns"],
    floor: Float[Tensor, "batch 1 columns"],
) -> tuple[Float[Tensor, "batch chunk columns"], Float[Tensor, "batch chunk 1"]]:
    """[num, den] of a chunk and |q|^2 / 2 + stabiliser; ``floor`` is eps 1^T T."""
    exponents, half_norm = _exponents(query, projection)
    offset = half_norm + exponents.amax(-1, keepdim=True)
    return product(exponents.sub_(offset).exp_().to(query.dtype), table).add_(floor), offset


def queries_backward(
    query: Float[Tensor, "batch chunk dim"],
    gradient: Float[Tensor, "batch chunk value_dim"],
    offset: Float[Tensor, "batch chunk 1"],
    projection: Float[Tensor, "features dim"],
    table: Float[Tensor, "batch features columns"],
    floor: Float[Tensor, "batch 1 columns"],
    change: Float[Tensor, "batch features columns"],
    total: Float[Tensor, "batch 1 columns"],
) -> tuple[Float[Tensor, "batch chunk dim"], Float[Tensor, "batch features columns"], Float[Tensor, "batch 1 columns"]]:
    """dq of a chunk; sum_i e(q_i) G_i^T and sum_i G_i^T with one more chunk."""
    wide_e = product(query, projection.mT.expand(len(query), -1, -1)).sub_(offset).exp_()
    e, width = wide_e.to(query.dtype), gradient.shape[2]
    both = product(e, table).add_(floor)
    below = both[..., width : width + 1]
    weighted = gradient.to(both.dtype) / below
    inner = -(weighted * both[..., :width]).sum(-1, keepdim=True) / below
    pair = torch.nn.functional.pad(torch.cat([weighted, inner], -1), (0, both.shape[2] - width - 1))
    factors = pair.to(query.dtype)
    through = product(factors, table.mT).mul_(wide_e).to(query.dtype)
    slope = product(through, projection.expand(len(query), -1, -1))
    lost = (pair * floor).sum(-1, keepdim=True) * query.shape[2] ** -0.5
    change = product(e.mT, factors).add_(change)
    return slope.addcmul_(query.to(slope.dtype), lost), change, total + pair.sum(1, keepdim=True)


def keys_backward(
    key: Float[Tensor, "batch chunk dim"],
    ones: Float[Tensor, "batch chunk columns"],
    projection: Float[Tensor, "features dim"],
    peak: Float[Tensor, "batch 1 1"],
    change: Float[Tensor, "batch features columns"],
    floor: Float[Tensor, "batch 1 columns"],
) -> tuple[Float[Tensor, "batch chunk dim"], Float[Tensor, "batch chunk columns"]]:
    """dk and, in its first columns, dv of a chunk; ``change`` is dT, ``floor`` eps 1^T dT."""
    exponents, half_norm = _exponents(key, projection)
    e = exponents.sub_(half_norm + peak).exp_()
    values = product(e.to(key.dtype), change)
    through = product(ones, change.mT).mul_(e).to(key.dtype)
    slope = product(through, projection.expand(len(key), -1, -1))
    lost = (ones * values).sum(-1, keepdim=True) * -(key.shape[2] ** -0.5)
    return slope.addcmul_(key.to(slope.dtype), lost), values.add_(floor)
