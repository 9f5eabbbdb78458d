"""The command as a person types it, in a process of its own or quicker in this one, and as a power cut ends it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tokengt.cli import main

TOKENGT = Path(sys.executable).parent / "tokengt"
_ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def tokengt(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return _run([str(TOKENGT), *map(str, arguments)])


def here(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The same command without a process of its own, which would import torch again: for what prints and refuses."""
    with patch.dict(os.environ), redirect_stdout(StringIO()) as printed, redirect_stderr(StringIO()) as warned:
        try:
            status = main(list(map(str, arguments)))
        except SystemExit as stop:  # This is how argparse ends.
            status = int(stop.code or 0)
    return subprocess.CompletedProcess(["tokengt", *map(str, arguments)], status, printed.getvalue(), warned.getvalue())


def torchrun(processes: int, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return _run([sys.executable, *launcher, "-m", "tokengt.cli", *map(str, arguments)])


def succeeded(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert done.returncode == 0, done.stderr
    return done


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence that a person is told."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    sentence = done.stderr.strip().splitlines()[-1]
    assert sentence.startswith("tokengt: ")
    return sentence


def settings(values: Mapping[str, Any]) -> list[str]:
    return [text for name, value in values.items() for text in ("--set", f"{name}={value}")]


def killed_when(condition: Callable[[], bool], *arguments: str | Path) -> None:
    """Start the command and end it with SIGKILL at a moment when the condition holds."""
    process = subprocess.Popen(
        [str(TOKENGT), *map(str, arguments)], env=_ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            assert process.poll() is None, "the command ended before it could be killed"
            # Stopped, so that what is looked at is what the kill leaves behind.
            process.send_signal(signal.SIGSTOP)
            if condition():
                return
            process.send_signal(signal.SIGCONT)
            time.sleep(0.01)
        raise AssertionError("the moment to kill the command did not come")
    finally:
        process.kill()
        process.wait()


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    process = subprocess.Popen(
        command, env=_ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        printed, warned = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # The processes that it started end too.
        raise
    return subprocess.CompletedProcess(command, process.returncode, printed, warned)
