"""Results as data: the rows that every experiment writes, and where they came from."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tokengt.training.tables import device_name as device_name
from tokengt.training.tables import markdown as markdown
from tokengt.training.tables import mean_and_std as mean_and_std
from tokengt.training.tables import source_commit as source_commit
from tokengt.training.tables import write_json as write_json


@dataclass(frozen=True)
class TableRow:
    """One line of ``results/<experiment>/table.json``.

    Args:
        experiment: which table.
        system: what was measured.
        dataset: on what.
        split: on which part of it.
        metric: the name of the number.
        mean: over runs.
        std: over runs (of the sample); None for one run.
        runs: how many.
        parameters: trained numbers.
        graphs_per_s: training speed.
        device: where it ran.
        commit: of the source.
        paper: the paper's mean; None where it has none.
        memory_gib: of the device, at most; None where it was not measured.
        asymptotics: how the cost of a step grows with the nodes n and edges m of a graph; None where nobody says so.
    """

    experiment: str
    system: str
    dataset: str
    split: str
    metric: str
    mean: float
    std: float | None
    runs: int
    parameters: int | None
    graphs_per_s: float | None
    device: str
    commit: str | None
    paper: float | None
    memory_gib: float | None = None
    asymptotics: str | None = None


def write_rows(file: Path, rows: Sequence[TableRow]) -> None:
    write_json(file, [asdict(row) for row in rows])


def distinct(values: Sequence[str | None]) -> str | None:
    """The different values among those of several runs, each listed once; None if there is none."""
    return ", ".join(dict.fromkeys(value for value in values if value)) or None
