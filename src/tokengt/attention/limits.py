"""What softmax attention costs, said before a person waits or memory runs out: refusals and warnings."""

import warnings

import torch

from tokengt.kernels.heads import Heads
from tokengt.ragged import Segments

# The most memory that the score matrices of one call may take; what needs more is refused.
SCORE_LIMIT_BYTES = 8 * 2**30
# A call with more work than this takes about ten seconds on such a device, so a person is warned before waiting.
WORK_WARNING_FLOP = {"cpu": 1e12, "cuda": 1e15}


def refuse_large_maps(segments: Segments, maps: int, bytes_each: int) -> None:
    """Raise before ``maps`` maps of every sequence (heads times layers) are written out that would not fit."""
    refuse_large_scores(segments, maps, bytes_each, "with attention maps", "ask for the maps of fewer tokens")


def refuse_large_scores(segments: Segments, copies: int, bytes_each: int, why: str, advice: str) -> None:
    """Raise before ``copies`` score matrices of every sequence are written out that would not fit."""
    needed = copies * segments.squared_total * bytes_each
    if needed > SCORE_LIMIT_BYTES:
        limit = SCORE_LIMIT_BYTES / 2**30
        raise ValueError(
            f"softmax attention {why} would hold {needed / 2**30:,.1f} GiB of scores for up to "
            f"{segments.max_length:,} tokens per sequence (the limit is {limit:g} GiB); {advice}"
        )


def warn_of_work(segments: Segments, heads: Heads, device: torch.device) -> None:
    """Say how much a call costs when a person would wait for it."""
    flop = 2 * heads.count * (heads.key + heads.value) * segments.squared_total
    if flop > WORK_WARNING_FLOP.get(device.type, 1e15):
        warnings.warn(
            f"softmax attention over up to {segments.max_length:,} tokens per sequence costs about "
            f"{flop / 1e12:,.1f} TFLOP per layer; attention kind 'favor' is linear in tokens",
            stacklevel=3,
        )
