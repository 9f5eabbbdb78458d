"""A saved model: ``model.safetensors`` and ``config.json``, nothing that could run code.

``config.json`` has the checksum of the weights and one of its own content, so that no part of what decides a prediction
can change unnoticed.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from tokengt.attention import rename_old_keys
from tokengt.config import from_dict, read_json
from tokengt.files import checksum, write_whole
from tokengt.models.legacy import model_from_v1
from tokengt.models.planned import planned

if TYPE_CHECKING:
    from tokengt.models.contract import Model

CONFIG, WEIGHTS = "config.json", "model.safetensors"
_FORMAT = "tokengt-model-3"
# The format from before config.json had a checksum of its own.
_SECOND_FORMAT = "tokengt-model-2"
# The format from before configs had a kind: always a TokenGT, with fields that had no effect for some settings.
_FIRST_FORMAT = "tokengt-model-1"
_SEAL = "checksum"


@dataclass(frozen=True)
class SavedConfig:
    """What ``config.json`` says.

    Args:
        format: which version of this file it is.
        model: the config of the model, as a dict of today's format.
        sha256: checksum of the weights beside it; None until they are trained.
        run: fingerprint of the run that the model belongs to; None for a model saved by itself.
    """

    format: str
    model: Mapping[str, Any]
    sha256: str | None = None
    run: str | None = None


def write_sealed(file: Path, content: Mapping[str, Any]) -> None:
    """JSON with a checksum over all that it says."""
    # What JSON makes of the content is what a reader will see: lists for tuples, text for the names of numbers.
    plain = json.loads(json.dumps(content))
    sealed = {**plain, _SEAL: _seal(plain)}
    write_whole(file, json.dumps(sealed, indent=2, ensure_ascii=False).encode() + b"\n")


def unsealed(data: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """The content of a file that :func:`write_sealed` wrote.

    Raises:
        ValueError: one sentence: it is not the content that was written.
    """
    content = {name: value for name, value in data.items() if name != _SEAL}
    if data.get(_SEAL) != _seal(content):
        raise ValueError(f"{file} does not match its checksum: it is torn or was changed")
    return content


def _seal(content: Mapping[str, Any]) -> str:
    return checksum(json.dumps(content, sort_keys=True).encode())


def write_config(folder: Path, config: Mapping[str, Any], sha256: str | None = None, run: str | None = None) -> None:
    """``config.json``, as :class:`SavedConfig` reads it."""
    write_sealed(folder / CONFIG, {"format": _FORMAT, "sha256": sha256, "run": run, "model": config})


def claim_config(folder: Path, run: str) -> None:
    """Have the ``config.json`` of a run that goes on name it by today's fingerprint, in today's format."""
    saved = read_saved(folder)
    if saved.format != _FORMAT or saved.run != run:
        write_config(folder, saved.model, saved.sha256, run)


def write_model(folder: Path, config: dict[str, Any], state: dict[str, Tensor], run: str | None = None) -> None:
    """Write the weights first, then the config with their checksum, so that a torn write is noticed."""
    weights = save({name: tensor.detach().cpu().contiguous() for name, tensor in state.items()})
    write_whole(folder / WEIGHTS, weights)
    write_config(folder, config, checksum(weights), run)


def is_untrained_config(file: Path) -> bool:
    """Whether a file is a config of ours whose weights were never written."""
    try:
        content = read_json(file)
    except (OSError, ValueError):
        return False
    return content.get("format") in (_FORMAT, _SECOND_FORMAT) and content.get("sha256") is None


def belongs_to_run(folder: Path) -> bool:
    """Whether the ``config.json`` of a folder is part of a run, which would not be readable with another."""
    try:
        return read_saved(folder).run is not None
    except (OSError, ValueError):
        return False


def read_config(folder: Path) -> dict[str, Any]:
    """The model's config as a dict of today's format, whichever format it was written in.

    Raises:
        ValueError: one sentence: the folder holds no config of ours.
    """
    return dict(read_saved(folder).model)


def read_model(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config and the weights.

    Raises:
        ValueError: the folder holds no model of ours, or its weights are not the ones that were saved.
    """
    saved = read_saved(folder)
    return dict(saved.model), _weights(folder, saved)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The weights alone, checked against their checksum."""
    return _weights(folder, read_saved(folder))


def read_saved(folder: Path) -> SavedConfig:
    """``config.json``, checked.

    Raises:
        ValueError: one sentence: there is none, it is none of ours, or it is not as it was written.
    """
    file = folder / CONFIG
    if not folder.exists():
        raise ValueError(
            f"{folder} does not exist; expected a folder of this machine with a model that save_pretrained or a "
            "training wrote: nothing is downloaded, and the weights that come with tokengt are presets of its training"
        )
    if not file.is_file():
        raise ValueError(f"{folder} is no saved tokengt model: {CONFIG} is missing")
    data = read_json(file)
    written = data.get("format")
    if written not in (_FORMAT, _SECOND_FORMAT, _FIRST_FORMAT):
        raise ValueError(f"{file} has format {written!r}; expected {_FORMAT!r}")
    saved = from_dict(SavedConfig, unsealed(data, file) if written == _FORMAT else data, str(file))
    return replace(saved, model=model_from_v1(saved.model)) if written == _FIRST_FORMAT else saved


def _weights(folder: Path, saved: SavedConfig) -> dict[str, Tensor]:
    file = folder / WEIGHTS
    if not file.is_file():
        # A run of several models has theirs one below the other.
        several = sorted(member.parent for member in folder.glob(f"*/*/{WEIGHTS}"))
        meant = f"; it is a run of {len(several)} models: name one, such as {several[0]}" if several else ""
        raise ValueError(f"{folder} is no saved tokengt model: {WEIGHTS} is missing{meant}")
    content = file.read_bytes()
    if checksum(content) != saved.sha256:
        raise ValueError(f"{file} does not match its checksum: it is torn or was changed")
    try:
        state = load(content)
    except SafetensorError as error:
        raise ValueError(f"{file} is no safetensors file: {error}") from error
    return rename_old_keys(state) if saved.format == _FIRST_FORMAT else state


def restore(
    build: Callable[[], "Model"], state: dict[str, Tensor], folder: Path, device: torch.device | str
) -> "Model":
    """A model that ``build`` makes, with these weights in their precision, in evaluation mode.

    ``folder`` is where they came from, for the error.

    Raises:
        ValueError: the weights are those of another model, or some of them are no finite numbers.
    """
    _check_shapes(build, state, folder)
    model = build()
    try:
        model.to(next((t.dtype for t in state.values() if t.is_floating_point()), torch.float32))
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{folder}: {CONFIG} does not describe the weights beside it ({reason})") from error
    _check_finite(model, folder)
    return model.to(device).eval()


def _check_finite(model: "Model", folder: Path) -> None:
    """Refuse weights that would make every prediction NaN; a buffer, such as a mask, may be infinite."""
    learned = dict(model.named_parameters())
    for name, tensor in model.state_dict().items():
        if bool(torch.isnan(tensor).any()) or (name in learned and bool(torch.isinf(tensor).any())):
            raise ValueError(
                f"{folder / WEIGHTS} holds infinite or undefined numbers in {name}, so the model cannot predict; "
                "train it again with a lower learning rate"
            )


def _check_shapes(build: Callable[[], "Model"], state: dict[str, Tensor], folder: Path) -> None:
    """Refuse a config of other sizes than the weights before memory is taken for it."""
    with planned():
        expected = build().state_dict()
    for name in expected | state:
        here, there = (list(each[name].shape) if name in each else "absent" for each in (expected, state))
        if here != there:
            raise ValueError(
                f"{folder}: {CONFIG} does not describe the weights beside it ({name} is {there}, expected {here})"
            )
