"""``tokengt pretrain``: molecules or other graphs without a target to weights that fine-tuning begins with."""

import argparse
from pathlib import Path
from typing import Any

from tokengt.cli.settings import named_values

_TARGETS = "masked,descriptors,fingerprints,assays"


def add_verbs(verbs: Any) -> None:
    verb = verbs.add_parser(
        "pretrain",
        help="learn from molecules or other graphs without a target; finetune begins with the result",
        description="Learn from a library of molecules: guess hidden atoms, RDKit's descriptors, fingerprint bits, and "
        "whatever was measured of them. Or, with --targets structure, learn from graphs of any kind which rings go "
        "through every node and how likely a random walk is back at it: labels that the graphs themselves give. The "
        "folder that is made is what finetune begins with.",
    )
    verb.add_argument(
        "molecules",
        nargs="+",
        metavar="DATA",
        help="files of molecules; names in TOKENGT_DATA (moses, pcba, fsmol, qm9, hiv, tox21; moses:100000 for some of "
        "it); or one store that --prepare-only made. With --targets structure: one file, folder, store or name as "
        "train takes it; labels are not looked at",
    )
    verb.add_argument("--out", type=Path, required=True, metavar="RUN", help="the folder to make")
    verb.add_argument(
        "--targets",
        default=_TARGETS,
        metavar="NAMES",
        help=f"what to learn, with commas (default: {_TARGETS}); or structure alone",
    )
    verb.add_argument(
        "--exclude",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="leave out the molecules of these files or data sets, in any salt, stereoisomer or charge; admet means "
        "the test parts of the TDC ADMET group",
    )
    verb.add_argument("--preset", default="small", metavar="NAME", help="a TokenGT of tokengt presets (default: small)")
    verb.add_argument("--epochs", metavar="N", help="passes over the data (default: 12; for structure by its size)")
    verb.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any setting: model.dim=256, training.batch_size=1024",
    )
    verb.add_argument(
        "--weight",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="how much an objective counts: masked, bits, descriptors, numbers, answers, active, values (default: 1)",
    )
    verb.add_argument("--seed", type=int, default=0, help="of split, weights and training (default: 0)")
    verb.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    _add_molecules(verb)
    verb.set_defaults(run=_pretrain)


def _add_molecules(verb: argparse.ArgumentParser) -> None:
    """How molecules are read and described."""
    data = verb.add_argument_group("molecules (with --targets structure only --smiles and --workers)")
    data.add_argument("--smiles", metavar="COLUMN", help="the column of SMILES (default: the one called so)")
    data.add_argument("--max-atoms", type=int, metavar="N", help="leave larger ones out (default: 100)")
    data.add_argument(
        "--describe", type=int, metavar="N", help="how many get descriptors, about 4 ms each (default: all)"
    )
    data.add_argument("--workers", type=int, metavar="N", help="processes that describe molecules (default: all cores)")
    data.add_argument(
        "--prepare-only",
        action="store_true",
        help="make the store at --out and stop: a machine without RDKit can train from it",
    )
    data.add_argument(
        "--minutes",
        type=float,
        metavar="N",
        help="with --prepare-only: stop describing after so many and keep what there is, an even sample; the same "
        "command goes on later",
    )


def _pretrain(options: argparse.Namespace) -> int:
    targets = tuple(name.strip() for name in options.targets.split(",") if name.strip())
    data = {
        "exclude": options.exclude,
        "targets": targets,
        "described": options.describe,
        "smiles": options.smiles,
        "max_atoms": options.max_atoms,
        "workers": options.workers,
    }
    if options.prepare_only:
        from tokengt.workflow.pretraining import prepare_pretraining

        manifest = prepare_pretraining(options.molecules, options.out, minutes=options.minutes, **data)
        print(f"{options.out}: {manifest.count:,} molecules, {manifest.excluded:,} left out as excluded")
        return 0
    if options.minutes is not None:
        raise ValueError("--minutes limits how long molecules are described; expected it with --prepare-only")
    from tokengt.workflow.pretraining import pretrain

    settings = named_values(options.set)
    if options.epochs is not None:
        settings["training.epochs"] = options.epochs
    summary = pretrain(
        options.molecules,
        options.out,
        preset=options.preset,
        settings=settings,
        weights=_weights(options.weight),
        seed=options.seed,
        device=options.device,
        **data,
    )
    if "learned" in summary:
        return _learned(options.out, summary)
    losses = ", ".join(f"{name} {value:.4g}" for name, value in summary["valid"].items())
    print(f"{options.out}: {summary['molecules']:,} molecules, {summary['excluded']:,} left out as excluded; {losses}")
    print(f"next: tokengt finetune {options.out} DATA --target COLUMN --out RUN")
    return 0


def _learned(out: Path, summary: dict[str, Any]) -> int:
    """What was learned of the nodes of graphs, and how well."""
    from tokengt.workflow.describing import outcome

    print(f"{out}: learned {', '.join(summary['learned'])}")
    for line in outcome(out):
        print(line)
    print(f"next: tokengt finetune {out} DATA --target COLUMN --out RUN")
    return 0


def _weights(texts: list[str]) -> dict[str, float]:
    values = named_values(texts, "--weight", "masked=0.5")
    try:
        return {name: float(value) for name, value in values.items()}
    except ValueError:
        raise ValueError(f"--weight {texts} holds no number; expected NAME=VALUE such as masked=0.5") from None
