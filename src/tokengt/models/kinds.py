"""Which kinds of models there are: one line for each.

``config.json`` names the kind of a model, and this table finds the class behind the name. A user's own kind joins it
with :func:`register`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

from tokengt.config import near, union_from_dict
from tokengt.models.contract import Model, ModelConfig, check_sizes
from tokengt.models.egt import EgtConfig
from tokengt.models.gps import GpsConfig
from tokengt.models.graphormer import GraphormerConfig
from tokengt.models.grpe import GrpeConfig
from tokengt.models.message_passing.model import GatConfig, GcnConfig, GinConfig
from tokengt.models.own import OwnConfig
from tokengt.models.pretrained import read_model, restore
from tokengt.models.tokengt.config import TokenGTConfig
from tokengt.models.two_layers import CliqueGcnConfig, MlpConfig

C = TypeVar("C", bound=type[ModelConfig])

KINDS: dict[str, type[ModelConfig]] = {
    "tokengt": TokenGTConfig,
    "gin": GinConfig,
    "gcn": GcnConfig,
    "gat": GatConfig,
    "gps": GpsConfig,
    "graphormer": GraphormerConfig,
    "egt": EgtConfig,
    "grpe": GrpeConfig,
    "mlp": MlpConfig,
    "clique_gcn": CliqueGcnConfig,
    "own": OwnConfig,
}


def register(config: C) -> C:
    """Make a config of your own known by its ``kind``: a decorator for the frozen dataclass.

    Whoever loads a run of this kind has to import the module that registers it first.
    """
    kind = getattr(config, "kind", None)
    if not isinstance(kind, str) or KINDS.get(kind, config) is not config:
        taken = f"{kind!r} is taken by {KINDS[kind].__name__}" if isinstance(kind, str) else "it has none"
        raise ValueError(f"{config.__name__} needs a kind of its own, such as kind: Literal['mine'] = 'mine'; {taken}")
    KINDS[kind] = config
    return config


def config_from_dict(data: Any, where: str = "model") -> ModelConfig:
    """The config of any kind, rebuilt from JSON; one sentence for whatever is wrong with it."""
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if isinstance(kind, str) and kind not in KINDS:
        raise ValueError(
            f"{where}.kind is {kind!r}{near(kind, KINDS)}; expected one of {', '.join(KINDS)}, or a kind of your own "
            "once the module that registers it is imported"
        )
    config: ModelConfig = union_from_dict(KINDS, data, where)
    try:
        check_sizes(config, counted=False)  # What is built is compared with the weights, which are counted.
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    return config


def load_model(folder: str | Path, device: torch.device | str = "cpu") -> Model:
    """A saved model of any kind, in evaluation mode.

    Raises:
        ValueError: the folder holds no model of ours, or its weights are not the ones that were saved.
    """
    description, state = read_model(Path(folder))
    return restore(config_from_dict(description, str(folder)).build, state, Path(folder), device)
