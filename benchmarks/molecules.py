"""The molecules that the benchmarks read, and the way they take times."""

import csv
import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import tokengt
from tokengt.data.datasets import esol
from tokengt.graph import Graph

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def read_molecules(rows: str = "train_first1999") -> tuple[str, list[Graph]]:
    """PCQM4Mv2 molecules from ``TOKENGT_DATA`` or the project's shared folder; else the bundled ESOL.

    ``rows`` names the sample: "train_first1999" (its graphs are much alike: none above 19 atoms) or "valid_1000".
    """
    file = Path(os.environ.get("TOKENGT_DATA", DATA)) / "molecules" / f"pcqm4mv2_{rows}.csv"
    if not file.exists():
        return "ESOL", [tokengt.from_smiles(smiles) for smiles in esol()[0]]
    with file.open(newline="") as lines:
        return f"PCQM4Mv2 {rows}", [tokengt.from_smiles(row["smiles"]) for row in csv.DictReader(lines)]


def interleaved(systems: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of every call, the systems taken in turns so that a busy machine slows all alike; one round warms up."""
    taken: dict[str, list[float]] = {name: [] for name in systems}
    for repeat in range(repeats + 1):
        for name, call in systems.items():
            start = time.perf_counter()
            call()
            if repeat:
                taken[name].append(time.perf_counter() - start)
    return taken


def median_ratio(slow: list[float], fast: list[float]) -> float:
    """The median over rounds of slow / fast: each round ran on the same state of the machine."""
    return statistics.median(s / f for s, f in zip(slow, fast, strict=True))
