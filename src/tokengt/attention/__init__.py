"""Attention over packed sequences. It sees values and offsets only."""

from tokengt.attention.favor import draw_projection, favor_attention
from tokengt.attention.multihead import AttentionConfig, MultiheadAttention
from tokengt.attention.softmax import attention_weights, refuse_large_maps, softmax_attention

__all__ = [
    "AttentionConfig",
    "MultiheadAttention",
    "attention_weights",
    "draw_projection",
    "favor_attention",
    "refuse_large_maps",
    "softmax_attention",
]
