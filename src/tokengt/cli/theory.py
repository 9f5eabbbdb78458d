"""verify and reproduce."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokengt.theory.verify import Claim


def add_verbs(verbs: Any) -> None:
    _add_verify(verbs)
    _add_reproduce(verbs)


def _add_verify(verbs: Any) -> None:
    verb = verbs.add_parser(
        "verify",
        help="check the paper's claims on this machine",
        description="Pour the weights of the paper's proofs into the encoder and measure every claim of its Section 3 "
        "in float64, beside a bound in sharpness a, nodes n, order k and identifier width d_p (here n). "
        "Exit status 1 if one fails.",
    )
    verb.add_argument("--order", type=int, choices=(1, 2, 3), help="k (default: 1, 2 and 3)")
    verb.add_argument("--nodes", type=int, metavar="N", help="n (default: 6, 5, 4 at order 1, 2, 3)")
    verb.add_argument("--sharpness", type=float, default=1000.0, metavar="A", help="a (default: 1000)")
    verb.add_argument("--seed", type=int, default=0, help="of weights, inputs and identifiers (default: 0)")
    verb.add_argument("--json", action="store_true", help="print one JSON list instead")
    verb.set_defaults(run=_verify)


def _verify(options: argparse.Namespace) -> int:
    from tokengt.theory.verify import DEFAULT_NODES, ORDERS, Setting, verify

    claims = []
    for order in ORDERS if options.order is None else (options.order,):
        nodes = DEFAULT_NODES[order] if options.nodes is None else options.nodes
        setting = Setting(order, nodes, options.sharpness, options.seed)
        if not options.json:
            print(setting)
        for claim in verify(setting):
            claims.append(claim)
            if not options.json:
                print(_line(claim), flush=True)
    if options.json:
        print(json.dumps([claim.to_dict() for claim in claims], indent=1))
    failed, blunt = (sum(claim.verdict == verdict for claim in claims) for verdict in ("fails", "too blunt"))
    if not options.json:
        print(f"{failed} of {len(claims)} claims fail" if failed else f"no claim of {len(claims)} fails")
        if blunt:
            print(f"{blunt} keep to their bounds and approximate nothing: raise --sharpness")
    return 1 if failed else 0


def _line(claim: "Claim") -> str:
    start = f"  {claim.name:18} {claim.statement:78}"
    if claim.measured is None or claim.bound is None:
        return f"{start} {claim.verdict}: {claim.note}"
    sign = ">=" if claim.formula.startswith(">=") else "<="
    numbers = f"{claim.measured:8.2e} {sign} {claim.bound:8.2e}"
    note = f" ({claim.note})" if claim.note else ""
    return f"{start} {numbers}  {claim.verdict:9}  {claim.formula.removeprefix('>= ')}{note}"


def _add_reproduce(verbs: Any) -> None:
    verb = verbs.add_parser("reproduce", help="run an experiment of the paper")
    experiments = verb.add_subparsers(title="experiments", metavar="EXPERIMENT", required=True)
    basis = experiments.add_parser(
        "basis",
        help="Table 1: attention heads learn the second-order equivariant basis",
        description="Train one attention layer to show the 15 basis tensors, for ten settings of identifiers, dense "
        "and sparse input. The same command goes on where a stopped one was. Writes table.json, table.md, "
        "statistics.json and the attention maps. About 30 s a cell on an H200, 60 cells in all.",
    )
    basis.add_argument("--input", choices=("dense", "sparse"), help="default: both")
    basis.add_argument("--ids", nargs="+", metavar="KIND", help="none, random, orf, laplacian, ... (default: all)")
    basis.add_argument(
        "--type", action=argparse.BooleanOptionalAction, default=None, help="with or without type identifiers"
    )
    basis.add_argument("--seeds", type=int, default=3, metavar="N", help="runs a cell (default: 3)")
    basis.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    basis.add_argument("--out", type=Path, default=Path("results/basis"), metavar="DIR", help="default: results/basis")
    basis.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="width=128, steps=200, dense_batch=32, ..."
    )
    basis.set_defaults(run=_basis)


def _basis(options: argparse.Namespace) -> int:
    from tokengt.cli.settings import named_values
    from tokengt.config import override
    from tokengt.experiments.basis import INPUTS, BasisConfig, run_basis, select_settings
    from tokengt.training.processes import DeviceConfig

    config = override(BasisConfig(), named_values(options.set), "basis")
    if options.seeds < 1:
        raise ValueError(f"seeds is {options.seeds}; expected at least 1")
    run_basis(
        select_settings(options.ids, options.type),
        INPUTS if options.input is None else (options.input,),
        range(options.seeds),
        out=options.out,
        device=DeviceConfig(options.device).resolved,
        config=config,
        progress=lambda line: print(line, flush=True),
    )
    print((options.out / "table.md").read_text(encoding="utf-8"))
    print(f"open {options.out / 'maps-dense.png'}, {options.out / 'maps-sparse.png'}")
    return 0
