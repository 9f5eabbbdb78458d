"""Train a model on a file, a store or graphs in memory, or go on from one that was trained before."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from tokengt.data.engines import meanwhile
from tokengt.data.joined import SplitFiles
from tokengt.data.manifest import Censored, Recipe, TaskKind
from tokengt.data.named import dataset_named
from tokengt.data.node_tables import NodeFiles
from tokengt.data.prepare import MAX_REJECTED
from tokengt.data.splits import STANDARD, Fractions
from tokengt.data.splitting import AUTO as AUTO_SPLIT
from tokengt.data.splitting import SplitRequest
from tokengt.data.store import Store
from tokengt.inference import Predictor
from tokengt.interop.molecules import MoleculePolicy
from tokengt.level import Level
from tokengt.training.processes import Device, DeviceConfig, Strategy, make_fabric
from tokengt.training.request import (
    AUTO,
    DEFAULT_FEATURES,
    DEFAULT_MODELS,
    MOST_AVERAGED,
    MOST_FEATURED,
    TrainRequest,
)
from tokengt.training.resolve import Say
from tokengt.training.run import STORE, refuse_to_overwrite, train_run
from tokengt.training.spec import RUN_FILE, is_first_format, read_run
from tokengt.training.start import Start
from tokengt.workflow.inputs import check_files, check_wishes, is_molecule_table, is_prepared_first, open_data
from tokengt.workflow.run_folder import run_folder
from tokengt.workflow.warming import warm_up


@dataclass(frozen=True)
class TrainOptions:
    """What most people leave as it is.

    Args:
        descriptors: numeric columns that the model is given beside the molecule.
        weights: a numeric column: how much each row counts in training.
        censored: "learn" from labels that are bounds, such as ``>3.69``, instead of leaving their rows out.
        level: what a row of targets belongs to; None: guessed from the data.
        policy: how a molecule becomes a graph.
        default_features: where the weights of the package are fine-tuned on a table of at most 20,000 molecules and
            ``policy.features`` are none, give the model RDKit's descriptors and Morgan counts; False for none.
        fractions: of train, valid and test in a random or scaffold split.
        folds: models of a cross-validation, 3 or more; 0 for one split.
        auxiliary: kinds of numbers about each molecule ("rdkit2d", "morgan") that the model learns to predict beside
            its targets: where labels are few, they teach it chemistry.
        ensemble: models that differ in their seed, averaged. By itself three where weights of the package are
            fine-tuned on at most 3,000 molecules with the default features and nothing else (no descriptors, auxiliary
            numbers, folds or ``training.minutes``), else one.
        devices: processes on this machine (``torchrun`` sets its own).
        strategy: how several processes share the model.
        workers: processes that prepare the file; None for all cores.
        max_rejected: when a larger share of the rows than this cannot be read, nothing is trained.
        quiet: say nothing.
    """

    descriptors: tuple[str, ...] = ()
    weights: str | None = None
    censored: Censored = "reject"
    level: Level | None = None
    policy: MoleculePolicy = field(default_factory=MoleculePolicy)
    default_features: bool = True
    fractions: Fractions = STANDARD
    folds: int = 0
    auxiliary: tuple[str, ...] = ()
    ensemble: int | None = None
    devices: int = 1
    strategy: Strategy = "auto"
    workers: int | None = None
    max_rejected: float = MAX_REJECTED
    quiet: bool = False


_DEFAULT = TrainOptions()


def train(
    data: Any,
    out: str | Path,
    *,
    valid: str | Path | None = None,
    test: str | Path | None = None,
    smiles: str | None = None,
    target: str | Sequence[str] = (),
    task: TaskKind | None = None,
    split: str = "auto",
    preset: str = AUTO,
    model: nn.Module | None = None,
    start: str | Path | None = None,
    freeze: bool = False,
    attention: str | None = None,
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    device: Device = "auto",
    resume: bool = False,
    options: TrainOptions = _DEFAULT,
) -> Predictor:
    """Train and write the run folder ``out``; returns the trained model, ready to predict.

    Args:
        data: a file of molecules, a store, a PyG file, a folder of NetworkX JSON, a DataFrame, PyG data (one graph, a
            list or a data set), a graph as two tables (``NodeFiles("nodes.csv", "edges.csv")``), or the name of a
            public data set such as "qm9" (``tokengt datasets`` lists them).
        out: the run folder to make.
        valid: a table of its own for the validation part, with the columns of ``data``, which is then a table too.
            Without it the validation part is taken out of ``data``.
        test: a table of its own for the test part. With ``valid`` and without ``test``, there is no test part.
        smiles: the column of SMILES.
        target: the column or columns to learn; a pattern such as ``NR-*``; or "all" for every column of numbers.
        task: regression, binary or multiclass; None to guess it from the labels.
        split: random, per-class (30 of each class to validate and 30 to test), scaffold, scaffold-sorted,
            ``column:NAME`` for a column of train, valid and test, or given: what a store or PyG masks say (given:K for
            the K-th of several). By itself, what the data gives if it gives any, else random.
        preset: a name that ``tokengt presets`` lists. By itself, small-pretrained for molecules whose hydrogens are
            implicit, unless a setting changes the model; nodes where all labels are of the nodes of one graph; else
            small.
        model: a module of your own instead of a preset; its ``forward`` takes a :class:`tokengt.GraphBatch` and gives
            one row per graph, node or edge. A copy of it is trained.
        start: a run or a saved model to begin with instead of a preset: its weights, and a new head.
        freeze: with ``start``: train the new head alone.
        attention: with ``start``, a run on the same targets: go on with another kind of attention (softmax, favor,
            elu) and keep its head, as the paper makes TokenGT (Lap) + Performer. The recipe is then that of the run,
            for a tenth of its epochs, unless settings say otherwise.
        settings: ``{"model.dim": 256, "training.epochs": 20}`` and the like.
        seed: of split, weights and training.
        device: auto, cpu or cuda.
        resume: go on with a run that was stopped; one that does not exist yet is begun.
        options: the rest.
    """
    request = TrainRequest(
        recipe=Recipe(
            smiles=smiles,
            targets=(target,) if isinstance(target, str) else tuple(target),
            descriptors=options.descriptors,
            task=task,
            level=options.level,
            policy=options.policy,
            weights=options.weights,
            censored=options.censored,
        ),
        split=SplitRequest(split, seed, options.fractions, options.folds),
        preset=preset,
        model=model,
        start=None if start is None else Path(start),
        freeze=freeze,
        attention=attention,
        settings=dict(settings or {}),
        default_features=options.default_features,
        auxiliary=options.auxiliary,
        ensemble=options.ensemble,
        seed=seed,
        where=DeviceConfig(device, options.devices, options.strategy),
        workers=options.workers,
        max_rejected=options.max_rejected,
        resume=resume,
        quiet=options.quiet,
    )
    return run_request(with_files(data, valid, test, request.split), Path(out), request)


def with_files(data: Any, valid: str | Path | None, test: str | Path | None, split: SplitRequest) -> Any:
    """The data together with the files of the other parts, where there are any."""
    if valid is None and test is None:
        return data
    if isinstance(data, NodeFiles):
        raise ValueError(
            f"{data.name} are one graph, whose parts are no files of their own; expected a column that names the part "
            "of each row (--split column:NAME, in Python split='column:NAME')"
        )
    if not isinstance(data, (str, Path)):
        raise ValueError(
            f"data is a {type(data).__name__}; expected a file where valid and test are files of their own"
        )
    if dataset_named(data) is not None:
        raise ValueError(f"{data} is a data set by its name; files of valid and test go with a file of train")
    if split.folds or split.column is not None or split.kind == "given":
        asked = f"{split.folds} folds are" if split.folds else f"the split {split.kind} is"
        raise ValueError(f"{asked} asked for, but valid and test are files of their own; expected one of the two")
    if valid is not None and split.kind != AUTO_SPLIT:
        raise ValueError(
            f"the split {split.kind} is asked for, but valid is a file of its own: there is nothing left to split"
        )
    return SplitFiles(Path(data), *(None if file is None else Path(file) for file in (valid, test)))


def finetune(run: str | Path, data: Any, out: str | Path, **wishes: Any) -> Predictor:
    """:func:`train` with a start: ``train(data, out, start=run, ...)``, for those who look for it by this name.

    The other arguments are those of :func:`train`; molecules are read by the policy of the run that is begun with.
    """
    return train(data, out, start=run, **wishes)


# Makes other labels for a store that was opened; the second argument says whether a person is told how far it is.
Relabel = Callable[[Store, bool], Store]


def run_request(data: Any, out: Path, request: TrainRequest, relabel: Relabel | None = None) -> Predictor:
    """Open the data, resolve the request against it, train, and load what was trained.

    With ``relabel``, what the opened data becomes is learned in place of its own labels, and it need not have any.
    """
    return timed_request(data, out, request, relabel)[0]


def timed_request(
    data: Any, out: Path, request: TrainRequest, relabel: Relabel | None = None
) -> tuple[Predictor, float]:
    """:func:`run_request`, and how many seconds of it were spent in the training loop.

    Whatever can be refused before the data is read is refused before anything is written.
    """
    refuse_to_overwrite(out, request.resume)
    check_wishes(data, request.recipe, request.split, relabel is None)
    if request.resume and is_first_format(out):
        return Predictor.load(out, request.where.device, request.model), 0.0  # It is finished, or it would be refused.
    start = None
    if request.start is not None:
        start = Start.read(request.start, request.freeze, keeps_head=request.attention is not None)
        if request.attention is not None:
            # What a person sets by hand is the last word.
            request = replace(request, settings={**start.fine_tuning(request.attention), **request.settings})
    recipe = replace(request.recipe, split=request.split.column)
    if start is not None and start.policy is not None:
        # How large a molecule may be is the caller's to say: it decides which ones are read, and not how. So are
        # features, which a new head can read; those that the old model was given are given again if none are named.
        asked = recipe.policy
        features = asked.features or (start.policy.features if request.default_features else ())
        recipe = replace(recipe, policy=replace(start.policy, max_atoms=asked.max_atoms, features=features))
    begun = request.resume and (out / RUN_FILE).is_file()
    if not begun and request.takes_default_features and is_molecule_table(data, MOST_FEATURED):
        recipe = replace(recipe, policy=replace(recipe.policy, features=DEFAULT_FEATURES))
    if request.is_averaged(recipe.policy.features) and not begun and is_molecule_table(data, MOST_AVERAGED):
        request = replace(request, ensemble=DEFAULT_MODELS)
    if begun:
        recipe, request = _as_begun(recipe, out, request.takes_default_features), _as_many(request, out)
    fabric = make_fabric(request.where, request.training.precision)
    first, quiet = fabric.is_global_zero, request.quiet

    def opened(shown: bool) -> Store:
        store = open_data(
            data,
            recipe,
            out / STORE,
            workers=request.workers,
            quiet=quiet or not shown,
            max_rejected=request.max_rejected,
            labelled=relabel is None,
        )
        return store if relabel is None else relabel(store, shown and not quiet)

    say: Say = (lambda sentence: None) if quiet or not first else (lambda sentence: print(sentence, file=sys.stderr))
    with ExitStack() as held:

        def opened_first() -> Store:
            held.enter_context(run_folder(out, request.resume, is_prepared_first(data)))
            with meanwhile(partial(warm_up, fabric.device, request.training.forest != "never")):
                return opened(True)

        store = _first_alone(fabric, opened_first)
        if store is None:
            store = opened(False)
        check_files(data, store)
        seconds = train_run(fabric, store, request, start, out, say)
        fabric.barrier()
        return Predictor.load(out, request.where.device, request.model), seconds


def _as_begun(recipe: Recipe, out: Path, default_features: bool) -> Recipe:
    """What a run was begun with where nobody asks for anything else.

    Older versions knew only atoms as they are spelled, and gave a model no features by themselves.
    """
    policy = read_run(out).molecules
    if policy is None:
        return recipe
    features = policy.features if default_features else recipe.policy.features
    return replace(recipe, policy=replace(recipe.policy, atoms=policy.atoms, features=features))


def _as_many(request: TrainRequest, out: Path) -> TrainRequest:
    """As many models as the run was begun with, where nobody asks for any number of them."""
    if request.ensemble is not None or request.split.folds:
        return request
    members = read_run(out).members
    return (
        request if any(name.startswith("fold-") for name in members) else replace(request, ensemble=len(members) or 1)
    )


def _first_alone(fabric: Any, act: Callable[[], Store]) -> Store | None:
    """What the first process gives, and None in the others; where it fails, all stop with its sentence."""
    if fabric.world_size == 1:
        return act()
    store: Store | None = None
    problem: Exception | None = None
    if fabric.is_global_zero:
        try:
            store = act()
        except (ValueError, OSError, ImportError) as error:
            problem = error
    sentence = fabric.broadcast(None if problem is None else str(problem))
    if problem is not None:
        raise problem
    if sentence is not None:
        raise ValueError(sentence)
    return store
