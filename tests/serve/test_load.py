"""Many clients at a time, against the command in a process of its own; Ctrl-C ends it when all are answered."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.command import here, refused
from tests.serve.attacks import posted
from tests.serve.load import Load
from tokengt.data.datasets import bundled

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


class Served(NamedTuple):
    process: subprocess.Popen[str]
    port: int

    def load(self, clients: int, seconds: float) -> Load:
        command = [sys.executable, "-m", "tests.serve.load", str(self.port), str(clients), str(seconds)]
        done = subprocess.run(
            command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=seconds + 90, check=True
        )
        return Load(*json.loads(done.stdout))

    @property
    def cpu_seconds(self) -> float:
        """What the process has used of the processors so far, all of its threads together."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def metric(self, name: str) -> float:
        with socket.create_connection(("127.0.0.1", self.port), 30) as connection:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            text = b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()
        return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


@contextmanager
def serving(run: Path, *options: str) -> Iterator[Served]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tokengt.cli", "serve", str(run), "--port", "0", *options],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
        assert address is not None, process.stderr and process.stderr.read()
        served = Served(process, int(address[1]))
        deadline = time.monotonic() + 90
        while True:
            try:
                served.metric("tokengt_requests_at_work")
                break
            except (ConnectionError, StopIteration):
                assert time.monotonic() < deadline
                time.sleep(0.1)
        yield served
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.slow
def test_fifty_clients_are_answered_together_and_ctrl_c_finishes_what_is_in_flight(run: Path) -> None:
    with serving(run, "--limit", "rows=100") as served:
        served.load(4, 0.3)
        one, fifty = served.load(1, 0.8), served.load(50, 1.2)
        assert one.failed == fifty.failed == 0
        assert fifty.answered >= 50
        requests, batches = (served.metric(f"tokengt_{name}") for name in ("batched_requests", "batch_rows_count"))
        assert requests / batches > 2
        # By how much is measured by the next test: others run beside this one.
        assert fifty.rate > one.rate
        # A request that is being answered when the server is stopped still gets its answer.
        with socket.create_connection(("127.0.0.1", served.port), 30) as connection:
            connection.sendall(posted("/api/predict", {"smiles": ["CCO"] * 100}))
            time.sleep(0.05)
            served.process.send_signal(signal.SIGINT)
            answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.count(b"predicted_y") == 101
        assert served.process.wait(30) == 0
        assert served.process.stderr is not None
        assert served.process.stderr.read() == "tokengt: stopped\n"


@pytest.mark.slow
def test_batching_is_worth_three_times_one_client(tmp_path: Path) -> None:
    """The default model, trained for an epoch; prints what results/LOG.md has."""
    from tokengt.workflow.fitting import TrainOptions, train

    train(
        bundled("esol.csv.xz"),
        tmp_path / "run",
        target="logSolubility",
        settings={"training.epochs": 1},
        options=TrainOptions(quiet=True),
        device="cpu",
    )
    for run in (tmp_path / "run", Path("pretrained:gap")):
        with serving(run) as served:
            served.load(8, 3)
            rates: dict[int, list[float]] = {1: [], 50: []}
            for clients, seconds in ((1, 10), (50, 30), (1, 10)):
                before = served.cpu_seconds
                load = served.load(clients, seconds)
                assert load.failed == 0
                assert load.longest < 10
                rates[clients].append(load.rate)
                cpu = 1000 * (served.cpu_seconds - before) / load.answered
                print(
                    f"{run.name}: {clients} clients, {load.answered} in {load.seconds:.1f} s, {load.rate:.0f}/s, "
                    f"{cpu:.1f} ms of CPU each, longest wait {load.longest:.2f} s"
                )
            print(f"{run.name}: {min(rates[50]) / max(rates[1]):.1f} times one client's rate")
            if run.name == "run":
                assert min(rates[50]) >= 3 * max(rates[1])


def test_what_cannot_be_served_is_said(run: Path, tmp_path: Path) -> None:
    assert "does not exist" in refused(here("serve", tmp_path / "none", "--port", "0"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert "choose another with --port, or 0 for any free one" in refused(here("serve", run, "--port", port))
    assert "the port is 70000; expected 0 to 65535" in refused(here("serve", run, "--port", "70000"))
    assert "limit.row is unknown (did you mean rows?)" in refused(here("serve", run, "--limit", "row=5"))
    assert "rows=500" in refused(here("serve", run, "--limit", "rows"))
    assert "the limit rows is 9,999; expected at most 2,048" in refused(here("serve", run, "--limit", "rows=9999"))
    assert "draws is 0; expected at least 1" in refused(here("serve", run, "--draws", "0", "--port", "0"))


def test_without_the_extra_one_sentence_says_what_to_install(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "tokengt serve needs FastAPI and uvicorn: pip install 'tokengt[serve]'" in refused(here("serve", run))


def test_the_command_imports_no_server_before_it_is_asked_to_serve() -> None:
    code = "import sys, tokengt.cli; tokengt.cli._parser(); print({'fastapi', 'uvicorn'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert done.stdout == "set()\n"


def test_another_address_than_loopback_is_warned_of(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import uvicorn

    from tokengt.serve.running import serve

    monkeypatch.setattr(uvicorn.Server, "run", lambda *_, **__: None)
    # It does not listen anywhere but on loopback, whatever it is told to.
    monkeypatch.setattr("tokengt.serve.running._listen", lambda *_: socket.create_server(("127.0.0.1", 0)))
    serve(run, host="127.0.0.1", port=0, device="cpu")
    printed = capsys.readouterr()
    assert "at http://127.0.0.1:" in printed.out
    assert printed.err == ""
    serve(run, host="0.0.0.0", port=0, device="cpu")
    assert "0.0.0.0 can be reached from other machines, and there is no password" in capsys.readouterr().err
