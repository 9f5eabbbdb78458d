"""Attention over packed sequences. It sees values and offsets only.

Packed means that the rows of all sequences of a batch stand one after another in one tensor, without padding; the
offsets say where each sequence begins.
"""

from tokengt.attention.elu import EluAttention, EluConfig, elu_attention
from tokengt.attention.favor import FavorAttention, FavorConfig, draw_projection, favor_attention
from tokengt.attention.limits import refuse_large_maps
from tokengt.attention.marks import may_attend
from tokengt.attention.multihead import AttentionConfig, MultiheadAttention, rename_old_keys
from tokengt.attention.plan import AttentionPlan
from tokengt.attention.softmax import SoftmaxAttention, SoftmaxConfig, attention_weights, softmax_attention

__all__ = [
    "AttentionConfig",
    "AttentionPlan",
    "EluAttention",
    "EluConfig",
    "FavorAttention",
    "FavorConfig",
    "MultiheadAttention",
    "SoftmaxAttention",
    "SoftmaxConfig",
    "attention_weights",
    "draw_projection",
    "elu_attention",
    "favor_attention",
    "may_attend",
    "refuse_large_maps",
    "rename_old_keys",
    "softmax_attention",
]
