"""A server on loopback that breaks connections, forgets ranges and changes its files as a test tells it."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class Web:
    """``files`` by path; the next answers stop after as many bytes as ``cuts`` says, one entry per request."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.files: dict[str, bytes] = {}
        self.cuts: list[int] = []
        self.ranges = True
        self.length = True
        self.status = 0
        self.asked: list[tuple[str, str | None]] = []


def tag_of(content: bytes) -> str:
    """The ETag of a file."""
    return f'"{zlib.crc32(content)}"'


@contextmanager
def web() -> Iterator[Web]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    state = Web(f"http://127.0.0.1:{server.server_address[1]}")
    server.state = state  # type: ignore[attr-defined]
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        state: Web = self.server.state  # type: ignore[attr-defined]
        asked = self.headers.get("Range")
        state.asked.append((self.path, asked))
        content = state.files.get(self.path)
        if state.status or content is None:
            self.send_error(state.status or 404)
            return
        tag, start = tag_of(content), 0
        if asked and state.ranges and self.headers.get("If-Range") in (None, tag):
            start = int(asked.removeprefix("bytes=").partition("-")[0])
            if start >= len(content):
                self.send_error(416)
                return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if state.length:
            self.send_header("Content-Length", str(len(content) - start))
        self.send_header("ETag", tag)
        self.end_headers()
        end = start + state.cuts.pop(0) if state.cuts else len(content)
        self.wfile.write(content[start:end])
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass
