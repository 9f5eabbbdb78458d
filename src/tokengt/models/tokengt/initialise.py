"""The initial values of all weights."""

from torch import nn

from tokengt.models.tokengt.structure import EigenpairSet
from tokengt.models.tokengt.tokens import Tokenizer


def initialise(model: nn.Module, std: float = 0.02) -> None:
    """All linear maps, embeddings and special tokens N(0, 0.02), biases zero, norms the identity.

    The MLPs of a set of eigenpairs keep the size of their inputs, N(0, 1 / inputs): after four maps as small as the
    others, what is normalised at the end would be rounding.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, Tokenizer) and module.special_tokens is not None:
            nn.init.normal_(module.special_tokens, std=std)
    for pairs in (module for module in model.modules() if isinstance(module, EigenpairSet)):
        for linear in (module for module in pairs.modules() if isinstance(module, nn.Linear)):
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
