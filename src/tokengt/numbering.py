"""Numbers of rows that are counted inside each graph, and the same numbers counted over a whole batch.

A graph's edges name its nodes by number. Counted inside the graph (*local*), the numbers are small, fit narrow
integers (one byte for molecules) and mean the same wherever the graph lies. A model indexes rows of a batch and needs
them counted over all its graphs (*packed*). :class:`LocalIndex` holds either one and computes the other when asked.
"""

from typing import final

import torch
from jaxtyping import Int, Integer, Shaped
from torch import Tensor

from tokengt.ragged import Segments

_NARROW = (torch.uint8, torch.int16, torch.int32)


@final
class LocalIndex:
    """Row numbers, grouped by graph.

    Entry e belongs to the graph whose run of ``entries`` holds e, and points at a row of that graph's run of ``rows``.
    What it says never changes; :attr:`local` and :attr:`packed` are each computed once, when first asked for.
    """

    def __init__(
        self,
        entries: Segments,
        rows: Segments,
        *,
        local: Integer[Tensor, "*lists entries"] | None = None,
        packed: Int[Tensor, "*lists entries"] | None = None,
        clamped: bool = False,
    ) -> None:
        assert local is not None or packed is not None, "one of the two numberings must be given"
        self._clamped = clamped
        self.entries = entries
        self.rows = rows
        self._local = local
        self._packed = packed

    @property
    def local(self) -> Integer[Tensor, "*lists entries"]:
        """Numbers counted from each graph's first row, in any integer type."""
        if self._local is None:
            assert self._packed is not None
            self._local = self._packed - self._starts()
        return self._local

    @property
    def packed(self) -> Int[Tensor, "*lists entries"]:
        """Numbers counted from the first row of all, int64."""
        if self._packed is None:
            assert self._local is not None
            self._packed = self._local + self._starts() if self._local.shape[-1] else self._local.long()
            if self._clamped:
                self._packed.clamp_(max=max(self.rows.total - 1, 0))
        return self._packed

    def _starts(self) -> Int[Tensor, " entries"]:
        """The first row of every entry's graph."""
        return self.rows.starts.index_select(0, self.entries.ids)

    @property
    def shape(self) -> torch.Size:
        return self._either.shape

    @property
    def device(self) -> torch.device:
        return self._either.device

    @property
    def _either(self) -> Integer[Tensor, "*lists entries"]:
        """Whichever numbering exists already, for properties that both have in common."""
        return self.local if self._packed is None else self._packed

    def take(
        self, places: Int[Tensor, " chosen"], entries: Segments, rows: Segments, *, clamped: bool = False
    ) -> "LocalIndex":
        """The entries at ``places``, whose graphs now lie at ``entries`` and ``rows``.

        ``clamped``: some of them name no row of their graph, and are to name any row there is when counted over all.
        """
        return LocalIndex(entries, rows, local=self.local.index_select(-1, places), clamped=clamped)

    def moved(self, entries: Segments, rows: Segments) -> "LocalIndex":
        """The same index on another device: ``entries`` and ``rows`` are this index's own, moved there."""
        local = None if self._local is None else self._local.to(entries.offsets.device)
        # Only one of the two is copied: local numbers are narrower, and the packed ones can be computed from them.
        packed = self._packed.to(entries.offsets.device) if local is None and self._packed is not None else None
        return LocalIndex(entries, rows, local=local, packed=packed)

    def renumbered(self, packed: Int[Tensor, "*lists entries"]) -> "LocalIndex":
        """Other numbers, counted over all rows, for the same entries."""
        return LocalIndex(self.entries, self.rows, packed=packed)

    def narrowed(self) -> "LocalIndex":
        return LocalIndex(self.entries, self.rows, local=narrowed(self.local))


def narrowed(values: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
    """Integers in the narrowest type that holds them; floats in float32."""
    if values.is_floating_point():
        return values.float()
    if values.numel() == 0:
        return values.to(torch.uint8)
    low, high = (int(bound) for bound in torch.aminmax(values))
    for dtype in _NARROW:
        if torch.iinfo(dtype).min <= low and high <= torch.iinfo(dtype).max:
            return values.to(dtype)
    return values.long()
