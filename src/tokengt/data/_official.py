"""Public molecule data sets as their files have them: rows of text with the official part of each, one reader each.

A row is the SMILES, one cell per target (blank: no label) and, where there is an official split, the part. Every reader
takes the files of its layout; files inside a zip archive are read in place.
"""

import csv
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from tokengt.batch import GraphBatch
from tokengt.data._labelled import LabelledGraphs
from tokengt.data._pickles import read_pickle, read_torch
from tokengt.data.cells import HIDDEN
from tokengt.data.manifest import PARTS
from tokengt.data.splits import sorted_group_split
from tokengt.interop.molecules import scaffolds

Rows = Iterator[Sequence[str]]
Reader = Callable[[Sequence[Path]], Rows]
QM9_TRAIN, QM9_VALID = 110_000, 10_000
_LONGEST_CELL = 1 << 24
# A label of -1 stands for none.
_LABELS = np.array(["0", "1", ""], dtype=object)


@contextmanager
def _opened(path: Path, member: str = "") -> Iterator[Any]:
    """A file, or one of those in a zip archive, without its compression."""
    name = member or path.name
    try:
        with path.open("rb") as raw:
            file = _member(path, raw, member) if member else raw
            if name.endswith(".gz"):
                with gzip.GzipFile(fileobj=file) as inner:
                    yield inner
            elif name.endswith(".xz"):
                with lzma.LZMAFile(file) as inner:
                    yield inner
            else:
                yield file
    except (zipfile.BadZipFile, gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise ValueError(f"{path} is torn: {error}") from None


def _member(path: Path, archive: BinaryIO, member: str) -> Any:
    try:
        return zipfile.ZipFile(archive).open(member)
    except KeyError:
        raise ValueError(f"{path} holds no {member}; expected the archive as it is published") from None


def _columns(path: Path, names: Sequence[str], member: str = "") -> Rows:
    """These columns of a CSV."""
    csv.field_size_limit(max(_LONGEST_CELL, csv.field_size_limit()))
    with _opened(path, member) as file:
        rows = csv.reader(io.TextIOWrapper(file, encoding="utf-8", newline=""))
        head = next(rows, [])
        missing = [name for name in names if name not in head]
        if missing:
            raise ValueError(f"{path} has no column {missing[0]!r}; expected the file as it is published")
        places = [head.index(name) for name in names]
        for row in rows:
            if row:
                yield [row[place] for place in places]


def plain(files: Sequence[Path], *, columns: Sequence[str]) -> Rows:
    """A table without a split."""
    return _columns(files[0], columns)


def by_scaffold(files: Sequence[Path], *, columns: Sequence[str]) -> Rows:
    """MoleculeNet's scaffold split, which is a function of the molecules and their order: 80%, 10% and 10%."""
    rows = list(_columns(files[0], columns))
    codes = sorted_group_split(scaffolds([row[0] for row in rows])).codes(len(rows)).tolist()
    for row, code in zip(rows, codes, strict=True):
        yield [*row, PARTS[code]]


def qm9_parts(count: int) -> NDArray[np.int64]:
    """The code of each characterised row's part: a permutation by seed 0, cut at 110,000 and 120,000."""
    codes = np.full(count, PARTS.index("test"), dtype=np.int64)
    order = np.random.default_rng(0).permutation(count)
    codes[order[:QM9_TRAIN]] = PARTS.index("train")
    codes[order[QM9_TRAIN : QM9_TRAIN + QM9_VALID]] = PARTS.index("valid")
    return codes


def qm9(files: Sequence[Path], *, columns: Sequence[str]) -> Rows:
    """QM9 without the molecules that failed its own consistency check."""
    left_out = _uncharacterised(files[1])
    rows = [row for number, row in enumerate(_columns(files[0], columns), 1) if number not in left_out]
    for row, code in zip(rows, qm9_parts(len(rows)).tolist(), strict=True):
        yield [*row, PARTS[code]]


def _uncharacterised(path: Path) -> set[int]:
    """Numbers of molecules, from 1: a plain list, or the published text with words around it and more on each line."""
    numbers = set()
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        words = line.split()
        if words and words[0].isdigit() and words[1:2] != ["compounds"]:
            numbers.add(int(words[0]))
    return numbers


def molpcba(files: Sequence[Path]) -> Rows:
    """SMILES, an array of labels and one of parts."""
    with _opened(files[1]) as file:
        labels = np.load(io.BytesIO(file.read()), allow_pickle=False)
    with np.load(files[2], allow_pickle=False) as split:
        parts = split["split"].tolist()
    for (smiles,), own, part in zip(_columns(files[0], ["smiles"]), labels, parts, strict=True):
        yield [smiles, *_LABELS[own].tolist(), PARTS[part]]


def molpcba_archive(files: Sequence[Path], *, targets: Sequence[str]) -> Rows:
    """OGB's archive: the molecules with their labels, and lists of rows in the scaffold split."""
    parts: dict[int, str] = {}
    for part in PARTS:
        with _opened(files[0], f"pcba/split/scaffold/{part}.csv.gz") as file:
            parts |= dict.fromkeys(map(int, file.read().split()), part)
    rows = _columns(files[0], ["smiles", *targets], "pcba/mapping/mol.csv.gz")
    for number, (smiles, *own) in enumerate(rows):
        yield [smiles, *(cell[:1] for cell in own), _part(parts, number, files[0])]


def peptides(files: Sequence[Path], *, targets: Sequence[str]) -> Rows:
    """A table whose column of labels holds a list, and the rows of each part, as npz or as the published pickle."""
    parts = _parts_of(_index_lists(files[1]))
    for number, (smiles, listed) in enumerate(_columns(files[0], ["smiles", "labels"])):
        labels = [cell.strip() for cell in listed.strip("[] ").split(",")]
        if len(labels) != len(targets):
            raise ValueError(f"{files[0]}: row {number} has {len(labels)} labels; expected {len(targets)}")
        yield [smiles, *labels, _part(parts, number, files[1])]


def _index_lists(path: Path) -> dict[str, Any]:
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    return _lists(read_pickle(path.read_bytes(), path), path)


def _lists(found: Any, path: Path) -> dict[str, Any]:
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise ValueError(f"{path} holds a {type(found).__name__}; expected lists of rows by the names of their parts")
    return found


def _parts_of(lists: dict[str, Any]) -> dict[int, str]:
    words = {"train": "train", "val": "valid", "valid": "valid", "test": "test"}
    return {
        int(number): words[name] for name, numbers in lists.items() for number in np.asarray(numbers) if name in words
    }


def _part(parts: dict[int, str], number: int, path: Path) -> str:
    if number not in parts:
        raise ValueError(f"{path} puts row {number} in no part; expected each row in one")
    return parts[number]


def split_dict(files: Sequence[Path]) -> dict[str, NDArray[np.int64]]:
    """PCQM4Mv2's lists of rows: train, valid, test-dev and test-challenge, in their own order."""
    if len(files) == 2:
        found, name = read_torch(files[1]), files[1]
    else:
        name = files[0]
        with _opened(files[0], "pcqm4m-v2/split_dict.pt") as file:
            found = read_torch(files[0], file.read())
    lists = {part: np.asarray(rows, dtype=np.int64).reshape(-1) for part, rows in _lists(found, name).items()}
    for part in ("train", "valid", "test-dev"):
        if part not in lists:
            raise ValueError(f"{name} lists no rows of {part}; expected the file as it is published")
    return lists


def pcqm4mv2(files: Sequence[Path]) -> Rows:
    """PCQM4Mv2 in its public layout; the labels of both test parts are not published, so their rows are hidden."""
    parts: dict[int, str] = {}
    for part, rows in split_dict(files).items():
        parts |= dict.fromkeys(rows.tolist(), part if part in PARTS else HIDDEN)
    member = "" if len(files) == 2 else "pcqm4m-v2/raw/data.csv.gz"
    for number, (idx, smiles, gap) in enumerate(_columns(files[0], ["idx", "smiles", "homolumogap"], member)):
        if int(idx) != number:
            raise ValueError(f"{files[0]}: row {number} has the idx {idx}; expected the file as it is published")
        yield [smiles, gap, _part(parts, number, files[0])]


def zinc_arrays(files: Sequence[Path]) -> LabelledGraphs:
    """ZINC-12k's own graphs: types of atoms and bonds, each bond once, and nothing that would tell rings."""
    with np.load(files[0], allow_pickle=False) as file:
        return _typed_graphs(dict(file))


def zinc_archive(files: Sequence[Path]) -> LabelledGraphs:
    """:func:`zinc_arrays` of the published archive of all ZINC graphs and the lists of the 12,000 among them."""
    archive, *lists = files
    found: dict[str, list[Any]] = {name: [] for name in ("atom_type", "edge_index", "edge_type", "y", "split")}
    for code, (member, listed) in enumerate(zip(("train", "val", "test"), lists, strict=True)):
        with _opened(archive, f"molecules/{member}.pickle") as file:
            molecules = read_pickle(file.read(), f"{archive}: {member}.pickle")
        for number in map(int, listed.read_text().replace(",", " ").split()):
            _add_molecule(found, molecules[number], code)
        del molecules
    counts = {"node_ptr": "atom_type", "edge_ptr": "edge_type"}
    ends = {name: np.cumsum([0, *map(len, found[of])]) for name, of in counts.items()}
    joined = {name: np.concatenate(found[name]) for name in ("atom_type", "edge_type")}
    arrays = {
        **ends,
        **joined,
        "edge_index": np.concatenate(found["edge_index"], 1),
        "y": np.array(found["y"], dtype=np.float64),
        "split": np.array(found["split"], dtype=np.uint8),
    }
    return _typed_graphs(arrays)


def _typed_graphs(arrays: Mapping[str, Any]) -> LabelledGraphs:
    """Graphs whose nodes and edges have a type each, from flat arrays with every edge once; both directions here.

    The edges of a graph come in the order of their ends, as PyG has them.
    """
    nodes, edges = (torch.as_tensor(arrays[name]).long() for name in ("node_ptr", "edge_ptr"))
    ends = torch.as_tensor(arrays["edge_index"]).long()
    both = torch.cat([ends, ends.flip(0)], 1)
    owner = torch.repeat_interleave(torch.arange(len(edges) - 1), edges.diff()).repeat(2)
    order = torch.argsort((owner * 256 + both[0]) * 256 + both[1], stable=True)
    assert not len(both[0]) or int(both.max()) < 256, "graphs of molecules are small"
    batch = GraphBatch.from_arrays(
        {
            "node_offsets": nodes,
            "edge_offsets": 2 * edges,
            "edge_index": both[:, order],
            "node_features": torch.as_tensor(arrays["atom_type"]).long()[:, None],
            "edge_features": torch.as_tensor(arrays["edge_type"]).long().repeat(2)[order][:, None],
        }
    )
    values = torch.as_tensor(arrays["y"]).double()[:, None]
    split = torch.as_tensor(arrays["split"]).to(torch.int8)
    lines = torch.arange(1, len(values) + 1)
    return LabelledGraphs(batch, values, "graph", ("y",), split, lines, ())


def _add_molecule(found: dict[str, list[Any]], molecule: dict[str, Any], code: int) -> None:
    bonds = np.triu(molecule["bond_type"].numpy())
    ends = np.stack(np.nonzero(bonds))
    found["atom_type"].append(molecule["atom_type"].numpy().reshape(-1).astype(np.uint8))
    found["edge_index"].append(ends.astype(np.int64))
    found["edge_type"].append(bonds[ends[0], ends[1]].astype(np.uint8))
    found["y"].append(float(molecule["logP_SA_cycle_normalized"]))
    found["split"].append(code)


def table_reader(read: Callable[..., Rows], **wishes: Sequence[str]) -> Reader:
    return partial(read, **wishes)
