"""presets and import-official."""

import argparse
from pathlib import Path
from typing import Any


def add_verbs(verbs: Any) -> None:
    _add_presets(verbs)
    _add_import(verbs)


def _add_presets(verbs: Any) -> None:
    verb = verbs.add_parser("presets", help="list the named model configurations")
    verb.set_defaults(run=_presets)


def _add_import(verbs: Any) -> None:
    verb = verbs.add_parser(
        "import-official",
        help="turn a checkpoint of the authors' code into a model folder",
        description="Read the authors' checkpoint_best.pt without running anything it holds, write a model folder.",
    )
    verb.add_argument("checkpoint", type=Path, metavar="CKPT", help="the authors' checkpoint_best.pt")
    verb.add_argument("--out", type=Path, required=True, metavar="DIR", help="the model folder to write")
    verb.set_defaults(run=_import_official)


def _presets(options: argparse.Namespace) -> int:
    from tokengt.presets import PRESETS, PRETRAINED

    width = max(map(len, PRESETS)) + 2
    for name, preset in PRESETS.items():
        trained = ", trained weights" if name in PRETRAINED else ""
        print(f"{name:{width}}{preset().describe().summary}{trained}")
    return 0


def _import_official(options: argparse.Namespace) -> int:
    from tokengt.interop.official import model_from_official, read_checkpoint

    model = model_from_official(*read_checkpoint(options.checkpoint))
    model.save_pretrained(options.out)
    count = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"{options.out}: TokenGT with {count:,} parameters; load it with TokenGT.from_pretrained({str(options.out)!r})"
    )
    return 0
