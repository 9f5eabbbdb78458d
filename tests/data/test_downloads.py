"""A download survives broken connections, is whole or not there, and is the same file for ever."""

import json
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.data.web import Web, tag_of, web
from tokengt.data import downloads
from tokengt.data.downloads import Remote, cache_folder, fetch
from tokengt.files import checksum

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setattr(downloads, "_PAUSES", (0.0, 0.0))
    with web() as running:
        running.files["/data.bin"] = CONTENT
        yield running


def remote(server: Web, path: str = "/data.bin") -> Remote:
    return Remote(f"{server.address}{path}", "data.bin", 0)


def left_behind(folder: Path, content: bytes, tag: str = tag_of(CONTENT)) -> None:
    """What a killed download leaves."""
    (folder / "data.bin.partial").write_bytes(content)
    (folder / "data.bin.partial.json").write_text(json.dumps({"tag": tag}))


def test_a_file_is_fetched_once_and_its_hash_is_recorded(server: Web, tmp_path: Path) -> None:
    path = fetch(remote(server), tmp_path / "new", shown=False)
    assert path.read_bytes() == CONTENT
    record = json.loads((tmp_path / "new/data.bin.json").read_text())
    assert record == {"url": f"{server.address}/data.bin", "bytes": len(CONTENT), "sha256": checksum(CONTENT)}
    assert sorted(os.listdir(tmp_path / "new")) == ["data.bin", "data.bin.json"]
    assert fetch(remote(server), tmp_path / "new", shown=False) == path
    assert len(server.asked) == 1


def test_broken_connections_are_gone_on_from_where_they_broke(server: Web, tmp_path: Path) -> None:
    server.cuts = [1000, 0, 2500]
    assert fetch(remote(server), tmp_path, shown=False).read_bytes() == CONTENT
    assert [asked for _, asked in server.asked] == [None, "bytes=1000-", "bytes=1000-", "bytes=3500-"]


def test_what_a_killed_process_left_is_gone_on_from(server: Web, tmp_path: Path) -> None:
    left_behind(tmp_path, CONTENT[:77])
    assert fetch(remote(server), tmp_path, shown=False).read_bytes() == CONTENT
    assert server.asked == [("/data.bin", "bytes=77-")]


def test_bytes_of_an_unknown_file_are_not_gone_on_from(server: Web, tmp_path: Path) -> None:
    (tmp_path / "data.bin.partial").write_bytes(b"x" * 77)
    assert fetch(remote(server), tmp_path, shown=False).read_bytes() == CONTENT
    assert server.asked == [("/data.bin", None)]


@pytest.mark.parametrize("have", [300, len(CONTENT), len(CONTENT) + 5], ids=["less", "all", "more"])
def test_a_server_without_ranges_or_with_another_file_sends_all_of_it(server: Web, tmp_path: Path, have: int) -> None:
    """Bytes of an older file are never mixed with those of a newer one."""
    left_behind(tmp_path, b"x" * have, '"older"')
    server.ranges = have != 300
    assert fetch(remote(server), tmp_path, shown=False).read_bytes() == CONTENT
    assert sorted(os.listdir(tmp_path)) == ["data.bin", "data.bin.json"]


def test_a_range_that_the_server_does_not_have_is_begun_anew(server: Web, tmp_path: Path) -> None:
    left_behind(tmp_path, b"x" * (len(CONTENT) + 5))
    assert fetch(remote(server), tmp_path, shown=False).read_bytes() == CONTENT
    assert [asked for _, asked in server.asked] == [f"bytes={len(CONTENT) + 5}-", None]


def test_a_connection_that_breaks_again_and_again_is_one_sentence_and_loses_nothing(
    server: Web, tmp_path: Path
) -> None:
    server.cuts = [1000, 0, 0, 0]
    with pytest.raises(OSError, match=r"1,000 bytes are kept, and the same command goes on from there"):
        fetch(remote(server), tmp_path, shown=False)
    assert (tmp_path / "data.bin.partial").read_bytes() == CONTENT[:1000]
    assert not (tmp_path / "data.bin").exists()
    server.cuts = []
    assert fetch(remote(server), tmp_path, shown=False).read_bytes() == CONTENT
    assert server.asked[-1] == ("/data.bin", "bytes=1000-")


def test_a_changed_file_is_refused_here_and_at_its_place(server: Web, tmp_path: Path) -> None:
    path = fetch(remote(server), tmp_path, shown=False)
    path.write_bytes(b"changed")
    with pytest.raises(ValueError, match="not the file that was downloaded first"):
        fetch(remote(server), tmp_path, shown=False)
    path.unlink()
    server.files["/data.bin"] = b"another file"
    with pytest.raises(ValueError, match=r"holds another file than at the first download.*remove .*data\.bin\.json"):
        fetch(remote(server), tmp_path, shown=False)
    assert not (tmp_path / "data.bin").exists()
    assert not (tmp_path / "data.bin.partial").exists()
    server.files["/data.bin"] = CONTENT
    assert fetch(remote(server), tmp_path, shown=False).read_bytes() == CONTENT


def test_what_the_server_says_and_no_network_are_one_sentence(server: Web, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"/none cannot be downloaded: the server says 404") as told:
        fetch(remote(server, "/none"), tmp_path, shown=False)
    assert "\n" not in str(told.value)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(OSError, match="without a network, set TOKENGT_DATA") as told:
        fetch(Remote(f"http://127.0.0.1:{port}/x", "x", 0), tmp_path, shown=False)
    assert "\n" not in str(told.value)
    assert not list(tmp_path.glob("x*"))


def test_a_file_without_a_known_length_is_read_to_its_end(
    server: Web, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.length = False
    assert fetch(remote(server), tmp_path).read_bytes() == CONTENT


def test_two_processes_download_once(server: Web, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(lambda _: fetch(remote(server), tmp_path, shown=False), range(2)))
    assert {path.read_bytes() for path in paths} == {CONTENT}
    assert len(server.asked) == 1


def test_the_cache_is_where_xdg_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "tokengt"
    for ignored in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_folder() == Path.home() / ".cache" / "tokengt"
