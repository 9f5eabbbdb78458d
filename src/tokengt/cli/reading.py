"""predict, evaluate, embed and info."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokengt.cli.running import add_node_options, add_worker_options, data_of

if TYPE_CHECKING:
    from tokengt.workflow.predicting import Predicted


def add_verbs(verbs: Any) -> None:
    _add_predict(verbs)
    _add_evaluate(verbs)
    _add_embed(verbs)
    _add_info(verbs)


def _add_predict(verbs: Any) -> None:
    verb = verbs.add_parser(
        "predict",
        help="predict every row of a file",
        description="Every row comes back in order with its columns, a prediction, or the reason why there is none.",
    )
    _reading_options(verb)
    verb.add_argument("--out", type=Path, required=True, metavar="OUT.csv", help="the file to write")
    _force_option(verb)
    verb.add_argument(
        "--draws",
        type=int,
        default=1,
        metavar="K",
        help="the mean of K draws of each model, with their spread (default: 1)",
    )
    verb.add_argument(
        "--over", choices=("identifiers", "dropout"), default="identifiers", help="what differs between draws"
    )
    verb.add_argument(
        "--interval",
        type=float,
        metavar="SHARE",
        help="columns low_ and high_ that are to hold this share of the true values, such as 0.9",
    )
    verb.add_argument(
        "--neighbours",
        action="store_true",
        help="columns similarity, distance, unlike_training: how near the training data is (--interval has them too)",
    )
    verb.set_defaults(run=_predict)


def _add_evaluate(verbs: Any) -> None:
    verb = verbs.add_parser("evaluate", help="compare predictions with the labels of a file")
    _reading_options(verb)
    verb.add_argument("--out", type=Path, metavar="DIR", help="write the picture and the numbers there")
    _force_option(verb)
    verb.add_argument("--json", action="store_true", help="print the numbers as JSON")
    verb.set_defaults(run=_evaluate)


def _add_embed(verbs: Any) -> None:
    verb = verbs.add_parser("embed", help="write the model's vector of every graph")
    _reading_options(verb)
    verb.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="VECTORS.npz",
        help="the file to write: .npz, .csv or .parquet",
    )
    _force_option(verb)
    verb.set_defaults(run=_embed)


def _reading_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("model", type=Path, metavar="RUN", help="a trained run")
    verb.add_argument(
        "source", nargs="?", type=Path, metavar="IN", help="a file or name as prepare takes it, or a store"
    )
    add_node_options(verb)
    verb.add_argument("--smiles", metavar="COL", help="the column of SMILES (default: as in training)")
    verb.add_argument("--max-atoms", type=int, metavar="N", help="refuse larger molecules (default: as in training)")
    verb.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add_worker_options(verb)


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """What all three verbs that read rows are given alike, by the names that their functions have for it."""
    return {
        "smiles": options.smiles,
        "overwrite": options.force,
        "device": options.device,
        "max_atoms": options.max_atoms,
        "workers": options.workers,
        "engine": options.engine,
    }


def _paced(done: "Predicted") -> None:
    """Prints how fast it was and what would make it faster; ``tokengt bench`` reads this line."""
    pace = done.pace
    if pace is None or not pace.rows:
        return
    helps = ""
    if pace.limit == "reading" and pace.workers:
        spare = pace.workers < pace.cores
        helps = "; more --workers help" if spare else "; all cores read: more of them, or --engine ray, help"
    print(f"{pace}{helps}")


def _force_option(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--force", action="store_true", help="replace --out if it exists")


def _add_info(verbs: Any) -> None:
    verb = verbs.add_parser("info", help="say what a store, a run or a model is")
    verb.add_argument("path", type=Path, metavar="PATH")
    verb.set_defaults(run=_info)


def _predict(options: argparse.Namespace) -> int:
    from tokengt.workflow.predicting import predict_file

    own = {
        "draws": options.draws,
        "over": options.over,
        "interval": options.interval,
        "neighbours": options.neighbours,
    }
    done = predict_file(options.model, data_of(options, options.source), options.out, **own, **_given(options))
    print(f"{options.out}: {done}" + (" (see the column reason)" if done.bad else ""))
    _paced(done)
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    from tokengt.workflow.evaluating import evaluate

    data = data_of(options, options.source)
    evaluation = evaluate(options.model, data, out=options.out, **_given(options))
    print(evaluation.to_json() if options.json else f"{options.source or data.name}: {evaluation}")
    return 0


def _embed(options: argparse.Namespace) -> int:
    from tokengt.workflow.predicting import embed_file

    done = embed_file(options.model, data_of(options, options.source), options.out, **_given(options))
    print(f"{options.out}: {done}")
    _paced(done)
    return 0


def _info(options: argparse.Namespace) -> int:
    from tokengt.workflow.describing import info

    print("\n".join(info(options.path)))
    return 0
