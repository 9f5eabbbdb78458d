"""A store of pre-training data: two files that a machine without RDKit trains from.

``pretraining.json`` says what is inside; ``arrays.safetensors.xz`` holds it, compressed. Graphs are kept small: every
different row of features once, and for each atom and bond which of them it has. ``keys.npy``, the hashed keys of all
molecules, is for leak reports and not needed to train.
"""

import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from tokengt.config import from_dict, read_json, to_dict
from tokengt.files import checksum, write_whole
from tokengt.models.pretrained import unsealed, write_sealed
from tokengt.pretraining.describing import Arrays
from tokengt.pretraining.quantise import Ranges

MANIFEST, ARRAYS, KEYS = "pretraining.json", "arrays.safetensors.xz", "keys.npy"
FORMAT = "tokengt-pretraining-1"


@dataclass(frozen=True)
class Origin:
    """What became of one source: so many molecules kept, excluded, refused (unreadable or too large), not looked at."""

    name: str
    kept: int
    excluded: int
    refused: int
    left: int = 0


@dataclass(frozen=True)
class Manifest:
    """What a store of pre-training data says of itself.

    Args:
        format: which version of this file it is.
        origins: where the molecules come from, in their order.
        excluded_names: files and data sets whose molecules were left out.
        excluded_keys: how many different molecules those are.
        excluded_sha256: a checksum of their keys.
        featurisation: the version of the numbers that molecules became.
        rdkit: the version that read them.
        descriptors: names of the descriptors.
        descriptor_ranges: what their codes mean.
        described: how many molecules have descriptors.
        answers: names of the yes/no assays.
        numbers: names of the quantities.
        number_ranges: what their codes mean.
        assays: names of the assays that are kept as a list.
        sha256: checksum of the arrays' file.
    """

    format: str
    origins: tuple[Origin, ...]
    excluded_names: tuple[str, ...]
    excluded_keys: int
    excluded_sha256: str
    featurisation: int
    rdkit: str
    descriptors: tuple[str, ...]
    descriptor_ranges: Ranges
    described: int
    answers: tuple[str, ...]
    numbers: tuple[str, ...]
    number_ranges: Ranges
    assays: tuple[str, ...]
    sha256: str = ""

    @property
    def count(self) -> int:
        return sum(origin.kept for origin in self.origins)

    @property
    def excluded(self) -> int:
        return sum(origin.excluded for origin in self.origins)

    @property
    def left(self) -> int:
        """Molecules that were not looked at, because the time was over."""
        return sum(origin.left for origin in self.origins)


def is_store(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def write_store(folder: Path, manifest: Manifest, arrays: Mapping[str, NDArray[Any]], keys: NDArray[np.uint64]) -> None:
    """Arrays first, then what names their checksum; an array of columns is kept column by column, as it packs best."""
    turned = {name: np.ascontiguousarray(array.T) for name, array in arrays.items()}
    content = lzma.compress(save(turned), preset=6)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / ARRAYS, content)
    with (folder / KEYS).open("wb") as file:
        np.save(file, np.sort(keys), allow_pickle=False)
    write_sealed(folder / MANIFEST, to_dict(replace(manifest, sha256=checksum(content))))


def read_manifest(folder: Path) -> Manifest:
    """
    Raises:
        ValueError: one sentence: the folder holds no such store, or a torn one.
    """
    if not is_store(folder):
        raise ValueError(
            f"{folder} holds no {MANIFEST}; expected a store of pre-training data (prepare_pretraining in Python, "
            "--prepare-only in the command)"
        )
    content = unsealed(read_json(folder / MANIFEST), folder / MANIFEST)
    if content.get("format") != FORMAT:
        raise ValueError(f"{folder / MANIFEST} has the format {content.get('format')!r}; expected {FORMAT!r}")
    return from_dict(Manifest, content)


def read_arrays(folder: Path, manifest: Manifest) -> Arrays:
    """
    Raises:
        ValueError: one sentence: the file is not the one that the manifest names.
    """
    file = folder / ARRAYS
    if not file.is_file():
        raise ValueError(f"{folder} holds no {ARRAYS}; prepare it again")
    content = file.read_bytes()
    if checksum(content) != manifest.sha256:
        raise ValueError(f"{file} does not match its checksum: it is torn or was changed")
    try:
        return {name: array.T for name, array in load(lzma.decompress(content)).items()}
    except (lzma.LZMAError, SafetensorError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error


def packed_graphs(parts: Sequence[Mapping[str, NDArray[Any]]]) -> Arrays:
    """The graphs of several pieces of work as one, in few bytes."""
    atoms, bonds = (np.concatenate([part[name] for part in parts]) for name in ("atoms", "bonds"))
    ends = np.concatenate([part["ends"] for part in parts], 1)
    out: Arrays = {}
    for name, rows in (("atom", atoms), ("bond", bonds)):
        table, numbers = np.unique(rows, axis=0, return_inverse=True)
        # safetensors keeps no 16-bit numbers without a sign in every version: two bytes are kept apart instead.
        wide = numbers.reshape(-1).astype(np.uint16)
        out |= {f"{name}_rows": table, f"{name}_low": (wide & 255).astype(np.uint8)}
        if len(table) > 256:
            out[f"{name}_high"] = (wide >> 8).astype(np.uint8)
    # The canonical order puts neighbours side by side, so that differences are small numbers that repeat.
    out |= {
        "bond_first": ends[0].astype(np.uint8),
        "bond_step": (ends[1] - ends[0]).astype(np.uint8),
        "node_counts": np.concatenate([part["node_counts"] for part in parts]).astype(np.uint8),
        "bond_counts": np.concatenate([part["bond_counts"] for part in parts]).astype(np.uint8),
    }
    return out


def graph_arrays(arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """The inverse of :func:`packed_graphs`, as :meth:`tokengt.batch.GraphBatch.from_arrays` takes it."""
    rows = {}
    for name in ("atom", "bond"):
        numbers = arrays[f"{name}_low"].astype(np.int64)
        if f"{name}_high" in arrays:
            numbers = numbers + 256 * arrays[f"{name}_high"].astype(np.int64)
        rows[name] = np.ascontiguousarray(arrays[f"{name}_rows"])[numbers]
    first = arrays["bond_first"].astype(np.int32)
    second = first + arrays["bond_step"]
    nodes, edges = arrays["node_counts"].astype(np.int64), 2 * arrays["bond_counts"].astype(np.int64)
    return {
        "node_offsets": np.concatenate([[0], np.cumsum(nodes)]),
        "edge_offsets": np.concatenate([[0], np.cumsum(edges)]),
        "node_features": rows["atom"],
        "edge_index": np.stack([np.stack([first, second], 1).ravel(), np.stack([second, first], 1).ravel()]),
        "edge_features": rows["bond"].repeat(2, 0),
    }
