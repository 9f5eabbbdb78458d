"""How much arithmetic a step needs, and how much the device can do."""

import time

import torch
from jaxtyping import Int
from torch import Tensor, nn

from tokengt.attention import EluAttention, FavorAttention, MultiheadAttention
from tokengt.block import Block
from tokengt.models.tokengt.model import TokenGT

_PEAK_SIZE = {"cuda": 8192, "cpu": 1536}
_PEAK_CALLS = 10
# A training step costs three forward passes: for each product of the forward, the backward makes two, one for the
# gradient of the inputs and one for that of the weights.
TRAIN_FACTOR = 3


def forward_flop(model: TokenGT, lengths: Int[Tensor, " graphs"], rows: int) -> float:
    """Floating-point operations of one forward, in matrix products only, no padding counted.

    2 x weights x tokens for the linear maps of the blocks and of the identifiers, 2 x weights x rows for the head and
    for what the last block does with the rows that the head reads, and per block softmax
    2 H (d_H + d_v) sum_g length_g^2, or FAVOR+ with m features 4 H m (d_H + d_v) tokens.
    Embeddings, norms and activations are left out; training costs three times as much.
    """
    tokens = float(lengths.sum())
    token_weights = _linear_weights(model.encoder) + _linear_weights(model.tokenizer)
    total = 2 * token_weights * tokens + 2 * _linear_weights(model.head) * rows
    if len(model.encoder.blocks) and _reads_few(model):
        last = model.encoder.blocks[-1]
        assert isinstance(last, Block)
        total -= 2 * (_linear_weights(last.mlp) + last.attention.out_proj.weight.numel()) * (tokens - rows)
    squares = float(lengths.double().square().sum())
    for block in model.encoder.blocks:
        assert isinstance(block, Block)
        total += _attention_flop(block.attention, tokens, squares)
    return total


def _reads_few(model: TokenGT) -> bool:
    """Whether the last block works out the rows of the head alone."""
    head = model.config.head
    reads_all = head.level == "edge" or (head.level == "graph" and head.readout != "token")
    return not reads_all and not model.config.encoder.sparse_basis_residual


def _linear_weights(module: nn.Module) -> int:
    return sum(part.weight.numel() for part in module.modules() if isinstance(part, nn.Linear))


def _attention_flop(attention: MultiheadAttention, tokens: float, squares: float) -> float:
    widths = attention.heads.count * (attention.heads.key + attention.heads.value)
    if isinstance(attention.kernel, FavorAttention):
        return 4 * widths * len(attention.kernel.projection) * tokens
    if isinstance(attention.kernel, EluAttention):
        return 4 * attention.heads.count * attention.heads.key * attention.heads.value * tokens
    return 2 * widths * squares


def measured_peak(device: torch.device, size: int | None = None) -> float:
    """FLOP/s of one large square matrix product here and now: bfloat16 on a GPU, float32 on a CPU; the best of ten."""
    size = size or _PEAK_SIZE[device.type]
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    left, right = torch.randn(2, size, size, device=device).to(dtype)
    best = float("inf")
    for _ in range(_PEAK_CALLS):
        wait(device)
        start = time.perf_counter()
        _ = left @ right
        wait(device)
        best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best


def wait(device: torch.device) -> None:
    """Until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
