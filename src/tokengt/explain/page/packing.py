"""Attention maps as text for a page: whole numbers of a stated step, compressed, in base64.

Every row of a map is divided by its largest weight and rounded to ``levels`` equal steps, so that a weight is read back
to within half a step of its row. How many levels there are depends on how much the maps hold: as many as fit into the
budget of a page.
"""

import base64
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from numpy.typing import NDArray

# Characters that the maps of a page may take: a page is to stay below 10 MB with everything else in it.
BUDGET = 8_000_000
# From the finest to the coarsest. Below 15 levels a row would be a few flat colours.
_LEVELS = (255, 127, 63, 31, 15)
# How many characters base64 needs for a byte.
_BASE64 = 4 / 3
# From how many rows the size of all of them is told.
_SAMPLE_ROWS = 4096
_Weights = Float[NDArray[Any], "layers heads queries keys"]


@dataclass(frozen=True)
class PackedMaps:
    """Maps of one graph.

    ``blocks`` has one text per layer: weights as multiples of their row's step, [heads, queries, keys] in bytes,
    deflated (zlib), in base64. ``maxima`` [layers, heads, queries], float32 in base64, are the largest weights of all
    rows: the step of a row is its largest weight divided by ``levels``. ``mean_only``: there is one head, the mean over
    all of them, because the heads would not fit.
    """

    layers: int
    heads: int
    queries: int
    keys: int
    levels: int
    blocks: tuple[str, ...]
    maxima: str
    mean_only: bool = False


def pack_maps(weights: _Weights, budget: int = BUDGET) -> PackedMaps | None:
    """The maps as text of at most about ``budget`` characters; None where not even the means over heads fit."""
    for mean_only in (False, True):
        shown = weights.mean(1, keepdims=True) if mean_only else weights
        for levels in _LEVELS:
            if _bits(shown, levels) * shown.size / 8 * _BASE64 <= budget:
                return _packed(shown, levels, mean_only)
    return None


def _packed(weights: _Weights, levels: int, mean_only: bool) -> PackedMaps:
    steps, maxima = quantise(weights, levels)
    blocks = tuple(as_text(_deflated(layer.tobytes())) for layer in steps)
    layers, heads, queries, keys = steps.shape
    return PackedMaps(layers, heads, queries, keys, levels, blocks, as_text(maxima.tobytes()), mean_only)


def quantise(
    weights: _Weights, levels: int
) -> tuple[UInt8[NDArray[Any], "layers heads queries keys"], Float[NDArray[Any], "layers heads queries"]]:
    """round(levels alpha / max alpha) row by row, and the largest weight of every row in float32."""
    maxima = weights.max(-1, initial=0.0).astype(np.float32)
    scale = levels / np.where(maxima > 0, maxima, 1.0)
    steps = np.rint(weights * scale[..., None]).clip(0, levels).astype(np.uint8)
    return steps, maxima


def unpack_maps(packed: PackedMaps) -> _Weights:
    """What the page reads back, [layers, heads, queries, keys] in float32: the twin of its script."""
    shape = (packed.layers, packed.heads, packed.queries)
    steps = [np.frombuffer(zlib.decompress(base64.b64decode(block)), np.uint8) for block in packed.blocks]
    maxima = np.frombuffer(base64.b64decode(packed.maxima), "<f4").reshape(shape)
    weights: _Weights = np.stack(steps).reshape(*shape, packed.keys) * (maxima[..., None] / np.float32(packed.levels))
    return weights


def as_text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _bits(weights: _Weights, levels: int) -> float:
    """How many bits a weight takes when every step is written in as many as it is rare; from a sample of the rows."""
    rows = weights.reshape(-1, weights.shape[-1])
    steps, _ = quantise(rows[None, None, :: -(-len(rows) // _SAMPLE_ROWS) or 1], levels)
    counts = np.bincount(steps.ravel(), minlength=1)
    shares = counts[counts > 0] / max(1, steps.size)
    return float(-(shares * np.log2(shares)).sum())


def _deflated(content: bytes) -> bytes:
    """Codes alone, or where these leave a tenth of a byte or two per weight, mostly zeros, repeats found as well."""
    codes = zlib.compressobj(9, strategy=zlib.Z_HUFFMAN_ONLY)
    plain = codes.compress(content) + codes.flush()
    return min(plain, zlib.compress(content, 6), key=len) if len(plain) < len(content) / 4 else plain
