"""Fine-tuning begins with another model's weights."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tokengt.data.datasets import find_run
from tokengt.files import checksum
from tokengt.interop.molecules import MoleculePolicy
from tokengt.models.contract import Model, ModelConfig
from tokengt.models.kinds import config_from_dict, load_model
from tokengt.models.own import OwnConfig
from tokengt.models.planned import planned
from tokengt.models.pretrained import WEIGHTS, read_config
from tokengt.training.spec import RUN_FILE, RunSpec, read_members
from tokengt.training.tasks import Task

# The paper fine-tunes with another attention for a tenth of the steps of training, the first hundredth of them with a
# rising learning rate: 0.1M steps after 1M, 1k of warm-up.
_SHARE, _WARMUP = 10, 0.01
# Settings of training that are of the machine at hand, and not of the recipe.
_OF_MACHINE = ("precision", "compile", "cuda_graphs", "checkpoint_seconds")


@dataclass(frozen=True, eq=False)
class Start:
    """A trained model whose weights another one begins with, all but those of its head unless that is kept.

    Args:
        config: what the weights belong to.
        weights: its state.
        sha256: checksum of the weights' file.
        frozen: train the new head alone.
        policy: how molecules became its graphs, when it was trained by a run of ours.
        before: what that run was made with.
        keeps_head: begin with its head too; the new model may have another kind of attention.
        buffers: names of tensors among the weights that are drawn and not learned, such as the features of FAVOR+.
    """

    config: ModelConfig
    weights: Mapping[str, Tensor]
    sha256: str
    frozen: bool = False
    policy: MoleculePolicy | None = None
    before: RunSpec | None = None
    keeps_head: bool = False
    buffers: frozenset[str] = frozenset()

    @classmethod
    def read(cls, folder: Path, frozen: bool = False, keeps_head: bool = False) -> "Start":
        """From a run (of several models: the first) or a saved model."""
        folder = find_run(folder)
        if not folder.is_dir():
            what = "is a file" if folder.exists() else "does not exist"
            raise ValueError(f"{folder} {what}; expected the folder of a trained run or of a saved model to begin with")
        spec, home = None, folder
        if (folder / RUN_FILE).is_file():
            home, spec = read_members(folder)[1][0]
        elif keeps_head:
            raise ValueError(
                f"{folder} holds a saved model; expected a run: only that says what its head predicts, and in which "
                "units"
            )
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
        policy, buffers = None if spec is None else spec.molecules, frozenset(dict(model.named_buffers()))
        return cls(model.config, model.state_dict(), digest, frozen, policy, spec, keeps_head, buffers)

    def fine_tuning(self, attention: str) -> dict[str, Any]:
        """Settings for going on with another kind of attention, as the paper's appendix does.

        The recipe is that of the run to begin with, for a tenth of its epochs, with little warm-up and then along a
        cosine. What is regularised less is for the model to say.
        """
        assert self.before is not None
        recipe = self.before.training
        shorter = replace(recipe, epochs=-(-recipe.epochs // _SHARE), warmup=_WARMUP, schedule="cosine")
        kept = [each.name for each in fields(shorter) if each.name not in _OF_MACHINE]
        return {
            **{f"training.{name}": getattr(shorter, name) for name in kept},
            **{f"model.{path}": value for path, value in self.config.attention_settings(attention).items()},
        }

    def kept_task(self, task: Task) -> Task:
        """The task of new labels for a head that is kept, which knows its targets and their scale already."""
        if not self.keeps_head:
            return task
        assert self.before is not None
        old = self.before.task
        if (old.kind, old.names, old.classes) != (task.kind, task.names, task.classes):
            raise ValueError(
                f"the head of the run to begin with predicts {_told(old)}, and the data has {_told(task)}; expected "
                "the same, or fine-tune with a new head: leave out the attention"
            )
        moments = {name: getattr(old, name) for name in ("mean", "scale", "log_mean", "log_scale")}
        return replace(task, **moments)

    def check_split(self, store_sha256: str, split_sha256: str) -> None:
        """Refuse to test a head that is kept on rows that it was trained on."""
        old = self.before
        if not self.keeps_head or old is None or old.store_sha256 != store_sha256:
            return
        if old.split_sha256 != split_sha256:
            raise ValueError(
                f"the run to begin with was trained on another split of this data ({old.split}, seed {old.seed}), so "
                "that rows it learned from would now be tested on; give the same split, fractions and seed"
            )

    def check(self, config: ModelConfig) -> None:
        """Refuse a model in which some weight but the head's has no place of its shape."""
        had, new = self.config.num_descriptors, config.num_descriptors
        had = had if self.keeps_head else self.config.kept_descriptors
        if had and had != new:
            raise ValueError(f"the model to begin with takes {had} descriptors, got {new}; name those it had")
        here = config.meanings()
        for name, before in self.config.meanings().items():
            if before != here.get(name):
                raise ValueError(
                    f"the model to begin with has model.{name} {before}, here it is {here.get(name)}; leave it as it "
                    "is, or its weights mean something else"
                )
        with planned():
            state = config.build().state_dict()
        for name, value in self._kept(state):
            if name not in state or state[name].shape != value.shape:
                shape = "absent" if name not in state else f"of shape {list(state[name].shape)}"
                raise ValueError(
                    f"the model to begin with has {name} of shape {list(value.shape)}, here it is {shape}; "
                    "leave its model.* settings as they are"
                )

    def load_into(self, model: Model) -> None:
        """All weights but the head's, which begins at zero: it then predicts the mean until it learns better.

        A head that is kept goes on as it is. A part that the old model did not have (descriptors) begins at zero: the
        new model then sees what the old one saw.
        """
        self.check(model.config)
        state = model.state_dict()
        kept = dict(self._kept(state))
        for name, value in kept.items():
            state[name].copy_(value)
        for name, parameter in model.named_parameters():
            if name not in kept and not name.startswith("head."):
                nn.init.zeros_(parameter)
        if self.keeps_head:
            return
        head = model.head
        assert isinstance(head, nn.Module)
        last = [module for module in head.modules() if isinstance(module, nn.Linear)][-1]
        nn.init.zeros_(last.weight)
        if self.frozen:
            model.requires_grad_(False)
            head.requires_grad_(True)

    def _kept(self, state: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
        """What a model with this ``state`` begins with."""
        if not self.keeps_head:
            return [(name, value) for name, value in self.weights.items() if not name.startswith("head.")]
        # What another kind of attention draws for itself has no place here.
        drawn = {name for name in self.buffers if name not in state or state[name].shape != self.weights[name].shape}
        return [(name, value) for name, value in self.weights.items() if name not in drawn]


def _told(task: Task) -> str:
    classes = "" if task.classes is None else f" with the classes {', '.join(task.classes[:5])}"
    return f"{', '.join(task.names[:5])}{' and more' if len(task.names) > 5 else ''} ({task.kind}{classes})"


def _refuse_own(folder: Path, config: ModelConfig) -> None:
    """Only its author's code can build a module of one's own, and only there can its head be replaced."""
    if isinstance(config, OwnConfig):
        raise ValueError(
            f"{folder} was trained with your own class {config.name}, which its files do not hold; to go on from its "
            f"weights, give the trained module itself to another training in Python: "
            f"tokengt.train(data, out, model=tokengt.load({str(folder)!r}, model={config.name}(...)).members[0].model)"
        )
