"""Sources to a store of pre-training data: in pieces, by several processes, and going on where it was stopped.

This module does not import torch, so that worker processes start quickly.
"""

import io
import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokengt.data.prepare import rdkit_version
from tokengt.data.progress import progress_bar, say
from tokengt.files import checksum, folder_lock, write_whole
from tokengt.interop.reading import FEATURISATION_VERSION
from tokengt.pretraining.assays import slots_of
from tokengt.pretraining.describing import Arrays, Job, describe, descriptors
from tokengt.pretraining.keys import Excluded
from tokengt.pretraining.quantise import Ranges, to_codes
from tokengt.pretraining.sources import UNKNOWN, Source, read_excluded, read_source
from tokengt.pretraining.store import (
    FORMAT,
    Manifest,
    Origin,
    is_store,
    packed_graphs,
    read_manifest,
    write_store,
)

PIECES, WISH = "pieces", "wish.json"
_PIECE = 2000


@dataclass(frozen=True)
class Wish:
    """What is asked for.

    Args:
        sources: files of molecules, names of public data sets, or ``NAME:COUNT``.
        exclude: files or names whose molecules are left out; ``admet`` means the test parts of its endpoints.
        described: how many molecules get descriptors, evenly spaced; None for all, 0 for none.
        assays: whether columns of numbers and public labels are kept.
        smiles: the column of SMILES in files that do not call it so.
        max_atoms: larger molecules are left out; at most 255, so that atoms are numbered in one byte.
    """

    sources: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    described: int | None = None
    assays: bool = True
    smiles: str | None = None
    max_atoms: int = 100

    def __post_init__(self) -> None:
        if not self.sources:
            raise ValueError("there are no molecules to pre-train on; expected a file or the name of a data set")
        if not 1 <= self.max_atoms <= 255:
            raise ValueError(f"max_atoms is {self.max_atoms}; expected 1 to 255 for pre-training")
        if self.described is not None and self.described < 0:
            raise ValueError(f"described is {self.described}; expected 0 or more")


def prepare(
    wish: Wish, out: Path, *, workers: int | None = None, minutes: float | None = None, quiet: bool = False
) -> Manifest:
    """Make the store ``out``; one that was made from the same sources is opened as it is.

    With ``minutes``, the store is made of what was described by then, which is an even sample of all sources; the same
    call later goes on from there and makes a larger one.

    Raises:
        ValueError: one sentence: a source cannot be read, or the folder holds something else.
    """
    sources = [read_source(name, wish.smiles) for name in wish.sources]
    texts = [text for name in wish.exclude for text in read_excluded(name, wish.smiles)]
    excluded = Excluded.of(texts, wish.exclude)
    mark = _mark(wish, sources, excluded)
    with folder_lock(out, lambda: _refuse_taken(out)):
        before = _same(out, mark) if is_store(out) else None
        if before is not None and not before.left:
            return before
        _claim(out, mark)
        pieces = out / PIECES
        jobs = list(_jobs(wish, sources, excluded))
        _work(jobs, pieces, workers or os.cpu_count() or 1, minutes, quiet)
        manifest = _merge(out, pieces, jobs, sources, wish, excluded, mark)
        if not manifest.left:
            # Only now: the same command goes on from pieces that are there.
            shutil.rmtree(pieces)
    for origin in manifest.origins:
        later = f", {origin.left:,} not looked at: the same command goes on with them" if origin.left else ""
        say(
            f"{origin.name}: {origin.kept:,} molecules, {origin.excluded:,} left out because they stand in "
            f"{', '.join(wish.exclude) or 'nothing'}, {origin.refused:,} unreadable or too large{later}",
            not quiet,
        )
    return manifest


def _refuse_taken(out: Path) -> None:
    raise ValueError(f"another process is preparing {out}; wait for its end, or choose another folder")


