"""Paths that are no plain files: FIFOs, devices, sockets, links, folders, names that no file should have."""

import os
import socket
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.drill.case import Case
from tests.drill.oracle import Fault, check_folder, judged, snapshot
from tests.drill.workshop import TINY


@dataclass(frozen=True)
class Place:
    """A path to hand over. ``usable``: True where the call must work, False where it must be refused, None for either.

    ``outputs``: what a call that ends well may have written; by itself the path.
    """

    path: str
    usable: bool | None
    what: str
    outputs: tuple[str, ...] | None = None
    options: tuple[str, ...] = ()


def play(case: Case) -> list[Fault]:
    if case.rng.random() < 0.08:
        return _store_kept(case)
    verb = case.rng.choice(("prepare", "predict", "predict", "embed", "train", "evaluate", "info"))
    into = case.rng.random() < 0.5 and verb not in ("info", "evaluate")
    suffix = {"predict": ".csv", "embed": ".npz"}.get(verb, "") if into else ".csv"
    place = case.rng.choice(OUTPUTS if into else INPUTS)(case, suffix)
    source = place.path if not into else str(case.shop.molecules)
    out = place.path if into else f"out{suffix if verb != 'train' else ''}"
    before = snapshot(case.folder)
    answer = case.call(*_words(case, verb, source, out), *(place.options if verb in ("predict", "embed") else ()))
    faults = judged(answer)
    if faults:
        return faults
    wrong = ""
    if place.usable is True and answer.refused and verb != "info":
        wrong = "is refused"
    elif place.usable is False and answer.done:
        wrong = "is taken"
    if wrong:
        faults.append(Fault("silent", f"{verb}: {place.what} as {'output' if into else 'input'} {wrong}", str(answer)))
    found = check_folder(answer, before, (out,) if place.outputs is None else place.outputs)
    return faults + [Fault(fault.kind, f"{place.what}: {fault.what}", fault.call) for fault in found]


def _words(case: Case, verb: str, source: str, out: str) -> list[str]:
    run = str(case.shop.single.folder)
    return {
        "prepare": ["prepare", source, "--target", "y", "--out", out],
        "train": ["train", source, "--target", "y", "--out", out, *TINY],
        "predict": ["predict", run, source, "--out", out],
        "embed": ["embed", run, source, "--out", out],
        "evaluate": ["evaluate", run, source],
        "info": ["info", source],
    }[verb]


def _fifo(case: Case, suffix: str) -> Place:
    os.mkfifo(case.folder / f"fifo{suffix}")
    return Place(f"fifo{suffix}", False, "a FIFO")


def _socket(case: Case, suffix: str) -> Place:
    # The name of a socket may have 107 bytes at most, so it is bound by a relative one.
    here = os.getcwd()
    os.chdir(case.folder)
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(f"socket{suffix}")
    finally:
        os.chdir(here)
    return Place(f"socket{suffix}", False, "a socket")


def _device(case: Case, suffix: str) -> Place:
    """A node of our own like /dev/null, /dev/zero, /dev/full or /dev/random; a link to it where that is not allowed."""
    number = case.rng.choice((3, 5, 7, 8))
    path = case.folder / f"device{suffix}"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, number))
    except PermissionError:
        path.symlink_to({3: "/dev/null", 5: "/dev/zero", 7: "/dev/full", 8: "/dev/random"}[number])
    return Place(path.name, False, "a device")


def _link_to_device(case: Case, suffix: str) -> Place:
    path = case.folder / f"link{suffix}"
    path.symlink_to(case.rng.choice(("/dev/null", "/dev/zero", "/dev/full")))
    return Place(path.name, False, "a link to a device")


def _loop(case: Case, suffix: str) -> Place:
    path = case.folder / f"loop{suffix}"
    path.symlink_to(path.name)
    return Place(path.name, False, "a link to itself")


def _dangling(case: Case, suffix: str) -> Place:
    path = case.folder / f"link{suffix}"
    path.symlink_to("nowhere/at/all")
    return Place(path.name, False, "a link to nothing")


def _folder(case: Case, suffix: str) -> Place:
    path = case.folder / f"folder{suffix}"
    path.mkdir()
    (path / "mine.txt").write_text("precious")
    return Place(path.name, False, "a folder with a file in it")


def _linked_file(case: Case, suffix: str) -> Place:
    (case.folder / f"link{suffix}").symlink_to(case.shop.molecules)
    return Place(f"link{suffix}", True, "a link to a good file")


