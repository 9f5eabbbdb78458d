"""Sources that hold graphs already, PyG data sets and folders of NetworkX JSON, as the tensors of a store.

A *store* is a prepared data set (:mod:`tokengt.data.store`).
"""

from pathlib import Path

import torch
from jaxtyping import Float64
from torch import Tensor

from tokengt.data.cells import number_label
from tokengt.data.graph_sources import LabelledGraphs, graph_format
from tokengt.data.manifest import Manifest, Recipe, Source, TargetColumn
from tokengt.data.shards import Rejected
from tokengt.data.tensorfile import TensorStream
from tokengt.data.workspace import Origin
from tokengt.files import checksum, file_checksum


def read_graphs(source: Path, origin: Origin) -> tuple[Manifest, dict[str, TensorStream], list[Rejected]]:
    """A store's manifest, tensors and rejected records.

    Raises:
        ValueError: the recipe asks for what only a table has, or the source cannot be read.
    """
    recipe = origin.recipe
    labelled = _labelled(source, recipe)
    graphs = labelled.graphs.narrowed()
    targets, columns = labelled.targets.double(), [TargetColumn(name) for name in labelled.target_names]
    if recipe.task == "multiclass":
        if len(columns) != 1:
            raise ValueError(f"{source}: --task multiclass takes one target, found {len(columns)}")
        targets, classes = _as_classes(targets)
        columns = [TargetColumn(columns[0].name, classes)]
    tensors = {**graphs.arrays(), "targets": targets, "lines": labelled.lines.long()}
    if labelled.split is not None:
        tensors["split"] = labelled.split
    rejected = [Rejected(line, reason, ()) for line, reason in labelled.rejected]
    manifest = Manifest(
        source=Source(origin.name, origin.sha256, len(graphs) + len(rejected)),
        rejected=len(rejected),
        featurisation=origin.featurisation,
        level=labelled.level,
        task=recipe.task,
        targets=tuple(columns),
        descriptors=(),
        columns=origin.columns,
        counts={
            "graphs": len(graphs),
            "nodes": graphs.nodes.total,
            "edges": graphs.edges.total,
            "hyperedges": graphs.hyperedges.total,
            "rows": len(targets),
        },
        order=graphs.order,
    )
    return manifest, {name: TensorStream.whole(tensor.numpy()) for name, tensor in tensors.items()}, rejected


def _labelled(source: Path, recipe: Recipe) -> LabelledGraphs:
    for option, value in (
        ("--smiles", recipe.smiles),
        ("--descriptors", recipe.descriptors),
        ("the split column", recipe.split),
    ):
        if value:
            raise ValueError(f"{source} holds graphs and no table of molecules: {option} means nothing there")
    known = graph_format(source)
    assert known is not None, "asked for sources of graphs only"
    return known.labelled(source, recipe.targets, recipe.level)


def _as_classes(targets: Float64[Tensor, "rows 1"]) -> tuple[Float64[Tensor, "rows 1"], tuple[str, ...]]:
    """Each label as its place among the sorted distinct labels; a missing one stays missing."""
    labelled = ~targets.isnan()
    values, places = torch.unique(targets[labelled], return_inverse=True)
    coded = torch.full_like(targets, torch.nan)
    coded[labelled] = places.double()
    return coded, tuple(number_label(value) for value in values.tolist())


def source_checksum(source: Path) -> str:
    """The file's SHA-256; for a folder, that of the names and checksums of the files that are read in it."""
    if source.is_file():
        return file_checksum(source)
    known = graph_format(source)
    files = [] if known is None else known.files(source)
    listing = "".join(f"{file_checksum(file)}  {file.relative_to(source).as_posix()}\n" for file in files)
    return checksum(listing.encode())
