"""Fine-tuning begins with another model's weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from tokengt.files import checksum
from tokengt.interop.molecules import MoleculePolicy
from tokengt.models.contract import Model, ModelConfig
from tokengt.models.kinds import load_model
from tokengt.models.pretrained import WEIGHTS
from tokengt.training.spec import RUN_FILE, read_run


@dataclass(frozen=True, eq=False)
class Start:
    """A trained model whose weights another one begins with, all but those of its head.

    Args:
        config: what the weights belong to.
        weights: its state.
        sha256: checksum of the weights' file.
        frozen: train the new head alone.
        policy: how molecules became its graphs, when it was trained by a run of ours.
    """

    config: ModelConfig
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
        model = load_model(folder)
        if not isinstance(getattr(model, "head", None), nn.Module):
            raise ValueError(f"{folder} holds a {type(model).__name__}, which has no head to replace")
        digest = checksum((folder / WEIGHTS).read_bytes())
        return cls(model.config, model.state_dict(), digest, frozen, None if spec is None else spec.molecules)

    def check(self, config: ModelConfig) -> None:
        """Refuse a model in which some weight but the head's has no place of its shape."""
        had, new = self.config.num_descriptors, config.num_descriptors
        if had and had != new:
            raise ValueError(f"the model to begin with takes {had} descriptors, got {new}; name those it had")
        here = config.meanings()
        for name, before in self.config.meanings().items():
            if before != here.get(name):
                raise ValueError(
                    f"the model to begin with has model.{name} {before}, here it is {here.get(name)}; leave it as it "
                    "is, or its weights mean something else"
                )
        # On the meta device tensors have shapes and no memory, so that building a model there is quick.
        with torch.device("meta"):
            state = config.build().state_dict()
        for name, value in self._kept():
            if name not in state or state[name].shape != value.shape:
                shape = "absent" if name not in state else f"of shape {list(state[name].shape)}"
                raise ValueError(
                    f"the model to begin with has {name} of shape {list(value.shape)}, here it is {shape}; "
                    "leave its model.* settings as they are"
                )

    def load_into(self, model: Model) -> None:
        """All weights but the head's, which begins at zero: it then predicts the mean until it learns better.

        A part that the old model did not have (descriptors) keeps its first weights.
        """
        self.check(model.config)
        state = model.state_dict()
        for name, value in self._kept():
            state[name].copy_(value)
        head = model.head
        assert isinstance(head, nn.Module)
        last = [module for module in head.modules() if isinstance(module, nn.Linear)][-1]
        nn.init.zeros_(last.weight)
        if self.frozen:
            model.requires_grad_(False)
            head.requires_grad_(True)

    def _kept(self) -> list[tuple[str, Tensor]]:
        return [(name, value) for name, value in self.weights.items() if not name.startswith("head.")]
