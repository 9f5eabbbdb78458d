"""prepare, train and finetune."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from tokengt.cli.settings import PLAIN, settings
from tokengt.data.manifest import TaskKind
from tokengt.level import Level

if TYPE_CHECKING:
    from tokengt.data.manifest import Recipe
    from tokengt.interop.molecules import MoleculePolicy
    from tokengt.workflow.fitting import TrainOptions

# What --features says where the model is to be given none, also where it would have some by itself.
_NONE = "none"


def add_verbs(verbs: Any) -> None:
    _add_prepare(verbs)
    _add_train(verbs)
    _add_finetune(verbs)


def _add_prepare(verbs: Any) -> None:
    verb = verbs.add_parser(
        "prepare",
        help="turn a file of molecules or graphs into a store",
        description="Read a file once and keep it packed, checked and ready to train on. Rows that cannot be read go "
        "to STORE/rejected.csv with their line and reason. The same command goes on where a stopped one was.",
    )
    verb.add_argument(
        "source",
        type=Path,
        metavar="IN",
        help="CSV, TSV (.gz, .xz), Parquet, SDF, SMI, PyG .pt, JSON folder, or a name that tokengt datasets lists",
    )
    verb.add_argument("--out", type=Path, required=True, metavar="STORE", help="the folder to make")
    add_data_options(verb)
    verb.add_argument("--split-column", metavar="COL", help="a column of train, valid and test")
    add_worker_options(verb)
    verb.set_defaults(run=_prepare)


def add_worker_options(verb: argparse.ArgumentParser) -> None:
    """Where the rows of a table become graphs."""
    verb.add_argument("--workers", type=int, metavar="N", help="processes (default: all cores)")
    verb.add_argument("--engine", choices=("processes", "ray"), default="processes", help="ray: a cluster")


def add_data_options(verb: argparse.ArgumentParser, policy: bool = True) -> None:
    """Which columns mean what and, with ``policy``, how molecules become graphs."""
    data = verb.add_argument_group("data")
    data.add_argument("--smiles", metavar="COL", help="the column of SMILES (default: the one called smiles)")
    data.add_argument(
        "--target",
        nargs="+",
        default=[],
        metavar="COL",
        help="the columns to learn: names, patterns such as 'NR-*', or all (of numbers)",
    )
    data.add_argument("--descriptors", nargs="+", default=[], metavar="COL", help="numeric columns given to the model")
    data.add_argument("--weights", metavar="COL", help="a numeric column: how much each row counts in training")
    data.add_argument(
        "--censored",
        choices=("reject", "learn"),
        default="reject",
        help="labels such as >3.69: reject their rows, or learn from the bound (default: reject)",
    )
    data.add_argument("--task", choices=get_args(TaskKind), help="default: guessed from the labels")
    data.add_argument("--level", choices=get_args(Level), help="what a label belongs to (default: guessed)")
    data.add_argument(
        "--max-rejected",
        type=float,
        default=0.5,
        metavar="SHARE",
        help="stop when a larger share of the rows cannot be read (default: 0.5)",
    )
    data.add_argument(
        "--max-atoms", type=int, default=1000, metavar="N", help="a molecule of more is rejected (default: 1000)"
    )
    data.add_argument(
        "--features",
        default="",
        metavar="KINDS",
        help="numbers about each molecule that the model is given too: rdkit2d, morgan, rdkit2d,morgan or none "
        "(default to train: both with small-pretrained and at most 20,000 rows; to finetune: those of RUN; else none)",
    )
    if not policy:
        return
    data.add_argument("--salts", choices=("keep", "largest"), default="keep", help="largest: only the largest fragment")
    data.add_argument("--stereo", choices=("keep", "drop"), default="keep", help="chirality and cis/trans")
    data.add_argument("--hydrogens", choices=("implicit", "explicit"), default="implicit", help="explicit: as nodes")
    data.add_argument(
        "--atoms",
        choices=("canonical", "spelled"),
        default="canonical",
        help="canonical: all spellings of a molecule are one graph; spelled: in the order of the text, as OGB has it",
    )


def _add_train(verbs: Any) -> None:
    verb = verbs.add_parser(
        "train",
        help="train a model on a file or a store",
        description="Train, choose the best epoch by the validation part, report the test part. RUN then holds the "
        "weights, the model card, the metrics, the predictions of the test part and pictures.",
    )
    verb.add_argument(
        "data", nargs="?", type=Path, metavar="DATA", help="a file, folder or name as prepare takes it, or a store"
    )
    add_node_options(verb)
    verb.add_argument(
        "--preset",
        default="auto",
        help="the model; tokengt presets lists them (default: small-pretrained for molecules, nodes for nodes or "
        "links of one graph, small for other graphs)",
    )
    _run_options(verb)
    verb.set_defaults(run=_train, start=None, freeze=False, attention=None)


def add_node_options(verb: argparse.ArgumentParser) -> None:
    """A graph of one's own as a table of nodes and a table of edges, in place of DATA."""
    graph = verb.add_argument_group("a graph as two tables, in place of DATA")
    graph.add_argument("--nodes", type=Path, metavar="FILE", help="CSV, TSV or Parquet: ids, features and labels")
    graph.add_argument("--edges", type=Path, metavar="FILE", help="two columns of ids, and features such as a weight")
    graph.add_argument("--id", metavar="COL", help="the column of ids (default: id, node or name, else the first)")
    graph.add_argument(
        "--ends",
        nargs=2,
        metavar="COL",
        help="the columns that name the nodes of an edge (default: source and target, else the first two)",
    )
    graph.add_argument("--directed", action="store_true", help="edges join one way (default: both)")
    graph.add_argument(
        "--pairs",
        type=Path,
        metavar="FILE",
        help="links: two columns of ids, and labels 1 or 0 (default to train: the edges are the links)",
    )


