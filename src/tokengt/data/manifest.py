"""What a store says about itself (:class:`Manifest`), and which columns of a file mean what (:class:`Recipe`).

A *store* is a folder with a prepared data set (:mod:`tokengt.data.store`). This module does not import torch.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from tokengt.config import from_dict, near, read_json, to_dict
from tokengt.files import checksum
from tokengt.interop.descriptors import is_feature
from tokengt.interop.molecules import DEFAULT_POLICY, MoleculePolicy
from tokengt.level import Level

FORMAT = "tokengt-store-1"
# Is increased whenever the same PyG or NetworkX graph would give other numbers, so that old stores are not reused.
GRAPH_FEATURISATION_VERSION = 1
GRAPHS, MANIFEST, REJECTED, CACHE = "graphs.safetensors", "manifest.json", "rejected.csv", "cache"

TaskKind = Literal["regression", "binary", "multiclass"]
Censored = Literal["reject", "learn"]
# The parts of a split. A part's code in a store is its place here; a row of no part has NO_PART.
PARTS = ("train", "valid", "test")
NO_PART = -1
# The split column of a data set that came as one file per part (:mod:`tokengt.data.joined`).
FILE_PART = "part of its file"
# Where a manifest keeps the checksum of all else it says.
_OWN_CHECKSUM = "sha256"


@dataclass(frozen=True)
class Attributes:
    """Names of the attributes of nodes and edges that are features, where graphs have attributes by name (NetworkX).

    ``floats`` names those of ``node_features`` and ``edge_features`` that are numbers; the others are categories.
    """

    nodes: tuple[str, ...] = ()
    edges: tuple[str, ...] = ()
    floats: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"of nodes {', '.join(self.nodes) or 'none'}; of edges {', '.join(self.edges) or 'none'}"


@dataclass(frozen=True)
class ColumnFeature:
    """How a column of a table is a feature: a number less ``mean`` and over ``scale``, or one column per category."""

    name: str
    mean: float = 0.0
    scale: float = 1.0
    categories: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ValueError(f"the scale of column {self.name!r} is {self.scale}; expected a number above 0")


@dataclass(frozen=True)
class GraphColumns:
    """Which columns of a table of nodes and a table of edges mean what; the others are no features."""

    id: str
    source: str
    target: str
    directed: bool = False
    nodes: tuple[ColumnFeature, ...] = ()
    edges: tuple[ColumnFeature, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """Which columns of a source mean what.

    Args:
        smiles: the column of SMILES; None for sources that are no tables of SMILES, or when a column is called so.
        targets: columns to predict; for a PyG data set the attribute that holds the labels.
        descriptors: numeric columns that the model is given beside the molecule.
        split: a column of train, valid or test; ``hidden`` for a row of no part.
        task: None leaves the choice to training; multiclass lets a target be any text.
        level: what a row of targets belongs to; None: the graph of a table, a guess for other graphs.
        policy: how a molecule becomes a graph.
        attributes: which attributes of a NetworkX graph are features; None: those that most graphs have as numbers.
        tables: how the columns of a table of nodes and of one of edges are read; None: as the data suggests.
        weights: a numeric column: how much each row counts in training.
        censored: what becomes of rows whose label is a bound such as ``>3.69``: "reject" them, or "learn" from them,
            where a prediction beyond the bound is right.
    """

    smiles: str | None = None
    targets: tuple[str, ...] = ()
    descriptors: tuple[str, ...] = ()
    split: str | None = None
    task: TaskKind | None = None
    level: Level | None = None
    policy: MoleculePolicy = DEFAULT_POLICY
    attributes: Attributes | None = field(default=None, metadata={"late": True})
    tables: GraphColumns | None = field(default=None, metadata={"late": True})
    weights: str | None = field(default=None, metadata={"late": True})
    censored: Censored = field(default="reject", metadata={"late": True})

    def __post_init__(self) -> None:
        if self.censored not in get_args(Censored):
            raise ValueError(f"censored is {self.censored!r}; expected one of {', '.join(get_args(Censored))}")
        if self.censored == "learn" and self.task not in (None, "regression"):
            raise ValueError(f"a bound such as >3.69 is no label of the task {self.task}; expected regression")
        for name, value, options in (("task", self.task, get_args(TaskKind)), ("level", self.level, get_args(Level))):
            if value is not None and value not in options:
                raise ValueError(f"{name} is {value!r}{near(value, options)}; expected one of {', '.join(options)}")
        for option, names in (("the target option", self.targets), ("the descriptors option", self.descriptors)):
            repeated = [name for name, count in Counter(names).items() if count > 1]
            if repeated:
                raise ValueError(f"{option} names column {repeated[0]!r} twice; expected each column once")
        both = [name for name in self.descriptors if name in set(self.targets)]
        if both:
            raise ValueError(f"column {both[0]!r} is a target and a descriptor: the model would be told the answer")
        if self.level == "link" and self.task not in (None, "binary"):
            raise ValueError(f"links are there or not, a binary task; the task is {self.task}: leave it out")
        if self.level == "link" and len(self.targets) > 1:
            raise ValueError(
                f"links have one label, 1 or 0; the targets are {', '.join(self.targets)}: name one column"
            )
        if self.task == "multiclass" and len(self.targets) > 1:
            raise ValueError(f"the task multiclass takes one target column, got {', '.join(self.targets)}")

    def refuse_of_molecules(self, what: str) -> None:
        """One sentence where a source, as ``what`` says it, is asked for what tables of molecules alone have."""
        for option, value in (
            ("a column of SMILES", self.smiles),
            ("a column of descriptors", self.descriptors),
            ("a column of weights", self.weights),
            ("learning from bounds such as >3.69", self.censored == "learn"),
        ):
            if value:
                raise ValueError(f"{what}: {option} means nothing there")


@dataclass(frozen=True)
class TargetColumn:
    """A target; with ``classes`` (text labels) the store holds their places in this tuple.

    ``censored`` rows of the source had a bound such as ``>3.69`` in place of its label; they were rejected, unless the
    store was made to learn from them.
    """

    name: str
    classes: tuple[str, ...] | None = None
    censored: int = field(default=0, metadata={"late": True})


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
    has smiles, targets, split, weights and censored as they were asked for; ``counts`` has graphs, nodes, edges,
    hyperedges and rows (of targets); ``files`` has the SHA-256 of each file; ``attributes`` are the features of
    NetworkX graphs, ``tables`` those of a graph that came as a table of nodes and one of edges. With ``pairs`` the rows
    of the source are the pairs of nodes of a table; otherwise they are graphs.
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
    attributes: Attributes | None = field(default=None, metadata={"late": True})
    tables: GraphColumns | None = field(default=None, metadata={"late": True})
    pairs: bool = field(default=False, metadata={"late": True})

    @property
    def readable(self) -> int:
        """How many rows of the source could be read: its graphs or, of a table of pairs, its pairs."""
        return self.counts["rows" if self.pairs else "graphs"]

    @property
    def by_line(self) -> bool:
        """Whether the rows of the source are lines of a table: molecules, or pairs of nodes."""
        return self.pairs or self.featurisation.get("kind") == "molecule"

    @property
    def target_names(self) -> tuple[str, ...]:
        return tuple(target.name for target in self.targets)

    def to_json(self) -> bytes:
        data = to_dict(self)
        ordered = {"format": self.format, **data, _OWN_CHECKSUM: _checksum_of(data)}
        return json.dumps(ordered, indent=2, ensure_ascii=False).encode() + b"\n"

    def differences(self, sha256: str, recipe: Recipe, made: Mapping[str, Any]) -> list[str]:
        """How a store of this source, recipe and featurisation would differ, in words; empty when it is this one."""
        source = [] if self.source.sha256 == sha256 else [f"it was made from another {self.source.name}"]
        pairs = [
            ("smiles", self.columns.get("smiles"), recipe.smiles),
            ("target", self.columns.get("targets"), list(recipe.targets)),
            ("descriptors", [name for name in self.descriptors if not is_feature(name)], list(recipe.descriptors)),
            ("split column", self.columns.get("split"), recipe.split),
            ("weights", self.columns.get("weights"), recipe.weights),
            ("censored", self.columns.get("censored", "reject"), recipe.censored),
            ("task", self.task, recipe.task),
            ("level", self.level, recipe.level or self.level),
            ("the version of featurisation", self.featurisation.get("version"), made["version"]),
        ]
        if made.get("policy"):
            old, new = (policy_of(each) or DEFAULT_POLICY for each in (self.featurisation, made))
            pairs += [(each.name, getattr(old, each.name), getattr(new, each.name)) for each in fields(MoleculePolicy)]
        if recipe.attributes is not None:
            pairs.append(("features", self.attributes, recipe.attributes))
        return source + [f"{name} was {_shown(old)} and is now {_shown(new)}" for name, old, new in pairs if old != new]


def featurisation(policy: MoleculePolicy | None) -> dict[str, Any]:
    """How graphs were made, for the manifest: from molecules under a policy, or taken as they were."""
    if policy is None:
        return {"kind": "graph", "version": GRAPH_FEATURISATION_VERSION}
    return {"kind": "molecule", "version": policy.version, "policy": to_dict(policy)}


def policy_of(made: Mapping[str, Any]) -> MoleculePolicy | None:
    """How molecules became graphs, of what :func:`featurisation` says; None for other graphs."""
    policy = made.get("policy")
    return None if policy is None else from_dict(MoleculePolicy, policy, "featurisation.policy")


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
    data = read_json(path)
    if data.get("format") != FORMAT:
        raise ValueError(f"{path} has format {data.get('format')!r}; expected {FORMAT!r}")
    # Manifests of earlier versions have no checksum of their own.
    told = data.pop(_OWN_CHECKSUM, None)
    manifest = from_dict(Manifest, data, str(path))
    for name, cls in (("featurisation", _Featurisation), ("columns", _Columns), ("counts", _Counts)):
        try:
            from_dict(cls, data[name], f"{path}.{name}")
        except ValueError as error:
            # A check of the class itself does not know where the value stands.
            raise error if str(path) in str(error) else ValueError(f"{path}.{name}: {error}") from None
    if told is not None and told != _checksum_of(data):
        raise ValueError(f"{path} does not match its own checksum: it is torn or was changed")
    readable, rows = manifest.readable, manifest.source.rows
    if rows != readable + manifest.rejected or manifest.rejected < 0:
        what = "pairs" if manifest.pairs else "graphs"
        raise ValueError(
            f"{path} says {readable} {what} and {manifest.rejected} rejected of {rows} rows; expected them to add up"
        )
    return manifest


def _checksum_of(data: Mapping[str, Any]) -> str:
    return checksum(json.dumps(data, sort_keys=True).encode())


@dataclass(frozen=True)
class _Featurisation:
    """What ``Manifest.featurisation`` may hold."""

    kind: Literal["molecule", "graph"]
    version: int
    policy: MoleculePolicy | None = None
    rdkit: str | None = None

    def __post_init__(self) -> None:
        if (self.policy is not None) != (self.kind == "molecule"):
            raise ValueError(f"policy is {self.policy}; expected one for molecules, and none for other graphs")


@dataclass(frozen=True)
class _Columns:
    """What ``Manifest.columns`` may hold."""

    smiles: str | None = None
    targets: tuple[str, ...] = ()
    split: str | None = None
    weights: str | None = None
    censored: Censored = "reject"


@dataclass(frozen=True)
class _Counts:
    """What ``Manifest.counts`` holds."""

    graphs: int
    nodes: int
    edges: int
    hyperedges: int
    rows: int

    def __post_init__(self) -> None:
        for name, count in vars(self).items():
            if count < 0:
                raise ValueError(f"{name} is {count}; expected at least 0")
