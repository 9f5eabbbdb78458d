"""The parts of the drill: how many cases each has, and who plays them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.drill import (
    campaign_disk,
    campaign_edits,
    campaign_flips,
    campaign_graphs,
    campaign_kills,
    campaign_locks,
    campaign_options,
    campaign_paths,
    campaign_tables,
    campaign_training,
)
from tests.drill.case import Play, played
from tests.drill.oracle import KINDS, Fault
from tests.drill.workshop import Workshop


@dataclass(frozen=True)
class Campaign:
    """``cases`` are played in slices of ``slice``, each of which is a test."""

    what: str
    play: Play
    cases: int
    slice: int


CAMPAIGNS: Mapping[str, Campaign] = {
    "tables": Campaign("tables of molecules (CSV, TSV, SMI, SDF, Parquet)", campaign_tables.play, 1100, 50),
    "graphs": Campaign("graphs (NetworkX JSON, PyG)", campaign_graphs.play, 500, 50),
    "options": Campaign("command lines", campaign_options.play, 600, 40),
    "training": Campaign("data that nobody should train on", campaign_training.play, 120, 20),
    "paths": Campaign("paths that are no plain files", campaign_paths.play, 300, 50),
    "edits": Campaign("edits of our own JSON", campaign_edits.play, 700, 50),
    "flips": Campaign("damaged files of runs and stores", campaign_flips.play, 540, 36),
    "kills": Campaign("kills", campaign_kills.play, 45, 5),
    "disk": Campaign("full disks", campaign_disk.play, 44, 11),
    "locks": Campaign("two at once", campaign_locks.play, 20, 5),
}


@dataclass(frozen=True)
class Outcome:
    """What came of some cases: calls made, signals sent, faults by kind."""

    campaign: str
    cases: int
    calls: int
    kills: int
    faults: tuple[Fault, ...]

    def to_json(self) -> dict[str, Any]:
        counts = Counter(fault.kind for fault in self.faults)
        numbers = {"campaign": self.campaign, "cases": self.cases, "calls": self.calls, "kills": self.kills}
        return {**numbers, "faults": {kind: counts[kind] for kind in KINDS}}


def run_cases(name: str, numbers: Iterable[int], home: Path, shop: Workshop) -> Outcome:
    """Play cases of one campaign; its counts are those of the calls that were made for it."""
    faults, count = [], 0
    calls, kills = shop.command.calls, shop.command.kills
    for number in numbers:
        found = played(CAMPAIGNS[name].play, name, number, home, shop)
        faults += [Fault(fault.kind, f"{name} {number}: {fault.what}", fault.call) for fault in found]
        count += 1
    return Outcome(name, count, shop.command.calls - calls, shop.command.kills - kills, tuple(faults))
