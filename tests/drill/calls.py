"""One call of the command: made by the server, with what came of it."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

SERVER = Path(__file__).with_name("server.py")
# A call hangs that works for longer than this, takes longer by the clock, or does nothing for so long.
CPU_SECONDS, WALL_SECONDS, IDLE_SECONDS = 20, 180, 12
# Memory that a call may take beyond what the imported libraries have.
MEGABYTES = 3000
REFUSED, UNEXPECTED = 2, 70


@dataclass(frozen=True)
class Answer:
    """How a call ended. ``status`` is negative where a signal ended it."""

    arguments: tuple[str, ...]
    folder: Path
    status: int
    stdout: str
    stderr: str
    hang: bool
    sent: bool
    orphans: int
    seconds: float
    cpu: float
    megabytes: int

    @property
    def refused(self) -> bool:
        return self.status == REFUSED

    @property
    def done(self) -> bool:
        return self.status == 0

    def __str__(self) -> str:
        words = " ".join(map(_quoted, self.arguments))
        return f"(cd {self.folder} && tokengt {words}) -> {self.status}\n{self.stderr[-1500:]}"


def _quoted(word: str) -> str:
    shown = word if len(word) <= 200 else word[:200] + "..."
    return shown if shown and shown.isascii() and not set(shown) & set(" '\"\\$&|;<>()*?`\n\t\0") else repr(shown)


@dataclass(frozen=True)
class Started:
    """A call that is under way."""

    process: int
    arguments: tuple[str, ...]
    folder: Path
    stdout: Path
    stderr: Path


class Command:
    """The installed command, as quick as a function call. Use it as a context manager: the server ends with it."""

    def __init__(self) -> None:
        quiet = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.calls = self.kills = 0
        self.environment = environment()
        self._server = subprocess.Popen(
            [sys.executable, str(SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**self.environment, **quiet},
        )
        if self._out.readline() != "ready\n":
            raise RuntimeError("the server of the drill did not start")

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *error: object) -> None:
        self._in.close()
        self._server.wait(60)
        self._out.close()

    def __call__(self, *arguments: str | Path, folder: Path, **options: Any) -> Answer:
        """Run ``tokengt ARGUMENTS`` in ``folder``; options are those of :meth:`start` and :meth:`wait`."""
        waiting = {name: options.pop(name) for name in ("signal", "after", "idle") if name in options}
        return self.wait(self.start(*arguments, folder=folder, **options), **waiting)

    def start(
        self,
        *arguments: str | Path,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        cpu: int = CPU_SECONDS,
        stdout: Path | None = None,
    ) -> "Started":
        """Begin a call; its output goes to files beside ``folder`` unless ``stdout`` names another."""
        self.calls += 1
        words = tuple(map(str, arguments))
        out, err = (folder.parent / f"{folder.name}.{self.calls}.{name}" for name in ("stdout", "stderr"))
        call = {
            "arguments": words,
            "folder": str(folder),
            "stdout": str(stdout or out),
            "stderr": str(err),
            "cpu": cpu,
            "megabytes": MEGABYTES,
            "environment": dict(environment or {}),
        }
        return Started(self._asked(call)["process"], words, folder, out, err)

    def wait(self, started: "Started", *, signal: int = 0, after: float = 0.0, idle: float = IDLE_SECONDS) -> Answer:
        """The end of a call; ``signal`` is sent to it ``after`` so many seconds if it is still at work."""
        call = {"wait": started.process, "seconds": WALL_SECONDS, "idle": idle, "signal": signal, "after": after}
        answer = self._asked(call)
        self.kills += answer["sent"]
        return Answer(
            arguments=started.arguments,
            folder=started.folder,
            status=answer["status"],
            stdout=_text(started.stdout),
            stderr=_text(started.stderr),
            hang=answer["hang"],
            sent=answer["sent"],
            orphans=answer["orphans"],
            seconds=answer["seconds"],
            cpu=answer["cpu"],
            megabytes=answer["megabytes"],
        )

    def _asked(self, question: dict[str, Any]) -> dict[str, Any]:
        print(json.dumps(question), file=self._in, flush=True)
        answer: dict[str, Any] = json.loads(self._out.readline())
        return answer

    @property
    def _in(self) -> IO[str]:
        assert self._server.stdin is not None
        return self._server.stdin

    @property
    def _out(self) -> IO[str]:
        assert self._server.stdout is not None
        return self._server.stdout


def environment() -> dict[str, str]:
    """The environment of a call: this package and nothing that would change its messages."""
    path = os.pathsep.join(folder for folder in sys.path if folder)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TOKENGT_TRACE", "PYTEST"))}
    return {**kept, "PYTHONPATH": path, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}


def _text(path: Path) -> str:
    if not path.exists():
        return ""
    text = path.read_bytes().decode("utf-8", "replace")
    path.unlink()
    return text
