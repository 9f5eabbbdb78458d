"""Files from the web: fetched once, resumed where a broken connection left them, whole or not there, and checked.

Beside a file lies ``FILE.json`` with its address, size and SHA-256, written at the first download. From then on a file
with another checksum is refused, whether it was changed here or at its place; the record stays when the file is
removed. What is there of an unfinished file lies in ``FILE.partial``. Nothing is fetched when a module is imported.
"""

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tokengt.config import read_json
from tokengt.data.progress import progress_bar, say
from tokengt.files import file_checksum, folder_lock, write_whole

# Seconds without a byte after which a connection is taken for dead, and pauses before it is tried again.
_TIMEOUT = 30.0
_PAUSES = (1.0, 3.0)
_BLOCK = 1 << 18
_AGENT = "tokengt"


@dataclass(frozen=True)
class Remote:
    """A file at its public place; ``size`` is about how many bytes it has, 0 if that is not known beforehand."""

    url: str
    file: str
    size: int


@dataclass(frozen=True)
class _Record:
    """What is known of a file since its first download."""

    url: str
    bytes: int
    sha256: str


class _Broken(Exception):
    """The connection ended before the file did; what came is kept."""


def cache_folder() -> Path:
    """Where fetched and prepared data sets are kept: ``tokengt`` in ``XDG_CACHE_HOME``, by itself ``~/.cache``.

    As the XDG specification says, a path that is not absolute is ignored.
    """
    told = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(told) if os.path.isabs(told) else Path.home() / ".cache") / "tokengt"


def fetch(remote: Remote, folder: Path, shown: bool = True) -> Path:
    """The file in ``folder``, downloaded if it is not there. One process downloads; others wait for it.

    Raises:
        ValueError: one sentence: it is not the file that it was at the first download.
        OSError: one sentence: it cannot be reached, or the connection broke again and again.
    """
    path = folder / remote.file
    with folder_lock(folder, lambda: say(f"{path}: waiting for another process that downloads it", shown)):
        if path.is_file():
            return check(path, remote.url)
        partial = path.with_name(f"{path.name}.partial")
        _fetch_patiently(remote, partial, shown)
        _put(partial, path, remote.url)
    return path


def check(path: Path, url: str) -> Path:
    """Refuse a file that is not the one first downloaded; a file without a record gets one."""
    record = _recorded(path)
    found = file_checksum(path)
    if record is None:
        _write_record(path, _Record(url, path.stat().st_size, found))
    elif record.sha256 != found:
        raise ValueError(
            f"{path} is not the file that was downloaded first (SHA-256 {found[:12]}..., expected "
            f"{record.sha256[:12]}...): it is torn or was changed; remove it to download it again"
        )
    return path


def _put(partial: Path, path: Path, url: str) -> None:
    """Give a finished download its name, once it is on the disk and has the checksum of the first one."""
    found, record = file_checksum(partial), _recorded(path)
    if record is not None and record.sha256 != found:
        partial.unlink()
        raise ValueError(
            f"{url} holds another file than at the first download (SHA-256 {found[:12]}..., expected "
            f"{record.sha256[:12]}...); if it is meant to have changed, remove {_record_file(path)}"
        )
    _state_file(partial).unlink(missing_ok=True)
    if record is None:
        _write_record(path, _Record(url, partial.stat().st_size, found))
    os.replace(partial, path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fetch_patiently(remote: Remote, partial: Path, shown: bool) -> None:
    """Download, and go on after a broken connection; give up when several tries in a row brought nothing new."""
    failures = 0
    while True:
        before = _size(partial)
        try:
            _fetch_once(remote, partial, shown)
            return
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 416 and before:
                    # The server has no such range: what is here is not the beginning of what is there.
                    partial.unlink()
                    continue
                raise OSError(
                    f"{remote.url} cannot be downloaded: the server says {error.code} {error.reason}"
                ) from None
        except (_Broken, urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            failures = 0 if _size(partial) > before else failures + 1
            if failures >= len(_PAUSES):
                raise OSError(_unreachable(remote, partial, error)) from None
            time.sleep(_PAUSES[failures])


def _unreachable(remote: Remote, partial: Path, error: Exception) -> str:
    reason = str(getattr(error, "reason", "")) or str(error) or type(error).__name__
    kept = f"; {_size(partial):,} bytes are kept, and the same command goes on from there" if _size(partial) else ""
    return (
        f"{remote.url} cannot be downloaded ({reason}){kept}; without a network, set TOKENGT_DATA to a folder that "
        f"holds the data, or put the file at {partial.with_name(remote.file)}"
    )


def _fetch_once(remote: Remote, partial: Path, shown: bool) -> None:
    """One request: all of the file, or what is missing of it if the server still has the same file."""
    # Without a tag nobody knows whether the rest would be that of the same file: then it is begun anew.
    tag = _state(partial).get("tag", "")
    have = _size(partial) if tag else 0
    headers = {"User-Agent": _AGENT, "Accept-Encoding": "identity"}
    if have:
        # The server sends the whole file instead of the rest if it is another one by now.
        headers |= {"Range": f"bytes={have}-", "If-Range": tag}
    request = urllib.request.Request(remote.url, headers=headers)
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
        start = _start(response, have)
        length = response.headers.get("Content-Length")
        total = None if length is None else start + int(length)
        tag = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
        # A weak tag says that two files mean the same, and not that their bytes are the same.
        write_whole(_state_file(partial), json.dumps({"tag": "" if tag.startswith("W/") else tag}).encode())
        with (
            partial.open("r+b" if start else "wb") as file,
            progress_bar(total or max(remote.size, 1), "B", remote.file, done=start, shown=shown) as advance,
        ):
            file.seek(start)
            file.truncate()
            try:
                _copy(response, file, advance)
            finally:
                file.flush()
                os.fsync(file.fileno())
            if total is not None and file.tell() < total:
                raise _Broken(f"the connection ended after {file.tell():,} of {total:,} bytes")


def _copy(response: Any, file: BinaryIO, advance: Callable[[int], None]) -> None:
    while block := response.read(_BLOCK):
        file.write(block)
        advance(len(block))


def _start(response: Any, have: int) -> int:
    """Where the bytes of an answer belong: behind what is here, or at the beginning."""
    if response.status != 206:
        return 0
    told = str(response.headers.get("Content-Range", ""))
    if not told.startswith(f"bytes {have}-"):
        raise _Broken(f"the server answered with the range {told!r} where {have}- was asked for")
    return have


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _state_file(partial: Path) -> Path:
    return partial.with_name(f"{partial.name}.json")


def _state(partial: Path) -> dict[str, str]:
    """Which version of the file the partial one is of."""
    try:
        return {name: str(value) for name, value in read_json(_state_file(partial)).items()}
    except (OSError, ValueError):
        return {}


def _record_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _recorded(path: Path) -> _Record | None:
    file = _record_file(path)
    if not file.is_file():
        return None
    data = read_json(file)
    try:
        return _Record(str(data["url"]), int(data["bytes"]), str(data["sha256"]))
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{file} is no record of a download; remove it") from None


def _write_record(path: Path, record: _Record) -> None:
    write_whole(_record_file(path), json.dumps(asdict(record), indent=2).encode() + b"\n")
