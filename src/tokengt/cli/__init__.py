"""The command line: parse, call one function, print. Torch is imported only when a verb needs it."""

import os
import sys
from collections.abc import Sequence

from tokengt._version import __version__
from tokengt.cli import benching, models, reading, reproducing, running, verifying
from tokengt.cli.parsing import Parser


def main(arguments: Sequence[str] | None = None) -> int:
    # OpenMP threads that spin while they wait make a busy machine four times slower. The variable is read when torch
    # is first imported, so it must be set before that.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except (ValueError, OSError, ImportError) as error:
        return _refused(str(error))
    except (MemoryError, RuntimeError) as error:
        # A full GPU raises torch's own subclass of RuntimeError, a full CPU a plain RuntimeError known by its text.
        full = type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(error)
        if not isinstance(error, MemoryError) and not full:
            raise
        advice = "to train, lower training.batch_size or raise training.accumulate; to bench, lower --batch"
        return _refused(f"out of memory; {advice} ({error})")
    except KeyboardInterrupt:
        return _refused("stopped; prepare and reproduce go on by the same command, the others with --resume", 130)
    return status


def _refused(sentence: str, status: int = 2) -> int:
    """One sentence, from the first of several processes alone."""
    if os.environ.get("RANK", "0") == "0" and os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"tokengt: {sentence}", file=sys.stderr)
    return status


def _parser() -> Parser:
    parser = Parser(prog="tokengt", description="Pure Transformers that learn from graphs, hypergraphs and molecules.")
    parser.add_argument("--version", action="version", version=f"tokengt {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    for room in (running, reading, models, verifying, reproducing, benching):
        room.add_verbs(verbs)
    return parser
