"""One trained model of a run: read from its folder, and asked for its passes over a batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tokengt.batch import GraphBatch
from tokengt.models.contract import Model, ModelConfig
from tokengt.models.forest import Forest
from tokengt.models.own import OwnConfig, as_model, copy_of
from tokengt.models.passes import Over, Prediction, run_passes, summarise
from tokengt.models.pretrained import CONFIG, read_weights, restore
from tokengt.structure.facts import with_facts
from tokengt.training.shares import averaged
from tokengt.training.spec import Descriptors
from tokengt.training.tasks import Task


@dataclass(frozen=True, eq=False)
class Trained:
    """One trained model, with the scaling it was trained with; ``forest`` stands beside it, if one was grown."""

    model: Model
    task: Task
    descriptors: Descriptors
    forest: Forest | None = None

    def passes(
        self, batch: GraphBatch, draws: int, over: Over, node_ids: Float[Tensor, "nodes id_dim"] | None = None
    ) -> "Passes":
        """Predictions of every draw: the same numbers every time they are asked for, NaN where an output is not finite.

        The outputs are looked at, because the probability of an infinite one is a finite 1.
        """
        batch = with_facts(batch, self.model.config.facts())
        given = {} if node_ids is None else {"node_ids": node_ids}
        outputs = run_passes(self.model, draws, over, lambda draw: self.model(batch, draw=draw, **given))
        values = torch.stack([_finite(output, self.task.predictions(output)).cpu() for output in outputs])
        said = self.said(batch)
        values = values if said is None else self.with_forest(values, said.cpu())
        told = [self.task.variances(output) for output in outputs]
        own = [each.cpu() for each in told if each is not None]
        return Passes(values, torch.stack(own).mean(0) if own else None)

    def said(self, batch: GraphBatch) -> Float[Tensor, "graphs width"] | None:
        """What the forest beside the model says of these graphs; None where there is no forest."""
        if self.forest is None:
            return None
        assert batch.graph_features is not None
        return self.forest(batch.graph_features)

    def with_forest(
        self, values: Float[Tensor, "... rows width"], said: Float[Tensor, "... width"]
    ) -> Float[Tensor, "... rows width"]:
        """What the model predicts, averaged with what its forest said."""
        assert self.forest is not None
        return averaged(self.task, self.forest.share.to(values.device), values, said.to(values.device))

    def embed(self, batch: GraphBatch) -> Float[Tensor, "graphs width"]:
        return self.model.embed(with_facts(batch, self.model.config.facts())).float().cpu()


@dataclass(frozen=True, eq=False)
class Passes:
    """What one model says of some rows in each of its draws, and the variance that it tells itself, if it does."""

    values: Float[Tensor, "draws rows width"]
    variance: Float[Tensor, "rows width"] | None

    @staticmethod
    def summarised(models: Sequence["Passes"]) -> tuple[Prediction, Float[Tensor, "rows width"] | None]:
        """Mean and deviation over all draws of all models, and the deviation that intervals are made of.

        The latter is between models, whatever the draws of each; both include what the models tell themselves.
        """
        together = summarise(list(torch.cat([each.values for each in models])))
        own = [each.variance for each in models if each.variance is not None]
        between = torch.stack([each.values.mean(0) for each in models]).var(0) if len(models) > 1 else None
        if not own:
            return together, None if between is None else between.sqrt()
        told = torch.stack(own).mean(0)
        total = told if together.std is None else told + together.std.square()
        return Prediction(together.mean, total.sqrt()), (told if between is None else told + between).sqrt()


def restored(home: Path, config: ModelConfig, given: nn.Module | None, device: torch.device) -> Model:
    """The trained model of a folder: built from its config, or a copy of the caller's own module with its weights."""
    if given is None:
        return _in_fast_numbers(restore(config.build, read_weights(home), home, device), device)
    own = as_model(given)
    if isinstance(own.config, OwnConfig) and isinstance(config, OwnConfig) and own.config != config:
        same = own.config.name == config.name
        what = f"your {config.name} is built with other layers" if same else f"model is a {own.config.name}"
        raise ValueError(f"{home} was trained with a {config.name}; {what}; expected one like that which was trained")
    if own.config.kind != config.kind:
        raise ValueError(
            f"{home / CONFIG} describes a model of kind {config.kind!r}; leave out model=: it can be built"
        )
    return _in_fast_numbers(restore(lambda: copy_of(own, None), read_weights(home), home, device), device)


def _in_fast_numbers(model: Model, device: torch.device) -> Model:
    """On a CPU, which multiplies half precision slowly, the same weights in float32."""
    half = any(parameter.dtype in (torch.float16, torch.bfloat16) for parameter in model.parameters())
    return model.float() if half and device.type == "cpu" else model


def scaled(graphs: GraphBatch, descriptors: Descriptors) -> GraphBatch:
    if graphs.graph_features is None or not descriptors.mean:
        return graphs
    return graphs.with_graph_features(descriptors.scaled(graphs.graph_features))


def _finite(output: Float[Tensor, "rows out"], values: Float[Tensor, "rows width"]) -> Float[Tensor, "rows width"]:
    """The values of rows whose outputs are finite, NaN elsewhere."""
    return torch.where(torch.isfinite(output).all(1, keepdim=True), values, torch.nan)
