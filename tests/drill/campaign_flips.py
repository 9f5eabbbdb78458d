"""Bits flipped in every file of runs and stores, one file after the other; files cut short, lengthened or zeroed."""

import random
from pathlib import Path

from tests.drill.case import Case
from tests.drill.oracle import Fault
from tests.drill.tables import flipped
from tests.drill.using import use_run, use_store
from tests.drill.workshop import PICTURES

# What of the workshop is damaged, in turns.
THINGS = ("single", "described", "on_graphs", "store", "class_store", "graph_store")
# What a run writes last: without them it is one that was stopped just before its end.
_LAST = ("model.safetensors", "summary.json", "README.md", "predictions.csv", *PICTURES)


def play(case: Case) -> list[Fault]:
    shop = case.shop
    thing = getattr(shop, THINGS[case.number % len(THINGS)])
    unfinished = False
    if isinstance(thing, Path):
        folder = shop.copy(thing, case.folder / "store")
    else:
        folder = shop.copy(thing.folder, case.folder / "run", pictures=True)
        unfinished = case.rng.random() < 0.12
        if unfinished:
            _stop_before_the_end(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    path = files[case.number // len(THINGS) % len(files)]
    content, what = damaged(path.read_bytes(), case.rng)
    path.write_bytes(content)
    name = str(path.relative_to(folder))
    if isinstance(thing, Path):
        faults = use_store(case, thing, folder, name)
    else:
        faults = use_run(case, thing, folder, name, unfinished=unfinished)
    return [Fault(fault.kind, f"{name}: {what}: {fault.what}", fault.call) for fault in faults]


def _stop_before_the_end(folder: Path) -> None:
    for name in _LAST:
        for path in folder.rglob(name):
            path.unlink()


def damaged(content: bytes, rng: random.Random) -> tuple[bytes, str]:
    way = rng.random()
    if way < 0.7:
        return flipped(content, rng), "a bit is flipped"
    if way < 0.8:
        return content[: rng.randrange(len(content))], "the end is missing"
    if way < 0.85:
        return content + b"\0" * rng.choice((1, 100)), "there are bytes after the end"
    if way < 0.9:
        return b"", "the file is empty"
    begin = rng.randrange(len(content))
    end = min(len(content), begin + 512)
    return content[:begin] + b"\0" * (end - begin) + content[end:], "a block is zeros"
