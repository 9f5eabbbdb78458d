"""The initial values of all weights."""

from torch import nn

from tokengt.models.tokengt.tokens import Tokenizer


def initialise(model: nn.Module, std: float = 0.02) -> None:
    """All linear maps, embeddings and special tokens N(0, 0.02), biases zero, norms the identity."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, Tokenizer) and module.special_tokens is not None:
            nn.init.normal_(module.special_tokens, std=std)