def _odd_name(case: Case, suffix: str) -> Place:
    name = case.rng.choice(("a b", "\u03b2\U0001f9ea", "-x", "a\nb", "%s{}", "'\"", "a;rm", "#x", "..x")) + suffix
    path = case.folder / name
    path.write_bytes(case.shop.molecules.read_bytes())
    # A word that begins with a dash is an option to every command, unless its path is written out.
    return Place(f"./{name}", True, f"the name {name!r}")


def _not_utf8_name(case: Case, suffix: str) -> Place:
    path = Path(os.fsdecode(os.fsencode(case.folder) + b"/\xff\xfe" + suffix.encode()))
    path.write_bytes(case.shop.molecules.read_bytes())
    return Place(path.name, None, "a name that is not UTF-8")


def _no_such(case: Case, suffix: str) -> Place:
    name = case.rng.choice(
        ("nothing", "no/where", "", ".", "..", "/", "x" * 300, "x/" * 3000, "a\0b", "~", "/proc/self/mem")
    )
    return Place(name + suffix if name not in ("", ".", "..", "/") else name, False, f"the path {name[:20]!r}")


def _below_a_file(case: Case, suffix: str) -> Place:
    (case.folder / "file").write_text("precious")
    return Place(f"file/x{suffix}", False, "a path below a file")


def _proc(case: Case, suffix: str) -> Place:
    return Place(f"/proc/tokengt{suffix}", False, "a place where nothing can be written")


def _existing(case: Case, suffix: str) -> Place:
    """Somebody's own file under the name of the output."""
    (case.folder / f"mine{suffix}").write_text("precious")
    return Place(f"mine{suffix}", False, "a file that exists")


def _link_to_existing(case: Case, suffix: str) -> Place:
    (case.folder / "precious").write_text("precious")
    (case.folder / f"link{suffix}").symlink_to("precious")
    return Place(f"link{suffix}", False, "a link to a file that exists")


def _the_input(case: Case, suffix: str) -> Place:
    path = case.folder / f"in{suffix or '.csv'}"
    path.write_bytes(case.shop.molecules.read_bytes())
    return Place(path.name, False, "a file that exists")


def _new(case: Case, suffix: str) -> Place:
    name = case.rng.choice(("new", "a b", "\u03b2", "deep/down/new", "./new", "#x")) + suffix
    return Place(name, True, "a new name", (name.removeprefix("./"), "deep"))


def _link_to_new(case: Case, suffix: str) -> Place:
    """A link is followed: what it leads to is written, and the link stays one."""
    (case.folder / f"link{suffix}").symlink_to(f"target{suffix}")
    return Place(f"link{suffix}", None, "a link to a new file", (f"target{suffix}",))


def _forced_link(case: Case, suffix: str) -> Place:
    (case.folder / f"target{suffix}").write_text("old")
    (case.folder / f"link{suffix}").symlink_to(f"target{suffix}")
    return Place(f"link{suffix}", None, "a link to a file, and --force", (f"target{suffix}",), ("--force",))


def _forced_device(case: Case, suffix: str) -> Place:
    made = _device(case, suffix)
    return Place(made.path, False, "a device, and --force", (), ("--force",))


def _store_kept(case: Case) -> list[Fault]:
    """A folder in which somebody keeps a store, under the name that a training would give its own: it stays."""
    case.shop.copy(case.shop.store, case.folder / "proj" / "store")
    before = snapshot(case.folder)
    source = case.rng.choice(("typo.csv", str(case.shop.molecules), str(case.shop.graphs), "proj/store"))
    resume = ("--resume",) if case.rng.random() < 0.3 else ()
    answer = case.call("train", source, "--target", "y", "--out", "proj", *TINY, *resume)
    after = snapshot(case.folder)
    gone = [name for name, value in before.items() if after.get(name) != value]
    return judged(answer) or ([Fault("lost", f"{gone[0]} of somebody else's store", str(answer))] if gone else [])


INPUTS: tuple[Callable[[Case, str], Place], ...] = (
    _fifo,
    _socket,
    _device,
    _link_to_device,
    _loop,
    _dangling,
    _folder,
    _linked_file,
    _odd_name,
    _not_utf8_name,
    _no_such,
    _below_a_file,
)
OUTPUTS: tuple[Callable[[Case, str], Place], ...] = (
    _fifo,
    _socket,
    _device,
    _link_to_device,
    _loop,
    _folder,
    _below_a_file,
    _proc,
    _existing,
    _link_to_existing,
    _the_input,
    _new,
    _link_to_new,
    _forced_link,
    _forced_device,
)