def _mark(wish: Wish, sources: Sequence[Source], excluded: Excluded) -> dict[str, Any]:
    """What the pieces of a store depend on: those of another wish are not mixed with them."""
    contents = [checksum("\n".join(source.texts).encode()) for source in sources]
    return {
        "sources": list(wish.sources),
        "contents": contents,
        "excluded": excluded.sha256,
        "described": wish.described,
        "assays": wish.assays,
        "max_atoms": wish.max_atoms,
        "featurisation": FEATURISATION_VERSION,
        "rdkit": rdkit_version(),
    }


def _same(out: Path, mark: dict[str, Any]) -> Manifest:
    _check_mark(out, mark)
    return read_manifest(out)


def _check_mark(out: Path, mark: dict[str, Any]) -> None:
    before = json.loads((out / WISH).read_text()) if (out / WISH).is_file() else {}
    changed = [name for name in mark if before.get(name) != mark[name]]
    if changed:
        raise ValueError(
            f"{out} was begun with other {' and '.join(changed)}; give what it was begun with, or choose another folder"
        )


def _claim(out: Path, mark: dict[str, Any]) -> None:
    """Begin in an empty folder, or go on in one that the same wish has begun."""
    if (out / WISH).is_file():
        return _check_mark(out, mark)
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} exists and holds other files; choose another folder")
    (out / PIECES).mkdir(parents=True)
    write_whole(out / WISH, json.dumps(mark, indent=2).encode() + b"\n")
    return None


def _jobs(wish: Wish, sources: Sequence[Source], excluded: Excluded) -> Iterator[Job]:
    """Pieces of the sources one after another; which molecules are described is decided over all of them."""
    total = sum(len(source.texts) for source in sources)
    wanted = total if wish.described is None else min(wish.described, total)
    passed = np.arange(total + 1) * wanted // total
    described, first = np.diff(passed) > 0, 0
    for source in sources:
        for start in range(0, len(source.texts), _PIECE):
            texts = source.texts[start : start + _PIECE]
            here = first + start
            yield Job(texts, described[here : here + len(texts)], excluded, wish.max_atoms, source.kind)
        first += len(source.texts)


def _work(jobs: Sequence[Job], folder: Path, workers: int, minutes: float | None, quiet: bool) -> None:
    """Every piece that is not there yet, written whole when it is done; those of the first minutes where there is a
    limit, but one at least."""
    folder.mkdir(exist_ok=True)
    # In a random order, always the same one: whatever is done when the time is over is an even sample.
    order = np.random.default_rng(0).permutation(len(jobs)).tolist()
    left = [number for number in order if not _piece(folder, number).is_file()]
    total = sum(len(job.texts) for job in jobs)
    done = total - sum(len(jobs[number].texts) for number in left)
    end = time.monotonic() + 60 * minutes if minutes is not None else None
    if done and minutes == 0:  # Whoever wants no more work wants a store of what there is.
        return
    with progress_bar(total, "molecules", "describing molecules", done=done, shown=not quiet) as tick:
        for number, arrays in _described(jobs, left, workers):
            buffer = io.BytesIO()
            np.savez(buffer, **arrays)  # type: ignore[arg-type]
            write_whole(_piece(folder, number), buffer.getvalue())
            tick(len(jobs[number].texts))
            if end is not None and time.monotonic() > end:
                break


def _described(jobs: Sequence[Job], left: Sequence[int], workers: int) -> Iterator[tuple[int, Arrays]]:
    if workers == 1 or len(left) < 2:
        for number in left:
            yield number, describe(jobs[number])
        return
    # A forked process would inherit locks of threads that it does not have, such as torch's.
    pool = ProcessPoolExecutor(min(workers, len(left)), multiprocessing.get_context("spawn"))
    try:
        yield from zip(left, pool.map(describe, (jobs[number] for number in left)), strict=True)
    except BrokenProcessPool as error:
        raise ValueError("a process that describes molecules was killed, perhaps for memory; use fewer workers") from (
            error
        )
    finally:
        pool.shutdown(cancel_futures=True)


def _piece(folder: Path, number: int) -> Path:
    return folder / f"{number:06}.npz"


