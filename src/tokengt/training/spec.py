"""Everything a run was made with, resolved: ``run.json`` says it, and two runs that say the same are the same."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from tokengt.batch import Level
from tokengt.config import from_dict, to_dict
from tokengt.data.manifest import Source
from tokengt.files import checksum, write_whole
from tokengt.interop.molecules import MoleculePolicy
from tokengt.models.contract import ModelConfig
from tokengt.models.kinds import KINDS, config_from_dict
from tokengt.models.legacy import model_from_v1
from tokengt.models.pretrained import CONFIG, read_config, write_config
from tokengt.training.config import LATER_FIELDS, TrainingConfig
from tokengt.training.tasks import Task

_FORMAT = "tokengt-run-2"
# The format of earlier runs, whose run.json held the config of the model as well; it now stands in config.json alone.
_FIRST_FORMAT = "tokengt-run-1"
RUN_FILE = "run.json"


@dataclass(frozen=True)
class Descriptors:
    """Numeric columns that a model is given beside the graph, scaled as their training rows are."""

    names: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()

    @classmethod
    def fit(cls, names: tuple[str, ...], values: Float[Tensor, "rows columns"]) -> "Descriptors":
        spread = values.double().std(0, correction=0)
        scale = torch.where(spread > 0, spread, 1.0)
        return cls(names, tuple(values.double().mean(0).tolist()), tuple(scale.tolist()))

    def scaled(self, values: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows columns"]:
        mean, scale = torch.tensor(self.mean, dtype=torch.float64), torch.tensor(self.scale, dtype=torch.float64)
        return ((values.double() - mean) / scale).float()


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

    def __post_init__(self) -> None:
        if self.level not in get_args(Level):
            raise ValueError(f"level is {self.level!r}; expected 'graph', 'node' or 'edge'")

    @property
    def fingerprint(self) -> str:
        return checksum(json.dumps(self._decisive(), sort_keys=True).encode())

    def _decisive(self) -> dict[str, Any]:
        """All that the result depends on; how often it is saved and how it is launched are not among it."""
        settings = to_dict(self)
        for name in ("checkpoint_seconds", "cuda_graphs"):
            del settings["training"][name]
        for name in LATER_FIELDS:
            # The task has the same choice, with what an empty one comes to.
            del settings["task"][name]
            if settings["training"][name] is None:
                del settings["training"][name]
        return settings

    def differences(self, other: "RunSpec") -> list[str]:
        """Settings that are not the same in another run, as ``name: here, not there``."""
        ours, theirs = _flat(self._decisive()), _flat(other._decisive())
        changed = [name for name in ours | theirs if ours.get(name) != theirs.get(name)]
        # Only the first few are shown to a person: what was set by hand comes before what follows from it.
        changed.sort(key=lambda name: not name.startswith(("training.", "model.", "seed", "split", "members")))
        return [f"{name} is {ours.get(name)}, not {theirs.get(name)}" for name in changed]


def write_run(folder: Path, spec: RunSpec) -> None:
    """``run.json``, and before it ``config.json``: the model's config stands there alone, run.json names its kind.

    The ``config.json`` of a run that goes on may carry the checksum of trained weights, and is left as it is.
    """
    goes_on = (folder / RUN_FILE).exists() and (folder / CONFIG).exists()
    if not goes_on:
        write_config(folder, to_dict(spec.model))
    content = {"format": _FORMAT, **to_dict(spec), "model": {"kind": spec.model.kind}}
    write_whole(folder / RUN_FILE, json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n")


def is_first_format(folder: Path) -> bool:
    """Whether an older version wrote the run; it can be read, but not resumed."""
    try:
        content = json.loads((folder / RUN_FILE).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("format") == _FIRST_FORMAT


def read_run(folder: Path) -> RunSpec:
    """What a run was made with.

    Raises:
        ValueError: one sentence: the folder holds no run of ours.
    """
    file = folder / RUN_FILE
    if not file.is_file():
        raise ValueError(f"{folder} is no tokengt run: {RUN_FILE} is missing")
    try:
        data = json.loads(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{file} is not valid JSON: {error}") from error
    written = data.pop("format", None) if isinstance(data, dict) else None
    if written not in (_FORMAT, _FIRST_FORMAT):
        raise ValueError(f"{file} has format {written!r}; expected {_FORMAT!r}")
    named = data.get("model")
    if not isinstance(named, dict):
        raise ValueError(f"{file}.model is {named!r}; expected the kind of the run's model")
    model = model_from_v1(named) if written == _FIRST_FORMAT else read_config(folder)
    if written == _FORMAT and model.get("kind") != named.get("kind"):
        raise ValueError(
            f"{file} names a model of kind {named.get('kind')!r}, {CONFIG} beside it {model.get('kind')!r}"
        )
    return from_dict(RunSpec, {**data, "model": config_from_dict(model, f"{folder / CONFIG}")}, str(file))


def _flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in data.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat
