"""Lemma 1, Theorems 1 and 2 and Corollary 2 as weights of the production attention, encoder and TokenGT."""

from tokengt.theory.construction.bounds import (
    attention_bound,
    attention_error,
    attention_leak,
    attention_rounding,
    closest_rival,
    ign_bound,
    layer_bound,
    layer_rounding,
    logit_gap,
)
from tokengt.theory.construction.compile import compile_ign, compile_layer
from tokengt.theory.construction.gates import activation_map
from tokengt.theory.construction.lemma import basis_attention
from tokengt.theory.construction.message_passing import (
    MessagePassingLayer,
    graph_tensor,
    message_passing_ign,
    pass_messages,
)
from tokengt.theory.construction.tensors import encode_tensor, tensor_graph

__all__ = [
    "MessagePassingLayer",
    "activation_map",
    "attention_bound",
    "attention_error",
    "attention_leak",
    "attention_rounding",
    "basis_attention",
    "closest_rival",
    "compile_ign",
    "compile_layer",
    "encode_tensor",
    "graph_tensor",
    "ign_bound",
    "layer_bound",
    "layer_rounding",
    "logit_gap",
    "message_passing_ign",
    "pass_messages",
    "tensor_graph",
]
