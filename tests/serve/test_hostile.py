"""The server survives whoever means it ill: no 500, no hang, no leak, and the next request is answered."""

import gc
import json
import os
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.serve.attacks import SCRIPT, all_attacks, posted
from tests.serve.client import Running, running
from tokengt.inference import Predictor
from tokengt.serve.limits import Limits

SECONDS = 30.0


def sent(port: int, data: bytes) -> bytes:
    """The answer, once it is whole or the connection is closed."""
    with socket.create_connection(("127.0.0.1", port), SECONDS) as connection:
        answer = b""
        with suppress(BrokenPipeError, ConnectionResetError):  # It was refused before it was whole.
            connection.sendall(data)
        with suppress(ConnectionResetError):
            while not is_whole(answer) and (part := connection.recv(1 << 16)):
                answer += part
        return answer


def is_whole(answer: bytes) -> bool:
    head, blank, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head.lower())
    return bool(blank) and length is not None and len(body) >= int(length[1])


def resources() -> tuple[int, int, int]:
    """Threads, open files and child processes of this process."""
    children = sum(
        len(Path(f"/proc/self/task/{task}/children").read_text().split()) for task in os.listdir("/proc/self/task")
    )
    return threading.active_count(), len(os.listdir("/proc/self/fd")), children


def memory() -> float:
    """Resident MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def grown(before: tuple[int, int, int]) -> list[int]:
    """By how much each resource is more, once connections that were closed are gone: the event loop takes a moment."""
    deadline = time.monotonic() + 10
    while True:
        more = [max(0, now - then) for now, then in zip(resources(), before, strict=True)]
        if not any(more) or time.monotonic() > deadline:
            return more
        gc.collect()
        time.sleep(0.05)


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_a_thousand_hostile_requests(server: Running, every: int) -> None:
    """All of them by ``pytest -m slow``, and one in five by default."""
    expected = server.post("/api/predict", {"smiles": ["CCO"]}).body
    assert server.post("/api/explain", {"smiles": "C"}).status == 200  # The process that explains is started now.
    attacks = list(all_attacks())[::every]
    assert len(attacks) >= 1000 / every
    before = resources()
    statuses: Counter[int] = Counter()
    slowest = 0.0
    for place, (name, data) in enumerate(attacks):
        if place == 100:
            gc.collect()
            start = memory()
        began = time.monotonic()
        answer = sent(server.port, data)
        slowest = max(slowest, time.monotonic() - began)
        found = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
        status = int(found[1]) if found else 0
        statuses[status] += 1
        assert status < 500, (name, answer[:300])
        assert SCRIPT.encode() not in answer.split(b"\r\n\r\n", 1)[0], name
        if status >= 400 and b"application/json" in answer:
            content = json.loads(answer.split(b"\r\n\r\n", 1)[1])
            assert set(content) == {"error", "field", "expected"}, name
    gc.collect()
    assert grown(before) == [0, 0, 0]
    assert memory() - start < 60, "memory grows with requests"
    assert slowest < SECONDS
    # Those without any answer broke HTTP itself: none of them is more than a handful.
    assert statuses[0] < 40 / every, statuses
    assert statuses[200] > 50 / every
    assert server.post("/api/predict", {"smiles": ["CCO"]}).body == expected


@pytest.mark.parametrize("examples", [2, pytest.param(25, marks=pytest.mark.slow)])
def test_schemathesis_finds_nothing(server: Running, examples: int) -> None:
    """Requests that fit the OpenAPI description, and ones that do not, each answered as the description says."""
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, Phase, given, settings

    statuses = {"negative_data_rejection": [400, 404, 409, 413, 415, 422], "positive_data_acceptance": [200, 404, 422]}
    checks = {name: {"expected-statuses": codes} for name, codes in statuses.items()}
    config = schemathesis.Config.from_dict({"checks": checks})
    schema = schemathesis.openapi.from_dict(server.get("/openapi.json").json(), config=config)
    routes = [found.ok() for found in schema.get_all_operations()]
    assert len(routes) >= 11
    asked: Counter[str] = Counter()

    def attack(case: Any) -> None:
        case.call_and_validate(base_url=f"http://127.0.0.1:{server.port}")
        asked[case.path] += 1

    quick = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    for route in routes:
        # A route that is given nothing cannot be given anything wrong.
        modes = (
            list(schemathesis.GenerationMode) if route.body or route.query else [schemathesis.GenerationMode.POSITIVE]
        )
        for mode in modes:
            quick(given(case=route.as_strategy(generation_mode=mode))(attack))()
    assert asked["/api/predict"] >= 2 * examples


@pytest.fixture(scope="module")
def impatient(predictor: Predictor) -> Iterator[Running]:
    limits = Limits(slow_seconds=0.4, seconds=5.0, body=20_000, waiting=2, rows=50)
    with running(predictor, limits) as server:
        yield server


def test_slow_clients_are_not_waited_for(impatient: Running) -> None:
    head = b"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    head += b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    slow = {"nothing": b"", "half a header": b"GET /health HT", "half a body": head + b'{"smiles"'}
    connections = {name: socket.create_connection(("127.0.0.1", impatient.port), 10) for name in slow}
    for name, data in slow.items():
        connections[name].sendall(data)
    try:
        # One byte at a time is slow too.
        with socket.create_connection(("127.0.0.1", impatient.port), 10) as dripping, suppress(OSError):
            for count, sign in enumerate(head * 20):
                assert count < 200, "it was waited for"
                dripping.sendall(bytes([sign]))
                time.sleep(0.02)
        for name, connection in connections.items():
            answer = connection.recv(1 << 16)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 408"), name
            assert (name == "half a body") == bool(answer)
    finally:
        for connection in connections.values():
            connection.close()
    assert impatient.get("/health").status == 200


def test_too_large_is_said_before_it_is_read(impatient: Running) -> None:
    answer = impatient.ask("POST", "/api/predict", b" " * 20_001, {"Content-Type": "application/json"})
    assert answer.status == 413
    assert "at most 20,000 bytes (the limit body)" in answer.error
    chunks = iter([b" " * 9_000] * 3)
    answer = impatient.ask("POST", "/api/predict", chunks, {"Content-Type": "application/json"})
    assert answer.status == 413
    answer = impatient.table("smiles\n" + "C\n" * 60)
    assert (answer.status, "60 lines; expected at most 50" in answer.error) == (413, True)


@contextmanager
def held(server: Running) -> Iterator[threading.Event]:
    """The model answers nothing in the block; the event is set when it is first asked."""
    service = server.app.state.service
    entered, leave, ask = threading.Event(), threading.Event(), service.question.ask

    def waiting(graphs: object) -> object:
        entered.set()
        assert leave.wait(SECONDS)
        return ask(graphs)

    object.__setattr__(service.question, "ask", waiting)
    try:
        yield entered
    finally:
        object.__setattr__(service.question, "ask", ask)
        leave.set()


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_full_server_says_when_to_come_again(impatient: Running) -> None:
    service = impatient.app.state.service
    threads = [threading.Thread(target=impatient.post, args=("/api/predict", {"smiles": ["C"]})) for _ in range(2)]
    with held(impatient):
        for thread in threads:
            thread.start()
        until(lambda: service.gauges()["requests_at_work"][1] == 2)
        answer = impatient.post("/api/predict", {"smiles": ["C"]})
    for thread in threads:
        thread.join(SECONDS)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert "2 requests (the limit waiting)" in answer.error
    assert impatient.metric('tokengt_given_up_total{why="full"}') == 1
    assert impatient.post("/api/predict", {"smiles": ["C"]}).status == 200


def test_whoever_has_gone_is_dropped(predictor: Predictor) -> None:
    """The work of a client that closed its connection is not done, and an answer that is too late is a sentence."""
    with running(predictor, Limits(seconds=1.0)) as server:
        service = server.app.state.service
        with held(server) as entered:
            blocker = threading.Thread(target=server.post, args=("/api/predict", {"smiles": ["C"]}))
            blocker.start()
            assert entered.wait(SECONDS)
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                connection.sendall(posted("/api/predict", {"smiles": ["CCO"]}))
                until(lambda: len(service.batcher) == 1)
            late = server.post("/api/predict", {"smiles": ["CCC"]})
        assert (late.status, "longer than 1 seconds (the limit seconds)" in late.error) == (504, True)
        blocker.join(SECONDS)
        assert server.post("/api/predict", {"smiles": ["CCO"]}).status == 200
        assert server.metric('tokengt_given_up_total{why="gone"}') == 1
        assert server.metric('tokengt_given_up_total{why="late"}') == 2
        # The one that was held, and the last one; neither the one that went away nor the one that was too late.
        until(lambda: server.metric("tokengt_batched_requests_total") == 2)
