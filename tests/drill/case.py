"""One case of the drill: its number decides everything about it, so that it can be made again."""

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.drill.calls import Answer, Command
from tests.drill.oracle import Fault
from tests.drill.workshop import Workshop

SEED = 20261116


@dataclass(frozen=True)
class Case:
    """``folder`` is empty at first, and where the command runs."""

    rng: random.Random
    number: int
    folder: Path
    shop: Workshop

    @property
    def command(self) -> Command:
        return self.shop.command

    def call(self, *arguments: str | Path, **options: object) -> Answer:
        return self.command(*arguments, folder=self.folder, **options)


Play = Callable[[Case], list[Fault]]


def played(play: Play, name: str, number: int, home: Path, shop: Workshop, seed: int = SEED) -> list[Fault]:
    """Play one case. Its folder is kept where there are faults, to look into."""
    folder = home / f"{name}-{number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    faults = play(Case(random.Random(f"{seed} {name} {number}"), number, folder, shop))
    if not faults:
        shutil.rmtree(folder)
    return faults
