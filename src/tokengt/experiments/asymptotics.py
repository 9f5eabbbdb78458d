"""How the cost of a training step grows with the size of graphs, for every system of Table 2.

Random molecules of one size each, fewer of them the larger they are, so that all steps have as many nodes. A step is
that of ``tokengt train``; what is worked out once for a data set, such as eigenvectors and distances, is not in it. Of
the cost of one graph, measured at several sizes n, a line in log-log axes gives the exponent a of n^a; over the larger
sizes alone, because small graphs cost what a step costs at least.
"""

import gc
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from tokengt.bench.counting import wait
from tokengt.bench.memory import is_full
from tokengt.bench.molecules import MoleculeStatistics, random_molecules
from tokengt.bench.profiling import allocated_at_most
from tokengt.bench.timing import peak_bytes, reset_peak
from tokengt.config import override
from tokengt.data.store import Store
from tokengt.experiments.asymptotics_picture import plot_costs
from tokengt.experiments.cells import Say, kept_cell, silent
from tokengt.experiments.molecules.systems import TABLE, Size, TableSystem, systems_named
from tokengt.experiments.tables import TableRow, device_name, markdown, source_commit, write_json, write_rows
from tokengt.files import write_whole
from tokengt.interop.molecules import DEFAULT_POLICY
from tokengt.models.contract import ModelConfig
from tokengt.presets import PRESETS
from tokengt.training.config import TrainingConfig
from tokengt.training.loop import Trainer
from tokengt.training.parts import Part, Parts
from tokengt.training.processes import DeviceConfig, deterministic, make_fabric
from tokengt.training.tasks import Task
from tokengt.workflow.comparing import sentence_of

# Bytes that a trained number has: itself, its gradient and the two moments of AdamW, in float32.
_BYTES_EACH = 16
# Steps that are not timed: the first makes the moments of AdamW, and a GPU records the next ones.
_WARMUP = 3


@dataclass(frozen=True)
class AsymptoticsConfig:
    """What is measured.

    Args:
        systems: names of systems, or of presets.
        size: how large the models are: as for QM9 (medium), ZINC-12k (small) or in the paper.
        sizes: nodes of a graph.
        nodes: of a step, in all its graphs.
        steps: that are timed.
        longest: seconds; a system whose step takes longer is not measured on larger graphs.
    """

    systems: tuple[str, ...] = TABLE
    size: Size = "medium"
    sizes: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024)
    nodes: int = 16_384
    steps: int = 10
    longest: float = 5.0

    def __post_init__(self) -> None:
        if self.size not in get_args(Size):
            raise ValueError(f"size is {self.size!r}; expected one of {', '.join(get_args(Size))}")
        if not self.sizes or min(self.sizes) < 4 or sorted(set(self.sizes)) != list(self.sizes):
            raise ValueError(f"sizes is {self.sizes}; expected ascending numbers of nodes, 4 or more")
        if self.nodes < 1 or self.steps < 1:
            raise ValueError(f"nodes is {self.nodes} and steps {self.steps}; expected at least 1")
        if not self.longest > 0:
            raise ValueError(f"longest is {self.longest}; expected seconds above 0")
        systems_named(self.systems)


def run_asymptotics(
    config: AsymptoticsConfig, out: Path, device: str = "cpu", progress: Say | None = None
) -> list[dict[str, Any]]:
    """Measure what is not measured yet; then write asymptotics.json, table.json, table.md and asymptotics.png."""
    say, where = progress or silent, torch.device(device)
    lines = [_line(system, _points(system, config, out, where, say), where) for system in systems_named(config.systems)]
    write_json(out / "asymptotics.json", lines)
    write_rows(out / "table.json", [row for line in lines for row in table_rows(line)])
    write_whole(out / "table.md", table_markdown(lines).encode())
    plot_costs(lines, out / "asymptotics.png")
    return lines


def _points(
    system: TableSystem, config: AsymptoticsConfig, out: Path, device: torch.device, say: Say
) -> list[dict[str, Any]]:
    """One point per size, until the system fails or takes too long."""
    points: list[dict[str, Any]] = []
    common = {"model": config.size, "nodes": config.nodes, "steps": config.steps, "device": device_name(device)}
    for size in config.sizes:
        file = out / "cells" / f"{system.name}-{size}.json"
        point = kept_cell(file, {"size": size, **common}, lambda size=size: measured(system, size, config, device))  # type: ignore[misc]
        points.append({"nodes": size, **point})
        told = point["failed"] or f"{1000 * point['seconds']:.3g} ms for {point['graphs']} graphs"
        say(f"{system.label}, {size} nodes: {told}")
        if point["failed"] is not None or point["seconds"] > config.longest:
            break
    return points


