"""The folder that ``prepare`` writes to: which store it holds, which process works in it, and the finished shards."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokengt.config import to_dict
from tokengt.data.manifest import CACHE, FORMAT, GRAPHS, MANIFEST, REJECTED, Recipe, read_manifest
from tokengt.data.progress import say
from tokengt.data.shards import ShardArrays, ShardFile
from tokengt.files import checksum, file_checksum, folder_lock, remove_empty, remove_leftovers, write_whole

SHARDS = ".shards"
_FILES = (GRAPHS, REJECTED, MANIFEST)
# What shards hold and how a file is cut into rows; those of another version, which a stopped run may have left, are not
# mixed with ours.
_SHARDS_VERSION = 2


@dataclass(frozen=True)
class Origin:
    """Everything that decides a store's bytes: the source's content, the recipe and how graphs are made."""

    name: str
    sha256: str
    recipe: Recipe
    featurisation: Mapping[str, Any]

    @property
    def columns(self) -> dict[str, Any]:
        """Columns as they were asked for, for the manifest."""
        recipe = self.recipe
        asked: dict[str, Any] = {"smiles": recipe.smiles, "targets": list(recipe.targets), "split": recipe.split}
        # What came later is said only where it is asked for: the manifests of other stores stay as they were.
        later = {"weights": (recipe.weights, None), "censored": (recipe.censored, "reject")}
        return asked | {name: value for name, (value, usual) in later.items() if value != usual}

    def fingerprint(self, shard_rows: int) -> str:
        decisive = [FORMAT, _SHARDS_VERSION, self.sha256, to_dict(self.recipe), self.featurisation, shard_rows]
        return checksum(json.dumps(decisive).encode())[:16]


def holds_store(out: Path) -> bool:
    """Whether ``out`` is a finished store, of whatever origin; False when it is free or holds an unfinished one.

    Raises:
        ValueError: it is something else, which nobody wants overwritten.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; choose another folder")
    if not out.is_dir():
        return False
    if (out / MANIFEST).exists():
        return True
    strange = sorted(path.name for path in out.iterdir() if not _is_ours(path))
    if strange:
        raise ValueError(f"{out} holds {strange[0]!r} and is no store; choose another folder")
    return False


def is_finished(out: Path, origin: Origin) -> bool:
    """Whether ``out`` is exactly this store already; False when it holds none yet.

    Raises:
        ValueError: it is another store or something else, which nobody wants overwritten.
    """
    if not holds_store(out):
        return False
    try:
        manifest = read_manifest(out)
    except ValueError as error:
        raise ValueError(f"{error}; choose another folder") from error
    differences = manifest.differences(origin.sha256, origin.recipe, origin.featurisation)
    if differences:
        raise ValueError(f"{out} is another store: {'; '.join(differences)}; choose another folder")
    return True


def _is_ours(path: Path) -> bool:
    """Files of a store count as ours only beside the shards they are made from."""
    if path.name == SHARDS:
        return True
    named = path.name in (*_FILES, CACHE) or any(path.name.startswith(f".{name}.") for name in _FILES)
    return named and (path.parent / SHARDS).is_dir()


@contextmanager
def at_work(out: Path, shown: bool) -> Iterator[None]:
    """Have the folder to oneself: a second process waits. What a killed process left half written is removed.

    Where nothing came of it, no empty folder stays behind.
    """
    waiting = f"{out}: waiting for another process that prepares it"
    with folder_lock(out, lambda: say(waiting, shown)) as made:
        for name in _FILES:
            remove_leftovers(out / name)
        (out / SHARDS).mkdir(exist_ok=True)
        try:
            yield
        finally:
            # Beside files of an unfinished store the folder of shards stays, empty or not: it says whose they are.
            unfinished = not (out / MANIFEST).exists() and any((out / name).exists() for name in _FILES)
            if not unfinished:
                remove_empty(*(out / SHARDS).glob("*"), out / SHARDS, *reversed(made))


def refuse_other_shards(out: Path, fingerprint: str | None) -> None:
    """Refuse a folder in which a stopped ``prepare`` with other settings left its work: it is not ours to remove.

    ``fingerprint`` is that of our own work; None where it leaves none.
    """
    if any(shelf.name != fingerprint for shelf in (out / SHARDS).iterdir()):
        raise ValueError(
            f"{out} was begun from another file, with other settings or by another version, and not finished; remove "
            "it or choose another folder"
        )


def clear_shards(out: Path) -> None:
    """Remove all shards, and the folder itself when nothing else is in it."""
    shutil.rmtree(out / SHARDS, ignore_errors=True)
    with suppress(OSError):
        out.rmdir()


@dataclass(frozen=True)
class Shelf:
    """Finished shards of one fingerprint. A shard's name carries its checksum, so a damaged one is noticed."""

    folder: Path

    @classmethod
    def of(cls, out: Path, fingerprint: str) -> "Shelf":
        folder = out / SHARDS / fingerprint
        folder.mkdir(parents=True, exist_ok=True)
        return cls(folder)

    def done(self) -> dict[int, ShardFile]:
        """Whole shards by number; what is damaged or half written is removed."""
        shards = {}
        for path in sorted(self.folder.iterdir()):
            number, _, digest = path.stem.partition("-")
            if number.isdigit() and path.suffix == ".safetensors" and file_checksum(path)[:16] == digest:
                shards[int(number)] = ShardFile(path)
            else:
                path.unlink()
        return shards

    def put(self, number: int, arrays: ShardArrays) -> ShardFile:
        content = arrays.to_bytes()
        path = self.folder / f"{number:06d}-{checksum(content)[:16]}.safetensors"
        # Shards may be many; what a kill left among them was removed when they were listed.
        write_whole(path, content, sweep=False)
        return ShardFile(path)
