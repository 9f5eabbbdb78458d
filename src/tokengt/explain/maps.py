"""Attention maps of one graph as an array.

In pictures small weights are made visible by clamping: every weight from the clamp on has the same, darkest colour.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokengt.explain.tokens import Tokens, one_graph, tokens_of
from tokengt.explain.walking import with_maps

CLAMP = 0.01

Map = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """The attention of one graph.

    Args:
        weights: [layers, heads, tokens, tokens] alpha; the row of a query sums to 1.
        tokens: what the rows and columns are.
    """

    weights: NDArray[np.float32]
    tokens: Tokens

    def _repr_html_(self) -> str:
        from tokengt.explain.pictures import as_html, plot_attention_maps

        return as_html(plot_attention_maps(self))


def attention_maps(model: Any, graph: Any) -> AttentionMaps:
    """The maps of one graph (whatever a model takes), at evaluation.

    Raises:
        ValueError: one sentence: why the model has none, or the graph is too large for them.
    """
    tokengt, batch = with_maps(model), one_graph(graph)
    maps = [layer[0].float() for layer in tokengt.attention_maps(batch)]
    tokens = tokens_of(tokengt, batch)
    heads = tokengt.config.encoder.num_heads
    weights = torch.stack(maps) if maps else torch.zeros(0, heads, len(tokens), len(tokens))
    return AttentionMaps(weights.cpu().numpy(), tokens)


def clamp_map(weights: Map, clamp: float = CLAMP) -> Map:
    """min(alpha, clamp) / clamp: small weights become visible; everything from the clamp on is 1."""
    if clamp <= 0:
        raise ValueError(f"clamp is {clamp}; expected a positive number")
    return np.minimum(weights.astype(np.float32), clamp) / clamp