def measured(system: TableSystem, size: int, config: AsymptoticsConfig, device: torch.device) -> dict[str, Any]:
    """Seconds and memory of a training step on molecules of ``size`` nodes; or why there is none."""
    count = max(1, config.nodes // size)
    point: dict[str, Any] = {"graphs": count, "seconds": None, "memory_gib": None, "parameters": None, "failed": None}
    try:
        point |= _costs(system, _molecules(count, size), config, device)
    except (RuntimeError, MemoryError, ValueError, ImportError) as error:
        point["failed"] = "out of memory" if is_full(error) else sentence_of(error)
    # A trainer and its recordings hold each other: without this the next system would find the memory taken.
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return point


def _costs(system: TableSystem, store: Store, config: AsymptoticsConfig, device: torch.device) -> dict[str, Any]:
    """Memory is that of tensors when there is most, weights and their moments included."""
    settings = {path.removeprefix("model."): value for path, value in system.settings_of(config.size).items()}
    described = override(PRESETS[system.preset_of(config.size)]().fit(store, 1), settings, "model")
    store = store.with_facts(described.facts(), progress=False)
    begun: list[Trainer] = []

    def begin() -> None:
        begun.append(_trainer(described, store, device))
        _take(begun[0], _WARMUP, device)

    reset_peak(device)
    on_cpu = allocated_at_most(begin) if device.type == "cpu" else None
    if on_cpu is None:
        begin()
    (trainer,) = begun
    seconds = _take(trainer, config.steps, device) / config.steps
    return {
        "seconds": seconds,
        "memory_gib": (peak_bytes(device) if on_cpu is None else on_cpu) / 2**30,
        "parameters": sum(parameter.numel() for parameter in trainer.parameters),
    }


def _molecules(count: int, size: int) -> Store:
    """Molecules of exactly so many atoms, about one ring for every twenty of them."""
    statistics = MoleculeStatistics(float(size), 1.05 * size - 1, spread=0.01, least=size, most=size)
    targets = torch.randn(count, 1, generator=torch.Generator().manual_seed(size))
    graphs = random_molecules(count, statistics, seed=size)
    return Store.from_memory(graphs, targets, target_names=("value",), policy=DEFAULT_POLICY)


def _trainer(described: ModelConfig, store: Store, device: torch.device) -> Trainer:
    torch.manual_seed(0)
    model = described.build()
    whole = Part(torch.arange(len(store)), store.targets.float())
    parts = Parts(store.graphs, "graph", model.costs(store.graphs), whole, whole, whole)
    training = TrainingConfig(epochs=1, batch_size=len(store))
    fabric = make_fabric(DeviceConfig("cuda" if device.type == "cuda" else "cpu"), training.precision)
    return Trainer(fabric, model, parts, Task("regression", ("value",)), training)


def _take(trainer: Trainer, count: int, device: torch.device) -> float:
    """Take so many steps on all graphs; how many seconds they took, on a CPU those of this process alone."""
    steps = [[trainer.parts.train.places]] * count
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    wait(device)
    began = clock()
    with deterministic(device):
        for _ in trainer.take(steps, [trainer.config.learning_rate] * count):
            trainer.state.step += 1
    wait(device)
    return clock() - began


def _line(system: TableSystem, points: Sequence[dict[str, Any]], device: torch.device) -> dict[str, Any]:
    done = [point for point in points if point["failed"] is None]
    seconds = [(point["nodes"], point["seconds"] / point["graphs"]) for point in done]
    memory = [
        (point["nodes"], (point["memory_gib"] * 2**30 - _BYTES_EACH * point["parameters"]) / point["graphs"])
        for point in done
    ]
    return {
        "system": system.label,
        "asymptotics": system.asymptotics,
        "points": list(points),
        "time_exponent": exponent(seconds),
        "memory_exponent": exponent(memory),
        "device": device_name(device),
        "commit": source_commit(),
    }


def exponent(costs: Sequence[tuple[int, float]]) -> float | None:
    """The slope of log cost by log size over the larger half of the sizes, at least three; None for fewer than two."""
    known = [(size, cost) for size, cost in costs if cost > 0]
    larger = known[-max(3, (len(known) + 1) // 2) :]
    if len(larger) < 2:
        return None
    x, y = np.log(np.array(larger)).T
    return float(np.polyfit(x, y, 1)[0])


def table_rows(line: dict[str, Any]) -> list[TableRow]:
    """Rows of one system: milliseconds per graph at every size, and the exponents of time and memory."""
    done = [point for point in line["points"] if point["failed"] is None]
    found = [
        (
            f"random molecules of {point['nodes']} atoms",
            "ms per graph",
            1000 * point["seconds"] / point["graphs"],
            point,
        )
        for point in done
    ]
    for what in ("time", "memory"):
        if line[f"{what}_exponent"] is not None:
            found.append(("random molecules", f"exponent of {what}", line[f"{what}_exponent"], None))
    return [
        TableRow(
            *("asymptotics", line["system"], dataset, "train", metric, value, None, 1),
            parameters=done[-1]["parameters"],
            graphs_per_s=None if point is None else point["graphs"] / point["seconds"],
            device=line["device"],
            commit=line["commit"],
            paper=None,
            memory_gib=None if point is None else point["memory_gib"],
            asymptotics=line["asymptotics"],
        )
        for dataset, metric, value, point in found
    ]


def table_markdown(lines: Sequence[dict[str, Any]]) -> str:
    """Milliseconds per graph at every size, and the exponents."""
    sizes = sorted({point["nodes"] for line in lines for point in line["points"]})
    rows = []
    for line in lines:
        cells = {point["nodes"]: _told(point) for point in line["points"]}
        exponents = [_power(line["time_exponent"]), _power(line["memory_exponent"])]
        rows.append([line["system"], *(cells.get(size, "") for size in sizes), *exponents, line["asymptotics"]])
    head = ["ms per graph, by nodes", *map(str, sizes), "time grows as", "memory grows as", "asymptotics"]
    return markdown(head, rows)


def _told(point: dict[str, Any]) -> str:
    return point["failed"] or f"{1000 * point['seconds'] / point['graphs']:.3g}"


def _power(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"n^{value:.2f}"
