"""A user's own module under the contract: ``tokengt.train(data, out, model=MyModule(...))``."""

import inspect
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tokengt.batch import GraphBatch
from tokengt.data.store import Store
from tokengt.files import checksum
from tokengt.models.contract import Description, Model, ModelConfig


@dataclass(frozen=True)
class OwnConfig(ModelConfig):
    """Stands for a module that only its author's code can build; the files of a run keep its name and its weights.

    Args:
        name: the name of its class.
        parameters: how many numbers it learns.
        layers: checksum of the names and classes of its layers, and of the names and shapes of its weights.
    """

    kind: Literal["own"] = "own"
    name: str = ""
    parameters: int = field(default=0, metadata={"size": False})
    layers: str = ""

    def fit(self, data: Store, out_dim: int) -> "OwnConfig":
        """A module comes ready for its data: there is nothing to adapt."""
        return self

    def build(self) -> Model:
        raise ValueError(
            f"the model of this run is your own class {self.name}, which its files do not hold; "
            f"load the run in Python with tokengt.load(RUN, model={self.name}(...))"
        )

    def describe(self) -> Description:
        summary = f"{self.name}, a module of your own, {self.parameters:,} parameters"
        return Description(self.name, summary, own_class=self.name)


class OwnModel(Model):
    """Any module whose ``forward`` takes a :class:`GraphBatch` and gives one row per graph, node or edge.

    It may have ``embed(batch)``. If its forward has a parameter called ``draw``, it is given the number of the draw:
    which of several random passes it is.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        count = sum(parameter.numel() for parameter in module.parameters())
        parts = [f"{name} {type(part).__name__}" for name, part in module.named_modules()]
        shapes = [f"{name} {list(tensor.shape)}" for name, tensor in module.state_dict().items()]
        layers = checksum("\n".join([*parts, *shapes]).encode())
        self.config = OwnConfig(name=type(module).__name__, parameters=count, layers=layers)
        self.module = module
        self._takes_draw = "draw" in inspect.signature(module.forward).parameters

    def forward(self, batch: GraphBatch, *, draw: int = 0) -> Float[Tensor, "rows out"]:
        out: Tensor = self.module(batch, draw=draw) if self._takes_draw else self.module(batch)
        return out

    def embed(self, batch: GraphBatch) -> Float[Tensor, "graphs width"]:
        own = getattr(self.module, "embed", None)
        if own is None:
            raise ValueError(f"{self.config.describe().name} gives no embeddings: it has no method embed")
        vectors: Tensor = own(batch)
        return vectors

    @property
    def has_draws(self) -> bool:
        return self._takes_draw

    def sometimes_unused(self) -> Iterable[nn.Parameter]:
        return self.module.parameters()


def as_model(module: nn.Module) -> Model:
    """A module under the contract: itself if it is a :class:`Model` already, else wrapped."""
    return module if isinstance(module, Model) else OwnModel(module)


def copy_of(model: Model, seed: int | None) -> Model:
    """A copy to train, so that the caller's module stays as it is.

    With a ``seed`` its weights are drawn anew, by the ``reset_parameters`` that torch's and PyG's layers have: several
    models of one run (folds, ensembles) are to be independent of each other. A bare parameter that no layer resets
    keeps its value.
    """
    model = deepcopy(model)
    if seed is not None:
        torch.manual_seed(seed)
        for module in model.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
    return model
