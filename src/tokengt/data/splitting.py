"""How a store is split: one function per way, in the table :data:`SPLITS`, and a column of the file by its name."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from tokengt.data.splits import (
    STANDARD,
    Fractions,
    Split,
    check_folds,
    check_fractions,
    column_split,
    fold_splits,
    random_split,
    scaffold_split,
)
from tokengt.data.store import Store
from tokengt.interop.molecules import scaffolds

AUTO, GIVEN, SCAFFOLD, COLUMN = "auto", "given", "scaffold", "column:"


@dataclass(frozen=True)
class SplitRequest:
    """What a person asks for.

    Args:
        kind: a name in :data:`SPLITS`; ``column:NAME`` for a column of train, valid and test; or "auto": what the data
            came with if it came with any, else random.
        seed: of the shuffle; scaffolds are always dealt out in the same way.
        fractions: shares of train, valid and test.
        folds: 0, or the number of parts of a cross-validation.
    """

    kind: str = AUTO
    seed: int = 0
    fractions: Fractions = STANDARD
    folds: int = 0

    def __post_init__(self) -> None:
        names = (AUTO, *SPLITS)
        if self.kind in names or (self.kind.startswith(COLUMN) and self.column):
            self._check_numbers()
            return
        close = difflib.get_close_matches(self.kind.lower(), names, 1, 0.6)
        meant = f" (did you mean {close[0]}?)" if close else ""
        raise ValueError(
            f"split is {self.kind!r}{meant}; expected {', '.join(names)}, or {COLUMN}NAME for a column of train, valid "
            "and test"
        )

    def _check_numbers(self) -> None:
        """What is wrong with any data is said before the data is read."""
        check_fractions(self.fractions)
        if self.folds:
            check_folds(self.folds)
        if self.folds and (self.kind == GIVEN or self.column is not None):
            raise ValueError("folds make their own splits; split at random or by scaffold with them")

    @property
    def column(self) -> str | None:
        """The name of the column, where one is asked for."""
        return self.kind.removeprefix(COLUMN) if self.kind.startswith(COLUMN) else None

    def __str__(self) -> str:
        if self.column is not None:
            return f"by the column {self.column!r}"
        if self.kind == GIVEN:
            return "as the data gives it"
        how = {"random": f"random, seed {self.seed}", "scaffold": "whole scaffolds"}[self.kind]
        shares = " / ".join(f"{100 * share:g}%" for share in self.fractions)
        return f"{self.folds} folds, {how}" if self.folds else f"{how}, {shares}"

    def for_store(self, store: Store) -> "SplitRequest":
        """The same request with "auto" decided for this store."""
        if self.kind != AUTO:
            return self
        if store.split is None or self.folds:
            return replace(self, kind="random")
        column = store.manifest.columns.get("split")
        return replace(self, kind=f"{COLUMN}{column}" if column else GIVEN)


def make_splits(store: Store, request: SplitRequest) -> tuple[list[Split], bool]:
    """The split, or one per fold; and whether it numbers rows of the label table instead of graphs.

    Rows are split where all labels lie in one graph, or where the data itself splits rows.
    """
    request = request.for_store(store)
    rows_given = store.split is not None and len(store.split) != len(store)
    by_row = store.manifest.level != "graph" and (len(store) == 1 or (rows_given and request.kind != "random"))
    places = Places(store, len(store.targets) if by_row else len(store), by_row)
    split = SPLITS[GIVEN if request.column is not None else request.kind]
    return split(places, request), by_row


@dataclass(frozen=True, eq=False)
class Places:
    """What is split: ``count`` graphs of a store or, with ``by_row``, rows of its labels."""

    store: Store
    count: int
    by_row: bool

    def units(self) -> Int[Tensor, " places"]:
        """The number of each place's unit. A unit is never torn apart: both directions of an edge are one unit."""
        if not self.by_row or self.store.manifest.level != "edge":
            return torch.arange(self.count)
        ends = self.store.graphs.edge_index
        keys = ends.amin(0) * self.store.graphs.num_nodes + ends.amax(0)
        inverse: Tensor = torch.unique(keys, return_inverse=True)[1]
        return inverse


def _random(places: Places, request: SplitRequest) -> list[Split]:
    units = places.units()
    count = int(units.max()) + 1 if len(units) else 0
    if request.folds:
        return [_of_units(fold, units, count) for fold in fold_splits(count, request.folds, request.seed)]
    return [_of_units(random_split(count, request.seed, request.fractions), units, count)]


def _of_units(split: Split, units: Int[Tensor, " places"], count: int) -> Split:
    """A split of units as a split of the places in them."""
    codes = split.codes(count).index_select(0, units)
    return Split(*(torch.nonzero(codes == code).flatten() for code in range(3)))


def _scaffold(places: Places, request: SplitRequest) -> list[Split]:
    texts = places.store.texts()
    if texts is None or places.by_row:
        raise ValueError("a scaffold split needs molecules with their SMILES; split at random or by a column")
    if request.folds:
        return fold_splits(places.count, request.folds, request.seed, scaffolds(texts))
    return [scaffold_split(texts, request.fractions)]


def _given(places: Places, request: SplitRequest) -> list[Split]:
    store, wanted = places.store, request.column
    column = store.manifest.columns.get("split")
    if store.split is None or (wanted is not None and wanted != column):
        came = "no split" if store.split is None else f"the split column {column!r}" if column else "masks of its own"
        raise ValueError(f"split is {request.kind!r}, but the data came with {came}; expected {_known(store)}")
    if len(store.split) != places.count:
        raise ValueError(f"the split column has {len(store.split)} entries; expected {places.count}")
    return [column_split(store.split, request.seed)]


def _known(store: Store) -> str:
    """The splits that this store can have."""
    names: Sequence[str] = ["random", *(["scaffold"] if store.texts([]) is not None else [])]
    if store.split is not None:
        names = [*names, GIVEN]
    return ", ".join(names)


Splitter = Callable[[Places, SplitRequest], list[Split]]
# The ways to split by name; a new way is a function and a line here.
SPLITS: dict[str, Splitter] = {"random": _random, "scaffold": _scaffold, GIVEN: _given}
