"""Public data sets by name, ready to train on: found or downloaded, and prepared once with the official split.

What is made lies in ``CACHE/datasets/NAME`` (:func:`tokengt.data.downloads.cache_folder`): ``downloads`` with the
public files, and a folder per content of the source files with the table of all rows and the stores made from it. So
nothing stale is ever read: other source files lead to another folder.
"""

import gzip
import io
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokengt.config import to_dict
from tokengt.data import engines
from tokengt.data.catalogue import DATASETS, Dataset, Layout
from tokengt.data.datasets import bundled
from tokengt.data.downloads import cache_folder, check, fetch
from tokengt.data.graph_store import packed
from tokengt.data.manifest import MANIFEST, Recipe, featurisation
from tokengt.data.merge import write_store
from tokengt.data.prepare import MAX_REJECTED, prepare
from tokengt.data.progress import say
from tokengt.data.store import Store
from tokengt.data.tables import TableWriter
from tokengt.data.workspace import Origin, at_work, clear_shards, is_finished
from tokengt.files import checksum, file_checksum, folder_lock, writing
from tokengt.interop.molecules import DEFAULT_POLICY, MoleculePolicy

SMILES, SPLIT = "smiles", "split"
_DOWNLOADS = "downloads"
# Is increased whenever the same source files would give another table or other graphs.
_VERSION = 1


@dataclass(frozen=True)
class Found:
    """The files of a data set where they lie, with who reads them; none of them where it is still to be downloaded."""

    layout: Layout
    files: tuple[Path, ...]

    def checksum(self) -> str:
        return checksum("".join(file_checksum(file) for file in self.files).encode())


def dataset_named(data: Any) -> Dataset | None:
    """The data set of this name; None for anything else, and where a file or folder here has the name: it is meant."""
    if not isinstance(data, (str, Path)) or Path(data).exists():
        return None
    return DATASETS.get(str(data))


def say_if_hidden(data: Any, shown: bool = True) -> None:
    """Say so where a file or folder has the name of a data set, which is then not read."""
    if isinstance(data, (str, Path)) and str(data) in DATASETS and Path(data).exists():
        kind = "folder" if Path(data).is_dir() else "file"
        say(f"{data} is the {kind} of this name here, and not the public data set", shown)


def found(dataset: Dataset) -> Found | None:
    """The data set on this machine: under ``TOKENGT_DATA``, in the package or downloaded before; None if nowhere."""
    root = os.environ.get("TOKENGT_DATA")
    folders = [*([Path(root)] if root else [])]
    for folder in folders:
        files = tuple(folder / name for name in dataset.local.files)
        if all(file.is_file() for file in files):
            return Found(dataset.local, files)
    with_package = tuple(bundled(Path(name).name) for name in dataset.local.files)
    if all(file.is_file() for file in with_package):
        return Found(dataset.local, with_package)
    downloaded = tuple(_home(dataset) / _DOWNLOADS / name for name in dataset.public.files)
    return Found(dataset.public, downloaded) if all(file.is_file() for file in downloaded) else None


def sources(dataset: Dataset, progress: bool = True) -> Found:
    """The files of a data set, downloaded if they are not on this machine; downloaded ones are checked.

    Raises:
        OSError: one sentence: they cannot be downloaded.
        ValueError: one sentence: a file is not the one that was downloaded first.
    """
    here = found(dataset)
    if here is None:
        missing = sum(remote.size for remote in dataset.remotes)
        size = f", about {missing / 1e6:,.1f} MB" if dataset.size else ""
        say(f"{dataset.name}: downloading {len(dataset.remotes)} file(s){size} to {_home(dataset)}", progress)
        folder = _home(dataset) / _DOWNLOADS
        return Found(dataset.public, tuple(fetch(remote, folder, progress) for remote in dataset.remotes))
    if here.layout is dataset.public:
        for file, remote in zip(here.files, dataset.remotes, strict=True):
            check(file, remote.url)
    return here


def named_store(
    dataset: Dataset,
    policy: MoleculePolicy = DEFAULT_POLICY,
    *,
    workers: int | None = None,
    progress: bool = True,
) -> Store:
    """The prepared data set with all its targets and its split: made at the first call, opened from then on."""
    source = sources(dataset, progress)
    home = _home(dataset) / _key(dataset, source)
    made = featurisation(None if dataset.is_graphs else policy)
    out = home / f"store-{checksum(json.dumps(made).encode())[:12]}"
    if (out / MANIFEST).is_file():
        return Store.open(out)
    recipe = Recipe(policy=policy)
    return _prepared(dataset, source, home, out, recipe, workers, "processes", progress, max_rejected=MAX_REJECTED)


