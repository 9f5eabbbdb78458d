"""Runs of entries, cut where they are long: decided once. Importing this needs no Triton."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

# Entries that one program adds up. A word that ten thousand texts have, or a node that as many edges lead to, would
# keep a single program busy long after all others are done.
MOST = 512


@dataclass(frozen=True, eq=False)
class Runs:
    """Where runs of entries begin, and the end; long runs in several pieces.

    Args:
        offsets: of the pieces; of the runs themselves where none is long.
        pieces: which pieces each run has, as offsets too; None where each is one.
    """

    offsets: Int[Tensor, " bounds"]
    pieces: Int[Tensor, " bounds"] | None


def cut_runs(offsets: Int[Tensor, " bounds"], longest: int, most: int = MOST) -> Runs:
    """Runs, the longest of which has so many entries, cut into pieces of ``most`` at most."""
    if longest <= most:
        return Runs(offsets, None)
    lengths = offsets.diff().long()
    counts = (-(-lengths // most)).clamp(min=1)
    pieces = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    run = torch.repeat_interleave(torch.arange(len(lengths), device=offsets.device), counts)
    within = torch.arange(len(run), device=offsets.device) - pieces.index_select(0, run)
    starts = offsets.long().index_select(0, run) + within * most
    return Runs(torch.cat([starts, offsets[-1:].long()]).to(offsets.dtype), pieces)
