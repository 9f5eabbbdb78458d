"""Killed at any moment and started again: the end is the same bytes as without the kill, and nothing is left over."""

import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

from tests.drill.calls import Answer
from tests.drill.case import Case
from tests.drill.oracle import Fault, Snapshot, judged, snapshot
from tests.drill.truth import MOLECULES
from tests.drill.workshop import TINY, Workshop

_EPOCHS = "--set=training.epochs=4"


@dataclass(frozen=True)
class Job:
    """A call that takes a while: ``out`` is what it writes, ``again`` is added when it is started anew."""

    name: str
    words: tuple[str, ...]
    out: str
    again: tuple[str, ...] = ()
    # Whether the same command can be given once more when it has come to its end.
    repeats: bool = True


def jobs(shop: Workshop) -> list[Job]:
    table = str(shop.molecules)
    train = ("train", table, "--target", "y", "--smiles", "smiles", *TINY, _EPOCHS)
    resume = ("--resume",)
    return [
        Job("train", train, "run", resume),
        Job("train an ensemble", (*train, "--ensemble=2", "--descriptors=d"), "run", resume),
        Job("train folds", (*train, "--folds=3"), "run", resume),
        Job("train on graphs", ("train", str(shop.graphs), "--target=y", *TINY, _EPOCHS), "run", resume),
        Job("finetune", ("finetune", str(shop.single.folder), table, "--target=y2", _EPOCHS), "run", resume),
        Job("prepare", ("prepare", str(large_table(shop)), "--target=y", "--workers=2"), "store"),
        Job("prepare graphs", ("prepare", str(shop.graphs), "--target=y"), "store"),
        Job("predict", ("predict", str(shop.single.folder), str(large_table(shop))), "out.csv", repeats=False),
        Job("embed", ("embed", str(shop.single.folder), str(large_table(shop))), "v.npz", repeats=False),
    ]


def large_table(shop: Workshop) -> Path:
    """Three shards of rows, some of them bad."""
    path = shop.home / "large.csv"
    if not path.exists():
        names = (*MOLECULES, "C1CC")
        path.write_text("smiles,y\n" + "".join(f"{names[row % len(names)]},{row % 97}\n" for row in range(9000)))
    return path


@dataclass(frozen=True)
class Unbroken:
    """What a job leaves that nobody stops, and how long it takes."""

    files: Snapshot
    seconds: float


def unbroken(shop: Workshop, job: Job) -> Unbroken:
    home = shop.home / "unbroken" / job.name
    time = home / "seconds"
    work = home / "work"
    if not time.exists():
        shutil.rmtree(home, ignore_errors=True)
        work.mkdir(parents=True)
        answer = shop.command(*job.words, "--out", job.out, folder=work, cpu=200)
        assert answer.done, str(answer)
        time.write_text(str(answer.seconds))
    return Unbroken(snapshot(work), float(time.read_text()))


def play(case: Case) -> list[Fault]:
    every = jobs(case.shop)
    job = every[case.number % len(every)]
    right = unbroken(case.shop, job)
    kill = signal.SIGINT if case.number % 7 == 3 else signal.SIGKILL
    faults: list[Fault] = []
    for attempt in range(case.rng.choice((1, 1, 2, 3))):
        words = (*job.words, *(job.again if attempt else ()))
        after = case.rng.random() ** 0.7 * right.seconds
        answer = case.call(*words, "--out", job.out, signal=kill, after=after, cpu=200)
        faults += _judged(answer, kill)
        # The kill may come when the file is whole and the process about to end: the same command finds it there.
        if not job.repeats and (answer.done or snapshot(case.folder) == right.files):
            break
    else:
        answer = case.call(*job.words, *job.again, "--out", job.out, cpu=200)
        faults += judged(answer)
        if answer.refused:
            faults.append(Fault("lost", f"{job.name} does not go on after a kill", str(answer)))
    return faults or compared(answer, snapshot(case.folder), right.files, job.name)


def _judged(answer: Answer, kill: int) -> list[Fault]:
    """A call that was killed says nothing; one that was interrupted says one sentence."""
    if answer.orphans:
        return [Fault("litter", f"{answer.orphans} worker processes outlive their parent", str(answer))]
    if kill == signal.SIGKILL and answer.status == -kill:
        return []
    if kill == signal.SIGINT and answer.sent and answer.done:
        return []  # Python drops an interrupt that comes while it runs a destructor: the call went on.
    if kill == signal.SIGINT and answer.sent and answer.status in (130, -signal.SIGINT):
        lines = answer.stderr.strip().split("\n")
        if "Traceback" in answer.stderr or not lines[-1].startswith("tokengt: "):
            return [Fault("traceback", "Ctrl-C is answered by more than a sentence", str(answer))]
        if "--resume" in lines[-1] and answer.arguments[0] in ("predict", "embed"):
            return [Fault("manners", "--resume is advised where there is none", str(answer))]
        return []
    return judged(answer)


def compared(answer: Answer, found: Snapshot, right: Snapshot, name: str) -> list[Fault]:
    missing, extra = sorted(set(right) - set(found)), sorted(set(found) - set(right))
    if missing:
        return [Fault("lost", f"{name}: {missing[0]} is missing", str(answer))]
    if extra:
        return [Fault("litter", f"{name}: {', '.join(extra[:3])} left over", str(answer))]
    other = [file for file in right if found[file] != right[file]]
    return [Fault("silent", f"{name}: {', '.join(other[:3])} differ", str(answer))] if other else []
