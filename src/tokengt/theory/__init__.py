"""The paper's Section 3 and its proofs as running code, poured into the production Transformer."""

from tokengt.theory.construction import compile_ign, compile_layer, tensor_graph
from tokengt.theory.ign import EquivariantLinear, IGNConfig, InvariantGraphNetwork
from tokengt.theory.tuples import Tuples

__all__ = [
    "EquivariantLinear",
    "IGNConfig",
    "InvariantGraphNetwork",
    "Tuples",
    "compile_ign",
    "compile_layer",
    "tensor_graph",
]