def prepare_any(
    source: str | Path,
    out: Path,
    recipe: Recipe,
    *,
    workers: int | None = None,
    engine: engines.Engine = "processes",
    progress: bool = True,
    max_rejected: float = MAX_REJECTED,
) -> Store:
    """:func:`tokengt.data.prepare.prepare` of a file, or of a data set by its name into a store of one's own."""
    say_if_hidden(source, progress)
    dataset = dataset_named(source)
    if dataset is None:
        return prepare(
            Path(source), out, recipe, workers=workers, engine=engine, progress=progress, max_rejected=max_rejected
        )
    files = sources(dataset, progress)
    home = _home(dataset) / _key(dataset, files)
    return _prepared(dataset, files, home, out, recipe, workers, engine, progress, max_rejected)


def table_of(dataset: Dataset, source: Found, home: Path, progress: bool = True) -> Path:
    """All rows as one table with the columns smiles, the targets and split; made once."""
    read = source.layout.rows
    assert read is not None, "asked for data sets of molecules only"
    table = home / f"{dataset.name}.csv.gz"
    with folder_lock(home, lambda: say(f"{table}: waiting for another process that makes it", progress)):
        if table.is_file():
            return table
        say(f"{dataset.name}: reading {', '.join(str(file) for file in source.files)}", progress)
        # Without a time in it, the same rows are the same bytes.
        with writing(table) as raw, gzip.GzipFile("", "wb", 1, raw, mtime=0) as packed_file:
            text = io.TextIOWrapper(packed_file, encoding="utf-8", newline="")
            writer = TableWriter(text)
            writer.writerow([SMILES, *dataset.targets, *([SPLIT] if dataset.has_split else [])])
            writer.writerows(read(source.files))
            text.flush()
            text.detach()
    return table


def _prepared(
    dataset: Dataset,
    source: Found,
    home: Path,
    out: Path,
    recipe: Recipe,
    workers: int | None,
    engine: engines.Engine,
    progress: bool,
    max_rejected: float,
) -> Store:
    if dataset.is_graphs:
        return _prepared_graphs(dataset, source, out, recipe, progress)
    recipe = replace(
        recipe,
        smiles=recipe.smiles or SMILES,
        targets=recipe.targets or dataset.targets,
        split=recipe.split or (SPLIT if dataset.has_split else None),
    )
    table = table_of(dataset, source, home, progress)
    return prepare(table, out, recipe, workers=workers, engine=engine, progress=progress, max_rejected=max_rejected)


def _prepared_graphs(dataset: Dataset, source: Found, out: Path, recipe: Recipe, progress: bool) -> Store:
    what = f"{dataset.name} holds graphs of its own and no molecules"
    recipe.refuse_of_molecules(what)
    for option, value in (
        ("a column of the split", recipe.split),
        ("a way to read molecules", None if recipe.policy == DEFAULT_POLICY else recipe.policy),
    ):
        if value:
            raise ValueError(f"{what}: {option} means nothing there")
    if set(recipe.targets) - set(dataset.targets):
        raise ValueError(f"{dataset.name} has the target {', '.join(dataset.targets)}, and not {recipe.targets[0]!r}")
    recipe = replace(recipe, targets=dataset.targets)
    origin = Origin(dataset.name, source.checksum(), recipe, featurisation(None))
    with at_work(out, progress):
        if not is_finished(out, origin):
            assert source.layout.graphs is not None
            manifest, tensors, rejected = packed(source.layout.graphs(source.files), origin)
            write_store(out, manifest, tensors, (), rejected)
        clear_shards(out)
    return Store.open(out, verify=False)


def describe(dataset: Dataset) -> tuple[str, str]:
    """Where a data set lies, or where it would come from; and its size in words."""
    here = found(dataset)
    if here is None:
        size = f"about {_in_words(dataset.size)}" if dataset.size else "size not known"
        return f"to download from {dataset.remotes[0].url}", size
    return str(here.files[0]), _in_words(sum(file.stat().st_size for file in here.files))


def _in_words(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def _home(dataset: Dataset) -> Path:
    return cache_folder() / "datasets" / dataset.name


def _key(dataset: Dataset, source: Found) -> str:
    """The name of the folder for what is made of these very files."""
    decisive = [_VERSION, dataset.name, to_dict(Recipe(targets=dataset.targets)), source.checksum()]
    return checksum(json.dumps(decisive).encode())[:16]
