"""Kill -9 at any moment, go on with --resume, and end with the bytes of a run that was never stopped."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import killed_when, refused, settings, succeeded, tokengt, torchrun
from tests.workflow.small import TINY, molecule_csv
from tokengt.files import folder_lock
from tokengt.training.checkpoint import read_newest

FILES = (
    "metrics.jsonl",
    "model.safetensors",
    "config.json",
    "run.json",
    "predictions.csv",
    "split.csv",
    "summary.json",
    "checkpoints/last.safetensors",
)
RECIPE = {
    **TINY,
    "training.epochs": 3,
    "training.batch_tokens": 60,
    "training.accumulate": 2,
    "training.ema": 0.9,
    "training.checkpoint_seconds": 0,
    "model.encoder.attention.dropout": 0.1,
}


def arguments(folder: Path) -> list[str]:
    source = folder.parent / "data.csv"
    options = ["--target", "y", "z", "--out", str(folder), "--device", "cpu", "--workers", "1"]
    return ["train", str(source), *options, *settings(RECIPE)]


def where(folder: Path) -> dict[str, Any]:
    """The state of the newest whole checkpoint; empty when there is none, or it is being replaced just now."""
    try:
        checkpoint, _ = read_newest(folder / "checkpoints")
    except RuntimeError:
        return {}
    return {} if checkpoint is None else dict(checkpoint.state)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody stopped; --resume began it, for there was none."""
    folder = tmp_path_factory.mktemp("runs") / "unbroken"
    molecule_csv(folder.parent / "data.csv", 60)
    succeeded(tokengt(*arguments(folder), "--resume"))
    return folder


@pytest.fixture(scope="module")
def broken(unbroken: Path) -> Path:
    """The same run, killed before its data was ready, before and after its first checkpoint, and at an epoch's end."""
    folder = unbroken.with_name("broken")
    moments: list[Callable[[], bool]] = [
        lambda: (folder / "store").exists() and not (folder / "run.json").exists(),
        lambda: (folder / "run.json").exists() and not where(folder),
        lambda: where(folder).get("step_in_epoch", 0) > 0,
        lambda: where(folder).get("epoch") == 1,
        lambda: where(folder).get("epoch") == 1 and where(folder)["step_in_epoch"] > 0,
    ]
    for moment in moments:
        killed_when(moment, *arguments(folder), "--resume")
        assert moment()
    return folder


def assert_same(folder: Path, unbroken: Path) -> None:
    for name in FILES:
        assert (folder / name).read_bytes() == (unbroken / name).read_bytes(), name


def litter(folder: Path) -> list[Path]:
    """Temporary files that a kill left behind."""
    return sorted(folder.rglob(".*.part"))


def resumed(broken: Path, name: str) -> Path:
    folder = broken.with_name(name)
    shutil.copytree(broken, folder)
    return folder


def test_killed_again_and_again_a_run_ends_in_the_same_bytes(broken: Path, unbroken: Path) -> None:
    folder = resumed(broken, "killed")
    done = succeeded(tokengt(*arguments(folder), "--resume"))
    assert "checkpoint" not in done.stderr
    assert_same(folder, unbroken)
    assert litter(folder) == []


def test_a_torn_checkpoint_is_named_and_the_one_before_it_used(broken: Path, unbroken: Path) -> None:
    folder = resumed(broken, "torn")
    last = folder / "checkpoints" / "last.safetensors"
    last.write_bytes(last.read_bytes()[:-7])
    done = succeeded(tokengt(*arguments(folder), "--resume"))
    assert f"checkpoint {last}" in done.stderr
    assert "going back to the one before" in done.stderr
    assert_same(folder, unbroken)


def test_other_settings_are_refused_and_named(unbroken: Path) -> None:
    before = (unbroken / "metrics.jsonl").read_bytes()
    sentence = refused(tokengt(*arguments(unbroken), "--resume", "--set", "training.learning_rate=0.5", "--seed", "7"))
    assert "training.learning_rate is 0.5, not 0.001" in sentence
    assert "seed is 7, not 0" in sentence  # What was asked for comes before what follows from it.
    assert (unbroken / "metrics.jsonl").read_bytes() == before


def test_without_resume_a_run_is_left_alone(unbroken: Path) -> None:
    sentence = refused(tokengt(*arguments(unbroken)))
    assert "already holds a run" in sentence
    assert "--resume" in sentence


@pytest.mark.slow
def test_of_two_trainings_started_at_once_one_runs_and_one_is_refused(unbroken: Path) -> None:
    """They must not mix their files: the model, its settings and its predictions are of one seed."""
    for trial in range(3):
        folder = unbroken.with_name(f"contested-{trial}")
        with ThreadPoolExecutor(2) as two:
            seeds = ("7", "8")
            ends = list(two.map(lambda seed: tokengt(*arguments(folder), "--seed", seed), seeds))  # noqa: B023
        assert sorted(end.returncode for end in ends) == [0, 2]
        loser = next(end for end in ends if end.returncode == 2)
        assert any(sentence in refused(loser) for sentence in ("another training is at work", "already holds a run"))
        winner = seeds[[end.returncode for end in ends].index(0)]
        alone = unbroken.with_name(f"alone-{trial}")
        succeeded(tokengt(*arguments(alone), "--seed", winner))
        assert_same(folder, alone)


@pytest.mark.slow
def test_several_processes_of_one_training_hold_the_folder_once(unbroken: Path) -> None:
    """The first of them locks; where another training has the folder, all of them end."""
    folder = unbroken.with_name("several")
    with folder_lock(folder, lambda: None):
        done = torchrun(2, *arguments(folder))
        assert done.returncode != 0
        assert done.stderr.count("tokengt: another training is at work in") == 1
        assert list(folder.iterdir()) == []
    succeeded(torchrun(2, *arguments(folder)))
