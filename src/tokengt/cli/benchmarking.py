"""benchmark: tokengt beside its rivals on public data with official splits."""

import argparse
from pathlib import Path
from typing import Any

from tokengt.cli.settings import named_values

_OUT = Path("results") / "admet"


def add_verbs(verbs: Any) -> None:
    verb = verbs.add_parser("benchmark", help="measure tokengt beside its rivals on official splits of public data")
    benchmarks = verb.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    admet = benchmarks.add_parser(
        "admet",
        help="the 22 endpoints of TDC's ADMET group, with intervals, paired comparisons and a leak report",
        description="Train every system on every endpoint, with several seeds, each of which keeps an eighth of "
        "train_val for choosing, by whole scaffolds; the test part is predicted once. The same command goes on where a "
        "stopped one was, and more endpoints, systems and seeds can be added later. Writes table.md, table.json, "
        "admet.json and pictures. Needs TOKENGT_DATA, whose folder admet holds a table for each endpoint, or --data.",
    )
    admet.add_argument("--endpoints", nargs="+", metavar="NAME", help="such as herg caco2 (default: all 22)")
    admet.add_argument(
        "--systems",
        nargs="+",
        metavar="NAME",
        help="tokengt, tokengt-start, random-forest, gradient-boosting, chemprop, chemeleon, or any preset (default: "
        "all of these that can be run here)",
    )
    admet.add_argument("--seeds", type=int, default=5, metavar="N", help="trainings of each system (default: 5)")
    admet.add_argument("--at-once", type=int, default=1, metavar="K", help="trainings side by side (default: 1)")
    admet.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    admet.add_argument("--data", metavar="FOLDER", help="of the endpoints (default: admet of TOKENGT_DATA)")
    admet.add_argument("--chemprop", metavar="PYTHON", help="of an environment that has chemprop 2")
    admet.add_argument("--chemeleon", metavar="FOLDER", help="that holds the weights chemeleon_mp.pt")
    admet.add_argument("--start", metavar="MODEL", help="a saved model or run that tokengt-start begins with")
    admet.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="of tokengt's trainings")
    admet.add_argument(
        "--seen",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="tables of molecules that weights were trained on (or their keys, .npy), for the leak report",
    )
    admet.add_argument(
        "--leaks",
        choices=("all", "keys", "within", "none"),
        default="all",
        help="look for test molecules in train_val and in what the weights were trained on; keys: without neighbours "
        "in the latter, which takes minutes instead of half an hour; within: in train_val alone (default: all)",
    )
    admet.add_argument("--table", action="store_true", help="train nothing: write the table of what is there")
    admet.add_argument("--out", type=Path, default=_OUT, metavar="DIR", help=f"default: {_OUT}")
    admet.set_defaults(run=_admet)


def _admet(options: argparse.Namespace) -> int:
    from tokengt.experiments.admet.benchmark import run_admet
    from tokengt.experiments.admet.endpoints import ENDPOINTS
    from tokengt.experiments.admet.plan import AdmetConfig
    from tokengt.experiments.admet.report import PICTURE, TABLE

    config = AdmetConfig(
        endpoints=tuple(options.endpoints or ENDPOINTS),
        systems=tuple(options.systems or ()),
        seeds=options.seeds,
        at_once=options.at_once,
        device=options.device,
        data=options.data,
        chemprop=options.chemprop,
        chemeleon=options.chemeleon,
        start=options.start,
        settings=named_values(options.set),
    )
    leaks = None if options.leaks == "none" else options.leaks
    run_admet(config, options.out, seen=options.seen, leaks=leaks, train=not options.table, progress=_say)
    print((options.out / TABLE).read_text(encoding="utf-8"))
    print(f"open {options.out / PICTURE}")
    return 0


def _say(line: str) -> None:
    print(line, flush=True)
