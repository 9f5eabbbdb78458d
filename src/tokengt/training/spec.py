"""Everything a run was made with, resolved: ``run.json`` says it, and two runs that say the same are the same."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from tokengt.batch import Level
from tokengt.config import from_dict, read_json, to_dict
from tokengt.data.manifest import Attributes, GraphColumns, Source
from tokengt.files import checksum
from tokengt.interop.descriptors import is_count, is_feature
from tokengt.interop.molecules import MoleculePolicy
from tokengt.models.contract import ModelConfig
from tokengt.models.kinds import KINDS, config_from_dict
from tokengt.models.legacy import model_from_v1
from tokengt.models.pretrained import CONFIG, claim_config, read_saved, unsealed, write_config, write_sealed
from tokengt.training.config import TrainingConfig
from tokengt.training.tasks import Task

_FORMAT = "tokengt-run-3"
# The format from before run.json had a checksum of its own and named the models that belong to it.
_SECOND_FORMAT = "tokengt-run-2"
# The format of earlier runs, whose run.json held the config of the model as well; it now stands in config.json alone.
_FIRST_FORMAT = "tokengt-run-1"
RUN_FILE = "run.json"
MEMBERS = "members"
# How many times the range of most rows a descriptor may be away from it before it is said.
_FAR = 1e4
# How many deviations from the mean a number that is worked out from the molecule can be, for the model.
_MOST_UNUSUAL = 4.0


@dataclass(frozen=True)
class Descriptors:
    """Numeric columns that a model is given beside the graph, scaled as their training rows are."""

    names: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that are columns of a table, which come first; the others are worked out from the molecule."""
        return tuple(name for name in self.names if not is_feature(name))

    def __post_init__(self) -> None:
        # Features of whole graphs that are no columns of a table have no names.
        if len(self.mean) != len(self.scale) or (self.names and len(self.names) != len(self.mean)):
            raise ValueError(f"mean and scale of descriptors need {len(self.names)} numbers each, one per descriptor")
        if not all(map(isfinite, self.mean)) or not all(isfinite(scale) and scale > 0 for scale in self.scale):
            raise ValueError("mean and scale of descriptors must be finite and scale above 0")

    @classmethod
    def fit(cls, names: tuple[str, ...], values: Float[Tensor, "rows columns"]) -> "Descriptors":
        spread = values.double().std(0, correction=0)
        scale = torch.where(spread > 0, spread, 1.0)
        return cls(names, tuple(values.double().mean(0).tolist()), tuple(scale.tolist()))

    def with_own_scale(self) -> "Descriptors":
        """The same, but that counts of neighbourhoods stay as they are: logarithms, 0 for most, 0.7 for one.

        Most neighbourhoods are those of few molecules. Scaled by their deviation, these would be the largest of all
        numbers that a model is given, and it would learn its training molecules by them.
        """
        counts = [is_count(name) for name in self.names] or [False] * len(self.mean)
        mean = (0.0 if count else value for count, value in zip(counts, self.mean, strict=True))
        scale = (1.0 if count else value for count, value in zip(counts, self.scale, strict=True))
        return Descriptors(self.names, tuple(mean), tuple(scale))

    def far_off(self, values: Float[Tensor, "rows columns"] | None) -> tuple[str, ...]:
        """A sentence for every descriptor with a number so far from most others that beside it they are all alike."""
        if values is None or len(values) < 2:
            return ()
        found = []
        for name, column in zip(self.columns, values.double().T[: len(self.columns)], strict=True):
            ordered, edge = column.sort().values, len(column) // 20
            low, middle, high = (float(ordered[place]) for place in (edge, len(column) // 2, -1 - edge))
            # The usual size of what is not zero: a yes/no that is rarely yes is no mistake.
            others = column[column != 0].abs()
            usual = max(high - low, abs(middle), float(others.median()) if len(others) else 1.0)
            furthest = float(column[(column - middle).abs().argmax()])
            if abs(furthest - middle) > _FAR * usual:
                found.append(
                    f"Descriptor {name!r} is {furthest:g} in some row and between {low:g} and {high:g} in most: beside "
                    "it they are all alike, and the model learns nothing from them."
                )
        return tuple(found)

    def scaled(self, values: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows columns"]:
        mean, scale = torch.tensor(self.mean, dtype=torch.float64), torch.tensor(self.scale, dtype=torch.float64)
        scaled = (values.double() - mean) / scale
        own = len(self.columns)
        if self.names and own < len(self.names):
            # A group of atoms that one training molecule in a thousand has would else be thirty deviations from usual.
            scaled[:, own:] = scaled[:, own:].clamp(-_MOST_UNUSUAL, _MOST_UNUSUAL)
        return scaled.float()


@dataclass(frozen=True)
class RunSpec:
    """A run, resolved.

    Args:
        model: the model.
        training: the recipe.
        task: what is learned, with the scaling of its targets.
        level: what a row of predictions belongs to.
        seed: of weights, shuffling, dropout and draws.
        split: how the data was split, in words.
        split_sha256: checksum of ``split.csv``: the very rows of each part.
        source: the data.
        store_sha256: checksum of the prepared graphs.
        molecules: how molecules become graphs; None for other graphs.
        text_column: the column of SMILES.
        descriptors: extra inputs.
        start: checksum of the weights that training began with, when they were another model's.
        frozen: whether only the head was trained.
        attributes: which attributes of NetworkX graphs are features; None for other data.
        tables: how the columns of a table of nodes and of one of edges are read; None for other data.
        kept_head: whether training began with the head of the other model too, its attention being switched.
        auxiliary: kinds of numbers about molecules that the model learned to predict beside its targets.
        forest: whether a random forest on the extra inputs is averaged with each model.
        trees: how many trees per target that forest has beside this model.
        apart: how far the seeds of the models of an ensemble are apart.
        members: names of the models under ``members/`` whose predictions are averaged; none for a single model.
    """

    model: ModelConfig = field(metadata={"kinds": KINDS})
    training: TrainingConfig
    task: Task
    level: Level
    seed: int
    split: str
    split_sha256: str
    source: Source
    store_sha256: str
    molecules: MoleculePolicy | None = None
    text_column: str | None = None
    descriptors: Descriptors = field(default_factory=Descriptors)
    start: str | None = None
    frozen: bool = False
    members: tuple[str, ...] = ()
    attributes: Attributes | None = field(default=None, metadata={"late": True})
    kept_head: bool = field(default=False, metadata={"late": True})
    tables: GraphColumns | None = field(default=None, metadata={"late": True})
    auxiliary: tuple[str, ...] = field(default=(), metadata={"late": True})
    forest: bool = field(default=False, metadata={"late": True})
    trees: int = field(default=200, metadata={"late": True})
    apart: int = field(default=1, metadata={"late": True})

    def __post_init__(self) -> None:
        if self.level not in get_args(Level):
            raise ValueError(f"level is {self.level!r}; expected one of {', '.join(get_args(Level))}")
        for name in self.members:
            if not _is_plain(name) or self.members.count(name) > 1:
                raise ValueError(f"members names {name!r}; expected names of folders in {MEMBERS}/, each of them once")

    @property
    def fingerprint(self) -> str:
        """A checksum of all that the result depends on."""
        return checksum(json.dumps(self._decisive(), sort_keys=True).encode())

    def _decisive(self) -> dict[str, Any]:
        """All that the result depends on; how often it is saved and how it is launched are not among it."""
        settings = to_dict(self)
        for name in ("checkpoint_seconds", "cuda_graphs", "recompute", "memory"):
            settings["training"].pop(name, None)
        for name in ("metric", "loss"):
            # What training asks for is the same choice; the task has what an empty one comes to.
            del settings["task"][name]
        return settings

    def differences(self, other: "RunSpec") -> list[str]:
        """Settings that are not the same in another run, as ``name: here, not there``."""
        ours, theirs = _flat(self._decisive()), _flat(other._decisive())
        # Older versions did not say which graphs in memory a run was made with.
        unknown = {"store_sha256"} if not other.store_sha256 else set()
        changed = [name for name in ours | theirs if ours.get(name) != theirs.get(name) and name not in unknown]
        # Only the first few are shown to a person: what was set by hand comes before what follows from it.
        changed.sort(key=lambda name: not name.startswith(("training.", "model.", "seed", "split", "members")))
        return [f"{name} is {ours.get(name)}, not {theirs.get(name)}" for name in changed]


def _is_plain(name: str) -> bool:
    """Whether a name is that of a folder and no path, which could lead anywhere."""
    return name not in ("", ".", "..") and not any(sign in name for sign in "/\\\0")


@dataclass(frozen=True)
class _Fingerprints:
    """Which run a ``run.json`` describes, and what belongs to it: as it was written, by whichever version.

    ``calibration`` is the checksum of the file that says how far its predictions can be trusted; None for a run that is
    not finished, or of an earlier version.
    """

    fingerprint: str
    member_fingerprints: tuple[str, ...]
    calibration: str | None = None


@dataclass(frozen=True)
class _RunFiles:
    """``run.json`` and ``config.json``, read: ``claimed`` is the run that config.json names; None in older formats."""

    spec: RunSpec
    written: _Fingerprints | None = None
    claimed: str | None = None


def write_run(folder: Path, spec: RunSpec, members: Sequence[RunSpec] = (), calibration: str | None = None) -> None:
    """``run.json``, and before it ``config.json``: the model's config stands there alone, run.json names its kind.

    The ``config.json`` of a run that goes on may carry the checksum of trained weights, which it keeps, as run.json
    keeps that of its ``calibration``. ``members`` are the models of a run of several: run.json has their fingerprints,
    so that none can be taken for another.
    """
    fingerprint, before = spec.fingerprint, _written(folder)
    if calibration is None and before is not None and before.fingerprint == fingerprint:
        calibration = before.calibration
    if (folder / RUN_FILE).exists() and (folder / CONFIG).exists():
        claim_config(folder, fingerprint)
    else:
        write_config(folder, to_dict(spec.model), run=fingerprint)
    content = {"format": _FORMAT, **to_dict(spec), "model": {"kind": spec.model.kind}}
    content |= {"fingerprint": fingerprint, "member_fingerprints": [member.fingerprint for member in members]}
    if calibration is not None:
        content["calibration"] = calibration
    write_sealed(folder / RUN_FILE, content)


def is_first_format(folder: Path) -> bool:
    """Whether an older version wrote the run; it can be read, but not resumed."""
    try:
        content = read_json(folder / RUN_FILE)
    except (OSError, ValueError):
        return False
    return content.get("format") == _FIRST_FORMAT


def read_run(folder: Path) -> RunSpec:
    """What a run was made with.

    Raises:
        ValueError: one sentence: the folder holds no run of ours, or it is not as it was written.
    """
    return _read(folder).spec


def read_members(folder: Path) -> tuple[RunSpec, list[tuple[Path, RunSpec]]]:
    """What a run was made with, and the folder and spec of each of its models (itself, when it has only one).

    Raises:
        ValueError: one sentence: as :func:`read_run`, or some of the files belong to another run.
    """
    run = _read(folder)
    _check_claimed(folder, run)
    if not run.spec.members:
        return run.spec, [(folder, run.spec)]
    members = []
    for place, name in enumerate(run.spec.members):
        home = folder / MEMBERS / name
        if not (home / RUN_FILE).is_file():
            raise ValueError(
                f"{home} is not trained to the end; go on with it (resume=True in Python, --resume in the command)"
            )
        member = _read(home)
        _check_claimed(home, member)
        if run.written is not None:
            expected = run.written.member_fingerprints[place : place + 1]
            if member.written is None or (member.written.fingerprint,) != expected:
                raise ValueError(f"{home} holds a model of another run than {folder / RUN_FILE} describes")
        members.append((home, member.spec))
    return run.spec, members


def calibration_of(folder: Path) -> tuple[str, str | None]:
    """The fingerprint of a run, and the checksum of its calibration; an earlier version's has none."""
    written = _written(folder)
    return ("", None) if written is None else (written.fingerprint, written.calibration)


def _written(folder: Path) -> _Fingerprints | None:
    return _read(folder).written if (folder / RUN_FILE).is_file() else None


def _check_claimed(folder: Path, run: _RunFiles) -> None:
    if run.written is not None and run.claimed != run.written.fingerprint:
        raise ValueError(f"{folder / CONFIG} belongs to another run than {RUN_FILE} beside it")


def _read(folder: Path) -> _RunFiles:
    file = folder / RUN_FILE
    if not folder.exists():
        raise ValueError(f"{folder} does not exist; expected a run's folder on this machine: nothing is downloaded")
    if not file.is_file():
        raise ValueError(f"{folder} is no tokengt run: {RUN_FILE} is missing")
    data = read_json(file)
    written = data.get("format")
    if written not in (_FORMAT, _SECOND_FORMAT, _FIRST_FORMAT):
        raise ValueError(f"{file} has format {written!r}; expected {_FORMAT!r}")
    fingerprints = None
    if written == _FORMAT:
        data = unsealed(data, file)
        names = {name: data.pop(name) for name in ("fingerprint", "member_fingerprints", "calibration") if name in data}
        fingerprints = from_dict(_Fingerprints, names, str(file))
    named = data.get("model")
    if not isinstance(named, dict):
        raise ValueError(f"{file}.model is {named!r}; expected the kind of the run's model")
    saved = None if written == _FIRST_FORMAT else read_saved(folder)
    model = model_from_v1(named) if saved is None else saved.model
    if saved is not None and model.get("kind") != named.get("kind"):
        raise ValueError(
            f"{file} names a model of kind {named.get('kind')!r}, {CONFIG} beside it {model.get('kind')!r}"
        )
    where = f"{file}.model" if saved is None else str(folder / CONFIG)
    settings = {name: value for name, value in data.items() if name != "format"}
    spec = from_dict(RunSpec, {**settings, "model": config_from_dict(model, where)}, str(file))
    return _RunFiles(spec, fingerprints, None if saved is None else saved.run)


def _flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in data.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat
