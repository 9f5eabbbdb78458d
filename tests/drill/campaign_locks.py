"""Two at once: two trainings on one folder, two preparations of one store, a lock that somebody holds."""

import fcntl
import os
import time
from pathlib import Path

from tests.drill.calls import Answer
from tests.drill.campaign_kills import large_table
from tests.drill.case import Case
from tests.drill.oracle import Fault, judged, snapshot
from tests.drill.workshop import TINY


def play(case: Case) -> list[Fault]:
    return (_two_trainings, _two_prepares, _held_run, _held_store, _two_predictions)[case.number % 5](case)


def _train(case: Case, seed: int) -> tuple[str, ...]:
    return ("train", str(case.shop.molecules), "--target=y", *TINY, f"--seed={seed}", "--out=run")


def _two_trainings(case: Case) -> list[Fault]:
    """One wins, the other is refused by a sentence that names the folder; the run is the winner's alone."""
    seeds = case.rng.sample(range(2, 9), 2) if case.rng.random() < 0.7 else [7, 7]
    started = [case.command.start(*_train(case, seeds[0]), folder=case.folder)]
    time.sleep(case.rng.random() * case.rng.choice((0.02, 0.3, 1.5)))
    resume = ("--resume",) if case.rng.random() < 0.5 else ()
    started.append(case.command.start(*_train(case, seeds[1]), *resume, folder=case.folder))
    answers = [case.command.wait(each) for each in started]
    faults = [fault for answer in answers for fault in judged(answer)]
    if faults:
        return faults
    winners = [seed for seed, answer in zip(seeds, answers, strict=True) if answer.done]
    if not winners:
        return [Fault("lost", "both trainings are refused", f"{answers[0]}\n{answers[1]}")]
    if len(winners) == 2 and seeds[0] != seeds[1]:
        return [Fault("silent", "both trainings end well in one folder", f"{answers[0]}\n{answers[1]}")]
    for answer in answers:
        if answer.refused and "run" not in answer.stderr:
            return [Fault("manners", "the refusal does not name the folder", str(answer))]
    right = _alone(case, winners[0])
    other = [name for name, value in snapshot(case.folder / "run").items() if right.get(name) != value]
    missing = set(right) - set(snapshot(case.folder / "run"))
    if other or missing:
        return [Fault("silent", f"{[*other, *missing][0]} is not of seed {winners[0]}", f"{answers[0]}\n{answers[1]}")]
    return []


def _alone(case: Case, seed: int) -> dict[str, str]:
    home = case.shop.home / f"seed-{seed}"
    if not home.exists():
        home.mkdir()
        answer = case.command(*_train(case, seed), folder=home, cpu=200)
        assert answer.done, str(answer)
    return snapshot(home / "run")


def _two_prepares(case: Case) -> list[Fault]:
    """The second waits and finds the store of the first, or is refused where it asks for another one."""
    words = ("prepare", str(large_table(case.shop)), "--out=store", "--workers=1")
    other = case.rng.random() < 0.4
    started = [case.command.start(*words, "--target=y", folder=case.folder, cpu=200)]
    time.sleep(case.rng.random() * 0.5)
    started.append(case.command.start(*words, *([] if other else ["--target=y"]), folder=case.folder, cpu=200))
    answers = [case.command.wait(each, idle=60) for each in started]
    faults = [fault for answer in answers for fault in judged(answer)]
    done = sum(answer.done for answer in answers)
    if not faults and done != (1 if other else 2):
        faults.append(Fault("silent", f"{done} of two preparations end well", f"{answers[0]}\n{answers[1]}"))
    names = set(snapshot(case.folder / "store"))
    if not faults and names != {"graphs.safetensors", "manifest.json", "rejected.csv"}:
        faults.append(Fault("litter", f"the store holds {sorted(names)}", str(answers[1])))
    return faults


class _Lock:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None:
        os.close(self.descriptor)


def _held_run(case: Case) -> list[Fault]:
    """A folder whose lock is held: refused at once. The lock of a process that is gone is none."""
    with _Lock(case.folder / "run"):
        answer = case.call(*_train(case, 7))
    faults = judged(answer)
    if not faults and not (answer.refused and "run" in answer.stderr):
        faults = [Fault("silent", "a training begins in a folder that another has locked", str(answer))]
    again: Answer = case.call(*_train(case, 7))
    if not faults and not again.done:
        faults = judged(again) or [Fault("lost", "the folder stays locked", str(again))]
    return faults


def _held_store(case: Case) -> list[Fault]:
    """``prepare`` waits, and goes on when the lock is gone."""
    words = ("prepare", str(case.shop.molecules), "--target=y", "--out=store")
    with _Lock(case.folder / "store"):
        started = case.command.start(*words, folder=case.folder)
        time.sleep(2)
        waited = not (case.folder / "store" / "manifest.json").exists()
    answer = case.command.wait(started)
    if not waited:
        return [Fault("silent", "a store is written under a lock", str(answer))]
    if not answer.done:
        return judged(answer) or [Fault("lost", "prepare does not go on when the lock is gone", str(answer))]
    return judged(answer)


def _two_predictions(case: Case) -> list[Fault]:
    """Two write one table: it is whole, whoever was last; or one of them is refused."""
    run = case.shop.single
    words = ("predict", run.folder, run.source, "--out=out.csv")
    started = [case.command.start(*words, folder=case.folder) for _ in range(2)]
    answers = [case.command.wait(each) for each in started]
    faults = [fault for answer in answers for fault in judged(answer)]
    whole = (case.folder / "out.csv").read_bytes() == case.shop.predicted(run) if not faults else True
    left = set(snapshot(case.folder)) - {"out.csv"}
    if not whole or left or not any(answer.done for answer in answers):
        faults.append(Fault("silent", f"two predictions at once: whole {whole}, left {left}", str(answers[1])))
    return faults
