"""Which rows of a sequence may attend to which: those that have a mark in common.

Every row has two marks, numbers from 0 on. Two rows attend to each other where one mark of the one is a mark of the
other. A row without marks (-1) is open: it attends to all rows of its sequence, and all attend to it. Every row attends
to itself, so that no softmax is empty. Layers that attend so are *masked*.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tokengt.attention.limits import refuse_large_scores
from tokengt.ragged import Segments


def may_attend(marks: Int[Tensor, "*sequences rows 2"]) -> Bool[Tensor, "*sequences rows rows"]:
    """Whether row i may attend to row j, for every two rows of a sequence."""
    equal = (marks[..., :, None, :, None] == marks[..., None, :, None, :]).flatten(-2).any(-1)
    is_open = marks[..., 0] < 0
    return equal | is_open[..., :, None] | is_open[..., None, :]


def bucket_masks(
    marks: Int[Tensor, "tokens 2"], segments: Segments, dtype: torch.dtype
) -> tuple[Bool[Tensor, "_ 1 _ _"], ...]:
    """:func:`may_attend` for every bucket of sequences, [sequences, 1, width, width]; no row attends to padding.

    Raises:
        ValueError: they would not fit into memory, together with the copies in ``dtype`` that attention makes of them.
    """
    advice = "use a GPU with Triton, whose kernels write no masks, or set encoder.incidence to 'never'"
    refuse_large_scores(segments, 1, 1 + dtype.itemsize, "in masked layers", advice)
    masks = []
    for bucket in segments.buckets:
        # Padding has the marks of its sequence's first row, which it may attend to.
        mask = may_attend(marks[bucket.rows])
        masks.append((mask if bucket.mask is None else mask & bucket.mask[:, None, :])[:, None])
    return tuple(masks)
