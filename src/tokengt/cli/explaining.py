"""explain."""

import argparse
from pathlib import Path
from typing import Any


def add_verbs(verbs: Any) -> None:
    verb = verbs.add_parser(
        "explain",
        help="show what a prediction is made of, as a page",
        description="Write one HTML file that opens in any browser, without a network: the graph with its attention, "
        "what moved the prediction, how far each head looks and what it does. With --summary, a page on how good the "
        "run is on a file with labels, and where it is wrong.",
    )
    verb.add_argument("model", type=Path, metavar="RUN", help="a trained run, or pretrained:gap")
    verb.add_argument("given", metavar="INPUT", help="a SMILES, or a file as predict takes it, with --row")
    verb.add_argument("--row", type=int, metavar="N", help="which row (or graph) of the file, counted from 1")
    verb.add_argument("--summary", action="store_true", help="the whole file, which has labels, instead of one row")
    verb.add_argument(
        "--out", type=Path, default=Path("report.html"), metavar="REPORT.html", help="default: report.html"
    )
    verb.add_argument("--force", action="store_true", help="replace --out if it exists")
    verb.add_argument("--target", metavar="NAME", help="the target or class to explain (default: all, if they are few)")
    verb.add_argument("--item", type=int, default=0, metavar="N", help="which node or edge, if the run predicts those")
    verb.add_argument("--no-attributions", action="store_true", help="attention alone, which is quicker")
    verb.add_argument("--smiles", metavar="COL", help="the column of SMILES (default: as in training)")
    verb.add_argument("--descriptors", nargs="+", type=float, metavar="X", help="of a SMILES, if the run was given any")
    verb.add_argument("--draws", type=int, default=1, metavar="K", help="explain the mean of K draws (default: 1)")
    verb.add_argument(
        "--over", choices=("identifiers", "dropout"), default="identifiers", help="what differs between draws"
    )
    verb.add_argument("--data", type=Path, metavar="STORE", help="the run's data, where it does not lie in the run")
    verb.add_argument("--max-atoms", type=int, metavar="N", help="refuse larger molecules (default: as in training)")
    verb.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    verb.set_defaults(run=_explain)


def _explain(options: argparse.Namespace) -> int:
    if options.summary:
        return _summary(options)
    from tokengt.workflow.reporting import explain_file

    report = explain_file(
        options.model,
        options.given,
        options.out,
        row=options.row,
        smiles=options.smiles,
        descriptors=options.descriptors,
        target=options.target,
        item=options.item,
        attributions=not options.no_attributions,
        draws=options.draws,
        over=options.over,
        data=options.data,
        device=options.device,
        max_atoms=options.max_atoms,
        overwrite=options.force,
    )
    print(f"{options.out}: {report}")
    return 0


def _summary(options: argparse.Namespace) -> int:
    from tokengt.workflow.summarising import summary_file

    of_one_row = {
        "--row": options.row is not None,
        "--target": options.target is not None,
        "--item": options.item != 0,
        "--descriptors": options.descriptors is not None,
        "--no-attributions": options.no_attributions,
    }
    for option, given in of_one_row.items():
        if given:
            raise ValueError(f"{option} is about one row, and --summary about the whole file; leave one of them out")
    report = summary_file(
        options.model,
        options.given,
        options.out,
        smiles=options.smiles,
        draws=options.draws,
        over=options.over,
        store=options.data,
        device=options.device,
        max_atoms=options.max_atoms,
        overwrite=options.force,
    )
    print(f"{options.out}: {report}")
    return 0
