"""How a store is split: the table of ways, columns by name, and what is said of a typo."""

import pytest
import torch

from tests.training.stores import graph_store, molecule_store, ring
from tokengt.data.splitting import SPLITS, SplitRequest, make_splits
from tokengt.data.store import Store


def test_one_graphs_rows_are_split_and_many_graphs_are_not() -> None:
    splits, by_row = make_splits(graph_store([ring(10)], "node"), SplitRequest())
    assert by_row
    assert sum(len(part) for part in splits[0].parts().values()) == 10
    splits, by_row = make_splits(graph_store([ring(4) for _ in range(10)], "node"), SplitRequest())
    assert not by_row
    assert [len(part) for part in splits[0].parts().values()] == [8, 1, 1]


def test_masks_of_rows_are_a_split_by_rows() -> None:
    codes = torch.tensor([0, 0, 1, 2, -1, 0, 2, 1], dtype=torch.int8)
    store = graph_store([ring(4), ring(4)], "node", codes)
    splits, by_row = make_splits(store, SplitRequest("given"))
    assert by_row
    assert splits[0].train.tolist() == [0, 1, 5]
    assert splits[0].test.tolist() == [3, 6]


def test_splits_that_cannot_be_are_one_sentence() -> None:
    with pytest.raises(ValueError, match="a scaffold split needs molecules"):
        make_splits(graph_store([ring(4), ring(5)]), SplitRequest("scaffold"))
    with pytest.raises(
        ValueError, match="split is 'given', but the data came with no split; expected random, per-class, scaffold"
    ):
        make_splits(molecule_store(), SplitRequest("given"))
    with pytest.raises(ValueError, match="split is 'column:half', but the data came with no split"):
        make_splits(molecule_store(), SplitRequest("column:half"))
    with pytest.raises(ValueError, match="folds make their own splits"):
        make_splits(molecule_store(), SplitRequest("given", folds=3))


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("scafold", "scaffold"),
        ("rndom", "random"),
        ("scaffold_balanced", "scaffold"),
        ("scaffold-sort", "scaffold-sorted"),
    ],
)
def test_a_typo_answers_with_the_splits_there_are(typo: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"split is '{typo}' .did you mean {meant}[?]") as error:
        SplitRequest(typo)
    assert all(name in str(error.value) for name in (*SPLITS, "column:NAME"))


def test_a_column_needs_a_name() -> None:
    with pytest.raises(ValueError, match="expected auto, random"):
        SplitRequest("column:")
    assert SplitRequest("column:my part").column == "my part"
    assert SplitRequest("random").column is None


@pytest.mark.parametrize(
    ("written", "kind"),
    [("Scaffold", "scaffold"), ("SCAFFOLD_SORTED", "scaffold-sorted"), ("Column:My Part", "column:My Part")],
)
def test_names_are_read_without_case(written: str, kind: str) -> None:
    assert SplitRequest(written).kind == kind


RINGS = ["c1ccccc1", "C1CCCCC1", "c1ccncc1", "C1CCCC1", "C1CC1", "c1ccsc1", "C1CCOC1", "C1CCNC1", "c1ccoc1", "C1CCC1"]


def ring_store() -> Store:
    """40 molecules of ten scaffolds, four of each in a row."""
    return molecule_store(texts=[f"{'C' * tail}{ring}" for ring in RINGS for tail in range(1, 5)])


def test_folds_by_scaffold_cut_no_scaffold() -> None:
    store = ring_store()
    for kind in ("scaffold", "scaffold-sorted"):
        splits, _ = make_splits(store, SplitRequest(kind, folds=5))
        assert sorted(torch.cat([split.test for split in splits]).tolist()) == list(range(40))
        for split in splits:
            codes = split.codes(40).view(10, 4)
            assert torch.equal(codes, codes[:, :1].expand(10, 4)), "four molecules of one scaffold are in one part"


def test_scaffold_is_seeded_and_scaffold_sorted_is_not() -> None:
    store = ring_store()

    def test_part(kind: str, seed: int) -> list[int]:
        (split,), _ = make_splits(store, SplitRequest(kind, seed, (0.4, 0.3, 0.3)))
        codes = split.codes(40).view(10, 4)
        assert torch.equal(codes, codes[:, :1].expand(10, 4))
        return list(split.test.tolist())

    assert len({tuple(test_part("scaffold", seed)) for seed in range(4)}) > 2
    assert test_part("scaffold", 1) == test_part("scaffold", 1)
    # Groups of equal size are taken from the last of the file to the first: the first three of the file test.
    assert test_part("scaffold-sorted", 0) == test_part("scaffold-sorted", 7) == list(range(12))


def test_a_split_in_words() -> None:
    assert str(SplitRequest("random")) == "random, seed 0, 80% / 10% / 10%"
    assert str(SplitRequest("scaffold", seed=3)) == "whole scaffolds, shuffled by seed 3, 80% / 10% / 10%"
    assert "most frequent ones in training as in MoleculeNet" in str(SplitRequest("scaffold-sorted"))
    assert str(SplitRequest("random", folds=5, seed=2)) == "5 folds, random, seed 2"
    assert str(SplitRequest("random", folds=5, fold=1)) == "fold 1 of 5 folds, random, seed 0"
    assert str(SplitRequest("scaffold", folds=5, seed=2)) == "5 folds, whole scaffolds, seed 2"
    assert str(SplitRequest("column:part")) == "by the column 'part'"
    assert str(SplitRequest("given")) == "as the data gives it"


def test_both_directions_of_an_edge_stay_in_one_part() -> None:
    """Otherwise the answer to a test edge stands in the training part, at its reverse."""
    store = graph_store([ring(20)], "edge")
    splits, by_row = make_splits(store, SplitRequest("random", seed=3))
    folds, _ = make_splits(store, SplitRequest("random", folds=4))
    assert by_row
    for split in (*splits, *folds):
        codes = split.codes(40)
        # ring() lists every edge in one direction first, then all of them in the other.
        assert torch.equal(codes[:20], codes[20:])
        assert (codes >= 0).all()
    assert len(splits[0].test) == 4


def test_one_fold_by_itself_is_the_one_among_all() -> None:
    every, _ = make_splits(molecule_store(), SplitRequest("random", folds=4, seed=1))
    for number, fold in enumerate(every):
        (alone,), _ = make_splits(molecule_store(), SplitRequest("random", folds=4, seed=1, fold=number))
        assert alone.codes(len(molecule_store())).tolist() == fold.codes(len(molecule_store())).tolist()
    for number in (-1, 4):
        with pytest.raises(ValueError, match=f"fold is {number}; expected 0 to 3, one of 4 folds"):
            SplitRequest("random", folds=4, fold=number)
