"""A disk that is full at any moment: one sentence, nothing half written, and the same command ends well with room."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.drill.calls import Answer
from tests.drill.campaign_kills import Job, compared, jobs, unbroken
from tests.drill.case import Case
from tests.drill.oracle import Fault, judged, snapshot

_ROOM = 64 << 20
_FULL = ("No space left on device", "no space", "disk")


def can_mount(folder: Path) -> bool:
    """Whether small disks can be made here: as root on Linux."""
    try:
        with small_disk(folder, 1 << 16):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True, capture_output=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def play(case: Case) -> list[Fault]:
    every = jobs(case.shop)
    if case.number % (len(every) + 2) >= len(every):
        return _full_elsewhere(case)
    job = every[case.number % (len(every) + 2)]
    right = unbroken(case.shop, job)
    written = sum((case.shop.home / "unbroken" / job.name / "work" / name).stat().st_size for name in right.files)
    pages = max(2, round(written * case.rng.random() * 1.3 / 4096))
    with small_disk(case.folder / "disk", pages * 4096) as disk:
        answer = case.command(*job.words, "--out", job.out, folder=disk, cpu=200)
        return _judged(case, answer, job, disk)


def _judged(case: Case, answer: Answer, job: Job, disk: Path) -> list[Fault]:
    right = unbroken(case.shop, job).files
    faults = judged(answer)
    if faults:
        return faults
    if answer.done:
        return compared(answer, snapshot(disk), right, job.name)
    found = snapshot(disk)
    if not any(word in answer.stderr for word in _FULL):
        return [Fault("manners", f"{job.name}: a full disk is called something else", str(answer))]
    half = [name for name in found if name not in right or Path(name).name.startswith(".")]
    # What is finished of a long work is kept for the next call.
    half = [name for name in half if not any(part == ".shards" or part.endswith(".parts") for part in Path(name).parts)]
    if half:
        return [Fault("litter", f"{job.name}: {half[0]} is left behind by a full disk", str(answer))]
    subprocess.run(["mount", "-o", f"remount,size={_ROOM}", disk], check=True)
    again = case.command(*job.words, *job.again, "--out", job.out, folder=disk, cpu=200)
    if not again.done:
        return judged(again) or [Fault("lost", f"{job.name} does not go on when there is room", str(again))]
    return judged(again) or compared(again, snapshot(disk), right, job.name)


def _full_elsewhere(case: Case) -> list[Fault]:
    """A full disk under the temporary files, or under standard output."""
    run = case.shop.single
    if case.rng.random() < 0.5:
        verbs = (("info", run.folder), ("evaluate", run.folder, run.source), ("presets",), ("--version",), ("--help",))
        answer = case.command(*case.rng.choice(verbs), folder=case.folder, stdout=Path("/dev/full"))
        if "Traceback" in answer.stderr or "Exception ignored" in answer.stderr or answer.status == 70 or answer.done:
            return [Fault("traceback", "standard output is full", str(answer))]
        return []
    with small_disk(case.folder / "tmp", 4096 * case.rng.choice((1, 2, 4, 8))) as tmp:
        environment = {"TMPDIR": os.fspath(tmp)}
        answer = case.command("evaluate", run.folder, run.source, "--json", folder=case.folder, environment=environment)
        faults = judged(answer)
        if not faults and answer.done and answer.stdout != case.shop.evaluated(run):
            faults = [Fault("silent", "the evaluation differs", str(answer))]
        if not faults and snapshot(tmp):
            faults = [Fault("litter", f"{next(iter(snapshot(tmp)))} is left behind", str(answer))]
        return faults
