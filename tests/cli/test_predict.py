"""``tokengt predict``, in processes of its own."""

import shutil
from pathlib import Path

import pytest

from tests.cli.command import here, refused, succeeded, tokengt
from tests.workflow.small import molecule_csv, molecules, read_csv, train_small, write_csv
from tokengt.inference import load
from tokengt.workflow.predicting import predict_file


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    train_small(molecule_csv(folder / "data.csv"), folder / "run", ("y", "z"))
    texts = molecules(20)[0]
    rows = [(f"id{place}", text) for place, text in enumerate([*texts[:5], "C1CC", *texts[5:], ""])]
    write_csv(folder / "new.csv", ("id", "smiles"), rows)
    return folder


@pytest.mark.slow
def test_two_processes_write_the_same_bytes(folder: Path) -> None:
    for name in ("a.csv", "b.csv"):
        output = succeeded(
            tokengt("predict", folder / "run", folder / "new.csv", "--out", folder / name, "--draws", "3")
        ).stdout
        assert "22 rows, 2 of which could not be read (see the column reason)" in output
    assert (folder / "a.csv").read_bytes() == (folder / "b.csv").read_bytes()
    predictions = read_csv(folder / "a.csv")
    assert [row["id"] for row in predictions] == [f"id{place}" for place in range(22)]
    assert [row["id"] for row in predictions if row["reason"]] == ["id5", "id21"]


def test_what_exists_is_replaced_only_when_told(folder: Path, tmp_path: Path) -> None:
    for verb in ("predict", "embed"):
        out = tmp_path / f"{verb}.csv"
        arguments = (verb, folder / "run", folder / "new.csv", "--out", out)
        assert "22 rows, 2 of which could not be read" in succeeded(here(*arguments)).stdout
        first = out.read_bytes()
        out.write_text("mine")
        assert f"{out} exists" in refused(here(*arguments))
        assert out.read_text() == "mine"
        succeeded(here(*arguments, "--force"))
        assert out.read_bytes() == first
    assert "expected one of .npz, .csv, .parquet" in refused(
        here("embed", folder / "run", folder / "new.csv", "--out", tmp_path / "v.zip")
    )


def test_an_edited_run_is_named(folder: Path, tmp_path: Path) -> None:
    """Another scale or salts policy would change every prediction without a word."""
    changed = tmp_path / "run"
    shutil.copytree(folder / "run", changed, ignore=shutil.ignore_patterns("store", "checkpoints"))
    file = changed / "run.json"
    assert '"salts": "keep"' in file.read_text()
    file.write_text(file.read_text().replace('"salts": "keep"', '"salts": "largest"'))
    for verb in (("predict", changed, folder / "new.csv", "--out", tmp_path / "out.csv"), ("info", changed)):
        assert f"{file} does not match its checksum" in refused(here(*verb))
    again = ("finetune", changed, folder / "data.csv", "--target", "y", "--out", tmp_path / "tuned")
    assert f"{file} does not match its checksum" in refused(here(*again))


def test_a_run_that_moved_predicts_the_same(folder: Path, tmp_path: Path) -> None:
    """Only what prediction needs: no store, no checkpoints, and nothing may be written beside them."""
    moved = tmp_path / "elsewhere"
    shutil.copytree(folder / "run", moved, ignore=shutil.ignore_patterns("store", "checkpoints", "*.png", "*.csv"))
    moved.chmod(0o555)
    predict_file(load(folder / "run"), folder / "new.csv", tmp_path / "here.csv", quiet=True)
    succeeded(tokengt("predict", moved, folder / "new.csv", "--out", tmp_path / "there.csv"))
    assert (tmp_path / "here.csv").read_bytes() == (tmp_path / "there.csv").read_bytes()


def test_changed_weights_are_named(folder: Path, tmp_path: Path) -> None:
    changed = tmp_path / "run"
    shutil.copytree(folder / "run", changed, ignore=shutil.ignore_patterns("store", "checkpoints"))
    weights = changed / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")
    sentence = refused(tokengt("predict", changed, folder / "new.csv", "--out", tmp_path / "out.csv"))
    assert f"{weights} does not match its checksum" in sentence
    assert not (tmp_path / "out.csv").exists()
