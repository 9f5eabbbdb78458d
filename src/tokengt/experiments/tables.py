"""Results as data: the rows that every experiment writes, and where they came from."""

import json
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from tokengt.files import write_whole


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


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and the sample's standard deviation, None for a single value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def write_rows(file: Path, rows: Sequence[TableRow]) -> None:
    write_json(file, [asdict(row) for row in rows])


def write_json(file: Path, content: object) -> None:
    write_whole(file, (json.dumps(content, indent=1) + "\n").encode())


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def distinct(values: Sequence[str | None]) -> str | None:
    """The different values among those of several runs, each listed once; None if there is none."""
    return ", ".join(dict.fromkeys(value for value in values if value)) or None


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def source_commit() -> str | None:
    """The checked-out commit of this package, with a ``+`` when its files differ; None outside a checkout."""
    folder = Path(__file__).parent
    try:
        head, changes = (
            subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()
            for words in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--", str(folder.parent)])
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if changes else "")