def data_of(options: argparse.Namespace, given: Path | None) -> Any:
    """What a person names: DATA, or two tables.

    Raises:
        ValueError: neither of them, both, or half of the tables.
    """
    from tokengt.data.node_tables import NodeFiles

    nodes, edges, pairs = (getattr(options, name, None) for name in ("nodes", "edges", "pairs"))
    if pairs is not None and (nodes is None or edges is None):
        raise ValueError(f"{pairs} names pairs of nodes of a graph; expected its tables, --nodes and --edges, as well")
    if nodes is None and edges is None:
        if given is None:
            raise ValueError("there is no data; give a file, folder or name, or a graph by --nodes and --edges")
        return given
    if given is not None:
        raise ValueError(f"{given} and tables of nodes and edges are given; expected one of the two")
    if nodes is None or edges is None:
        raise ValueError("a graph needs two tables; expected both --nodes and --edges")
    source, target = options.ends or (None, None)
    return NodeFiles(nodes, edges, options.id, source, target, options.directed, pairs)


def _add_finetune(verbs: Any) -> None:
    verb = verbs.add_parser(
        "finetune",
        help="train a new head on a trained model, or the model with another attention",
        description="Begin with the weights of a run or saved model and a new head, and train on other data; or, with "
        "--attention, keep the head too and train a while with another kind of attention.",
    )
    verb.add_argument("start", type=Path, metavar="RUN", help="a run or a saved model")
    verb.add_argument("data", type=Path, metavar="DATA", help="a file, folder or name as prepare takes it, or a store")
    verb.add_argument("--freeze", action="store_true", help="train the head alone")
    verb.add_argument(
        "--attention",
        metavar="KIND",
        help="softmax, favor or elu: switch to it and keep the head, by the recipe of RUN for a tenth of its epochs",
    )
    _run_options(verb, policy=False)
    # Molecules are read by the policy of the run to begin with; these defaults are for a saved model, which has none.
    verb.set_defaults(run=_train, preset="auto", salts="keep", stereo="keep", hydrogens="implicit", atoms="canonical")


def _run_options(verb: argparse.ArgumentParser, policy: bool = True) -> None:
    verb.add_argument("--out", type=Path, required=True, metavar="RUN", help="the run folder to make")
    verb.add_argument("--resume", action="store_true", help="go on with a stopped run (begin it if there is none)")
    add_setting_options(verb)
    add_split_options(verb)
    verb.add_argument("--folds", type=int, default=0, metavar="K", help="cross-validate with K models")
    verb.add_argument(
        "--ensemble",
        type=int,
        metavar="N",
        help="average N models (default: 1; in train 3 for up to 3,000 molecules with the default model and features)",
    )
    verb.add_argument("--seed", type=int, default=0, help="of split, weights and training (default: 0)")
    add_data_options(verb, policy)
    where = verb.add_argument_group("devices")
    where.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    where.add_argument("--devices", type=int, default=1, metavar="N", help="processes here; torchrun sets its own")
    where.add_argument("--strategy", choices=("auto", "ddp", "fsdp"), default="auto")
    where.add_argument("--workers", type=int, metavar="N", help="processes that prepare the file (default: all cores)")


