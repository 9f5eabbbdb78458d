"""Runs the command many times: one process that has everything imported forks a child for each call.

Starting Python and importing torch takes seconds, a fork some milliseconds. This file is run as a program of its own,
and talks in lines of JSON. The parent imports and runs no tensor operation, so that no thread is lost in the fork.
"""

import contextlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from typing import Any

_POLL = 0.004
# What a verb imports when it needs it. The children find it imported.
_ROOMS = (
    "tokengt.cli",
    "tokengt.data.prepare",
    "tokengt.workflow.fitting",
    "tokengt.workflow.predicting",
    "tokengt.workflow.evaluating",
    "tokengt.workflow.describing",
    "tokengt.workflow.reporting",
    "tokengt.workflow.summarising",
    "tokengt.theory.verify",
    "tokengt.interop.official",
    "networkx",
    "pyarrow.parquet",
    "rdkit.Chem",
    "torch_geometric.data",
    "matplotlib.pyplot",
)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    # What an import prints must not be taken for an answer.
    os.dup2(2, 1)
    os.environ["MPLBACKEND"] = "Agg"
    for room in _ROOMS:
        __import__(room)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        call = json.loads(line)
        answer = _waited(call) if "wait" in call else {"process": _started(call)}
        print(json.dumps(answer), file=answers, flush=True)


def _started(call: dict[str, Any]) -> int:
    child = os.fork()
    if child == 0:
        _run(call)
    return child


def _waited(call: dict[str, Any]) -> dict[str, Any]:
    """Wait for a child. One that takes longer than ``seconds``, or sleeps for ``idle``, is killed: it hangs.

    ``signal`` is sent ``after`` so many seconds, if the child is still there.
    """
    child, begun = int(call["wait"]), time.monotonic()
    slow = sent = False
    worked, when = 0, begun
    while True:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            break
        passed = time.monotonic() - begun
        if call["signal"] and not sent and passed >= call["after"]:
            sent = True
            os.kill(child, call["signal"])
        ticks = _ticks(child)
        if ticks != worked:
            worked, when = ticks, time.monotonic()
        if passed > call["seconds"] or time.monotonic() - when > call["idle"]:
            slow = True
            _end(child)
        time.sleep(_POLL)
    code = os.waitstatus_to_exitcode(status)
    return {
        "status": code,
        "hang": slow or code == -signal.SIGXCPU,
        "sent": sent,
        "orphans": _orphans(child),
        "seconds": time.monotonic() - begun,
        "cpu": usage.ru_utime + usage.ru_stime,
        "megabytes": usage.ru_maxrss >> 10,
    }


def _orphans(session: int) -> int:
    """Processes that outlived the child that started them, by a second and more; they are ended."""
    for _ in range(100):
        left = [
            process for process in map(int, filter(str.isdigit, os.listdir("/proc"))) if _session(process) == session
        ]
        if not left:
            return 0
        time.sleep(0.02)
    for process in left:
        os.kill(process, signal.SIGKILL)
    return len(left)


def _ticks(process: int) -> int:
    """The work that a process and those it has waited for have done, in ticks of the clock."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return sum(map(int, file.read().rsplit(")", 1)[1].split()[11:15]))
    except OSError:
        return 0


def _session(process: int) -> int:
    try:
        with open(f"/proc/{process}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except OSError:
        return 0
    # A zombie has ended; whoever adopted it only has to fetch its status.
    return 0 if fields[0] == "Z" else int(fields[3])


def _end(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _run(call: dict[str, Any]) -> None:
    """In the child: the command as a shell would start it, with its own session, files and limits."""
    status = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _redirect(call)
        _limit(call)
        os.chdir(call["folder"])
        os.environ.update(call["environment"])
        from tokengt.cli import main as command

        status = _status(command, call["arguments"])
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
        except BaseException:
            traceback.print_exc()
            status = 120
        sys.stderr.flush()
        os._exit(status & 0xFF)


def _status(command: Any, arguments: list[str]) -> int:
    try:
        return int(command(arguments) or 0)
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
            return 1
        return ended.code or 0


def _redirect(call: dict[str, Any]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(call[name], flags, 0o644)
        os.dup2(file, descriptor)
        os.close(file)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)


def _limit(call: dict[str, Any]) -> None:
    cpu = int(call["cpu"])
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    most = size + (int(call["megabytes"]) << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    main()
