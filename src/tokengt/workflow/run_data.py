"""The data that a run was trained with, and which part of it each graph was in."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from jaxtyping import Int
from torch import Tensor

from tokengt.data.store import Store
from tokengt.files import checksum
from tokengt.training.results import SPLIT
from tokengt.training.run import STORE
from tokengt.training.spec import RunSpec, read_members

Part = Literal["valid", "train", "test"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True, eq=False)
class RunData:
    """The store of a run (of several models: of the first) and the part of each of its graphs."""

    store: Store
    split: Sequence[str]

    @classmethod
    def open(cls, folder: Path, data: Path | None = None) -> "RunData":
        """``data``: the store that the run was trained with, where that does not lie in its folder.

        Raises:
            ValueError: one sentence: there is no such run, it holds no data, or the data is another.
        """
        home, spec = read_members(folder)[1][0]
        store = _store(folder, spec, data)
        content = (home / SPLIT).read_bytes()
        if checksum(content) != spec.split_sha256:
            raise ValueError(f"{home / SPLIT} is not as the run wrote it; expected the split that it was trained with")
        header, *rows = csv.reader(content.decode().splitlines())
        if len(rows) != len(store) or header[0] != "line":
            raise ValueError(
                f"{folder} has its parts within one graph (a split of {header[0]}s); attention is measured over parts "
                "of whole graphs"
            )
        return cls(store, [row[1] for row in rows])

    def places(self, part: Part) -> Int[Tensor, " places"]:
        """Where the graphs of a part stand in the store."""
        return torch.tensor([place for place, own in enumerate(self.split) if own == part], dtype=torch.int64)


def _store(folder: Path, spec: RunSpec, data: Path | None) -> Store:
    """The data that a run was trained with."""
    home = folder / STORE if data is None else data
    if not home.exists():
        raise ValueError(
            f"{folder} holds no data of its own; name the store that it was trained with (--data, in Python data=)"
        )
    store = Store.open(home)
    if spec.store_sha256 not in (store.manifest.files.get("graphs.safetensors"), store.data_checksum()):
        raise ValueError(f"{home} is not the data that {folder} was trained with")
    return store
