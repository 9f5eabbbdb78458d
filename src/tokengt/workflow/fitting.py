"""Train a model on a file, a store or graphs in memory, or go on from one that was trained before."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tokengt.batch import Level
from tokengt.data.datasets import bundled
from tokengt.data.manifest import Recipe
from tokengt.data.splits import Fractions
from tokengt.data.store import Store
from tokengt.inference import Predictor
from tokengt.interop.molecules import MoleculePolicy
from tokengt.presets import PRESETS, PRETRAINED
from tokengt.training.config import TrainingConfig
from tokengt.training.processes import Device, DeviceConfig, Strategy, make_fabric
from tokengt.training.resolve import SplitRequest, apply_training, policy_of
from tokengt.training.run import RunRequest, Say, refuse_to_overwrite, train_run
from tokengt.training.spec import RUN_FILE, read_run
from tokengt.training.start import Start
from tokengt.training.tasks import TaskKind
from tokengt.workflow.inputs import open_data, remove_store

# A new head on frozen weights is a linear model, which wants larger steps.
FROZEN_RATE = 1e-2
AUTO = "auto"
_TRAINED = "small-pretrained"


@dataclass(frozen=True)
class TrainOptions:
    """What most people leave as it is.

    Args:
        descriptors: numeric columns that the model is given beside the molecule.
        level: what a row of targets belongs to; None: guessed from the data.
        policy: how a molecule becomes a graph.
        fractions: of train, valid and test in a random or scaffold split.
        folds: models of a cross-validation, 3 or more; 0 for one split.
        ensemble: models that differ in their seed, averaged.
        devices: processes on this machine (``torchrun`` sets its own).
        strategy: how several processes share the model.
        workers: processes that prepare the file; None for all cores.
        quiet: say nothing.
    """

    descriptors: tuple[str, ...] = ()
    level: Level | None = None
    policy: MoleculePolicy = field(default_factory=MoleculePolicy)
    fractions: Fractions = (0.8, 0.1, 0.1)
    folds: int = 0
    ensemble: int = 1
    devices: int = 1
    strategy: Strategy = "auto"
    workers: int | None = None
    quiet: bool = False


_DEFAULT = TrainOptions()


def train(
    data: Any,
    out: str | Path,
    *,
    smiles: str | None = None,
    target: str | Sequence[str] = (),
    task: TaskKind | None = None,
    split: str = "auto",
    preset: str = AUTO,
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    device: Device = "auto",
    resume: bool = False,
    options: TrainOptions = _DEFAULT,
) -> Predictor:
    """Train and write the run folder ``out``; returns the trained model, ready to predict.

    Args:
        data: a file of molecules, a store, a PyG file, a folder of NetworkX JSON, a DataFrame, or a list of PyG data.
        out: the run folder to make.
        smiles: the column of SMILES.
        target: the column or columns to learn.
        task: regression, binary or multiclass; None to guess it from the labels.
        split: random, scaffold, a column of train, valid and test, or given: what a store or PyG masks say. By itself,
            what the data gives if it gives any, else random.
        preset: a name that ``tokengt presets`` lists. By itself, small-pretrained for molecules whose hydrogens are
            implicit, unless a setting changes the model; else small.
        settings: ``{"model.dim": 256, "training.epochs": 20}`` and the like.
        seed: of split, weights and training.
        device: auto, cpu or cuda.
        resume: go on with a run that was stopped; one that does not exist yet is begun.
        options: the rest.
    """
    if preset not in (AUTO, *PRESETS):
        raise ValueError(f"preset {preset!r} is unknown; expected one of {', '.join((AUTO, *PRESETS))}")
    request = RunRequest(
        preset=PRESETS["small" if preset == AUTO else preset](),
        settings=_texts(settings),
        task=task,
        split=SplitRequest(split, seed, options.fractions, options.folds),
        ensemble=options.ensemble,
        seed=seed,
    )

    def begun(store: Store, say: Say) -> RunRequest:
        if preset == AUTO and resume and (Path(out) / RUN_FILE).is_file():
            # What was chosen when the run was begun still stands.
            return request if read_run(Path(out)).start is None else replace(request, start=_bundled_start(_TRAINED))
        name = chosen_preset(store, request.settings) if preset == AUTO else preset
        if name not in PRETRAINED:
            return request
        if not knows_molecules(store):
            raise ValueError(f"{name} knows molecules with implicit hydrogens; use --preset small for this data")
        if preset == AUTO:
            say(f"training begins with the weights of {name}, which come with the package; --preset small does not")
        return replace(request, start=_bundled_start(name))

    recipe = _recipe(smiles, target, split, task, options)
    return _train(data, Path(out), request, recipe, device, resume, options, begun)


def chosen_preset(store: Store, settings: Mapping[str, str]) -> str:
    """What a person means who names none: pre-trained weights where they fit.

    They know molecules without explicit hydrogens, and the model as it is but for its head.
    """
    changed = any(name.startswith("model.") and not name.startswith("model.head.") for name in settings)
    return _TRAINED if knows_molecules(store) and not changed else "small"


def knows_molecules(store: Store) -> bool:
    """Whether the trained presets were trained on data of this kind."""
    policy = policy_of(store)
    return policy is not None and policy.hydrogens == "implicit"


def _bundled_start(name: str) -> Start:
    return Start.read(bundled(PRETRAINED[name]))


def finetune(
    run: str | Path,
    data: Any,
    out: str | Path,
    *,
    freeze: bool = False,
    smiles: str | None = None,
    target: str | Sequence[str] = (),
    task: TaskKind | None = None,
    split: str = "auto",
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    device: Device = "auto",
    resume: bool = False,
    options: TrainOptions = _DEFAULT,
) -> Predictor:
    """Train on other data, beginning with the weights of a run or saved model and a new head.

    With ``freeze`` only the head is trained. The other arguments are those of :func:`train`; molecules are read by
    the policy of the run that is begun with.
    """
    start = Start.read(Path(run), freeze)
    if start.policy is not None:
        options = replace(options, policy=start.policy)
    request = RunRequest(
        preset=start.config,
        training=TrainingConfig(learning_rate=FROZEN_RATE) if freeze else TrainingConfig(),
        settings=_texts(settings),
        task=task,
        split=SplitRequest(split, seed, options.fractions, options.folds),
        ensemble=options.ensemble,
        seed=seed,
        start=start,
    )
    recipe = _recipe(smiles, target, split, task, options)
    return _train(data, Path(out), request, recipe, device, resume, options)


def _train(
    data: Any,
    out: Path,
    request: RunRequest,
    recipe: Recipe,
    device: Device,
    resume: bool,
    options: TrainOptions,
    begun: Callable[[Store, Say], RunRequest] | None = None,
) -> Predictor:
    """``begun`` has the last word on the request, once the data is known."""
    refuse_to_overwrite(out, resume)
    training = apply_training(request.training, request.settings)
    fabric = make_fabric(DeviceConfig(device, options.devices, options.strategy), training.precision)
    first, quiet = fabric.is_global_zero, options.quiet
    if first and not resume:
        # What an attempt that never became a run has left here may be another file's.
        remove_store(out / "store", data)

    def opened(shown: bool) -> Store:
        return open_data(data, recipe, out / "store", workers=options.workers, quiet=quiet or not shown)

    store = _opened_by_all(fabric, opened)
    say: Say = (lambda sentence: None) if quiet or not first else (lambda sentence: print(sentence, file=sys.stderr))
    request = request if begun is None else begun(store, say)
    train_run(fabric, store, request, out, resume=resume, quiet=quiet, say=say)
    fabric.barrier()
    return Predictor.load(out, device)


def _opened_by_all(fabric: Any, opened: Callable[[bool], Store]) -> Store:
    """The first process prepares the data, the others find it finished; where it fails, all stop with its sentence."""
    if fabric.world_size == 1:
        return opened(True)
    store, problem = None, None
    if fabric.is_global_zero:
        try:
            store = opened(True)
        except (ValueError, OSError, ImportError) as error:
            problem = str(error)
    problem = fabric.broadcast(problem)
    if problem is not None:
        raise ValueError(problem)
    return opened(False) if store is None else store


def _recipe(
    smiles: str | None, target: str | Sequence[str], split: str, task: TaskKind | None, options: TrainOptions
) -> Recipe:
    return Recipe(
        smiles=smiles,
        targets=(target,) if isinstance(target, str) else tuple(target),
        descriptors=options.descriptors,
        split=None if split in ("auto", "random", "scaffold", "given") else split,
        task=task,
        level=options.level,
        policy=options.policy,
    )


def _texts(settings: Mapping[str, Any] | None) -> dict[str, str]:
    def text(value: Any) -> str:
        return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)

    return {name: text(value) for name, value in (settings or {}).items()}
