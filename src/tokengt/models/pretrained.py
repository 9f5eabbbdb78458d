"""A saved model: ``model.safetensors`` and ``config.json``, nothing that could run code."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from tokengt.files import checksum, write_whole

_FORMAT = "tokengt-model-1"


def write_model(folder: Path, config: dict[str, Any], state: dict[str, Tensor]) -> None:
    """Weights first, then the config that carries their checksum."""
    weights = save({name: tensor.detach().cpu().contiguous() for name, tensor in state.items()})
    description = {"format": _FORMAT, "sha256": checksum(weights), "model": config}
    write_whole(folder / "model.safetensors", weights)
    write_whole(folder / "config.json", json.dumps(description, indent=2).encode() + b"\n")


def read_model(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config and the weights.

    Raises:
        ValueError: the folder holds no model of ours, or its weights are not the ones that were saved.
    """
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} is no saved tokengt model: {name} is missing")
    try:
        description = json.loads((folder / "config.json").read_text())
    except ValueError as error:
        raise ValueError(f"{folder / 'config.json'} is not valid JSON: {error}") from error
    found = description.get("format") if isinstance(description, dict) else None
    if found != _FORMAT or not isinstance(description.get("model"), dict):
        raise ValueError(f"{folder / 'config.json'} has format {found!r}; expected {_FORMAT!r}")
    weights = (folder / "model.safetensors").read_bytes()
    if checksum(weights) != description.get("sha256"):
        raise ValueError(f"{folder / 'model.safetensors'} does not match its checksum: it is torn or was changed")
    try:
        return description["model"], load(weights)
    except SafetensorError as error:
        raise ValueError(f"{folder / 'model.safetensors'} is no safetensors file: {error}") from error
