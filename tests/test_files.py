import os
from pathlib import Path

import pytest

from tokengt import files


def test_write_whole_replaces_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.bin"
    files.write_whole(path, b"old")
    files.write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert [p.name for p in path.parent.iterdir()] == ["file.bin"]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.bin"
    files.write_whole(path, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file.bin"]


def test_checksum_is_sha256() -> None:
    assert files.checksum(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_pieces_appear_as_one_file_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    with files.writing(path) as file:
        file.write(b"one ")
        assert not path.exists()
        file.write(b"two")
    assert path.read_bytes() == b"one two"
    with pytest.raises(TypeError), files.writing(path) as file:
        file.write("no bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"one two"
    assert [p.name for p in tmp_path.iterdir()] == ["file.bin"]
    assert files.file_checksum(path) == files.checksum(b"one two")


def test_errors_of_the_disk_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"No space left on device: '.*file.bin'"), files.writing(tmp_path / "file.bin"):
        raise OSError(28, "No space left on device")
    with pytest.raises(ChildProcessError, match=r"^died$"), files.writing(tmp_path / "file.bin"):
        raise ChildProcessError("died")


def test_leftovers_of_a_killed_process_go(tmp_path: Path) -> None:
    for name in ("file.bin", ".file.bin.x8_k", ".other.bin.x8_k"):
        (tmp_path / name).touch()
    files.remove_leftovers(tmp_path / "file.bin")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".other.bin.x8_k", "file.bin"]
