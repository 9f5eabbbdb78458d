"""Training, validation and test parts of a data set: at random, by class or scaffold, from a column, in folds."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Int, Int8
from torch import Tensor

from tokengt.data.batching import permutation
from tokengt.data.manifest import NO_PART as NO_PART
from tokengt.data.manifest import PARTS as PARTS

Fractions = tuple[float, float, float]
# Shares of train, valid and test.
STANDARD: Fractions = (0.8, 0.1, 0.1)
# Of each class, how many nodes validate and how many test, in the paper's experiment on large graphs.
PER_CLASS = 30
_SHOWN_CLASSES = 5
# Groups of train, valid and test; a group is a list of places.
Parts = tuple[list[list[int]], list[list[int]], list[list[int]]]


@dataclass(frozen=True, eq=False)
class Split:
    """Places of the data set in each part: int64, ascending, none in two parts. ``valid`` and ``test`` may be empty.

    ``remarks`` are sentences about how it differs from what was asked for.
    """

    train: Int[Tensor, " train"]
    valid: Int[Tensor, " valid"]
    test: Int[Tensor, " test"]
    remarks: tuple[str, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        if len(self.train) == 0:
            raise ValueError("the train part of the split is empty; expected at least one graph to train on")

    def parts(self) -> dict[str, Int[Tensor, " _"]]:
        return dict(zip(PARTS, (self.train, self.valid, self.test), strict=True))

    def codes(self, count: int) -> Int8[Tensor, " count"]:
        """The inverse of :func:`column_split`: the code of the part that each of ``count`` places is in."""
        codes = torch.full((count,), NO_PART, dtype=torch.int8)
        for code, places in enumerate(self.parts().values()):
            codes[places] = code
        return codes

    def sentences(self) -> list[str]:
        """The sizes, one sentence for each part that is empty, and the remarks."""
        sizes = {name: len(places) for name, places in self.parts().items()}
        lines = [", ".join(f"{size:,} {name}" for name, size in sizes.items())]
        why = {
            "valid": "no model can be chosen by it: the last one is kept",
            "test": "no number says how good the model is on unseen data",
        }
        empty = [f"the {name} part is empty: {reason}" for name, reason in why.items() if sizes[name] == 0]
        return [*lines, *empty, *self.remarks]


def random_split(count: int, seed: int, fractions: Fractions = STANDARD) -> Split:
    """A seeded shuffle, cut at the fractions (rounded).

    A part whose fraction is above 0 gets at least one place while there are enough: two places are train and test,
    one is train.
    """
    train, valid, test = _sizes(count, check_fractions(fractions))
    first, second, third = torch.split(permutation(count, seed), [train, valid, test])
    return _split(first, second, third)


def class_split(
    labels: Int[Tensor, " places"], seed: int, each: int = PER_CLASS, names: Sequence[str] | None = None
) -> Split:
    """``each`` places of every class for validation, as many for test, and the rest for training, by a seeded shuffle.

    This is how the paper splits the nodes of a large graph (``each`` is 30). A class of at most twice as many places
    would leave nothing to learn from: it gives a third of its places to either part, rounded down, and a remark says
    so. ``names`` are those of the classes, for the remark; a label below 0 is none, and its place is in no part.
    """
    if each < 1:
        raise ValueError(f"a split per class takes {each} places of each class; expected at least 1")
    order = permutation(len(labels), seed)
    order = order[labels[order] >= 0]
    # A stable sort of the shuffled places: the places of each class together, in the order of the shuffle.
    order = order[torch.argsort(labels[order], stable=True)]
    found, counts = torch.unique_consecutive(labels[order], return_counts=True)
    place = torch.cat([torch.arange(count) for count in counts.tolist()]) if len(counts) else counts
    taken = torch.where(counts > 2 * each, each, counts // 3).repeat_interleave(counts)
    valid, test = order[place < taken], order[(place >= taken) & (place < 2 * taken)]
    small = [(int(label), int(count)) for label, count in zip(found, counts, strict=True) if count <= 2 * each]
    return _split(order[place >= 2 * taken], valid, test, remarks=_small_classes(small, each, names))


def _small_classes(small: Sequence[tuple[int, int]], each: int, names: Sequence[str] | None) -> tuple[str, ...]:
    if not small:
        return ()
    told = [f"{label if names is None else names[label]} ({count})" for label, count in small[:_SHOWN_CLASSES]]
    more = f" and {len(small) - _SHOWN_CLASSES} more" if len(small) > _SHOWN_CLASSES else ""
    what = "a class has" if len(small) == 1 else f"{len(small)} classes have"
    return (
        f"{what} at most {2 * each} labelled rows, of which a third validates and a third tests instead of {each} "
        f"each: {', '.join(told)}{more}",
    )


def sorted_group_split(groups: Sequence[str], fractions: Fractions = STANDARD) -> Split:
    """Whole groups, MoleculeNet's way; ``groups[i]`` names the group of place i.

    Groups are taken from large to small; of equal ones, the one that appears later in the file first (so
    DeepChem's ``ScaffoldSplitter`` gives the same split). Each goes to train while train stays within its share,
    else to valid while train and valid stay within theirs, else to test.

    Where DeepChem leaves a part empty, this does not if there are groups enough: the largest group always trains,
    and a test, then a valid part that got nothing takes the smallest group of the fullest other part.
    """
    shares = check_fractions(fractions)
    count = len(groups)
    ranked = sorted(_members(groups), key=lambda group: (len(group), group[0]))
    parts: Parts = ([], [], [])
    taken = [0, 0, 0]
    for group in reversed(ranked):
        # The tolerance is for shares such as 0.7 + 0.2, which is a little below 0.9: a group that just fits must fit.
        fits_train = taken[0] == 0 or taken[0] + len(group) <= shares[0] * count + 1e-9
        fits_valid = taken[0] + taken[1] + len(group) <= (shares[0] + shares[1]) * count + 1e-9
        part = 0 if fits_train else 1 if fits_valid else 2
        parts[part].append(group)
        taken[part] += len(group)
    return _of_groups(parts, shares)


def balanced_group_split(groups: Sequence[str], seed: int, fractions: Fractions = STANDARD) -> Split:
    """Whole groups, shuffled by ``seed``; ``groups[i]`` names the group of place i.

    The sizes of valid and test are those of a random split, and no group overfills them: each goes to test while it
    fits there, else to valid while it fits there, else to train. A group of more than half of a part does not go into
    it, because a part of one group would measure that group alone.

    If there are groups enough, no part is left empty: a test, then a valid part that got nothing takes the smallest
    group of the fullest other part.
    """
    shares = check_fractions(fractions)
    sizes = _sizes(len(groups), shares)
    members = _members(groups)
    parts: Parts = ([], [], [])
    room = list(sizes)
    for place in permutation(len(members), seed).tolist():
        group = members[place]
        fitting = (part for part in (2, 1) if len(group) <= min(room[part], max(1, sizes[part] // 2)))
        part = next(fitting, 0)
        parts[part].append(group)
        room[part] -= len(group)
    return _of_groups(parts, shares)


def column_split(codes: Int8[Tensor, " rows"], seed: int = 0) -> Split:
    """The split that the file itself gives, as codes (:data:`PARTS`); rows of no part are left out.

    Without a valid row, a tenth of the train rows (at least one, at random by ``seed``) becomes the valid part,
    unless there is one train row only.
    """
    train, valid, test = (torch.nonzero(codes == code).flatten() for code in range(len(PARTS)))
    if len(train) == 0:
        raise ValueError("the split column marks no row as train; expected at least one")
    if len(valid) == 0 and len(train) > 1:
        # Without validation rows no checkpoint could be chosen.
        shuffled = train.index_select(0, permutation(len(train), seed))
        held_out = max(1, round(len(train) / 10))
        valid, train = shuffled[:held_out], shuffled[held_out:]
    return _split(train, valid, test)


def fold_splits(count: int, folds: int, seed: int, groups: Sequence[str] | None = None) -> list[Split]:
    """``folds`` splits over the same parts: fold i tests on part i, validates on part i + 1, trains on the rest.

    Parts differ by at most one place. With ``groups`` (one name per place) a group is never cut: groups go from large
    to small, those of equal size in seeded order, each into the part that is smallest so far.
    """
    units = list(range(count)) if groups is None else _members(groups)
    if groups is not None and len(groups) != count:
        raise ValueError(f"there are {len(groups)} group names for {count} graphs; expected one each")
    check_folds(folds)
    if len(units) < folds:
        what = "graphs" if groups is None else "groups (scaffolds)"
        raise ValueError(f"{folds} folds need at least {folds} {what}; there are {len(units)}")
    parts = (
        list(torch.tensor_split(permutation(count, seed), folds)) if groups is None else _packed(groups, folds, seed)
    )
    splits = []
    for fold in range(folds):
        after = (fold + 1) % folds
        rest = torch.cat([part for place, part in enumerate(parts) if place not in (fold, after)])
        splits.append(_split(rest, parts[after], parts[fold]))
    return splits


def _packed(groups: Sequence[str], folds: int, seed: int) -> list[Tensor]:
    """Whole groups in ``folds`` parts of nearly equal size."""
    members = _members(groups)
    order = sorted(permutation(len(members), seed).tolist(), key=lambda place: -len(members[place]))
    parts: list[list[int]] = [[] for _ in range(folds)]
    heap = [(0, part) for part in range(folds)]
    for place in order:
        size, part = heapq.heappop(heap)
        parts[part] += members[place]
        heapq.heappush(heap, (size + len(members[place]), part))
    return [torch.tensor(part, dtype=torch.int64) for part in parts]


def _members(groups: Sequence[str]) -> list[list[int]]:
    """Places of each group, in order of first appearance."""
    if not groups:
        raise ValueError("there are no graphs to split")
    members: dict[str, list[int]] = {}
    for place, name in enumerate(groups):
        members.setdefault(name, []).append(place)
    return list(members.values())


def _of_groups(parts: Parts, shares: Fractions) -> Split:
    """The places of whole groups; a test, then a valid part without any takes one from a part that can spare it."""
    for empty in (2, 1):
        donor = max((part for part in range(3) if part != empty), key=lambda part: len(parts[part]))
        if shares[empty] > 0 and not parts[empty] and len(parts[donor]) > 1:
            smallest = min(reversed(parts[donor]), key=len)
            parts[donor].remove(smallest)
            parts[empty].append(smallest)
    return _split(*(torch.tensor([place for group in part for place in group], dtype=torch.int64) for part in parts))


def _split(train: Tensor, valid: Tensor, test: Tensor, *, remarks: tuple[str, ...] = ()) -> Split:
    return Split(train.sort().values, valid.sort().values, test.sort().values, remarks=remarks)


def check_folds(folds: int) -> None:
    if folds < 3:
        raise ValueError(f"folds is {folds}; expected at least 3: one part tests, one validates, the rest trains")


def check_fractions(fractions: Fractions) -> Fractions:
    if not all(0 <= share <= 1 for share in fractions) or abs(sum(fractions) - 1) > 1e-6:
        raise ValueError(f"fractions are {fractions}; expected three shares (train, valid, test) that add up to 1")
    if fractions[0] == 0:
        raise ValueError(f"fractions are {fractions}; expected a train share above 0")
    return fractions


def _sizes(count: int, fractions: Fractions) -> tuple[int, int, int]:
    """Rounded shares of ``count``; no part with a share is empty while places are left (train, test, then valid)."""
    if count < 1:
        raise ValueError("there are no graphs to split")
    test = min(max(round(fractions[2] * count), int(fractions[2] > 0)), count - 1)
    valid = min(max(round(fractions[1] * count), int(fractions[1] > 0)), count - 1 - test)
    return count - valid - test, valid, test
