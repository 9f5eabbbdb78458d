"""Store: a prepared data set, that is, graphs with their targets in flat arrays, and a manifest that describes them.

A store is a folder that ``tokengt prepare`` writes, mapped from disk and checked against its checksums, or it is made
in memory. Training from it converts nothing again.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int8, Int64, UInt8
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tokengt.batch import GraphBatch, Level
from tokengt.data.facts import fact_of_all
from tokengt.data.manifest import (
    CACHE,
    GRAPHS,
    Manifest,
    Source,
    TargetColumn,
    TaskKind,
    featurisation,
    read_manifest,
)
from tokengt.files import file_checksum
from tokengt.interop.molecules import DEFAULT_POLICY, MoleculePolicy
from tokengt.structure.facts import StructureFact


@dataclass(frozen=True, eq=False)
class _Texts(Sequence[str]):
    """Strings end to end, as UTF-8; each is decoded when it is asked for."""

    data: UInt8[Tensor, " bytes"]
    offsets: Int64[Tensor, " bounds"]

    @classmethod
    def of(cls, texts: Sequence[str]) -> "_Texts":
        encoded = [text.encode() for text in texts]
        offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        data = np.frombuffer(bytearray(b"".join(encoded)), dtype=np.uint8)
        return cls(torch.from_numpy(data), torch.from_numpy(offsets))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, place: Any) -> Any:
        """One string; no slices."""
        first, last = self.offsets[place : place + 2].tolist()
        return self.data[first:last].numpy().tobytes().decode()


def name_tensors(names: Sequence[str]) -> dict[str, Tensor]:
    """The ids of nodes, as a store keeps them."""
    texts = _Texts.of(names)
    return {"names": texts.data, "name_offsets": texts.offsets}


@dataclass(frozen=True, eq=False)
class Store:
    """Graphs with their targets, in the order of their source.

    ``graphs`` are packed, in narrow integers. ``targets`` has one row per graph, node, edge or link
    (``manifest.level``) and NaN for a missing label; ``lines`` is where each graph stands in the source; ``split`` is
    the code of each row's part (:data:`tokengt.data.splits.PARTS`), in one column for each split where the data came
    with several. ``weights`` is how much each row counts in training, and ``bounds`` has, for labels that are bounds
    such as ``>3.69``, the lower one of every target and then the upper one of every target. ``drawn`` is, of pairs that
    are not in the source but were drawn at random beside its links, the row of that link, and -1 of all others
    (:func:`tokengt.data.links.with_negatives`). ``names`` are the ids of all nodes, where a table of nodes has them.
    """

    manifest: Manifest
    graphs: GraphBatch
    targets: Float64[Tensor, "rows targets"]
    lines: Int64[Tensor, " graphs"]
    split: Int8[Tensor, "rows *splits"] | None = None
    folder: Path | None = None
    _texts: _Texts | None = None
    weights: Float64[Tensor, " rows"] | None = None
    bounds: Float64[Tensor, "rows bounds"] | None = None
    drawn: Int64[Tensor, " rows"] | None = None
    names: Sequence[str] | None = None

    @classmethod
    def open(cls, folder: Path, verify: bool = True) -> "Store":
        """Map a store from disk; with ``verify`` its data is first read through and compared with its checksum.

        Raises:
            ValueError: the folder is no store, or a file is missing, torn or changed; says which.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        path = folder / GRAPHS
        if not path.is_file():
            raise ValueError(f"{folder} is no whole tokengt store: {GRAPHS} is missing")
        if verify and file_checksum(path) != manifest.files.get(GRAPHS):
            raise ValueError(f"{path} does not match its checksum: it is torn or was changed")
        try:
            with safe_open(path, "pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            graphs = GraphBatch.from_arrays(tensors)
            texts = _Texts(tensors["texts"], tensors["text_offsets"]) if "texts" in tensors else None
            store = cls(
                manifest,
                graphs,
                tensors["targets"],
                tensors["lines"],
                tensors.get("split"),
                folder,
                texts,
                tensors.get("weights"),
                tensors.get("bounds"),
                names=_Texts(tensors["names"], tensors["name_offsets"]) if "names" in tensors else None,
            )
        except (SafetensorError, KeyError, IndexError, RuntimeError, TypeError) as error:
            reason = str(error).strip().split("\n")[0]
            raise ValueError(f"{path} is torn or no store's data: {reason}") from error
        if store._counts() != dict(manifest.counts):
            raise ValueError(f"{path} holds {store._counts()}, but the manifest beside it says {manifest.counts}")
        store._check_columns(path)
        return store

    @classmethod
    def from_memory(
        cls,
        graphs: GraphBatch,
        targets: Tensor | None,
        *,
        target_names: Sequence[str] = (),
        level: Level = "graph",
        texts: Sequence[str] | None = None,
        policy: MoleculePolicy | None = None,
        classes: Sequence[Sequence[str] | None] | None = None,
        task: TaskKind | None = None,
        descriptors: Sequence[str] = (),
        split: Int8[Tensor, "rows *splits"] | None = None,
        lines: Int64[Tensor, " graphs"] | None = None,
    ) -> "Store":
        """A store in memory, without a folder. With ``texts`` or ``policy`` the graphs are molecules.

        ``targets`` [rows, T] has one row per graph, node, edge or link; ``classes[t]`` are the labels of target t, if
        it has any.
        """
        packed = graphs.narrowed()
        molecules = texts is not None or policy is not None
        rows = packed.level_rows(level).total
        values = torch.empty(rows, 0) if targets is None else targets
        if values.ndim != 2 or len(values) != rows or values.shape[1] != len(target_names):
            raise ValueError(
                f"targets have shape {list(values.shape)}; expected [{rows}, {len(target_names)}]: "
                f"one row per {level} and one column per name"
            )
        labels = [None] * len(target_names) if classes is None else classes
        store = cls(
            Manifest(
                source=Source("memory", "", len(packed)),
                rejected=0,
                featurisation=featurisation(policy or DEFAULT_POLICY if molecules else None),
                level=level,
                task=task,
                targets=tuple(
                    TargetColumn(name, None if labels_of_target is None else tuple(labels_of_target))
                    for name, labels_of_target in zip(target_names, labels, strict=True)
                ),
                descriptors=tuple(descriptors),
                columns={"smiles": None, "targets": list(target_names), "split": None},
                counts={},
                order=packed.order,
            ),
            packed,
            values.double(),
            torch.arange(1, len(packed) + 1) if lines is None else lines,
            split,
            None,
            None if texts is None else _Texts.of(texts),
        )
        return replace(store, manifest=replace(store.manifest, counts=store._counts()))

    @property
    def is_molecules(self) -> bool:
        return bool(self.manifest.featurisation.get("kind") == "molecule")

    def __len__(self) -> int:
        return len(self.graphs)

    def __repr__(self) -> str:
        targets = ", ".join(self.manifest.target_names) or "none"
        return f"Store({len(self):,} graphs from {self.manifest.source.name}, targets: {targets})"

    def texts(self, index: Sequence[int] | None = None) -> list[str] | None:
        """SMILES of the graphs at these places, or of all; None when the source was no table of molecules."""
        if self._texts is None:
            return None
        return [self._texts[place] for place in (range(len(self)) if index is None else index)]

    @property
    def each_text(self) -> Sequence[str] | None:
        """:meth:`texts` without a list of all of them in memory."""
        return self._texts

    def with_facts(self, facts: Iterable[StructureFact], progress: bool = True) -> "Store":
        """The same store whose graphs know these facts, such as ``LaplacianVectors(8)`` or ``HopDistances()``.

        They are computed in chunks and kept in the store's folder with their checksums, where the next call finds them.
        """
        cache, owner = None if self.folder is None else self.folder / CACHE, self.manifest.files.get(GRAPHS, "")
        graphs = self.graphs
        for fact in facts:
            if graphs.fact(fact.name) is None:
                graphs = graphs.with_fact(fact.name, fact_of_all(graphs, fact, cache, owner, progress), fact.per)
        return replace(self, graphs=graphs)

    def data_checksum(self) -> str:
        """SHA-256 of all graphs, labels and parts, as they are packed: which data it was, wherever it came from."""
        tensors = {**self.graphs.arrays(), "targets": self.targets, "lines": self.lines}
        for name, tensor in (("split", self.split), ("weights", self.weights), ("bounds", self.bounds)):
            if tensor is not None:
                tensors[name] = tensor
        digest = hashlib.sha256()
        for name, tensor in sorted(tensors.items()):
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def _check_columns(self, path: Path) -> None:
        """Refuse tensors of other columns than the manifest names."""
        given = self.graphs.graph_features
        for what, found, named in (
            ("targets", self.targets.shape[1], len(self.manifest.targets)),
            ("descriptors", 0 if given is None else given.shape[1], len(self.manifest.descriptors)),
            ("ends per edge", self.graphs.order, self.manifest.order),
        ):
            # A graph's own numbers, of PyG data, are no descriptors, which have names.
            if found != named and not (what == "descriptors" and not self.is_molecules):
                raise ValueError(f"{path} holds {found} {what}, but the manifest beside it names {named}")

    def _counts(self) -> dict[str, int]:
        return {
            "graphs": len(self.graphs),
            "nodes": self.graphs.nodes.total,
            "edges": self.graphs.edges.total,
            "hyperedges": self.graphs.hyperedges.total,
            "rows": len(self.targets),
        }
