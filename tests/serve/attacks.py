"""Hostile requests as bytes: bad bodies, bad HTTP, bad molecules, bad paths; the same ones every time."""

import json
import random
from collections.abc import Iterator
from typing import Any

SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(2)>"
SMILES = [
    "",
    " ",
    "C1CC",
    "C(" * 100,
    "C" * 19_000,
    "C" * 400,
    "[" * 500,
    "c1ccccc1" * 60,
    "".join(f"C%{place:02d}" for place in range(10, 99)) * 4,
    "*",
    "[999Uue]",
    "[C+999999999999999999999]",
    "[H][H]",
    "C.C.C." * 60 + "C",
    "CC |$_AV:0;1$|",
    "C>>C",
    "[C@@@@@H](F)(Cl)Br",
    "\x00",
    "C\x00C",
    "C\nC",
    "C\tname",
    "\ufeffC",
    "\U0001f600",
    "‮CCO",
    "%s%s%n",
    "${jndi:ldap://127.0.0.1/a}",
    "'; DROP TABLE molecules; --",
    "../../../../etc/passwd",
    "/etc/passwd",
    "file:///etc/passwd",
    SCRIPT,
    "=cmd|' /C calc'!A0",
    "C" + "%(1000)" * 20,
    "[Fe]" * 120,
    "N#N" + "=C" * 200,
]
PATHS = [
    "/../../etc/passwd",
    "/static/../app.py",
    "/static/..%2f..%2fapp.py",
    "/static/%2e%2e/%2e%2e/limits.py",
    "/static/....//app.py",
    "/static//etc/passwd",
    "/static/page.js/",
    "/static/page.js%00.css",
    "/static/" + "a" * 5000,
    "/explanations/../health",
    "/explanations/%2e%2e%2fhealth",
    "/explanations/" + SCRIPT.replace(" ", "%20"),
    "//evil.example/",
    "/%ff%fe",
    "/api/picture",
    "/api/picture?smiles=",
    "/api/picture?smiles=%00",
    "/api/picture?smiles=C&smiles=N&dark=maybe",
    "/api/picture?smiles=" + "C" * 3000,
    "/api/picture?" + "&".join(f"a{place}=1" for place in range(2000)),
    "/docs",
    "/redoc",
    "/.env",
    "/api/predict",
    "/metrics/",
    "/?" + "x" * 20_000,
]
ODD_VALUES: list[Any] = [
    None, True, 0, -1, 1e308, 10**300, "", "x", [], {}, [[]], [None], [{}], {"a": 1}, ["C", None], [["C"]], "C" * 9999,
]  # fmt: skip
BODIES = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b"{",
    b"[" * 50_000,
    b'{"smiles":' * 20_000,
    b'{"smiles": ["C"]',
    b'{"smiles": ["\\ud800"]}',
    b'{"smiles": [NaN]}',
    b"\xff\xfe\x00",
    b'{"smiles": ["\xc3\x28"]}',
    b"\x1f\x8b\x08" + bytes(200),
    b"9" * 20_000,
    b"1e" + b"9" * 1000,
    b'{"smiles": ["C"], "smiles": ["N"]}',
    b'{"__proto__": {"a": 1}, "smiles": ["C"]}',
    b'\xef\xbb\xbf{"smiles": ["C"]}',
    b"<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]><a>&b;</a>",
]
TABLES = [
    b"",
    b"\n\n\n",
    b"smiles",
    b"smiles\n",
    b"a,a\n1,2\n",
    b"name\nC\n",
    b"smiles\n" + b'"C\n' * 1500,
    b'smiles,name\n"C,\n"C",x\n',
    b"smiles\n\x00\x00\n",
    b"\xff\xfe\n\xff\n",
    b"smiles\n" + b"C" * 500_000 + b"\n",
    b"smiles\n" + b"C\n" * 2500,
    b",".join(b"c%d" % place for place in range(3000)) + b"\n",
    f"{SCRIPT},smiles\n{SCRIPT},C\n{SCRIPT},{SCRIPT}\n".encode(),
    b"smiles;name\nC;=1+1\n",
    b"\rsmiles\rC\r",
]


