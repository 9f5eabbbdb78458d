"""Fine-tuning begins with another model's weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tokengt.files import checksum
from tokengt.interop.molecules import MoleculePolicy
from tokengt.models.tokengt.model import TokenGT, TokenGTConfig
from tokengt.training.spec import RUN_FILE, read_run


@dataclass(frozen=True, eq=False)
class Start:
    """A trained model whose encoder another one begins with.

    Args:
        config: what the weights belong to.
        weights: its state.
        sha256: checksum of the weights' file.
        frozen: train the new head alone.
        policy: how molecules became its graphs, when it was trained by a run of ours.
    """

    config: TokenGTConfig
    weights: Mapping[str, Tensor]
    sha256: str
    frozen: bool = False
    policy: MoleculePolicy | None = None

    @classmethod
    def read(cls, folder: Path, frozen: bool = False) -> "Start":
        """From a run (of several models: the first) or a saved model."""
        spec = read_run(folder) if (folder / RUN_FILE).is_file() else None
        if spec is not None and spec.members:
            folder = folder / "members" / spec.members[0]
        model = TokenGT.from_pretrained(folder)
        digest = checksum((folder / "model.safetensors").read_bytes())
        return cls(model.config, model.state_dict(), digest, frozen, None if spec is None else spec.molecules)

    def check(self, config: TokenGTConfig) -> None:
        """Refuse a model in which some weight but the head's has no place of its shape."""
        mine, new = self.config.tokens.graph_features.width, config.tokens.graph_features.width
        if mine and mine != new:
            raise ValueError(f"the model to begin with takes {mine} descriptors, got {new}; name them by --descriptors")
        for name, before, now in _meanings(self.config, config):
            if before != now:
                raise ValueError(
                    f"the model to begin with has model.{name} {before}, here it is {now}; leave it as it is, "
                    "or its weights mean something else"
                )
        with torch.device("meta"):
            state = TokenGT(config).state_dict()
        for name, value in self._encoder():
            if name not in state or state[name].shape != value.shape:
                found = "absent" if name not in state else f"of shape {list(state[name].shape)}"
                raise ValueError(
                    f"the model to begin with has {name} of shape {list(value.shape)}, here it is {found}; "
                    "leave its model.* settings as they are"
                )

    def load_into(self, model: TokenGT) -> None:
        """All weights but the head's, which begins at zero: it then predicts the mean until it learns better.

        A part that the old model did not have (descriptors) keeps its first weights.
        """
        self.check(model.config)
        state = model.state_dict()
        for name, value in self._encoder():
            state[name].copy_(value)
        last = [module for module in model.head.modules() if isinstance(module, nn.Linear)][-1]
        nn.init.zeros_(last.weight)
        if self.frozen:
            model.requires_grad_(False)
            model.head.requires_grad_(True)

    def _encoder(self) -> list[tuple[str, Tensor]]:
        return [(name, value) for name, value in self.weights.items() if not name.startswith("head.")]


def _meanings(first: TokenGTConfig, second: TokenGTConfig) -> list[tuple[str, Any, Any]]:
    """Settings that no weight's shape shows, in both models: what the weights were trained to be used with."""
    names = (
        "identifiers.kind",
        *(["identifiers.which"] if first.identifiers.kind == second.identifiers.kind == "laplacian" else []),
        "encoder.num_heads",
        "encoder.activation",
        "encoder.norm",
        "encoder.sparse_basis_residual",
    )
    return [(name, attrgetter(name)(first), attrgetter(name)(second)) for name in names]
