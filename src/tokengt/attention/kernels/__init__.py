"""Attention kernels for packed rows. Importing this needs no Triton; calling it does."""

import importlib.util

import torch
from jaxtyping import Float
from torch import Tensor

from tokengt.attention.kernels.plan import choose_tiling, plan_of
from tokengt.ragged import Segments

__all__ = ["packed_attention"]

_TYPES = (torch.bfloat16, torch.float16, torch.float32)
_WIDEST_HEAD = 128


def packed_attention(
    qkv: Float[Tensor, "tokens width"],
    segments: Segments,
    *,
    num_heads: int,
    head_dim: int,
    value_dim: int,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> Float[Tensor, "tokens {num_heads} {value_dim}"]:
    """Exact softmax attention of every sequence to itself, from rows [queries | keys | values] of all heads.

    ``dropout`` zeroes attention weights with that probability; ``seed`` (one int64, where the data lies) decides which,
    and is drawn from PyTorch's generator when it is None. Two calls with the same seed drop the same weights.
    """
    if importlib.util.find_spec("triton") is None:
        raise ImportError("attention backend 'triton' needs the package triton, which is not installed")
    from tokengt.attention.kernels.launch import interpreted
    from tokengt.attention.kernels.op import packed_attention_op

    if qkv.dtype not in _TYPES or max(head_dim, value_dim) > _WIDEST_HEAD:
        raise ValueError(
            f"attention backend 'triton' needs bf16, fp16 or fp32 and head sizes up to {_WIDEST_HEAD}; "
            f"got {qkv.dtype}, sizes {head_dim} and {value_dim}"
        )
    if qkv.is_cuda == interpreted():
        raise ValueError(
            f"attention backend 'triton' needs a GPU (or, for tests on a CPU, TRITON_INTERPRET=1 in the environment); "
            f"got a tensor on {qkv.device.type}"
        )
    if dropout == 0:
        seed = None
    elif seed is None:
        seed = torch.randint(2**62, (), device=qkv.device)
    plan = plan_of(segments, choose_tiling(head_dim, value_dim, qkv.element_size()))
    out, _ = packed_attention_op(qkv, plan.items, plan.buckets, seed, num_heads, head_dim, value_dim, dropout)
    assert isinstance(out, Tensor)
    return out
