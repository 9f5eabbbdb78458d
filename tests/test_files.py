import os
import socket
import stat
import tempfile
from contextlib import ExitStack
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


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_leftovers_of_a_killed_process_go_and_nothing_else(tmp_path: Path) -> None:
    """Another file's leftovers, an editor's files and the temporary file of a process at work stay."""
    left, other = ".file.bin.k2_9xqab.part", ".other.bin.k2_9xqab.part"
    for name in ("file.bin", left, other, ".file.bin.swp", ".file.bin.original", "a.file.bin.k2_9xqab.part"):
        (tmp_path / name).touch()
    (tmp_path / ".file.bin.a_folder.part").mkdir()
    kept = [name for name in names(tmp_path) if name != left]
    with files.writing(tmp_path / "file.bin", sweep=False):
        (at_work,) = set(names(tmp_path)) - {left, *kept}
        files.remove_leftovers(tmp_path / "file.bin")
        assert names(tmp_path) == sorted([*kept, at_work])
    assert names(tmp_path) == kept
    files.sweep_folder(tmp_path)
    assert names(tmp_path) == [name for name in kept if name != other]


def test_whoever_writes_a_file_sweeps_its_leftovers(tmp_path: Path) -> None:
    (tmp_path / ".o[1]*.csv.k2_9xqab.part").touch()
    (tmp_path / ".o1.csv.k2_9xqab.part").touch()
    files.write_whole(tmp_path / "o[1]*.csv", b"")
    assert names(tmp_path) == [".o1.csv.k2_9xqab.part", "o[1]*.csv"]


def test_a_temporary_file_swept_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, swept = files.wait_for_lock, []

    def late(descriptor: int) -> bool:
        if not swept:
            swept.extend(names(tmp_path))
            files.sweep_folder(tmp_path)
        return lock(descriptor)

    monkeypatch.setattr(files, "wait_for_lock", late)
    files.write_whole(tmp_path / "file.bin", b"new")
    assert len(swept) == 1
    assert names(tmp_path) == ["file.bin"]
    assert (tmp_path / "file.bin").read_bytes() == b"new"


def test_links_are_followed(tmp_path: Path) -> None:
    """To a file, to a file that is not there yet in a folder that is not there yet, and through another link."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "old.csv").write_bytes(b"old")
    for name, target in (("a", "disk/old.csv"), ("b", "disk/deep/new.csv"), ("c", "a")):
        (tmp_path / name).symlink_to(target)
        files.write_whole(tmp_path / name, name.encode())
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / name).read_bytes() == name.encode()
    assert (tmp_path / "disk" / "old.csv").read_bytes() == b"c"
    assert (tmp_path / "disk" / "deep" / "new.csv").read_bytes() == b"b"
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match=r"loop"):
        files.write_whole(tmp_path / "loop", b"x")
    (tmp_path / "run").symlink_to("disk/run")
    assert files.make_folder(tmp_path / "run") == [tmp_path.resolve() / "disk" / "run"]


@pytest.mark.parametrize("kind", ["a pipe", "a socket", "a device"])
@pytest.mark.parametrize("linked", [False, True])
def test_what_is_no_regular_file_is_refused_and_stays(tmp_path: Path, kind: str, linked: bool) -> None:
    path = tmp_path / "special"
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    else:
        try:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("only root makes devices")
    before, asked = path.stat(), path
    if linked:
        asked = tmp_path / "link"
        asked.symlink_to(path)
    for write in (files.ready_to_write, lambda place: files.write_whole(place, b"x")):
        with pytest.raises(OSError, match=rf"{asked.name} is {kind}; expected the name of a regular file"):
            write(asked)
    assert path.stat() == before


def test_a_file_or_a_closed_folder_in_the_way_is_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    for write in (files.ready_to_write, lambda place: files.write_whole(place, b"x"), files.make_folder):
        with pytest.raises(NotADirectoryError, match=r"/file is no folder"):
            write(tmp_path / "file" / "deep" / "new")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(PermissionError, match=r"Permission denied: '.*out.csv'"):
        files.ready_to_write(tmp_path / "deep" / "out.csv")
    assert names(tmp_path) == ["file"]


def test_errors_about_the_temporary_file_name_the_file_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(name: str, _: object) -> None:
        raise PermissionError(13, "Permission denied", name)

    monkeypatch.setattr(os, "replace", closed)
    with pytest.raises(PermissionError, match=r"Permission denied: '.*/file.bin'$"):
        files.write_whole(tmp_path / "file.bin", b"x")
    assert names(tmp_path) == []


def refuse() -> None:
    raise ValueError("taken")


def test_a_folder_is_had_by_one_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    with files.folder_lock(folder, refuse) as made:
        assert made == [tmp_path / "a", folder]
        with pytest.raises(ValueError, match="taken"), files.folder_lock(folder, refuse):
            pass
    with files.folder_lock(folder, refuse) as made:
        assert made == []


def test_a_folder_that_was_removed_while_one_waited_for_it_is_made_again(tmp_path: Path) -> None:
    """Otherwise two processes would each hold the lock of a folder of the same name."""
    folder = tmp_path / "run"
    first = ExitStack()
    first.enter_context(files.folder_lock(folder, refuse))

    def goes() -> None:
        folder.rmdir()
        first.close()

    with files.folder_lock(folder, goes) as made:
        assert made == [folder]
        with pytest.raises(ValueError, match="taken"), files.folder_lock(folder, refuse):
            pass


def test_scratch_folders_of_killed_processes_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "tokengt-mine").mkdir()
    (tmp_path / "tokengt-scratch-k2_9xqab.part" / "store").mkdir(parents=True)
    with files.scratch_folder() as first, files.scratch_folder() as second:
        (first / "store").mkdir()
        assert names(tmp_path) == sorted(["tokengt-mine", first.name, second.name])
    assert names(tmp_path) == ["tokengt-mine"]
