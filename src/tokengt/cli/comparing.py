"""compare."""

import argparse
from pathlib import Path
from typing import Any

from tokengt.cli.running import add_data_options, add_setting_options, add_split_options, train_options
from tokengt.cli.settings import settings


def add_verbs(verbs: Any) -> None:
    verb = verbs.add_parser(
        "compare",
        help="train several models on the same splits of your data and compare them",
        description="Train every preset on the same splits with the loop of tokengt train, beside floors that any "
        "model should beat. DIR then holds table.md, table.json, comparison.json, comparison.png and a run folder "
        "for every training. The same command goes on where a stopped one was.",
    )
    verb.add_argument("data", type=Path, metavar="DATA", help="a file or folder as prepare takes it, or a store")
    verb.add_argument(
        "--presets", required=True, metavar="NAMES", help="with commas between them; tokengt presets lists them"
    )
    verb.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to make, or to go on in")
    repeats = verb.add_mutually_exclusive_group()
    repeats.add_argument("--folds", type=int, default=0, metavar="K", help="cross-validate every preset with K folds")
    repeats.add_argument("--seeds", type=int, metavar="N", help="train every preset N times (default: 3)")
    verb.add_argument(
        "--budget",
        type=float,
        metavar="MINUTES",
        help="of training for each preset, shared evenly by its trainings; each ends with an epoch",
    )
    verb.add_argument(
        "--reference", metavar="NAME", help="whom differences are taken to (default: the one with the best mean)"
    )
    verb.add_argument(
        "--floors",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also what the training labels alone predict, a linear model and a random forest (default: yes)",
    )
    verb.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    add_setting_options(verb)
    add_split_options(verb)
    add_data_options(verb)
    where = verb.add_argument_group("devices")
    where.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    where.add_argument("--workers", type=int, metavar="N", help="processes that prepare the file (default: all cores)")
    verb.set_defaults(run=_compare, ensemble=1, devices=1, strategy="auto")


def _compare(options: argparse.Namespace) -> int:
    from dataclasses import replace

    from tokengt.workflow.comparing import compare
    from tokengt.workflow.comparing_report import PICTURE, TABLE

    compare(
        options.data,
        options.out,
        options.presets,
        valid=options.valid,
        test=options.test,
        smiles=options.smiles,
        target=options.target,
        task=options.task,
        split=options.split,
        folds=options.folds,
        seeds=options.seeds,
        budget=options.budget,
        reference=options.reference,
        floors=options.floors,
        settings=settings(options),
        seed=options.seed,
        device=options.device,
        options=replace(train_options(options), folds=0),
    )
    print((options.out / TABLE).read_text(encoding="utf-8"))
    print(f"open {options.out / PICTURE}")
    return 0
