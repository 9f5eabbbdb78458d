"""Run what is not finished, some at once, each in a process of its own; then write the table.

The same call goes on where a stopped one was. A system that fails costs its own cells alone.
"""

from pathlib import Path

from tokengt.experiments.admet.plan import CELLS, AdmetConfig, Job, Plan
from tokengt.experiments.admet.worker import order_of
from tokengt.experiments.cells import Say, kept_cell, silent
from tokengt.experiments.processes import Work, as_ended, side_by_side, started
from tokengt.files import folder_lock, remove_empty
from tokengt.training.processes import DeviceConfig

_MODULE = "tokengt.experiments.admet.worker"


def run_cells(config: AdmetConfig, out: Path, progress: Say | None = None) -> dict[str, str]:
    """Run all cells that are not kept yet. A sentence for each system that was left out or failed, by its name.

    Raises:
        ValueError: an endpoint cannot be read, or a cell was made with other settings.
    """
    say = progress or silent
    plan = Plan(config, out)
    with folder_lock(out, lambda: _refuse_taken(out)) as made:
        try:
            return config.left_out | Jobs(plan, say).run()
        finally:
            remove_empty(*reversed(made))


def _refuse_taken(home: Path) -> None:
    raise ValueError(f"another benchmark is at work in {home}; wait for its end, or choose another folder")


class Jobs:
    """All that is left to do, at most so much at a time."""

    def __init__(self, plan: Plan, say: Say) -> None:
        self.plan, self.say = plan, say
        self.failed: dict[str, str] = {}
        # Whatever cannot be read, or was made otherwise, is refused before anything is trained.
        checksums = {each.name: plan.data(each.name).checksum for each in plan.endpoints}
        self.waiting = [job for job in plan.jobs() if self._left(job, checksums[job.endpoint])]
        self.total = len(self.waiting)
        self.at_work: list[Work[Job]] = []

    def run(self) -> dict[str, str]:
        """A sentence for every system that failed on an endpoint, by the names of both."""
        config = self.plan.config
        for system, why in config.left_out.items():
            self.say(f"{system} is left out: {why}")
        with side_by_side(config.at_once, DeviceConfig(config.device).resolved) as environment:
            for work in as_ended(self.at_work, lambda: self._start(environment)):
                self._end(work)
        return self.failed

    def _start(self, environment: dict[str, str]) -> bool:
        """Begin with what waits, as far as there is room; whether some still waits."""
        while self.waiting and len(self.at_work) < self.plan.config.at_once:
            job = self.waiting.pop(0)
            log = self.plan.home / "logs" / f"{job.endpoint}-{job.system}.log"
            self.at_work.append(started(_MODULE, job, order_of(self.plan, job), log, environment))
        return bool(self.waiting)

    def _left(self, job: Job, checksum: str) -> bool:
        """Whether a seed of it is not finished."""
        return any(not self._is_kept(job, seed, checksum) for seed in range(self.plan.config.seeds))

    def _is_kept(self, job: Job, seed: int, checksum: str) -> bool:
        file = self.plan.file(job, seed)
        if not file.exists():
            return False
        kept_cell(file, self.plan.asked(job, seed, checksum), dict)
        return True

    def _end(self, work: Work[Job]) -> None:
        problem = work.problem()
        told = f"{self.total - len(self.waiting) - len(self.at_work)} of {self.total}"
        if problem is None:
            self.say(f"{work.job.name}: {work.seconds:.0f} s; {told}")
        else:
            self.failed[work.job.name] = problem
            self.say(f"{work.job.name}: failed after {work.seconds:.0f} s: {problem}; {told}")


def cells_of(home: Path) -> dict[str, dict[str, list[Path]]]:
    """The kept cells of a folder, by endpoint and system."""
    found: dict[str, dict[str, list[Path]]] = {}
    for file in sorted((home / CELLS).glob("*/*/seed-*.json"), key=lambda file: int(file.stem.removeprefix("seed-"))):
        found.setdefault(file.parts[-3], {}).setdefault(file.parts[-2], []).append(file)
    return found
