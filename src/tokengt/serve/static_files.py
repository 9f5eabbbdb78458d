"""The files of the web page, read once: only those that come with the package, whatever a client asks for."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePosixPath

from starlette.responses import Response

INDEX = "index.html"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True)
class StaticFile:
    """One file and what it is."""

    content: bytes
    kind: str

    def response(self) -> Response:
        return Response(self.content, headers={"Content-Type": self.kind, "Cache-Control": "no-cache"})


def read_static() -> dict[str, StaticFile]:
    """All files by their names; colours and letters are those of the pages that explain predictions."""
    package = files("tokengt")
    found = {}
    for file in (*(package / "serve" / "static").iterdir(), package / "explain" / "page" / "style" / "base.css"):
        kind = _TYPES.get(PurePosixPath(file.name).suffix)
        if kind is not None:
            found[file.name] = StaticFile(file.read_bytes(), kind)
    return found
