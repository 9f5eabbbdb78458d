"""datasets and submit."""

import argparse
from pathlib import Path
from typing import Any


def add_verbs(verbs: Any) -> None:
    _add_datasets(verbs)
    _add_submit(verbs)


def _add_datasets(verbs: Any) -> None:
    verb = verbs.add_parser(
        "datasets",
        help="list the public data sets that are known by name",
        description="A name can stand wherever a file of molecules can. A data set is looked for under TOKENGT_DATA, "
        "else downloaded at its first use, and prepared once with its official split.",
    )
    verb.set_defaults(run=_datasets)


def _add_submit(verbs: Any) -> None:
    verb = verbs.add_parser(
        "submit",
        help="write the file that the PCQM4Mv2 leaderboard takes",
        description="Predict PCQM4Mv2's test-dev part and write DIR/y_pred_pcqm4m-v2_test-dev.npz.",
    )
    verb.add_argument("model", type=Path, metavar="RUN", help="a trained run that predicts the gap in eV")
    verb.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to write to")
    verb.add_argument("--force", action="store_true", help="replace the file if it exists")
    verb.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    verb.add_argument("--workers", type=int, metavar="N", help="processes that prepare the data (default: all cores)")
    verb.set_defaults(run=_submit)


def _datasets(options: argparse.Namespace) -> int:
    from tokengt.data.catalogue import DATASETS
    from tokengt.data.named import describe

    head = ("name", "rows", "task", "split", "size", "where")
    lines = [head]
    for name, dataset in DATASETS.items():
        where, size = describe(dataset)
        lines.append((name, f"{dataset.rows:,}", dataset.task, dataset.split, size, where))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    return 0


def _submit(options: argparse.Namespace) -> int:
    from tokengt.workflow.submitting import SUBMISSION, submit

    done = submit(options.model, options.out, overwrite=options.force, device=options.device, workers=options.workers)
    print(f"{options.out / SUBMISSION}: {done}")
    return 0
