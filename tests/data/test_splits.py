import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tokengt.data.splits import (
    Split,
    balanced_group_split,
    column_split,
    fold_splits,
    random_split,
    sorted_group_split,
)
from tokengt.interop.molecules import scaffolds


def _places(split: Split) -> dict[str, list[int]]:
    return {name: part.tolist() for name, part in split.parts().items()}


def _is_partition(split: Split, count: int) -> bool:
    return torch.equal(torch.cat(list(split.parts().values())).sort().values, torch.arange(count))


@given(st.integers(1, 300), st.integers(0, 5))
def test_random_split_is_a_partition_with_no_needless_empty_part(count: int, seed: int) -> None:
    split = random_split(count, seed)
    assert _is_partition(split, count)
    assert all(torch.equal(part, part.sort().values) for part in split.parts().values())
    assert len(split.test) == max(round(count / 10), min(1, count - 1))
    assert (len(split.valid) > 0) == (count > 2)


@pytest.mark.parametrize(("count", "sizes"), [(1, [1, 0, 0]), (2, [1, 0, 1]), (3, [1, 1, 1]), (10, [8, 1, 1])])
def test_tiny_sets(count: int, sizes: list[int]) -> None:
    assert [len(part) for part in random_split(count, 0).parts().values()] == sizes


@pytest.mark.parametrize(
    ("count", "fractions", "sizes"),
    [
        (10, (0.5, 0.2, 0.3), [5, 2, 3]),
        (10, (0.5, 0.3, 0.2), [5, 3, 2]),
        (10, (0.8, 0.0, 0.2), [8, 0, 2]),
        (10, (0.8, 0.2, 0.0), [8, 2, 0]),
        (40, (0.9, 0.01, 0.09), [35, 1, 4]),
        (3, (0.98, 0.01, 0.01), [1, 1, 1]),
    ],
)
def test_every_part_has_the_size_of_its_own_share(
    count: int, fractions: tuple[float, float, float], sizes: list[int]
) -> None:
    """A part without a share stays empty, and one with a share has a place while there are enough."""
    assert [len(part) for part in random_split(count, 0, fractions).parts().values()] == sizes


def test_seeds_differ_and_repeat() -> None:
    assert _places(random_split(200, 1)) == _places(random_split(200, 1))
    assert _places(random_split(200, 1)) != _places(random_split(200, 2))


def test_an_empty_part_is_said() -> None:
    assert random_split(10, 0).sentences() == ["8 train, 1 valid, 1 test"]
    (_, valid, test) = random_split(1, 0).sentences()
    assert valid.startswith("the valid part is empty")
    assert test.startswith("the test part is empty")


@pytest.mark.parametrize("fractions", [(0.5, 0.5, 0.5), (0.0, 0.5, 0.5), (1.2, -0.1, -0.1), (float("nan"), 0.5, 0.5)])
def test_bad_fractions(fractions: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="fractions are"):
        random_split(10, 0, fractions)


def test_nothing_to_split() -> None:
    with pytest.raises(ValueError, match="no graphs"):
        random_split(0, 0)
    with pytest.raises(ValueError, match="no graphs"):
        sorted_group_split([])


def test_groups_fill_train_then_valid_then_test() -> None:
    """Worked by hand. Sizes a 4, b 2, c 2, d 1, e 1 of 10: a, c, b train (c appears after b); then e, the later of the
    two single ones, fits valid; d tests."""
    names = ["a", "b", "a", "c", "d", "a", "b", "c", "a", "e"]
    assert _places(sorted_group_split(names)) == {"train": [0, 1, 2, 3, 5, 6, 7, 8], "valid": [9], "test": [4]}


def test_groups_that_leave_parts_empty_are_repaired() -> None:
    assert _places(sorted_group_split(["a", "a", "a"])) == {"train": [0, 1, 2], "valid": [], "test": []}
    # One large group is above the train share and trains all the same; the other tests.
    assert _places(sorted_group_split(["a"] * 9 + ["b"])) == {"train": list(range(9)), "valid": [], "test": [9]}
    assert {name: len(part) for name, part in _places(sorted_group_split(["a", "b", "c"])).items()} == {
        "train": 1,
        "valid": 1,
        "test": 1,
    }


def _moleculenet(groups: list[str]) -> dict[str, list[int]]:
    """DeepChem's ScaffoldSplitter after the scaffolds, written again from its source."""
    sets: dict[str, list[int]] = {}
    for place, name in enumerate(groups):
        sets.setdefault(name, []).append(place)
    ordered = [places for _, places in sorted(sets.items(), key=lambda x: (len(x[1]), x[1][0]), reverse=True)]
    train_cutoff, valid_cutoff = 0.8 * len(groups), (0.8 + 0.1) * len(groups)
    train: list[int] = []
    valid: list[int] = []
    test: list[int] = []
    for places in ordered:
        if len(train) + len(places) > train_cutoff:
            if len(train) + len(valid) + len(places) > valid_cutoff:
                test += places
            else:
                valid += places
        else:
            train += places
    return {"train": sorted(train), "valid": sorted(valid), "test": sorted(test)}


