"""``tokengt compare`` as a person types it, and as a power cut ends it."""

from pathlib import Path

import pytest

from tests.cli.command import here, killed_when, refused, settings, succeeded
from tests.workflow.small import TINY, molecule_csv
from tokengt.workflow.comparing_report import COST


@pytest.mark.slow
def test_killed_and_started_again_it_prints_the_table_of_an_unbroken_one(tmp_path: Path) -> None:
    data = molecule_csv(tmp_path / "data.csv")
    sizes = {f"small:{name}": value for name, value in TINY.items() if name.startswith("model.")}
    tiny = settings({**sizes, "gin:model.dim": 8, "training.epochs": 30, "training.checkpoint_seconds": -1})
    words = ("compare", data, "--target", "y", "--presets", "small,gin", "--seeds", "1", "--device", "cpu", *tiny)
    checkpoint = tmp_path / "killed" / "cells" / "small" / "seed-0" / "checkpoints" / "last.safetensors"
    killed_when(checkpoint.exists, *words, "--no-floors", "--out", tmp_path / "killed")
    assert not (tmp_path / "killed" / "table.md").exists()
    again = succeeded(here(*words, "--no-floors", "--out", tmp_path / "killed"))
    unbroken = succeeded(here(*words, "--no-floors", "--out", tmp_path / "unbroken"))
    assert again.stdout.split(COST)[0] == unbroken.stdout.split(COST)[0]
    assert "| small | " in again.stdout
    assert again.stdout.endswith(f"open {tmp_path / 'killed' / 'comparison.png'}\n")
    assert "training-labels" not in again.stdout
    for name in ("small", "gin"):
        files = [tmp_path / out / "cells" / name / "seed-0" / "predictions.csv" for out in ("killed", "unbroken")]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_options_are_refused_by_name(tmp_path: Path) -> None:
    data = molecule_csv(tmp_path / "data.csv")
    words = ("compare", data, "--target", "y", "--out", tmp_path / "out")
    assert "did you mean graphormer?" in refused(here(*words, "--presets", "small,graphormr"))
    assert "not allowed with" in refused(here(*words, "--presets", "small", "--folds", "3", "--seeds", "2"))
    assert "budget is -1.0; expected minutes above 0" in refused(here(*words, "--presets", "small", "--budget", "-1"))
    assert "reference is 'x'" in refused(here(*words, "--presets", "small", "--reference", "x"))
    assert not (tmp_path / "out").exists()
