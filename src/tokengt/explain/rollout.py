"""What attention alone says of tokens: the last layer's weights, and attention roll-out through all layers.

Roll-out (Abnar and Zuidema 2020) follows the mean map over heads from layer to layer, with half of each row going to
the token itself for the residual stream: R_l = (A_l / 2 + I / 2) R_(l-1), R_0 = I. The scores are the row of R that the
head reads: of [graph], of the node, of the edge; the mean over all nodes and edges where it reads their sum or mean.
They sum to 1, have no sign and no unit, and nothing says that the prediction would change with them.
"""

import numpy as np
from numpy.typing import NDArray


def rolled_out(maps: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """[tokens] roll-out of maps [layers, heads, tokens, tokens], the mean over these rows."""
    tokens = maps.shape[-1]
    flow: NDArray[np.float64] = np.eye(tokens)[rows].mean(0)
    for layer in maps[::-1]:
        flow = 0.5 * flow + 0.5 * flow @ layer.mean(0, dtype=np.float64)
    return flow


def last_attention(maps: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """[tokens] the mean weight over heads of the last layer, the mean over these rows."""
    if not len(maps):
        return np.full(maps.shape[-1], np.nan)
    weights: NDArray[np.float64] = maps[-1].mean(0, dtype=np.float64)[rows].mean(0)
    return weights
