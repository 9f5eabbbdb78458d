"""The data that a run was trained with, and which of it was held out to choose the best epoch."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from tokengt.data.manifest import GRAPHS
from tokengt.data.store import Store
from tokengt.files import checksum
from tokengt.training.results import SPLIT
from tokengt.training.run import STORE
from tokengt.training.spec import RunSpec


@dataclass(frozen=True, eq=False)
class RunData:
    """The graphs of a run, and the part of each: train, valid or test; blank for one that is in none."""

    store: Store
    parts: Sequence[str]

    def places(self, part: str) -> Int[Tensor, " places"]:
        return torch.tensor([place for place, own in enumerate(self.parts) if own == part], dtype=torch.int64)


def run_data(folder: Path, home: Path, spec: RunSpec, data: Path | None = None) -> RunData:
    """The data of a run.

    Args:
        folder: the run.
        home: the folder of one of its models, which has the split of that model (the same folder, if it has one).
        spec: of that model.
        data: the store that it was trained with, where that does not lie in the run.

    Raises:
        ValueError: one sentence: the data is not there, is another, or its parts are not of whole graphs.
    """
    store = _store(folder, spec, data)
    file = home / SPLIT
    if not file.is_file():
        raise ValueError(f"{folder} does not say how its data was split: {SPLIT} is missing")
    content = file.read_bytes()
    if checksum(content) != spec.split_sha256:
        raise ValueError(f"{file} is not as the run wrote it; expected the split that it was trained with")
    header, *rows = csv.reader(content.decode().splitlines())
    if len(rows) != len(store) or header[0] != "line":
        raise ValueError(
            f"{folder} has its parts within one graph (a split of {header[0]}s); attention distance is measured over "
            "parts of whole graphs"
        )
    return RunData(store, [row[1] for row in rows])


def _store(folder: Path, spec: RunSpec, data: Path | None) -> Store:
    home = folder / STORE if data is None else data
    if not home.exists():
        raise ValueError(f"{folder} holds no data of its own; name the store that it was trained with (--data)")
    store = Store.open(home)
    if spec.store_sha256 not in (store.manifest.files.get(GRAPHS), store.data_checksum()):
        raise ValueError(f"{home} is not the data that {folder} was trained with")
    return store
