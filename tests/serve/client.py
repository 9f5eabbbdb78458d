"""A server in a thread of this process, on a free port of loopback, and a plain client for it."""

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import uvicorn

from tokengt.inference import Predictor
from tokengt.serve.app import create_app
from tokengt.serve.limits import Limits
from tokengt.serve.patience import impatient_protocol

T = TypeVar("T")
JSON = {"Content-Type": "application/json"}


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The sentence of a refusal, which always comes with the field and with what was expected."""
        content = self.json()
        assert set(content) == {"error", "field", "expected"}, content
        assert "\n" not in content["error"]
        sentence: str = content["error"]
        return sentence


class Running(NamedTuple):
    """A server that runs, and its application."""

    port: int
    app: Any

    def ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers=headers)

    def post(self, path: str, content: Any) -> Answer:
        return self.ask("POST", path, json.dumps(content), JSON)

    def table(self, text: str | bytes, kind: str = "text/csv", query: str = "") -> Answer:
        return self.ask("POST", f"/api/table{query}", text, {"Content-Type": kind})

    def metric(self, name: str) -> float:
        lines = self.get("/metrics").body.decode().splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(name))


def run_async(scene: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` in a thread of its own: the browser's session has a loop in the thread of the tests."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, scene).result()


@contextmanager
def running(predictor: Predictor, limits: Limits | None = None, **more: Any) -> Iterator[Running]:
    limits = limits or Limits()
    app = create_app(predictor, limits, **more)
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    config = uvicorn.Config(
        app,
        http=impatient_protocol(limits.slow_seconds),
        ws="none",
        log_level="error",
        lifespan="on",
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), name="server")
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield Running(listener.getsockname()[1], app)
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()
    assert not thread.is_alive()
