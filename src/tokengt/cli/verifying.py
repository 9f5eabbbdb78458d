"""verify."""

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokengt.theory.claims import Claim


def add_verbs(verbs: Any) -> None:
    _add_verify(verbs)


def _add_verify(verbs: Any) -> None:
    verb = verbs.add_parser(
        "verify",
        help="check the paper's claims on this machine",
        description="Pour the weights of the paper's proofs into the encoder and measure every claim of its Section 3 "
        "in float64, beside a bound in sharpness a, nodes n, order k and identifier width d_p (here n). "
        "Exit status 1 if one fails.",
    )
    verb.add_argument("--order", type=int, choices=(1, 2, 3), help="k (default: 1, 2 and 3)")
    verb.add_argument(
        "--nodes",
        type=int,
        metavar="N",
        help="n (default: 6, 5, 4 at order 1, 2, 3, and 6 for k-WL, where n is 6 at most)",
    )
    verb.add_argument("--sharpness", type=float, default=1000.0, metavar="A", help="a (default: 1000)")
    verb.add_argument("--seed", type=int, default=0, help="of weights, inputs and identifiers (default: 0)")
    verb.add_argument("--json", action="store_true", help="print one JSON list instead")
    verb.set_defaults(run=_verify)


def _verify(options: argparse.Namespace) -> int:
    from tokengt.theory.claims import DEFAULT_NODES, ORDERS, WL_NODES, Setting
    from tokengt.theory.verify import verify

    claims = []
    for order in ORDERS if options.order is None else (options.order,):
        nodes = DEFAULT_NODES[order] if options.nodes is None else options.nodes
        wl_nodes = WL_NODES if options.nodes is None else None
        setting = Setting(order, nodes, options.sharpness, options.seed, wl_nodes)
        if not options.json:
            print(setting)
        for claim in verify(setting):
            claims.append(claim)
            if not options.json:
                print(_line(claim), flush=True)
    if options.json:
        print(json.dumps([claim.to_dict() for claim in claims], indent=1))
    failed, blunt, sharp = (
        sum(claim.verdict == verdict for claim in claims) for verdict in ("fails", "too blunt", "too sharp")
    )
    if not options.json:
        print(f"{failed} of {len(claims)} claims fail" if failed else f"no claim of {len(claims)} fails")
        if blunt:
            print(f"{blunt} keep to their bounds and approximate nothing: raise --sharpness")
        if sharp:
            print(f"{sharp} keep to their bounds, which are float64's rounding of the logits: lower --sharpness")
    return 1 if failed else 0


def _line(claim: "Claim") -> str:
    start = f"  {claim.name:20} {claim.statement:76}"
    if claim.measured is None or claim.bound is None:
        return f"{start} {claim.verdict}: {claim.note}"
    numbers = f"{claim.measured:8.2e} {claim.relation:2} {claim.bound:8.2e}"
    note = f" ({claim.note})" if claim.note else ""
    return f"{start} {numbers}  {claim.verdict:9}  {claim.formula}{note}"