def add_setting_options(verb: argparse.ArgumentParser) -> None:
    """How a model is trained."""
    words = {
        "--epochs": ("N", "passes over the training part (default: by its size)"),
        "--batch-size": ("N", "graphs per step (default: 32)"),
        "--lr": ("RATE", "the peak of the learning rate (default: 0.001)"),
        "--metric": ("NAME", "chooses the best epoch: mae, spearman, prc, ... (default: rmse, roc_auc or accuracy)"),
        "--loss": (
            "NAME",
            "mse, mae, huber, quantile or gaussian for numbers, cross_entropy for classes",
        ),
    }
    for option in PLAIN:
        metavar, meaning = words[option]
        verb.add_argument(option, metavar=metavar, help=meaning)
    verb.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any setting: model.dim=256, training.ema=0.999",
    )
    verb.add_argument(
        "--auxiliary",
        default="",
        metavar="KINDS",
        help="numbers about each molecule to learn beside the targets: rdkit2d, morgan, or rdkit2d,morgan",
    )


def add_split_options(verb: argparse.ArgumentParser) -> None:
    """Which rows train, validate and test."""
    verb.add_argument("--valid", type=Path, metavar="FILE", help="a table of its own for the validation part")
    verb.add_argument("--test", type=Path, metavar="FILE", help="a table of its own for the test part")
    verb.add_argument(
        "--split",
        default="auto",
        metavar="SPLIT",
        help="random, per-class, scaffold, scaffold-sorted, column:NAME, or given by a store or PyG masks (default: "
        "given if any is, else random)",
    )
    verb.add_argument(
        "--fractions",
        nargs=3,
        type=float,
        metavar="F",
        help="train, valid, test (0.8 0.1 0.1)",
    )


def _prepare(options: argparse.Namespace) -> int:
    from tokengt.data.named import prepare_any
    from tokengt.data.tables import listed

    recipe = _recipe(options)
    store = prepare_any(
        options.source,
        options.out,
        recipe,
        workers=options.workers,
        engine=options.engine,
        max_rejected=options.max_rejected,
    )
    rejected, what = store.manifest.rejected, "row" if store.is_molecules else "graph"
    ending = (
        f", {rejected:,} {what}s rejected: see {options.out / 'rejected.csv'}" if rejected else f", no {what} rejected"
    )
    names = store.manifest.target_names
    patterns = bool(options.target) and set(names) != set(options.target)
    chosen = f"; the targets are {listed(names)}" if patterns else ""
    print(f"{options.out}: {len(store):,} graphs{ending}{chosen}")
    return 0


def _recipe(options: argparse.Namespace) -> "Recipe":
    from tokengt.data.manifest import Recipe

    return Recipe(
        smiles=options.smiles,
        targets=tuple(options.target),
        descriptors=tuple(options.descriptors),
        split=options.split_column,
        task=options.task,
        level=options.level,
        policy=_policy(options),
        weights=options.weights,
        censored=options.censored,
    )


def _policy(options: argparse.Namespace) -> "MoleculePolicy":
    from tokengt.interop.molecules import MoleculePolicy

    features = _kinds(options.features)
    return MoleculePolicy(options.salts, options.stereo, options.hydrogens, options.max_atoms, options.atoms, features)


def _kinds(listed: str) -> tuple[str, ...]:
    return () if listed == _NONE else tuple(kind.strip() for kind in listed.split(",") if kind.strip())


def _train(options: argparse.Namespace) -> int:
    from tokengt.workflow.fitting import train

    train(data_of(options, options.data), options.out, **_run_arguments(options))
    return _report(options.out)


def _run_arguments(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "valid": options.valid,
        "test": options.test,
        "smiles": options.smiles,
        "target": options.target,
        "task": options.task,
        "split": options.split,
        "preset": options.preset,
        "start": options.start,
        "freeze": options.freeze,
        "attention": options.attention,
        "settings": settings(options),
        "seed": options.seed,
        "device": options.device,
        "resume": options.resume,
        "options": train_options(options),
    }


def train_options(options: argparse.Namespace) -> "TrainOptions":
    from tokengt.data.splits import STANDARD
    from tokengt.workflow.fitting import TrainOptions

    return TrainOptions(
        descriptors=tuple(options.descriptors),
        weights=options.weights,
        censored=options.censored,
        level=options.level,
        policy=_policy(options),
        fractions=STANDARD if options.fractions is None else tuple(options.fractions),
        folds=options.folds,
        default_features=options.features != _NONE,
        auxiliary=_kinds(options.auxiliary),
        ensemble=options.ensemble,
        devices=options.devices,
        strategy=options.strategy,
        workers=options.workers,
        max_rejected=options.max_rejected,
    )


def _report(folder: Path) -> int:
    """How good the run is, and what to open; said by the first process alone."""
    from tokengt.workflow.describing import outcome

    for line in outcome(folder):
        print(line)
    return 0
