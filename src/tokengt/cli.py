"""The command line: parse, call one function, print. Torch is imported only when a verb needs it."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tokengt._version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except (ValueError, OSError, ImportError) as error:
        print(f"tokengt: {error}", file=sys.stderr)
        return 2
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tokengt", description="Pure Transformers that learn from graphs, hypergraphs and molecules."
    )
    parser.add_argument("--version", action="version", version=f"tokengt {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)

    official = verbs.add_parser(
        "import-official",
        help="turn a checkpoint of the authors' code into a model folder",
        description="Read the authors' checkpoint_best.pt without running anything it holds, write a model folder.",
    )
    official.add_argument("checkpoint", type=Path, metavar="CKPT", help="the authors' checkpoint_best.pt")
    official.add_argument("--out", type=Path, required=True, metavar="DIR", help="the model folder to write")
    official.set_defaults(run=_import_official)

    presets = verbs.add_parser("presets", help="list the named model configurations")
    presets.set_defaults(run=_presets)
    return parser


def _import_official(options: argparse.Namespace) -> int:
    from tokengt.interop.official import model_from_official, read_checkpoint

    model = model_from_official(*read_checkpoint(options.checkpoint))
    model.save_pretrained(options.out)
    count = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"{options.out}: TokenGT with {count:,} parameters; load it with TokenGT.from_pretrained({str(options.out)!r})"
    )
    return 0


def _presets(options: argparse.Namespace) -> int:
    from tokengt.presets import PRESETS

    for name, preset in PRESETS.items():
        config = preset()
        encoder, ids = config.encoder, config.identifiers
        print(
            f"{name:22}{encoder.num_layers:3} layers x {config.dim:4}, {encoder.num_heads:2} heads, "
            f"{ids.kind} {ids.dim}, {encoder.attention.kind} attention"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
