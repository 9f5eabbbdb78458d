"""Dropout. Compiled code on a GPU hashes each entry's place, at a tenth of the cost of PyTorch's random generator."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

# The multipliers of MurmurHash3's finaliser, 0x85EBCA6B and 0xC2B2AE35, as signed 32-bit integers.
_FIRST, _SECOND = -2048144789, -1028477387


def dropout_threshold(rate: float) -> tuple[int, float]:
    """The value of 16 random bits below which an entry is dropped, and the share of entries that are kept.

    All kernels of this package compare 16 random bits with this threshold. The rate is therefore rounded to a multiple
    of 2^-16, and kept entries are divided by the share that is really kept, so that the expected value stays exact.
    """
    threshold = min(round(rate * 2**16), 2**16 - 1)
    return threshold, 1 - threshold / 2**16


def keep_mask(seed: Int[Tensor, ""], rows: int, columns: int, rate: float) -> Bool[Tensor, "{rows} {columns}"]:
    """True with probability 1 - ``rate`` (to 2^-16): a function of (seed, row, column). ``seed`` has 62 random bits.

    A column and the column half a row further on share one word of 32 random bits, because the activation of
    ``tokengt.kernels.rows`` draws for both at once. Words are numbered modulo 2^32. One half of the seed goes in before
    the first round of mixing and the other half between the two rounds, so that another seed gives another mask and not
    the same mask shifted.
    """
    low, high = seed.bitwise_and(2**31 - 1).int(), seed.bitwise_right_shift(31).int()
    row = torch.arange(rows, dtype=torch.int32, device=seed.device)
    column = torch.arange(columns, dtype=torch.int32, device=seed.device)
    half = (columns + 1) // 2
    second = column >= half
    words = _mix(_mix((row[:, None] * half + torch.where(second, column - half, column)) ^ low) + high)
    bits = torch.where(second, words >> 16, words) & 0xFFFF
    return bits >= dropout_threshold(rate)[0]


def _mix(x: Tensor) -> Tensor:
    """MurmurHash3's finaliser, a bijection of 32-bit integers; shifts are logical."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * _FIRST
    x = (x ^ ((x >> 13) & 0x7FFFF)) * _SECOND
    return x ^ ((x >> 16) & 0xFFFF)


def hashed_dropout(
    x: Float[Tensor, "*rows columns"], rate: float, seed: Int[Tensor, ""]
) -> Float[Tensor, "*rows columns"]:
    """x / (1 - rate), with the rounded rate, where :func:`keep_mask` keeps an entry, and 0 elsewhere."""
    rows = x.flatten(0, -2)
    keep = keep_mask(seed, rows.shape[0], rows.shape[1], rate)
    return torch.where(keep, rows / dropout_threshold(rate)[1], 0.0).view_as(x)


class Dropout(nn.Dropout):
    """``nn.Dropout``, in compiled code on a GPU :func:`hashed_dropout`."""

    @property
    def rate(self) -> float:
        """The rate at which entries are dropped now: 0 outside of training."""
        return self.p if self.training else 0.0

    def forward(self, x: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        if self.rate == 0:
            return x
        # Only a compiler makes one kernel of the hash; run eagerly it would be a dozen, slower than PyTorch's dropout.
        if x.is_cuda and torch.compiler.is_compiling():
            return hashed_dropout(x, self.p, torch.randint(2**62, (), device=x.device))
        return F.dropout(x, self.p)
