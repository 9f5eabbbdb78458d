"""Where the models of a run come from: a preset, chosen or named, weights to begin with, or a module of one's own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tokengt.config import override
from tokengt.data.datasets import bundled
from tokengt.data.manifest import policy_of
from tokengt.data.store import Store
from tokengt.models.contract import Model, ModelConfig
from tokengt.models.own import OwnConfig, as_model, copy_of
from tokengt.presets import NODE_PRESETS, NODES, NODES_EXACT, PRESETS, PRETRAINED
from tokengt.training.request import AUTO, DEFAULT_PRESET, TrainRequest, check_undecided
from tokengt.training.spec import RUN_FILE, RunSpec, read_run
from tokengt.training.start import Start

_TRAINED = "small-pretrained"
# Up to so many tokens, exact attention costs little.
MOST_EXACT = 2048


@dataclass(frozen=True, eq=False)
class Origin:
    """Where the models of a run come from: a config, and weights to begin with or a module that is built already."""

    config: ModelConfig
    start: Start | None = None
    module: Model | None = None

    def fitted(self, store: Store, out_dim: int, settings: Mapping[str, Any]) -> ModelConfig:
        """The config for this data, with what a person sets by hand as the last word.

        A trained model keeps what its weights read, one that is built already all of it. Kinds are switched before the
        fit: what suits the data depends on the kind.
        """
        if self.module is not None:
            return self.config
        check_undecided(self.config, settings)
        kinds = {path: value for path, value in settings.items() if path.rpartition(".")[2] == "kind"}
        config = override(self.config, kinds, "model")
        fitted = config.fit(store, out_dim) if self.start is None else config.refit(store, out_dim)
        return override(fitted, settings, "model")

    def build(self, config: ModelConfig, seed: int, alone: bool) -> Model:
        """A model with its first weights, drawn by ``seed``; a module of one's own keeps its weights if it is alone."""
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            torch.manual_seed(seed)
            model = self._given(seed, alone) or config.build()
        if self.start is not None:
            self.start.load_into(model)
        return model

    def _given(self, seed: int, alone: bool) -> Model | None:
        """A copy of the module that was handed over; None where the config can build a fresh one and has to."""
        if self.module is None or not (alone or isinstance(self.config, OwnConfig)):
            return None
        return copy_of(self.module, None if alone else seed)


def origin_of(
    request: TrainRequest, store: Store, start: Start | None, out: Path, say: Callable[[str], None]
) -> Origin:
    """Where the models that a request asks for come from; a preset that is chosen here is said.

    Raises:
        ValueError: the preset knows molecules, and the data has none.
    """
    if request.model is not None:
        module = as_model(request.model)
        return Origin(module.config, module=module)
    if start is not None:
        return Origin(start.config, start)
    name = request.preset
    if name == AUTO:
        before = _chosen_before(out, request, store) if request.resume else None
        name = before or chosen_preset(store, request)
        if before is None and name in NODE_PRESETS:
            say(f"all labels are those of the {store.manifest.level}s of one graph: the model is the preset {name}")
        if before is None and name in PRETRAINED:
            say(f"training begins with the weights of {name}, which come with the package; the preset small does not")
    if name in PRETRAINED and not knows_molecules(store):
        raise ValueError(
            f"{name} knows molecules with implicit hydrogens; use the preset {DEFAULT_PRESET} for this data"
        )
    return _of_preset(name)


def _of_preset(name: str) -> Origin:
    return Origin(PRESETS[name](), Start.read(bundled(PRETRAINED[name])) if name in PRETRAINED else None)


def preset_of(spec: RunSpec, request: TrainRequest, store: Store) -> str | None:
    """The preset that, with the settings of this request, gives a run's model; None if there is none."""
    if request.model is not None or request.start is not None:
        return None
    for name in PRESETS:
        origin = _of_preset(name)
        try:
            config = origin.fitted(store, spec.task.out_dim, request.model_settings)
        except ValueError:
            continue  # Some setting is for other presets.
        if (config, None if origin.start is None else origin.start.sha256) == (spec.model, spec.start):
            return name
    return None


def _chosen_before(out: Path, request: TrainRequest, store: Store) -> str | None:
    """What was chosen when the run was begun still stands; None for a run that is not begun."""
    if not (out / RUN_FILE).is_file():
        return None
    spec = read_run(out)
    if spec.start is not None:
        return _TRAINED
    begun = preset_of(spec, request, store)
    return begun if begun in NODE_PRESETS else DEFAULT_PRESET


def chosen_preset(store: Store, request: TrainRequest) -> str:
    """What a person means who names none: a model for nodes or links of one graph, else pre-trained weights.

    Those know molecules without explicit hydrogens, and the model as it is but for its head.
    """
    if _rows_of_one_graph(store):
        tokens = store.graphs.num_nodes + store.graphs.num_edges // 2
        return NODES if tokens > MOST_EXACT else NODES_EXACT
    return _TRAINED if knows_molecules(store) and request.keeps_weights else DEFAULT_PRESET


def _rows_of_one_graph(store: Store) -> bool:
    """Whether all labels are of nodes or links of one graph, which is no molecule."""
    graphs = store.graphs
    plain = graphs.order == 2 and not graphs.hyperedges.total
    return len(store) == 1 and store.manifest.level in ("node", "link") and plain and not store.is_molecules


def knows_molecules(store: Store) -> bool:
    """Whether the trained presets were trained on data of this kind."""
    policy = policy_of(store.manifest.featurisation)
    return policy is not None and policy.hydrogens == "implicit"
