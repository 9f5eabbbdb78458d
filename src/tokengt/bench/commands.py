"""A command of ours as a person runs it: in a process of its own, timed and watched from outside."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from tokengt.bench.gpu_memory import GpuMemory

_REFUSED, _STOPPED = 2, 130
# Short beside an epoch, and long beside a look, which asks for the time of one file.
_SECONDS_BETWEEN_LOOKS = 0.01
_LOOKS_PER_GPU_LOOK = 10
# ru_maxrss counts kilobytes, but bytes on a Mac.
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True)
class Ran:
    """A command that has ended well.

    Args:
        began: when, by the clock of the wall (``time.time``), which is the clock of files too.
        seconds: from start to end.
        host_gib: memory of the largest of its processes at its fullest.
        gpu_gib: what it took of the GPU at the fullest, torch's reserve and CUDA's own memory included; None where no
            GPU was watched.
    """

    began: float
    seconds: float
    host_gib: float
    gpu_gib: float | None


def run_command(
    arguments: Sequence[str | Path],
    say: Callable[[str], None],
    look: Callable[[], None] = lambda: None,
    *,
    gpu: bool = False,
) -> Ran:
    """``tokengt ARGUMENTS`` by this Python; ``say`` is told each line of its stderr, ``look`` is called meanwhile.

    Raises:
        ValueError: the command was refused; the sentence is its own.
        RuntimeError: it failed in another way.
    """
    verb, memory = str(arguments[0]), GpuMemory.watch() if gpu else None
    began, start = time.time(), time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "tokengt.cli", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    assert process.stderr is not None
    heard: list[str] = []
    ears = Thread(target=_listen, args=(process.stderr, heard, say, verb), daemon=True)
    ears.start()
    try:
        status, usage = _watched(process, look, memory)
        seconds = time.perf_counter() - start
    finally:
        if process.returncode is None:  # Whoever waited was interrupted.
            process.kill()
            process.wait()
        ears.join()
        process.stderr.close()
    _check(verb, status, heard)
    look()
    return Ran(began, seconds, usage * _RSS_UNIT / 2**30, None if memory is None else memory.gib)


def _watched(process: subprocess.Popen[str], look: Callable[[], None], memory: GpuMemory | None) -> tuple[int, int]:
    """The exit status and the largest resident set; waiting by hand, because only ``wait4`` tells the latter."""
    looks = 0
    while True:
        ended, code, usage = os.wait4(process.pid, os.WNOHANG)
        if ended:
            process.returncode = os.waitstatus_to_exitcode(code)
            return process.returncode, usage.ru_maxrss
        look()
        if memory is not None and looks % _LOOKS_PER_GPU_LOOK == 0:
            memory.look()
        looks += 1
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _listen(stream: Iterable[str], heard: list[str], say: Callable[[str], None], verb: str) -> None:
    for line in stream:
        text = line.rstrip()
        heard.append(text)
        if text and not text.startswith("tokengt: "):  # Why it was refused is said once, by whoever asked for it.
            say(f"{verb}: {text}")


def _check(verb: str, status: int, heard: Sequence[str]) -> None:
    if status == 0:
        return
    if status == _STOPPED:
        raise KeyboardInterrupt
    said = [line.removeprefix("tokengt: ") for line in heard if line.startswith("tokengt: ")]
    sentence = said[-1] if said else (heard[-1] if heard else "it said nothing")
    if status == _REFUSED:
        raise ValueError(f"tokengt {verb}: {sentence}")
    if status == -signal.SIGKILL:
        raise ValueError(f"tokengt {verb} was killed, as systems do when memory is full; lower --batch")
    raise RuntimeError(f"tokengt {verb} ended with status {status}: {sentence}")
