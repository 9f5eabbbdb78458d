"""How a store is split: one function per way, in the table :data:`SPLITS`, and a column of the file by its name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tokengt.config import near
from tokengt.data.manifest import FILE_PART, NO_PART, PARTS
from tokengt.data.splits import (
    PER_CLASS,
    STANDARD,
    Fractions,
    Split,
    balanced_group_split,
    check_folds,
    check_fractions,
    class_split,
    column_split,
    fold_splits,
    random_split,
    sorted_group_split,
)
from tokengt.data.store import Store
from tokengt.interop.molecules import scaffolds

AUTO, GIVEN, COLUMN = "auto", "given", "column:"
RANDOM, SCAFFOLD, SCAFFOLD_SORTED, BY_CLASS = "random", "scaffold", "scaffold-sorted", "per-class"
# Kinds that a number may follow, as in given:3 and per-class:30, and the least that it may be.
_NUMBERED = {GIVEN: 0, BY_CLASS: 1}


@dataclass(frozen=True)
class SplitRequest:
    """What a person asks for.

    Args:
        kind: a name in :data:`SPLITS`; ``column:NAME`` for a column of train, valid and test; or "auto": what the data
            came with if it came with any, else random. Names are read without case, and "_" as "-". "per-class" takes
            30 of each class to validate, 30 to test and the rest to train ("per-class:N" N of each); "given:K" is
            split K of data that comes with several, counted from 0.
        seed: of the shuffle of "random", "per-class" and "scaffold", and of folds; "scaffold-sorted" has no shuffle.
        fractions: shares of train, valid and test.
        folds: 0, or the number of parts of a cross-validation.
        fold: of the folds, the number of the one that is wanted; None for all of them.
        files: whether each part is a file of its own. The kind is then how a valid part is taken out of the training
            file, if it has no file: ``cut``.
    """

    kind: str = AUTO
    seed: int = 0
    fractions: Fractions = STANDARD
    folds: int = 0
    fold: int | None = None
    files: bool = False
    cut: bool = False

    def __post_init__(self) -> None:
        names = (AUTO, *SPLITS)
        written = self.kind
        prefix, colon, column = written.partition(":")
        object.__setattr__(self, "kind", prefix.strip().lower().replace("_", "-") + colon + column)
        if self.kind in names or (self.kind.startswith(COLUMN) and self.column):
            self._check_numbers()
            return
        plain = self.kind.partition(":")[0]
        if plain in _NUMBERED:
            if not column.strip().isdecimal() or int(column) < _NUMBERED[plain]:
                raise ValueError(
                    f"split is {written!r}; expected a whole number from {_NUMBERED[plain]} after the colon"
                )
            self._check_numbers()
            return
        raise ValueError(
            f"split is {written!r}{near(self.kind, names)}; expected {', '.join(names)}, or {COLUMN}NAME for a "
            "column of train, valid and test"
        )

    def _check_numbers(self) -> None:
        """What is wrong with any data is said before the data is read."""
        check_fractions(self.fractions)
        if self.folds:
            check_folds(self.folds)
        if self.fold is not None and not 0 <= self.fold < self.folds:
            raise ValueError(f"fold is {self.fold}; expected 0 to {self.folds - 1}, one of {self.folds} folds")
        if self.folds and (self.plain in _NUMBERED or self.column is not None):
            raise ValueError("folds make their own splits; split at random or by scaffold with them")

    @property
    def column(self) -> str | None:
        """The name of the column, where one is asked for."""
        return self.kind.removeprefix(COLUMN) if self.kind.startswith(COLUMN) else None

    @property
    def plain(self) -> str:
        """The kind without the number that follows it."""
        name = self.kind.partition(":")[0]
        return name if name in _NUMBERED else self.kind

    @property
    def number(self) -> int | None:
        """The number after the kind, where there is one."""
        _, _, number = self.kind.partition(":")
        return int(number) if self.plain in _NUMBERED and number else None

    def __str__(self) -> str:
        if self.files and not self.cut:
            return "a file for each part"
        if self.column is not None:
            return f"by the column {self.column!r}"
        if self.plain == GIVEN:
            return "as the data gives it" + (f", its split {self.number}" if self.number is not None else "")
        if self.plain == BY_CLASS:
            each = self.number or PER_CLASS
            return f"{each} of each class to validate and {each} to test, the rest to train, seed {self.seed}"
        if self.folds:
            what = "random" if self.kind == RANDOM else "whole scaffolds"
            which = "" if self.fold is None else f"fold {self.fold} of "
            return f"{which}{self.folds} folds, {what}, seed {self.seed}"
        how = {
            RANDOM: f"random, seed {self.seed}",
            SCAFFOLD: f"whole scaffolds, shuffled by seed {self.seed}",
            SCAFFOLD_SORTED: "whole scaffolds, the most frequent ones in training as in MoleculeNet",
        }[self.kind]
        if self.files:
            return f"a file for each part, the valid part out of that of train: {how}"
        return f"{how}, {' / '.join(f'{100 * share:g}%' for share in self.fractions)}"

    def for_store(self, store: Store) -> "SplitRequest":
        """The same request with "auto" decided for this store."""
        if store.split is not None and store.manifest.columns.get("split") == FILE_PART:
            if self.folds or self.column is not None:
                raise ValueError("each part has a file of its own; expected no folds and no split column with them")
            cut = not bool((store.split == PARTS.index("valid")).any())
            return replace(self, kind=RANDOM if self.kind in (AUTO, GIVEN) else self.kind, files=True, cut=cut)
        if self.kind != AUTO:
            return self
        if store.split is None or self.folds:
            return replace(self, kind=RANDOM)
        column = store.manifest.columns.get("split")
        return replace(self, kind=f"{COLUMN}{column}" if column else GIVEN)


def make_splits(store: Store, request: SplitRequest) -> tuple[list[Split], bool]:
    """The split, or one per fold; and whether it numbers rows of the label table instead of graphs.

    Rows are split where all labels lie in one graph, where the data itself splits rows, and where they are links: then
    a graph has some to learn from and some to test with.
    """
    request = request.for_store(store)
    rows_given = store.split is not None and len(store.split) != len(store)
    level = store.manifest.level
    by_row = level != "graph" and (len(store) == 1 or level == "link" or (rows_given and request.kind != RANDOM))
    places = Places(store, len(store.targets) if by_row else len(store), by_row)
    if request.files:
        return [_by_files(places, request)], by_row
    split = SPLITS[GIVEN if request.column is not None else request.plain]
    splits = split(places, request)
    return splits if request.fold is None else [splits[request.fold]], by_row


@dataclass(frozen=True, eq=False)
class Places:
    """What is split: ``count`` graphs of a store or, with ``by_row``, rows of its labels.

    ``only`` are the graphs that are split, where it is not all of them; a split then holds places in this list.
    """

    store: Store
    count: int
    by_row: bool
    only: Int[Tensor, " places"] | None = None

    def units(self) -> Int[Tensor, " places"]:
        """The number of each place's unit, -1 for a row without a label, which is in no part.

        A unit is never torn apart: both directions of an edge are one unit, and so are a link and the pair that was
        drawn beside it.
        """
        if not self.by_row:
            return torch.arange(self.count)
        units = torch.full((self.count,), -1)
        labelled = self.labelled()
        level, graphs, drawn = self.store.manifest.level, self.store.graphs, self.store.drawn
        if level not in ("edge", "link"):
            units[labelled] = torch.arange(int(labelled.sum()))
            return units
        own = labelled if drawn is None else labelled & (drawn < 0)
        ends = (graphs.edge_index if level == "edge" else graphs.link_index)[:, own]
        keys = ends.amin(0) * graphs.num_nodes + ends.amax(0)
        units[own] = torch.unique(keys, return_inverse=True)[1]
        if drawn is not None:
            units[drawn >= 0] = units[drawn[drawn >= 0]]
        return units

    def labelled(self) -> Bool[Tensor, " rows"]:
        """Which rows have a label of some target."""
        known = ~torch.isnan(self.store.targets)
        return known.any(1) if known.shape[1] else torch.ones(len(known), dtype=torch.bool)


def _random(places: Places, request: SplitRequest) -> list[Split]:
    units = places.units()
    count = int(units.max()) + 1 if len(units) else 0
    if request.folds:
        return [_of_units(fold, units, count) for fold in fold_splits(count, request.folds, request.seed)]
    return [_of_units(random_split(count, request.seed, request.fractions), units, count)]


def _of_units(split: Split, units: Int[Tensor, " places"], count: int) -> Split:
    """A split of units as a split of the places in them."""
    # The unit -1 is the last one of a list: one that is in no part.
    codes = torch.cat([split.codes(count), torch.tensor([NO_PART], dtype=torch.int8)])[units]
    return Split(*(torch.nonzero(codes == code).flatten() for code in range(3)))


def _scaffold(places: Places, request: SplitRequest) -> list[Split]:
    texts = places.store.texts(None if places.only is None else places.only.tolist())
    if texts is None or places.by_row:
        raise ValueError("a scaffold split needs molecules with their SMILES; split at random or by a column")
    if request.folds:
        return fold_splits(places.count, request.folds, request.seed, scaffolds(texts))
    if request.kind == SCAFFOLD_SORTED:
        return [sorted_group_split(scaffolds(texts), request.fractions)]
    return [balanced_group_split(scaffolds(texts), request.seed, request.fractions)]


def _given(places: Places, request: SplitRequest) -> list[Split]:
    store, wanted = places.store, request.column
    column = store.manifest.columns.get("split")
    if store.split is None or (wanted is not None and wanted != column):
        came = "no split" if store.split is None else f"the split column {column!r}" if column else "masks of its own"
        raise ValueError(f"split is {request.kind!r}, but the data came with {came}; expected {_known(store)}")
    if len(store.split) != places.count:
        raise ValueError(f"the split column has {len(store.split)} entries; expected {places.count}")
    codes = store.split.reshape(places.count, -1)
    number = request.number or 0
    if number >= codes.shape[1]:
        raise ValueError(f"split is {request.kind!r}, but the data came with {codes.shape[1]} of them, counted from 0")
    return [column_split(codes[:, number], request.seed)]


def _by_class(places: Places, request: SplitRequest) -> list[Split]:
    store = places.store
    if store.manifest.level == "link":
        raise ValueError(
            "a split per class is of nodes or graphs; split links at random, or by a column of their pairs"
        )
    if len(store.targets) != places.count or store.targets.shape[1] != 1:
        raise ValueError("a split per class needs one column of classes with a row for each thing that is split")
    values = store.targets[:, 0]
    labels = torch.where(torch.isnan(values), -1.0, values)
    if bool((labels != labels.round()).any()):
        raise ValueError("a split per class needs classes, and these labels are numbers; split at random")
    names = store.manifest.targets[0].classes
    return [class_split(labels.long(), request.seed, request.number or PER_CLASS, names)]


def _by_files(places: Places, request: SplitRequest) -> Split:
    """The parts as the files have them; a valid part without a file is cut out of train, in the way asked for."""
    codes = places.store.split
    assert codes is not None
    train, valid, test = (torch.nonzero(codes == code).flatten() for code in range(len(PARTS)))
    shares = request.fractions[:2]
    if request.cut and len(train) > 1 and shares[1] > 0:
        whole = sum(shares)
        inner = replace(request, fractions=(shares[0] / whole, shares[1] / whole, 0.0), files=False)
        (within,) = SPLITS[request.kind](Places(places.store, len(train), False, train), inner)
        train, valid = train[within.train], train[within.valid]
    return Split(train, valid, test)


def _known(store: Store) -> str:
    """The splits that this store can have."""
    names: Sequence[str] = [RANDOM, BY_CLASS, *([SCAFFOLD, SCAFFOLD_SORTED] if store.texts([]) is not None else [])]
    if store.split is not None:
        names = [*names, GIVEN]
    return ", ".join(names)


Splitter = Callable[[Places, SplitRequest], list[Split]]
# The ways to split by name; a new way is a function and a line here.
SPLITS: dict[str, Splitter] = {
    RANDOM: _random,
    SCAFFOLD: _scaffold,
    SCAFFOLD_SORTED: _scaffold,
    BY_CLASS: _by_class,
    GIVEN: _given,
}