@given(st.lists(st.sampled_from("abcdefghijklmnop"), min_size=20, max_size=80))
def test_the_rule_is_moleculenets_wherever_it_leaves_no_part_empty(groups: list[str]) -> None:
    expected = _moleculenet(groups)
    if all(expected.values()):
        assert _places(sorted_group_split(groups)) == expected


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=40), st.integers(0, 3))
def test_no_group_is_cut_and_no_part_is_needlessly_empty(groups: list[str], seed: int) -> None:
    for split in (sorted_group_split(groups), balanced_group_split(groups, seed)):
        assert _is_partition(split, len(groups))
        kinds = [{groups[place] for place in part.tolist()} for part in split.parts().values()]
        assert sum(len(kind) for kind in kinds) == len(set(groups))
        assert sum(bool(kind) for kind in kinds) == min(3, len(set(groups)))
        assert kinds[2] or len(set(groups)) == 1


def test_balanced_groups_by_hand() -> None:
    """Of 20 places two validate and two test; half of that is one, so the groups of 4 and of 2 always train."""
    names = ["a"] * 4 + ["b"] * 2 + [f"g{place}" for place in range(14)]
    tests = set()
    for seed in range(6):
        split = balanced_group_split(names, seed)
        assert [len(part) for part in split.parts().values()] == [16, 2, 2]
        assert set(range(6)) <= set(split.train.tolist())
        assert _places(split) == _places(balanced_group_split(names, seed))
        tests.add(tuple(split.test.tolist()))
    assert len(tests) > 3


@given(st.lists(st.integers(0, 30), min_size=60, max_size=200), st.integers(0, 3))
def test_no_group_overfills_a_balanced_part(groups: list[int], seed: int) -> None:
    """The parts that measure are at most as large as those of a random split, unless one group alone is larger."""
    split = balanced_group_split([str(group) for group in groups], seed)
    plain = random_split(len(groups), seed)
    smallest = min(groups.count(group) for group in groups)
    assert len(split.test) <= max(len(plain.test), smallest)
    assert len(split.valid) <= max(len(plain.valid), *(groups.count(group) for group in groups))


@pytest.mark.parametrize(
    ("fractions", "sizes"),
    [((0.5, 0.2, 0.3), [10, 4, 6]), ((0.6, 0.4, 0.0), [12, 8, 0]), ((0.7, 0.0, 0.3), [14, 0, 6])],
)
def test_every_part_has_its_own_share(fractions: tuple[float, float, float], sizes: list[int]) -> None:
    """Shares of valid and test that differ: a test part sized by the share of valid would show."""
    groups = [f"g{place}" for place in range(20)]
    for split in (random_split(20, 1, fractions), balanced_group_split(groups, 1, fractions)):
        assert [len(part) for part in split.parts().values()] == sizes
    assert [len(part) for part in sorted_group_split(groups, fractions).parts().values()] == sizes


def test_scaffold_split_keeps_scaffolds_together_and_acyclic_molecules_are_one_group() -> None:
    benzenes = ["c1ccccc1", "Cc1ccccc1", "CCc1ccccc1", "Oc1ccccc1", "Clc1ccccc1"]
    smiles = [*benzenes, "CCO", "CCCC", "C", "C1CCCCC1", "c1ccncc1"]
    assert _places(sorted_group_split(scaffolds(smiles))) == {"train": list(range(8)), "valid": [9], "test": [8]}


def test_column_split() -> None:
    codes = torch.tensor([0, 1, -1, 2, 0], dtype=torch.int8)
    split = column_split(codes)
    assert _places(split) == {"train": [0, 4], "valid": [1], "test": [3]}
    assert torch.equal(split.codes(5), codes)


def test_column_split_without_valid_takes_a_seeded_tenth_of_train() -> None:
    codes = torch.tensor([0] * 40 + [2] * 5, dtype=torch.int8)
    split = column_split(codes, seed=3)
    assert (len(split.train), len(split.valid)) == (36, 4)
    assert _is_partition(split, 45)
    assert split.valid.max() < 40
    assert _places(split) == _places(column_split(codes, seed=3)) != _places(column_split(codes, seed=4))
    assert _places(column_split(torch.tensor([0], dtype=torch.int8)))["train"] == [0]


def test_column_split_without_train_is_refused() -> None:
    with pytest.raises(ValueError, match="no row as train"):
        column_split(torch.tensor([1, 2], dtype=torch.int8))


def test_folds_test_every_place_once_and_rotate() -> None:
    splits = fold_splits(23, 5, seed=0)
    assert sorted(torch.cat([split.test for split in splits]).tolist()) == list(range(23))
    for fold, split in enumerate(splits):
        assert _is_partition(split, 23)
        assert torch.equal(split.valid, splits[(fold + 1) % 5].test)
    assert {len(split.test) for split in splits} == {4, 5}


def test_folds_of_groups_cut_no_group() -> None:
    names = ["a"] * 6 + ["b"] * 3 + ["c"] * 3 + ["d", "e", "f"]
    splits = fold_splits(15, 3, seed=1, groups=names)
    for split in splits:
        kinds = [{names[place] for place in part.tolist()} for part in split.parts().values()]
        assert sum(len(kind) for kind in kinds) == 6
    # a fills a part; b and c open the others, and the single ones even them out.
    assert sorted(len(split.test) for split in splits) == [4, 5, 6]


def test_folds_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="at least 3"):
        fold_splits(10, 2, seed=0)
    with pytest.raises(ValueError, match="there are 2"):
        fold_splits(2, 3, seed=0)
    with pytest.raises(ValueError, match="groups"):
        fold_splits(4, 3, seed=0, groups=["a", "a", "b", "b"])
