"""Fine-tuning begins with another model's weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from tokengt.data.datasets import find_run
from tokengt.files import checksum
from tokengt.interop.molecules import MoleculePolicy
from tokengt.models.contract import Model, ModelConfig
from tokengt.models.kinds import config_from_dict, load_model
from tokengt.models.own import OwnConfig
from tokengt.models.pretrained import WEIGHTS, read_config
from tokengt.training.spec import RUN_FILE, read_members


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
        folder = find_run(folder)
        if not folder.is_dir():
            what = "is a file" if folder.exists() else "does not exist"
            raise ValueError(f"{folder} {what}; expected the folder of a trained run or of a saved model to begin with")
        spec, home = None, folder
        if (folder / RUN_FILE).is_file():
            spec, members = read_members(folder)
            home = members[0][0]
        _refuse_own(folder, config_from_dict(read_config(home), str(home)))
        if spec is not None and not (home / WEIGHTS).is_file():
            raise ValueError(
                f"{home} is not trained to the end; go on with it first (resume=True in Python, --resume in the "
                "command)"
            )
        model = load_model(home)
        if not isinstance(getattr(model, "head", None), nn.Module):
            raise ValueError(f"{folder} holds a {type(model).__name__}, which has no head to replace")
        digest = checksum((home / WEIGHTS).read_bytes())
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


def _refuse_own(folder: Path, config: ModelConfig) -> None:
    """Only its author's code can build a module of one's own, and only there can its head be replaced."""
    if isinstance(config, OwnConfig):
        raise ValueError(
            f"{folder} was trained with your own class {config.name}, which its files do not hold; to go on from its "
            f"weights, give the trained module itself to another training in Python: "
            f"tokengt.train(data, out, model=tokengt.load({str(folder)!r}, model={config.name}(...)).members[0].model)"
        )
