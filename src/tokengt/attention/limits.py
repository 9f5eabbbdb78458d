"""What softmax attention costs, told before it is paid: refusals and warnings."""

import warnings

from torch import Tensor

from tokengt.ragged import Segments

# Score matrices of one call may take this much memory before we refuse to write them out.
SCORE_LIMIT_BYTES = 8 * 2**30
# Work of one call above which a person would want to know before waiting (about ten seconds on either).
WORK_WARNING_FLOP = {"cpu": 1e12, "cuda": 1e15}


def refuse_large_maps(segments: Segments, maps: int, bytes_each: int) -> None:
    """Raise before ``maps`` maps of every sequence (heads times layers) are written out that would not fit."""
    refuse_large_scores(segments, maps, bytes_each, "with attention maps", "ask for the maps of fewer tokens")


def refuse_large_scores(segments: Segments, copies: int, bytes_each: int, why: str, advice: str) -> None:
    """Raise before ``copies`` score matrices of every sequence are written out that would not fit."""
    needed = copies * _squared_lengths(segments) * bytes_each
    if needed > SCORE_LIMIT_BYTES:
        limit = SCORE_LIMIT_BYTES / 2**30
        raise ValueError(
            f"softmax attention {why} would hold {needed / 2**30:,.1f} GiB of scores for up to "
            f"{segments.max_length:,} tokens a sequence (the limit is {limit:g} GiB); {advice}"
        )


def warn_of_work(segments: Segments, query: Tensor, value: Tensor) -> None:
    """Say how much a call costs when a person would wait for it."""
    flop = 2 * query.shape[1] * (query.shape[2] + value.shape[2]) * _squared_lengths(segments)
    if flop > WORK_WARNING_FLOP.get(query.device.type, 1e15):
        warnings.warn(
            f"softmax attention over up to {segments.max_length:,} tokens a sequence costs about "
            f"{flop / 1e12:,.1f} TFLOP a layer; attention kind 'favor' is linear in tokens",
            stacklevel=3,
        )


def _squared_lengths(segments: Segments) -> float:
    return float(segments.host_lengths.double().square().sum())
