"""One request: what a person asks for, from the command line or from Python, before the data is known."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from tokengt.config import BadSetting, field_paths, near, near_path, override
from tokengt.data.manifest import Recipe
from tokengt.data.prepare import MAX_REJECTED
from tokengt.data.splitting import SplitRequest
from tokengt.interop.descriptors import FeatureKind, check_features
from tokengt.models.contract import ModelConfig, check_sizes
from tokengt.presets import KEEPS_WEIGHTS, NODE_PRESETS, PRESETS, PRETRAINED
from tokengt.training.config import TrainingConfig
from tokengt.training.processes import DeviceConfig

AUTO = "auto"
# What "auto" comes to, with or without trained weights.
DEFAULT_PRESET = "small"
# What the weights of the package are fine-tuned with: better on parts of eight endpoints that were held out by scaffold
# (results/LOG.md). Tables of more rows go without, unless they are asked for: descriptors take 2 ms per molecule. Where
# they cease to help was not measured.
DEFAULT_FEATURES: tuple[FeatureKind, ...] = ("rdkit2d", "morgan")
MOST_FEATURED = 20_000
# Where these are given to at most so many molecules, so many models are averaged: a minute or two of a CPU.
DEFAULT_MODELS, MOST_AVERAGED = 3, 3_000
# A new head on frozen weights is a linear model, which learns best with a larger learning rate.
FROZEN_RATE = 1e-2
# More models than anybody averages: a slip of the pen is noticed before the first is trained.
MOST_MODELS = 1000
# Short names of settings, as options have them.
_SHORT = {"lr": "learning_rate"}


@dataclass(frozen=True, eq=False)
class TrainRequest:
    """Everything that a training is asked to be; :func:`tokengt.training.resolve.resolve` makes it fit the data, once.

    Args:
        recipe: which columns of the data mean what.
        split: how to split it.
        preset: a name in :data:`tokengt.presets.PRESETS`; "auto" chooses by the data.
        model: a module of your own instead of a preset.
        start: a run or saved model whose weights training begins with, instead of a preset.
        freeze: with ``start``: train the new head alone.
        attention: with ``start``, a run: the kind of attention to fine-tune it with. Its head is kept.
        settings: ``model.FIELD`` and ``training.FIELD`` with their values, as text or as they are.
        default_features: give weights of the package the numbers about molecules that help them
            (:data:`DEFAULT_FEATURES`), where the data is a table and the recipe names none.
        auxiliary: kinds of numbers about molecules that the model learns to predict beside its targets.
        ensemble: models that differ in their seed, to be averaged; None for :data:`DEFAULT_MODELS` where weights of the
            package are fine-tuned on at most :data:`MOST_AVERAGED` molecules with the default features, and one
            elsewhere.
        seed: of the first model.
        where: devices and processes.
        workers: processes that prepare a file; None for all cores.
        max_rejected: the largest share of rows that may be rejected.
        resume: go on with a run that was stopped.
        quiet: say nothing.
        floor: fit a linear model on fingerprints too, which a model should beat.
    """

    recipe: Recipe = field(default_factory=Recipe)
    split: SplitRequest = field(default_factory=SplitRequest)
    preset: str = AUTO
    model: nn.Module | None = None
    start: Path | None = None
    freeze: bool = False
    attention: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    default_features: bool = True
    auxiliary: tuple[str, ...] = ()
    ensemble: int | None = None
    seed: int = 0
    where: DeviceConfig = field(default_factory=DeviceConfig)
    workers: int | None = None
    max_rejected: float = MAX_REJECTED
    resume: bool = False
    quiet: bool = False
    floor: bool = True

    def __post_init__(self) -> None:
        if self.model is not None and not isinstance(self.model, nn.Module):
            raise ValueError(f"model is {self.model!r}; expected a module that is built already, such as MyModule()")
        if self.preset not in (AUTO, *PRESETS):
            known = (AUTO, *PRESETS)
            raise ValueError(
                f"preset {self.preset!r} is unknown{near(self.preset, known)}; expected one of {', '.join(known)}"
            )
        origins = {
            "a preset": self.preset != AUTO,
            "a model": self.model is not None,
            "a start": self.start is not None,
        }
        named = [name for name, given in origins.items() if given]
        if len(named) > 1:
            raise ValueError(f"{' and '.join(named)} are given; expected one of them: each says which model to train")
        if self.freeze and self.start is None:
            raise ValueError("freeze trains a new head on trained weights; give a start to take them from")
        self._check_attention()
        check_features(self.auxiliary, "auxiliary numbers")
        if self.ensemble is not None and not 1 <= self.ensemble <= MOST_MODELS:
            raise ValueError(f"ensemble is {self.ensemble}; expected 1 to {MOST_MODELS:,}")
        if not 0 <= self.seed < 2**62:
            raise ValueError(f"seed is {self.seed}; expected a whole number from 0, below 2^62")
        for path in self.settings:
            room, _, rest = path.partition(".")
            if room not in ("model", "training") or not rest:
                meant = near_path(_SHORT.get(path, path), self._setting_paths)
                raise ValueError(
                    f"setting {path!r} is unknown{meant}; expected model.FIELD=VALUE or training.FIELD=VALUE"
                )
        if self.model is not None and self.model_settings:
            raise ValueError(f"setting model.{next(iter(self.model_settings))} is for presets; yours is built already")
        self._check_settings()

    def _check_attention(self) -> None:
        if self.attention is None:
            return
        if self.start is None:
            raise ValueError(
                "attention switches a trained run to another kind; give a start, or for a model with random weights "
                "the setting model.encoder.attention.kind"
            )
        if self.freeze:
            raise ValueError("freeze trains a new head alone, and attention keeps the head; expected one of the two")
        for path, value in self.settings.items():
            if path.endswith(".attention.kind") and value != self.attention:
                raise ValueError(
                    f"attention is {self.attention}, but setting {path} is {value}; expected one of the two"
                )

    def _check_settings(self) -> None:
        """Whatever is wrong with a setting by itself is said before any data is read.

        Values that do not go together are not judged here: some of them follow from the data.
        """
        _ = self.training
        if self.model is not None or self.start is not None:
            return
        # What "auto" comes to depends on the data: a setting that suits one of them may be meant.
        problems = [_problem(PRESETS[name](), self.model_settings) for name in self._possible]
        if all(problems):
            assert problems[0] is not None
            raise problems[0]

    @property
    def _possible(self) -> tuple[str, ...]:
        """Presets that this request may come to."""
        return (DEFAULT_PRESET, *NODE_PRESETS) if self.preset == AUTO else (self.preset,)

    @property
    def _setting_paths(self) -> list[str]:
        """All settings that there are for this request, as far as they are known before the data."""
        paths = [f"training.{path}" for path in field_paths(TrainingConfig)]
        if self.model is None and self.start is None:
            paths += [f"model.{path}" for path in field_paths(type(PRESETS[self._possible[0]]()))]
        return paths

    @property
    def model_settings(self) -> dict[str, Any]:
        """The settings of the model, by their paths inside it."""
        return _inside("model", self.settings)

    @property
    def keeps_weights(self) -> bool:
        """Whether no setting changes what weights of the package mean."""
        return all(path.startswith(KEEPS_WEIGHTS) for path in self.model_settings)

    @property
    def takes_default_features(self) -> bool:
        """Whether a table of molecules is to have the default features: no others are named, and a preset reads them.

        They were measured with the weights of the package alone (results/LOG.md). A model that is to predict such
        numbers is not given them: it would copy them.
        """
        unnamed = not self.recipe.policy.features and not self.recipe.descriptors and not self.auxiliary
        return self.default_features and unnamed and self._begins_with_the_package

    @property
    def _begins_with_the_package(self) -> bool:
        """Whether weights of the package are fine-tuned where the data is a table of molecules."""
        trained = self.preset in PRETRAINED or (self.preset == AUTO and self.keeps_weights)
        plain = self.recipe.policy.hydrogens == "implicit" and self.recipe.level in (None, "graph")
        return plain and trained and self.model is None and self.start is None

    def is_averaged(self, features: Sequence[str]) -> bool:
        """Whether several models are averaged by themselves, where a few molecules are given these features."""
        default = set(features) == set(DEFAULT_FEATURES) and self._begins_with_the_package
        # Minutes are those of one model: an ensemble would take three times as long as was asked for.
        plain = not self.recipe.descriptors and not self.auxiliary and not self.training.minutes
        return self.ensemble is None and default and plain and not self.split.folds

    @property
    def training(self) -> TrainingConfig:
        """The recipe with its settings. What depends on the data, such as the number of epochs, is still open."""
        plain = TrainingConfig(learning_rate=FROZEN_RATE) if self.freeze else TrainingConfig()
        return override(plain, _inside("training", self.settings), "training")


def _problem(preset: ModelConfig, settings: Mapping[str, Any]) -> ValueError | None:
    """What is wrong with settings of this preset, whatever the data; values that do not go together are not judged."""
    try:
        check_undecided(preset, settings)
    except ValueError as error:
        return error
    try:
        check_sizes(override(preset, settings, "model"), counted=False)
    except BadSetting as error:
        return error
    except ValueError:
        return None
    return None


def check_undecided(config: ModelConfig, settings: Mapping[str, Any]) -> None:
    """Refuse settings of the model that follow from the targets."""
    for path in settings:
        if path in config.decided:
            raise ValueError(f"setting 'model.{path}' follows from the targets; choose it by target, task and level")


def _inside(room: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    start = f"{room}."
    return {path.removeprefix(start): value for path, value in settings.items() if path.startswith(start)}
