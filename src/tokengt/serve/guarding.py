"""What stands before every route: who may ask, how large and how slow a request may be, and the headers of answers."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request

from tokengt.serve.metrics import Metrics
from tokengt.serve.problems import Problem

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Scripts and styles come from our own files alone, nothing is asked of other hosts, and no other page shows this one.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
# What is left of a body that is not read would be taken for the next request.
CLOSE = {"Connection": "close"}
_log = logging.getLogger("tokengt.serve")


@dataclass(frozen=True)
class Hosts:
    """Which names of this server a browser may use.

    A page of another site can have its own name resolve to this machine (DNS rebinding), and would then be of the same
    origin as this server. Its name stands in the Host header, so names that are not ours are refused. An address of
    numbers cannot be had in that way.

    Args:
        name: what the server was bound to.
    """

    name: str = "127.0.0.1"

    @property
    def is_loopback(self) -> bool:
        address = _address(self.name)
        return self.name == "localhost" if address is None else address.is_loopback

    def allows(self, host: str) -> bool:
        """Whether a Host header, with a port or without, names this server."""
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        if name is None or any(sign in host for sign in "/@?#\\ "):
            return False
        address = _address(name)
        if address is not None:
            return address.is_loopback or not self.is_loopback
        return name in ("localhost", self.name.lower())


def _address(name: str) -> Any:
    try:
        return ip_address(name)
    except ValueError:
        return None


class Guard:
    """ASGI middleware: refuses who may not ask, adds headers, counts, and answers what nobody else has caught."""

    def __init__(self, app: App, hosts: Hosts, metrics: Metrics) -> None:
        self._app, self._hosts, self._metrics = app, hosts, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.monotonic(), 0

        async def send_guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            check_caller(Headers(scope=scope), scope["method"], self._hosts)
            await self._app(scope, receive, send_guarded)
        except Problem as problem:
            await _answer(problem, send_guarded)
        except Exception:
            _log.exception("a request failed in a way that was not foreseen")
            if not status:
                await _answer(Problem(500, "something unexpected went wrong; this is a fault in tokengt"), send_guarded)
        route = getattr(scope.get("route"), "path", "other")
        self._metrics.answered(route, status, time.monotonic() - started)


async def _answer(problem: Problem, send: Send) -> None:
    body = problem.body()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **problem.headers}
    encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})


def check_caller(headers: Headers, method: str, hosts: Hosts) -> None:
    """Refuse a request under a name that is not ours, or work that a page of another site wants done.

    Raises:
        Problem: says so.
    """
    host = headers.get("host", "")
    if not hosts.allows(host):
        expected = "an address of this machine, or localhost"
        raise Problem(403, f"the Host header is {host[:60]!r}; expected {expected}", "Host", expected, CLOSE)
    if method in ("GET", "HEAD"):
        return
    origin = headers.get("origin")
    foreign = origin is not None and urlsplit(origin).netloc.lower() != host.lower()
    if foreign or headers.get("sec-fetch-site", "none") in ("cross-site", "same-site"):
        raise Problem(403, "a page of another site asks; expected this server's own page", "Origin", None, CLOSE)


async def read_body(request: Request, most: int, seconds: float) -> bytes:
    """The body, as long as it is no longer than ``most`` and there within ``seconds``.

    Raises:
        Problem: it is not.
    """
    expected = f"at most {most:,} bytes (the limit body)"
    large = Problem(413, f"the body is too large; expected {expected}", "body", expected, CLOSE)
    announced = request.headers.get("content-length", "")
    # A number of a thousand digits is not turned into one.
    if announced.isdecimal() and (len(announced) > 18 or int(announced) > most):
        raise large
    parts, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise large
                parts.append(part)
    except TimeoutError:
        raise Problem(408, f"the body did not arrive in {seconds:g} seconds", "body", None, CLOSE) from None
    except ClientDisconnect:
        raise Problem(400, "the client has gone before its body was whole", "body", None, CLOSE) from None
    return b"".join(parts)
