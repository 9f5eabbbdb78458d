"""``tokengt train`` and its neighbours, as a person types them."""

import json
import pickle
from pathlib import Path

import pytest

from tests.cli.command import here, refused, settings, succeeded, tokengt
from tests.cli.test_resume import where
from tests.workflow.small import TINY, molecules, read_csv, write_csv


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other column names, unicode, Windows line ends, a bad row, a descriptor, and a split of its own."""
    folder = tmp_path_factory.mktemp("work")
    smiles, values = molecules(40)
    rows = [
        (f"Stoff {place}, ä", text, value, 20 + place, ("train", "train", "train", "Val", "TEST")[place % 5])
        for place, (text, value) in enumerate(zip(smiles, values, strict=True))
    ]
    rows.insert(7, ("broken", "C1CC", 1.0, 20, "train"))
    write_csv(folder / "data.csv", ("Name", "Structure", "log S", "T", "Part"), rows)
    arguments = ["--smiles", "Structure", "--target", "log S", "--descriptors", "T", "--split", "column:Part"]
    done = succeeded(
        tokengt("train", folder / "data.csv", *arguments, "--out", folder / "run", "--workers", "1", *settings(TINY))
    )
    (folder / "said").write_text(done.stdout)
    (folder / "warned").write_text(done.stderr)
    return folder


def test_training_tells_what_it_found_and_what_to_open(folder: Path) -> None:
    printed, warned = (folder / "said").read_text(), (folder / "warned").read_text()
    assert "test: rmse" in printed
    assert "parity.png" in printed
    assert f"tokengt predict {folder / 'run'} NEW.csv" in printed
    assert "1 of 41 rows could not be read" in warned
    assert "split: 24 train, 8 valid, 8 test" in warned
    assert "epoch 2/2" in warned
    assert "Warning" not in warned


def test_rows_know_their_lines(folder: Path) -> None:
    kept = read_csv(folder / "run" / "predictions.csv")
    source = read_csv(folder / "data.csv")
    for row in kept:
        own = source[int(row["line"]) - 2]
        assert own["Structure"] == row["Structure"]
        assert float(own["log S"]) == float(row["log S"])
        assert own["Part"] == "TEST"
    rejected = read_csv(folder / "run" / "store" / "rejected.csv")
    assert [row["line"] for row in rejected] == ["9"]


def test_the_last_checkpoint_knows_the_best_epoch(folder: Path) -> None:
    records = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    best = min(records, key=lambda record: record["valid"]["rmse"])
    assert where(folder / "run")["epoch"] == 2
    assert where(folder / "run")["best_epoch"] == best["epoch"]


def test_info_says_what_a_folder_is(folder: Path) -> None:
    run = succeeded(here("info", folder / "run")).stdout
    assert "a run of one model on data.csv, regression of log S" in run
    store = succeeded(here("info", folder / "run" / "store")).stdout
    assert "a store of 40 graphs" in store
    assert "given      T" in store


def test_evaluate_and_embed(folder: Path) -> None:
    done = succeeded(here("evaluate", folder / "run", folder / "data.csv", "--json"))
    evaluation = json.loads(done.stdout)
    assert (evaluation["rows"], evaluation["rejected"]) == (40, 1)
    assert evaluation["metrics"]["rmse"] > 0
    printed = succeeded(here("embed", folder / "run", folder / "data.csv", "--out", folder / "v.npz")).stdout
    assert "41 rows, 1 of which could not be read" in printed


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--target", "solubility"], "the columns are Name, Structure, log S, T, Part"),
        (["--smiles", "Structure", "--target", "Name"], "the task multiclass"),
        (["--smiles", "Structure", "--target", "log S", "--set", "training.epochs"], "has no '='"),
    ],
)
def test_a_wrong_wish_is_one_sentence(folder: Path, tmp_path: Path, arguments: list[str], sentence: str) -> None:
    refusal = refused(here("train", folder / "data.csv", *arguments, "--out", tmp_path / "run", "--workers", "1"))
    assert sentence in refusal


def test_a_pickle_named_like_data_is_refused(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str, str]]:
            return open, (str(tmp_path / "ran"), "w")

    (tmp_path / "data.pt").write_bytes(pickle.dumps(Trap()))
    refusal = refused(here("train", tmp_path / "data.pt", "--target", "y", "--out", tmp_path / "run"))
    assert "data.pt" in refusal
    assert not (tmp_path / "ran").exists()
