"""Separate files for training, validation and test: one store, whose rows know their part and their line."""

from pathlib import Path

import pytest
import torch

from tests.workflow.small import molecules, read_csv, train_small, write_csv
from tokengt.data.joined import SplitFiles
from tokengt.data.manifest import Recipe
from tokengt.data.prepare import prepare
from tokengt.data.splitting import SplitRequest, make_splits
from tokengt.data.store import Store
from tokengt.interop.molecules import scaffolds

RECIPE = Recipe(targets=("y",))


def files(folder: Path) -> SplitFiles:
    """24, 6 and 8 molecules; the columns of the others stand in another order, and one row cannot be read."""
    smiles, values = molecules(38)
    rows = list(zip(smiles, values, strict=True))
    train = write_csv(folder / "a.csv", ("smiles", "y"), rows[:24])
    valid = write_csv(folder / "b.csv", ("y", "name", "smiles"), [(y, "n", text) for text, y in rows[24:30]])
    test = write_csv(folder / "c.csv", ("y", "smiles"), [(1, "C1CC"), *((y, text) for text, y in rows[30:])])
    return SplitFiles(train, valid, test)


def split_of(store: Store, kind: str = "auto", seed: int = 0) -> list[list[int]]:
    (split,), by_row = make_splits(store, SplitRequest(kind, seed))
    assert not by_row
    return [part.tolist() for part in split.parts().values()]


def test_every_file_is_its_part(tmp_path: Path) -> None:
    given = files(tmp_path)
    store = prepare(given, tmp_path / "store", RECIPE, workers=1, progress=False)
    assert split_of(store) == [list(range(24)), list(range(24, 30)), list(range(30, 38))]
    assert store.texts() == molecules(38)[0]
    assert store.targets[:, 0].tolist() == molecules(38)[1]
    assert store.lines.tolist() == [*range(2, 26), *range(2, 8), *range(3, 11)], "lines are those of each file"
    assert store.manifest.source.name == "a.csv (train), b.csv (valid), c.csv (test)"
    (rejected,) = read_csv(tmp_path / "store" / "rejected.csv")
    assert (rejected["line"], rejected["part of its file"]) == ("2", "test")
    assert str(SplitRequest().for_store(store)) == "a file for each part"


def test_the_same_files_are_not_read_again_and_others_are_refused(tmp_path: Path) -> None:
    given = files(tmp_path)
    store = prepare(given, tmp_path / "store", RECIPE, workers=1, progress=False)
    assert store.manifest.source.sha256 == given.checksum()
    again = prepare(given, tmp_path / "store", RECIPE, workers=1, progress=False)
    assert torch.equal(again.targets, store.targets)
    write_csv(tmp_path / "b.csv", ("smiles", "y"), [("CC", 1)])
    with pytest.raises(ValueError, match=r"made from another a.csv \(train\), b.csv \(valid\)"):
        prepare(given, tmp_path / "store", RECIPE, workers=1, progress=False)


def test_the_same_bytes_as_another_part_are_other_data(tmp_path: Path) -> None:
    """A store of a validation file must not be taken for one of a test file."""
    given, recipe = files(tmp_path), Recipe(targets=("y",))
    prepare(SplitFiles(given.train, valid=given.test), tmp_path / "store", recipe, workers=1, progress=False)
    with pytest.raises(ValueError, match="is another store: it was made from another"):
        prepare(SplitFiles(given.train, test=given.test), tmp_path / "store", recipe, workers=1, progress=False)


def test_a_file_without_a_row_that_can_be_read_is_not_replaced_by_other_rows(tmp_path: Path) -> None:
    given = files(tmp_path)
    bad = write_csv(tmp_path / "bad.csv", ("smiles", "y"), [("C1CC", "1")])
    with pytest.raises(ValueError, match=r"bad\.csv has no row that can be read; expected at least one for the valid"):
        train_small(given.train, tmp_path / "run", "y", valid=bad)


def test_a_valid_part_without_a_file_comes_out_of_train(tmp_path: Path) -> None:
    given = files(tmp_path)
    store = prepare(SplitFiles(given.train, test=given.test), tmp_path / "store", RECIPE, workers=1, progress=False)
    train, valid, test = split_of(store)
    assert sorted(train + valid) == list(range(24))
    assert test == list(range(24, 32))
    assert len(valid) == 3, "a ninth: what 10% is of the 90% that are left beside a test part"
    assert valid != split_of(store, seed=1)[1]
    request = SplitRequest("scaffold").for_store(store)
    assert (
        str(request) == "a file for each part, the valid part out of that of train: whole scaffolds, shuffled by seed 0"
    )
    train, valid, _ = split_of(store, "scaffold")
    texts = scaffolds(molecules(24)[0])
    assert valid
    assert not {texts[place] for place in train} & {texts[place] for place in valid}


def test_without_a_test_file_there_is_no_test_part(tmp_path: Path) -> None:
    given = files(tmp_path)
    store = prepare(SplitFiles(given.train, given.valid), tmp_path / "store", RECIPE, workers=1, progress=False)
    assert split_of(store) == [list(range(24)), list(range(24, 30)), []]
    with pytest.raises(ValueError, match="each part has a file of its own; expected no folds"):
        make_splits(store, SplitRequest("random", folds=3))


def test_files_that_do_not_go_together_are_named(tmp_path: Path) -> None:
    given = files(tmp_path)
    other = write_csv(tmp_path / "d.csv", ("smiles", "z"), [("C", 1)])
    block = tmp_path / "d.smi"
    block.write_text("CC ethane\n")
    for test, sentence in (
        (other, r"d.csv has no column 'y', which .*a.csv has; the columns are smiles, z"),
        (tmp_path / "e.csv", r"e.csv does not exist; expected the file of the test part"),
        (tmp_path / "f.pt", "does not exist"),
        (block, "has no column 'y'"),
    ):
        with pytest.raises(ValueError, match=sentence):
            prepare(SplitFiles(given.train, None, test), tmp_path / "store", RECIPE, workers=1, progress=False)
    for wish in ({"split": "column:part"}, {"split": "given"}):
        with pytest.raises(ValueError, match="but valid and test are files of their own"):
            train_small(given.train, tmp_path / "run", "y", test=given.test, **wish)
    with pytest.raises(ValueError, match="data is a list; expected a file"):
        train_small([], tmp_path / "run", "y", test=given.test)


def test_a_run_of_three_files_says_so_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.cli.command import here, settings, succeeded
    from tests.workflow.small import TINY

    given = files(tmp_path)
    run = tmp_path / "run"
    command = ["train", given.train, "--valid", given.valid, "--test", given.test, "--target", "y", "--out", run]
    done = succeeded(here(*command, "--workers", "1", *settings(TINY)))
    assert f"1 of 39 rows could not be read (the first on line 2 of {given.test}" in done.stderr
    parts = [row["part"] for row in read_csv(run / "split.csv")]
    assert [parts.count(part) for part in ("train", "valid", "test")] == [24, 6, 8]
    card = (run / "README.md").read_text()
    assert "`a.csv (train), b.csv (valid), c.csv (test)`" in card
    assert "Split: a file for each part" in card
    tested = [row["smiles"] for row in read_csv(run / "predictions.csv")]
    assert tested == molecules(38)[0][30:]
    before = (run / "model.safetensors").read_bytes()
    succeeded(here(*command, "--workers", "1", "--resume", *settings(TINY)))
    assert (run / "model.safetensors").read_bytes() == before
