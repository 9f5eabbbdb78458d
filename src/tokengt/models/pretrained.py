"""A saved model: ``model.safetensors`` and ``config.json``, nothing that could run code."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from tokengt.attention import rename_old_keys
from tokengt.files import checksum, write_whole
from tokengt.models.legacy import model_from_v1

if TYPE_CHECKING:
    from tokengt.models.contract import Model

CONFIG, WEIGHTS = "config.json", "model.safetensors"
_FORMAT = "tokengt-model-2"
# The format from before configs had a kind: always a TokenGT, with fields that had no effect for some settings.
_FIRST_FORMAT = "tokengt-model-1"


def write_config(folder: Path, config: dict[str, Any], sha256: str | None = None) -> None:
    """``config.json``; the checksum is that of the weights beside it, and None until they are trained."""
    description = {"format": _FORMAT, "sha256": sha256, "model": config}
    write_whole(folder / CONFIG, json.dumps(description, indent=2).encode() + b"\n")


def write_model(folder: Path, config: dict[str, Any], state: dict[str, Tensor]) -> None:
    """Write the weights first, then the config with their checksum, so that a torn write is noticed."""
    weights = save({name: tensor.detach().cpu().contiguous() for name, tensor in state.items()})
    write_whole(folder / WEIGHTS, weights)
    write_config(folder, config, checksum(weights))


def is_untrained_config(file: Path) -> bool:
    """Whether a file is a config of ours whose weights were never written."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("format") == _FORMAT and content.get("sha256") is None


def read_config(folder: Path) -> dict[str, Any]:
    """The model's config as a dict of today's format, whichever format it was written in.

    Raises:
        ValueError: one sentence: the folder holds no config of ours.
    """
    return _described(folder)["model"]  # type: ignore[no-any-return]


def read_model(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config and the weights.

    Raises:
        ValueError: the folder holds no model of ours, or its weights are not the ones that were saved.
    """
    description = _described(folder)
    return description["model"], _weights(folder, description)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The weights alone, checked against their checksum."""
    return _weights(folder, _described(folder))


def _weights(folder: Path, description: dict[str, Any]) -> dict[str, Tensor]:
    file = folder / WEIGHTS
    if not file.is_file():
        raise ValueError(f"{folder} is no saved tokengt model: {WEIGHTS} is missing")
    content = file.read_bytes()
    if checksum(content) != description.get("sha256"):
        raise ValueError(f"{file} does not match its checksum: it is torn or was changed")
    try:
        state = load(content)
    except SafetensorError as error:
        raise ValueError(f"{file} is no safetensors file: {error}") from error
    return rename_old_keys(state) if description["format"] == _FIRST_FORMAT else state


def restore(
    build: Callable[[], "Model"], state: dict[str, Tensor], folder: Path, device: torch.device | str
) -> "Model":
    """A model that ``build`` makes, with these weights in their precision, in evaluation mode.

    ``folder`` is where they came from, for the error.
    """
    model = build()
    try:
        model.to(next((t.dtype for t in state.values() if t.is_floating_point()), torch.float32))
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{folder}: {CONFIG} does not describe the weights beside it ({reason})") from error
    return model.to(device).eval()


def _described(folder: Path) -> dict[str, Any]:
    file = folder / CONFIG
    if not folder.exists():
        raise ValueError(
            f"{folder} does not exist; expected a folder of this machine with a model that save_pretrained or a "
            "training wrote: nothing is downloaded, and the weights that come with tokengt are presets of its training"
        )
    if not file.is_file():
        raise ValueError(f"{folder} is no saved tokengt model: {CONFIG} is missing")
    try:
        description = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not valid JSON: {error}") from error
    written = description.get("format") if isinstance(description, dict) else None
    if written not in (_FORMAT, _FIRST_FORMAT) or not isinstance(description.get("model"), dict):
        raise ValueError(f"{file} has format {written!r}; expected {_FORMAT!r}")
    if written == _FIRST_FORMAT:
        return {**description, "model": model_from_v1(description["model"])}
    return description  # type: ignore[no-any-return]