def request(method: str, path: str, body: bytes = b"", kind: str | None = None, host: str = "127.0.0.1") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close", f"Content-Length: {len(body)}"]
    if kind is not None:
        lines.append(f"Content-Type: {kind}")
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + body


def posted(path: str, content: Any) -> bytes:
    return request("POST", path, json.dumps(content).encode(), "application/json")


def all_attacks(seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """A name for every attack, and its bytes; each is whole, so that the server need not wait for more."""
    routes = ("/api/predict", "/api/explain", "/api/layout", "/api/sketch")
    for text in SMILES:
        yield f"smiles {text[:20]!r}", posted("/api/predict", {"smiles": [text, "CCO"]})
        yield f"layout {text[:20]!r}", posted("/api/layout", {"smiles": text})
        yield f"list {text[:20]!r}", request("POST", "/api/table", f"{text} {SCRIPT}\n".encode(), "text/plain")
    for path in PATHS:
        for method in ("GET", "POST", "OPTIONS", "BREW"):
            yield f"{method} {path[:30]}", request(method, path)
    for route in (*routes, "/api/table"):
        for place, body in enumerate(BODIES):
            yield f"body {place} of {route}", request("POST", route, body, "application/json")
        for kind in ("text/html", "multipart/form-data; boundary=x", "application/json; charset=latin-1", "", "\x01"):
            yield f"type {kind!r} of {route}", request("POST", route, b'{"smiles": ["C"]}', kind)
        for method in ("GET", "PUT", "DELETE", "PATCH", "TRACE"):
            yield f"{method} {route}", request(method, route)
    for route in routes:
        for field in ("smiles", "alone", "atoms", "bonds", "descriptors", "graphs", "graph", SCRIPT, "", "__class__"):
            for value in ODD_VALUES:
                yield (
                    f"{field} {value!r:.20} of {route}",
                    posted(route, {"smiles": ["C"], field: value}),
                )
    for kind in ("text/csv", "text/tab-separated-values", "text/plain", "chemical/x-mdl-sdfile"):
        for place, body in enumerate(TABLES):
            yield f"table {place} as {kind}", request("POST", "/api/table", body, kind)
    yield from _broken_http()
    draw = random.Random(seed)
    for place in range(60):
        noise = draw.randbytes(draw.randrange(1, 400))
        yield f"noise {place}", noise + b"\r\n\r\n"
        yield f"noise body {place}", request("POST", draw.choice(routes), noise, "application/json")


def _broken_http() -> Iterator[tuple[str, bytes]]:
    yield "no host", b"GET /health HTTP/1.1\r\n\r\n"
    for host in ("evil.example", "127.0.0.1.evil.example", "", "a\x01b", "127.0.0.1, evil", "[::1", "\u00e9"):
        yield f"host {host!r}", request("GET", "/health", host=host)
    yield "two hosts", b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n"
    post = b"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    yield "negative length", post + b"Content-Length: -5\r\n\r\n{}"
    yield "endless length", post + b"Content-Length: " + b"9" * 300 + b"\r\n\r\n{}"
    yield "two lengths", post + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}"
    yield "length and chunks", post + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    yield "bad chunks", post + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n"
    yield "huge chunk", post + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 30 + b"\r\n"
    yield "long header", b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n"
    yield "many headers", b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"A: b\r\n" * 20_000 + b"\r\n"
    yield "old version", b"GET /health HTTP/0.9\r\n\r\n"
    yield "no request", b"\r\n\r\n\r\n"
    yield "upgrade", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    yield "http 2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    yield "absolute", b"GET http://evil.example/ HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    yield "large", request("POST", "/api/predict", b" " * (5 << 20), "application/json")
