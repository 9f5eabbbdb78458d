"""The command line: parse, call one function, print. Torch is imported only when a verb needs it."""

import io
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress

from tokengt._version import __version__
from tokengt.cli import (
    benching,
    benchmarking,
    comparing,
    explaining,
    models,
    naming,
    pretraining,
    reading,
    reproducing,
    running,
    serving,
    verifying,
)
from tokengt.cli.parsing import Parser, one_line

# What each verb that can go on is told to go on with, when a person stops it.
_GOES_ON = {
    "prepare": "the same command goes on where it was",
    "pretrain": "the same command goes on where it was",
    "predict": "the same command goes on where it was",
    "embed": "the same command goes on where it was",
    "compare": "the same command goes on where it was",
    "reproduce": "the same command goes on where it was",
    "benchmark": "the same command goes on where it was",
    "train": "go on with the same command and --resume",
    "finetune": "go on with the same command and --resume",
}
_BAD_INPUT, _UNEXPECTED, _STOPPED = 2, 70, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit status.

    0: done. 2: refused, with one sentence about what is wrong with the input. 70: something unexpected, a fault of
    ours, with its type and text. 130: stopped by a person. No exception comes out, whatever its type; with
    TOKENGT_TRACEBACK=1 it is shown in full.
    """
    # Both are read when torch is first imported, so they must be set before that. OpenMP threads that spin while they
    # wait make a busy machine four times slower. Without large pages of memory every large array of a CPU is paid for
    # page by page: a step on a million tokens takes 15% longer, and one on a hundred thousand 60% more memory.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that the terminal cannot show is no reason to fail after the work is done.
        sys.stdout.reconfigure(errors="backslashreplace")
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        print(end="", flush=True)
    except KeyboardInterrupt:
        return _refused(f"stopped; {_GOES_ON.get(options.verb, 'begin again with the same command')}", _STOPPED)
    except BrokenPipeError:
        # Whoever reads what is printed has gone, as head does, and wants no sentence about it.
        _give_up_output()
        return 1
    except Exception as error:
        _give_up_output()
        return _failed(error)
    return status


def _give_up_output() -> None:
    """Print what is waiting; where that fails it goes nowhere, for Python would try again at its end and complain."""
    try:
        print(end="", flush=True)
    except OSError:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _failed(error: Exception) -> int:
    """The sentence and the exit status for an exception of any type."""
    if os.environ.get("TOKENGT_TRACEBACK", "0") not in ("", "0"):
        with suppress(OSError):
            traceback.print_exception(error)
    text = one_line(str(error))
    # A full GPU raises torch's own subclass of RuntimeError, a full CPU a plain RuntimeError known by its text.
    full = type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in text
    if full or isinstance(error, MemoryError):
        advice = "to train, lower training.batch_size or raise training.accumulate; to bench, lower --batch"
        return _refused(f"out of memory; {advice}" + (f" ({text})" if text else ""))
    if isinstance(error, ValueError | OSError | ImportError) and text:
        return _refused(text)
    return _refused(
        f"unexpected {type(error).__name__}{f' ({text})' if text else ''}; this is a fault in tokengt: please report "
        "it with what the same command shows when the environment has TOKENGT_TRACEBACK=1",
        _UNEXPECTED,
    )


def _refused(sentence: str, status: int = _BAD_INPUT) -> int:
    """One sentence, from the first of several processes alone."""
    if os.environ.get("RANK", "0") == "0" and os.environ.get("LOCAL_RANK", "0") == "0":
        with suppress(OSError):  # Whoever should read it has gone.
            print(f"tokengt: {one_line(sentence)}", file=sys.stderr)
    return status


def _parser() -> Parser:
    parser = Parser(prog="tokengt", description="Pure Transformers that learn from graphs, hypergraphs and molecules.")
    parser.add_argument("--version", action="version", version=f"tokengt {__version__}")
    verbs = parser.add_subparsers(title="verbs", dest="verb", metavar="VERB", required=True)
    rooms = (
        running,
        pretraining,
        comparing,
        reading,
        explaining,
        serving,
        naming,
        models,
        verifying,
        reproducing,
        benchmarking,
        benching,
    )
    for room in rooms:
        room.add_verbs(verbs)
    return parser
