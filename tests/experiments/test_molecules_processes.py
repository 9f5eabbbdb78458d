"""Trainings of the table in processes of their own: stopped, killed, failing, and gone on with."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.command import settings
from tests.experiments.small_molecules import opened, small_config, small_store
from tokengt.experiments.molecules.plan import Job, Plan
from tokengt.experiments.molecules.processes import begun
from tokengt.experiments.molecules.run import run_molecules
from tokengt.experiments.molecules.systems import SYSTEMS
from tokengt.experiments.processes import stop

GIN = SYSTEMS["gin"]
# So many that a training is sure to be at work when it is stopped, and so little time that it ends soon after.
LONG = {"training.epochs": "100000"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_store(tmp_path_factory.mktemp("molecules"))


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def epochs(plan: Plan, job: Job) -> list[int]:
    """The epochs that a training has written down."""
    file = plan.folder(job) / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line)["epoch"] for line in lines]


@pytest.mark.slow
def test_a_training_whose_asker_is_gone_writes_down_where_it_is_and_goes_on(store: Path, tmp_path: Path) -> None:
    """Its input ends, as when the process that asked for it was killed. The next call takes up its epochs and time."""
    plan = opened(small_config(store, "gin", minutes=0.5, screen=0.1, settings=LONG), tmp_path)
    job = plan.screens(GIN)[0]
    training = begun(plan, job, {})
    wait_for(lambda: len(epochs(plan, job)) > 2)
    stop([training])
    assert training.process.returncode == 130
    before = epochs(plan, job)
    assert plan.found(job) is None
    assert list(plan.folder(job).glob("checkpoints/*.safetensors"))
    assert plan.train(job).epochs == len(epochs(plan, job)) > len(before)
    assert epochs(plan, job) == list(range(1, len(epochs(plan, job)) + 1))
    again = begun(plan, job, {})  # A finished one has nothing left to do.
    wait_for(lambda: again.has_ended)
    assert again.problem() is None
    assert not plan.folder(job).with_suffix(".log").exists()


def test_a_training_that_fails_says_why_in_one_sentence(store: Path, tmp_path: Path) -> None:
    """Its own sentence, or the last line that it wrote where it was ended by force."""
    plan = opened(small_config(store, "gin", settings={"gin:model.dropout": "1.5"}), tmp_path)
    failing = begun(plan, plan.screens(GIN)[0], {})
    wait_for(lambda: failing.has_ended)
    assert failing.problem() == "dropout is 1.5; expected 0 or more and below 1"
    plan = opened(small_config(store, "gin", settings=LONG), tmp_path / "killed")
    killed = begun(plan, plan.screens(GIN)[0], {})
    killed.process.kill()
    wait_for(lambda: killed.has_ended)
    assert str(killed.problem()).startswith("the training ended with status -9: ")


@pytest.mark.slow
def test_a_table_that_was_killed_goes_on_with_two_trainings_at_once(store: Path, tmp_path: Path) -> None:
    """No training outlives the command, and what was finished is not trained again."""
    config = small_config(store, "gin", minutes=0.6, screen=0.2, at_once=2, settings=LONG)
    words = ["--dataset", "zinc12k", "--systems", "gin", "--minutes", "0.6", "--screen", "0.2", "--at-once", "2"]
    words += ["--data", str(store), "--device", "cpu", "--out", str(tmp_path), *settings(config.settings)]
    command = [sys.executable, "-m", "tokengt.cli", "reproduce", "molecules", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    plan = opened(config, tmp_path / "zinc12k")
    first, second, third = plan.screens(GIN)
    wait_for(lambda: min(len(epochs(plan, first)), len(epochs(plan, second))) > 2)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: all(list(plan.folder(job).glob("checkpoints/last.safetensors")) for job in (first, second)))
    time.sleep(2)
    stopped = [epochs(plan, job) for job in (first, second, third)]
    time.sleep(2)
    assert [epochs(plan, job) for job in (first, second, third)] == stopped
    assert stopped[2] == []
    said: list[str] = []
    rows = run_molecules(config, tmp_path, said.append)
    assert [row.system for row in rows] == ["GIN"]
    assert len(said) == 4
    for job, seen in zip((first, second, third), stopped, strict=True):
        assert len(epochs(plan, job)) > len(seen)
