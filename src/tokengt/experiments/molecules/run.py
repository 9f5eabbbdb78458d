"""Train the systems of the table, some at once, each in a process of its own; then write the table.

``OUT/DATASET/cells/SYSTEM/STAGE/seed-N`` is the run folder of one training. The same call goes on where a stopped one
was. A system that fails costs its own line alone. Seeds can be added where only the ``found.json`` of an earlier call
was copied to ``OUT/DATASET``.
"""

from contextlib import suppress
from pathlib import Path

from tokengt.config import override
from tokengt.experiments.cells import Say, silent
from tokengt.experiments.molecules.plan import NO_FIRST, Job, Missing, MoleculesConfig, Plan
from tokengt.experiments.molecules.processes import Training, begun
from tokengt.experiments.molecules.report import write_table
from tokengt.experiments.processes import as_ended, side_by_side
from tokengt.experiments.tables import TableRow
from tokengt.files import folder_lock, remove_empty
from tokengt.presets import PRESETS
from tokengt.workflow.comparing_cells import Cell

# How many seconds a training takes beside its minutes, until the first has ended.
_BESIDE = 10.0


def run_molecules(config: MoleculesConfig, out: Path, progress: Say | None = None) -> list[TableRow]:
    """Run the trainings that are not finished; then write ``out``/table.json and the files of the data set."""
    home, data = out / config.dataset, None if config.data is None else Path(config.data)
    with folder_lock(home, lambda: _refuse_taken(home)) as made:
        try:
            plan = Plan(config, home, config.benchmark.opened(data, home / "store"))
            _compute_facts(plan)
            with side_by_side(config.at_once, plan.cells.common.where.resolved) as environment:
                return write_table(plan, Trainings(plan, environment, progress or silent).run(), out)
        finally:
            remove_empty(*reversed(made))


def _refuse_taken(home: Path) -> None:
    raise ValueError(f"another table is being made in {home}; wait for its end, or choose another folder")


def _compute_facts(plan: Plan) -> None:
    """What the models need to know of the graphs, once for all processes; whatever fails here says so in its own."""
    wanted = {job.system.name for job in plan.jobs()}
    for system in plan.lines.values():
        if system.start is not None or system.name not in wanted:
            continue
        asked = plan.asked(Job(system, plan.recipes(system)[0], True))
        assert asked.preset is not None
        request = asked.request(plan.cells.common, Cell(0))
        with suppress(ValueError, ImportError):
            fitted = override(PRESETS[asked.preset]().fit(plan.store, 1), request.model_settings, "model")
            plan.store.with_facts(fitted.facts())


class Trainings:
    """All trainings of a plan: at most so many at a time, each as soon as what it needs has ended."""

    def __init__(self, plan: Plan, environment: dict[str, str], say: Say) -> None:
        self.plan, self.environment, self.say = plan, environment, say
        self.waiting = plan.jobs()
        self.total = len(self.waiting)
        self.at_work: list[Training] = []
        self.ended: set[str] = set()
        # Why a system, or one of its recipes, came to nothing.
        self.failed: dict[str, str] = {}
        self.beside = _BESIDE
        # Whatever was begun otherwise is refused before anything is trained.
        for job in self.waiting:
            decided = plan.decided(job)
            if decided is not None:
                plan.found(decided)

    def run(self) -> dict[str, str]:
        """A sentence for every system without a result, or without some of its seeds."""
        for work in as_ended(self.at_work, self._start):
            self._end(work)
        return self.failed

    def _start(self) -> bool:
        """Begin with what is ready, as far as there is room; whether some still waits."""
        for job in list(self.waiting):
            if len(self.at_work) >= self.plan.config.at_once:
                break
            if not self.plan.needs(job) <= self.ended:
                continue
            self.waiting.remove(job)
            try:
                ready = self.plan.ready(job)
            except Missing as missing:
                self.ended.add(job.name)
                self._leave_out(job.system.name, str(missing))
                continue
            if self.plan.found(ready) is not None:
                self.ended.add(job.name)
            else:
                self.at_work.append(begun(self.plan, ready, self.environment))
        return bool(self.waiting)

    def _leave_out(self, name: str, reason: str) -> None:
        """What failed before stands first; a table without further seeds says that too."""
        said = self.failed.setdefault(name, reason)
        if reason == NO_FIRST and not said.endswith(NO_FIRST):
            self.failed[name] = f"{said}; {NO_FIRST}"

    def _end(self, training: Training) -> None:
        job, benchmark = training.job, self.plan.benchmark
        self.ended.add(job.name)
        if job.epochs is None:
            self.beside = max(0.0, training.seconds - 60 * self.plan.minutes(job))
        problem = training.problem()
        if problem is not None:
            said = f"failed: {problem}"
            self.failed[job.system.name] = f"{job.stage}, seed {job.seed}: {problem}"
        else:
            value = self.plan.validated(job)
            number = "no number" if value is None else f"{value:.4g} {benchmark.unit}".rstrip()
            said = f"validation {benchmark.metrics[0]} {number}"
        self.say(f"{job.name}: {said}; {len(self.ended)} of {self.total} trainings{self._left()}")

    def _left(self) -> str:
        """About how long the rest takes: the time of all trainings to come, shared by those side by side."""
        seconds = sum(self._seconds(job) for job in self.waiting)
        seconds += sum(max(0.0, self._seconds(each.job) - each.seconds) for each in self.at_work)
        return f", about {seconds / self.plan.config.at_once / 60:,.1f} min left" if seconds else ""

    def _seconds(self, job: Job) -> float:
        return 60 * self.plan.minutes(job) + self.beside
