"""Train the systems of the table, some at once, each in a process of its own; then write the table.

``OUT/cells/DATASET/SYSTEM/MODEL/run-N.json`` is what one training came to. The same call goes on where a stopped one
was. A system that fails costs its own cell of the table alone.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from tokengt.data.catalogue import DATASETS
from tokengt.data.named import named_store
from tokengt.experiments.cells import Say, silent
from tokengt.experiments.nodes.plan import NodesConfig, Pair, Plan
from tokengt.experiments.nodes.report import write_table
from tokengt.experiments.nodes.worker import order_of
from tokengt.experiments.processes import Work, as_ended, side_by_side, started
from tokengt.experiments.tables import TableRow
from tokengt.files import folder_lock
from tokengt.training.processes import DeviceConfig

_MODULE = "tokengt.experiments.nodes.worker"


@dataclass(frozen=True)
class Task:
    """Work for one process: a system on a graph, or without a system what is to be known of the graph."""

    graph: str
    system: str | None = None

    @property
    def name(self) -> str:
        return f"{self.graph}/{self.system or 'facts'}"


def run_nodes(config: NodesConfig, out: Path, progress: Say | None = None, *, train: bool = True) -> list[TableRow]:
    """Run the trainings that are not finished; then write ``out``/table.json, table.md and found.json.

    With ``train`` false nothing is run, and the table has the systems that have been.

    Raises:
        ValueError: there are none.
    """
    say = progress or silent
    config = config if train else _begun(config, out)
    plan = Plan(config, out)
    with folder_lock(out, lambda: _refuse_taken(out)):
        pairs = plan.pairs()
        for pair in pairs:
            # Whatever was made otherwise is refused before anything is trained.
            plan.chosen(pair)
        if not train:
            return write_table(plan, {}, out)
        for graph in config.graphs:
            named_store(DATASETS[graph.name], progress=progress is not None)
        with side_by_side(config.at_once, DeviceConfig(config.device).resolved) as environment:
            failed = Tasks(plan, pairs, environment, say).run()
        return write_table(plan, failed, out)


def _begun(config: NodesConfig, out: Path) -> NodesConfig:
    """The same with the systems alone of which some training is there."""
    plan = Plan(config, out)
    names = tuple(dict.fromkeys(pair.system.name for pair in plan.ordered() if plan.is_begun(pair)))
    if not names:
        raise ValueError(f"{out} has no training of these systems on these graphs; nothing is written")
    return replace(config, systems=names)


def _refuse_taken(home: Path) -> None:
    raise ValueError(f"another table is being made in {home}; wait for its end, or choose another folder")


class Tasks:
    """All that is left to do, at most so much at a time; systems that ask for facts of their graph wait for them."""

    def __init__(self, plan: Plan, pairs: list[Pair], environment: dict[str, str], say: Say) -> None:
        self.plan, self.environment, self.say = plan, environment, say
        left = [pair for pair in pairs if not plan.is_finished(pair)]
        asking = dict.fromkeys(pair.graph.name for pair in left if plan.asks_for_facts(pair))
        self.waiting = [Task(name) for name in asking] + [Task(pair.graph.name, pair.system.name) for pair in left]
        self.total = len(left)
        # Systems that ask to know more of their graph, and the graphs of which that is known.
        self.asking = {pair.name for pair in left if plan.asks_for_facts(pair)}
        self.known: set[str] = set()
        self.at_work: list[Work[Task]] = []
        self.failed: dict[str, str] = {}

    def run(self) -> dict[str, str]:
        """A sentence for every system and graph that came to nothing, by their names."""
        for work in as_ended(self.at_work, self._start):
            self._end(work)
        return self.failed

    def _start(self) -> bool:
        """Begin with what is ready, as far as there is room; whether some still waits."""
        for task in list(self.waiting):
            if len(self.at_work) >= self.plan.config.at_once:
                break
            if task.name in self.asking and task.graph not in self.known:
                continue
            self.waiting.remove(task)
            log = self.plan.home / "logs" / f"{task.graph}-{task.system or 'facts'}.log"
            order = order_of(self.plan, task.graph, task.system)
            self.at_work.append(started(_MODULE, task, order, log, self.environment))
        return bool(self.waiting)

    def _end(self, work: Work[Task]) -> None:
        task, problem = work.job, work.problem()
        if task.system is None:
            # Systems that need no facts are trained whatever came of them; the others say so themselves.
            self.known.add(task.graph)
        left = sum(each.system is not None for each in (*self.waiting, *(one.job for one in self.at_work)))
        told = "" if task.system is None else f"; {self.total - left} of {self.total} systems"
        if problem is not None:
            self.failed[task.name] = problem
            self.say(f"{task.name}: failed after {work.seconds:.0f} s: {problem}{told}")
        else:
            self.say(f"{task.name}: {work.seconds:.0f} s{told}")
