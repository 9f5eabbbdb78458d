"""What a store says about itself (:class:`Manifest`), and which columns of a file mean what (:class:`Recipe`).

A *store* is a folder with a prepared data set (:mod:`tokengt.data.store`). This module does not import torch.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from tokengt.config import from_dict, near, to_dict
from tokengt.interop.molecules import DEFAULT_POLICY, FEATURISATION_VERSION, MoleculePolicy
from tokengt.level import Level

FORMAT = "tokengt-store-1"
# Is increased whenever the same PyG or NetworkX graph would give other numbers, so that old stores are not reused.
GRAPH_FEATURISATION_VERSION = 1
GRAPHS, MANIFEST, REJECTED, CACHE = "graphs.safetensors", "manifest.json", "rejected.csv", "cache"

TaskKind = Literal["regression", "binary", "multiclass"]
# The parts of a split. A part's code in a store is its place here; a row of no part has NO_PART.
PARTS = ("train", "valid", "test")
NO_PART = -1
# The split column of a data set that came as one file per part (:mod:`tokengt.data.joined`).
FILE_PART = "part of its file"


@dataclass(frozen=True)
class Recipe:
    """Which columns of a source mean what.

    Args:
        smiles: the column of SMILES; None for sources that are no tables of SMILES, or when a column is called so.
        targets: columns to predict; for a PyG data set the attribute that holds the labels.
        descriptors: numeric columns that the model is given beside the molecule.
        split: a column of train, valid or test.
        task: None leaves the choice to training; multiclass lets a target be any text.
        level: what a row of targets belongs to; None: the graph of a table, a guess for other graphs.
        policy: how a molecule becomes a graph.
    """

    smiles: str | None = None
    targets: tuple[str, ...] = ()
    descriptors: tuple[str, ...] = ()
    split: str | None = None
    task: TaskKind | None = None
    level: Level | None = None
    policy: MoleculePolicy = DEFAULT_POLICY

    def __post_init__(self) -> None:
        for name, value, options in (("task", self.task, get_args(TaskKind)), ("level", self.level, get_args(Level))):
            if value is not None and value not in options:
                raise ValueError(f"{name} is {value!r}{near(value, options)}; expected one of {', '.join(options)}")
        for option, names in (("--target", self.targets), ("--descriptors", self.descriptors)):
            repeated = [name for name in names if names.count(name) > 1]
            if repeated:
                raise ValueError(f"{option} names column {repeated[0]!r} twice; expected each column once")
        both = [name for name in self.descriptors if name in self.targets]
        if both:
            raise ValueError(f"column {both[0]!r} is a target and a descriptor: the model would be told the answer")
        if self.task == "multiclass" and len(self.targets) > 1:
            raise ValueError(f"--task multiclass takes one target column, got {', '.join(self.targets)}")


@dataclass(frozen=True)
class TargetColumn:
    """A target; with ``classes`` (text labels) the store holds their places in this tuple."""

    name: str
    classes: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Source:
    """Where the rows came from; the checksum says which file it was, wherever it lay."""

    name: str
    sha256: str
    rows: int


@dataclass(frozen=True)
class Manifest:
    """What a store holds. No times and no absolute paths: the same input gives the same bytes.

    ``featurisation`` has kind ("molecule" or "graph") and version, for molecules policy and rdkit too; ``columns``
    has smiles, targets and split as they were asked for; ``counts`` has graphs, nodes, edges, hyperedges and rows
    (of targets); ``files`` has the SHA-256 of each file.
    """

    source: Source
    rejected: int
    featurisation: Mapping[str, Any]
    level: Level
    task: TaskKind | None
    targets: tuple[TargetColumn, ...]
    descriptors: tuple[str, ...]
    columns: Mapping[str, Any]
    counts: Mapping[str, int]
    order: int = 2
    files: Mapping[str, str] = field(default_factory=dict)
    format: str = FORMAT

    @property
    def target_names(self) -> tuple[str, ...]:
        return tuple(target.name for target in self.targets)

    def to_json(self) -> bytes:
        data = to_dict(self)
        ordered = {"format": data.pop("format"), **data}
        return json.dumps(ordered, indent=2, ensure_ascii=False).encode() + b"\n"

    def differences(self, sha256: str, recipe: Recipe, made: Mapping[str, Any]) -> list[str]:
        """How a store of this source, recipe and featurisation would differ, in words; empty when it is this one."""
        source = [] if self.source.sha256 == sha256 else [f"it was made from another {self.source.name}"]
        pairs = [
            ("--smiles", self.columns.get("smiles"), recipe.smiles),
            ("--target", self.columns.get("targets"), list(recipe.targets)),
            ("--descriptors", list(self.descriptors), list(recipe.descriptors)),
            ("the split column", self.columns.get("split"), recipe.split),
            ("--task", self.task, recipe.task),
            ("--level", self.level, recipe.level or self.level),
            ("the version of featurisation", self.featurisation.get("version"), made["version"]),
        ]
        old_policy, new_policy = self.featurisation.get("policy", {}), made.get("policy", {})
        pairs += [(f"--{name}", old_policy.get(name), value) for name, value in new_policy.items()]
        return source + [f"{name} was {_shown(old)} and is now {_shown(new)}" for name, old, new in pairs if old != new]


def featurisation(policy: MoleculePolicy | None) -> dict[str, Any]:
    """How graphs were made, for the manifest: from molecules under a policy, or taken as they were."""
    if policy is None:
        return {"kind": "graph", "version": GRAPH_FEATURISATION_VERSION}
    return {"kind": "molecule", "version": FEATURISATION_VERSION, "policy": to_dict(policy)}


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "not given"
    return "not given" if value is None else str(value)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the store in ``folder``.

    Raises:
        ValueError: there is none, or it is not one of ours.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise ValueError(f"{folder} is no tokengt store: {MANIFEST} is missing")
    try:
        data = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    written = data.get("format") if isinstance(data, dict) else None
    if written != FORMAT:
        raise ValueError(f"{path} has format {written!r}; expected {FORMAT!r}")
    return from_dict(Manifest, data, str(path))