def _merge(
    out: Path,
    folder: Path,
    jobs: Sequence[Job],
    sources: Sequence[Source],
    wish: Wish,
    excluded: Excluded,
    mark: dict[str, Any],
) -> Manifest:
    """All pieces as one store."""
    read = [_read(file) if (file := _piece(folder, number)).is_file() else None for number in range(len(jobs))]
    kept, origins = _kept(read, jobs, sources)
    parts = [part for part in read if part is not None]
    if not any(origin.kept for origin in origins):
        raise ValueError(f"no molecule is left of {', '.join(wish.sources)}; expected one at least")
    values = np.concatenate([part["descriptors"] for part in parts])
    ranges = Ranges.of(values)
    useful = ranges.informative
    names = [name for name, use in zip(descriptors(), useful, strict=True) if use]
    labels = [source if wish.assays else Source.bare(source.name, source.texts) for source in sources]
    answers, answer_names = _joined([s.answers for s in labels], [s.answer_names for s in labels], kept, UNKNOWN)
    numbers, number_names = _joined([s.numbers for s in labels], [s.number_names for s in labels], kept, np.nan)
    number_ranges = Ranges.of(numbers)
    of_lists, assay_names = slots_of([source.measurements for source in labels], kept)
    arrays = {
        **packed_graphs(parts),
        "described": np.concatenate([part["described"] for part in parts]).astype(np.uint8),
        "descriptors": to_codes(values[:, useful], _chosen(ranges, useful)),
        "answers": answers,
        "numbers": to_codes(numbers, number_ranges),
        **of_lists,
    }
    manifest = Manifest(
        format=FORMAT,
        origins=origins,
        excluded_names=wish.exclude,
        excluded_keys=len(excluded.hashes),
        excluded_sha256=excluded.sha256,
        featurisation=FEATURISATION_VERSION,
        rdkit=mark["rdkit"],
        descriptors=tuple(names),
        descriptor_ranges=_chosen(ranges, useful),
        described=len(values),
        answers=answer_names,
        numbers=number_names,
        number_ranges=number_ranges,
        assays=assay_names,
    )
    write_store(out, manifest, arrays, np.concatenate([part["keys"] for part in parts]))
    return read_manifest(out)


def _read(file: Path) -> Arrays:
    try:
        with np.load(file, allow_pickle=False) as piece:
            return {name: piece[name] for name in piece.files}
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{file} cannot be read: {error}; remove it and give the same command again") from error


def _kept(
    parts: Sequence[Arrays | None], jobs: Sequence[Job], sources: Sequence[Source]
) -> tuple[list[NDArray[np.int64]], tuple[Origin, ...]]:
    """For every source the places of the molecules that are kept, and how many there are; None for what is not done."""
    kept, origins, number = [], [], 0
    for source in sources:
        places, start, left_out, left = [np.zeros(0, np.int64)], 0, np.zeros(2, np.int64), 0
        while start < len(source.texts):
            part, count = parts[number], len(jobs[number].texts)
            if part is None:
                left += count
            else:
                places.append(part["kept"] + start)
                left_out += part["left_out"]
            start, number = start + count, number + 1
        kept.append(np.concatenate(places))
        excluded, refused = left_out.tolist()
        origins.append(Origin(source.name, len(kept[-1]), excluded, refused, left))
    return kept, tuple(origins)


def _joined(
    tables: Sequence[NDArray[Any]],
    names: Sequence[tuple[str, ...]],
    kept: Sequence[NDArray[np.int64]],
    blank: float | int,
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Tables of different columns one below the other, ``blank`` where a source does not have a column."""
    columns = tuple(dict.fromkeys(name for some in names for name in some))
    out = np.full((sum(map(len, kept)), len(columns)), blank, dtype=tables[0].dtype)
    first = 0
    for table, own, places in zip(tables, names, kept, strict=True):
        out[first : first + len(places), [columns.index(name) for name in own]] = table[places]
        first += len(places)
    return out, columns


def _chosen(ranges: Ranges, which: NDArray[np.bool_]) -> Ranges:
    return Ranges(*(tuple(np.array(ends)[which].tolist()) for ends in (ranges.low, ranges.high)))
