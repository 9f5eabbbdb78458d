"""Sources that hold graphs already, PyG data sets and folders of NetworkX JSON, as the tensors of a store.

A *store* is a prepared data set (:mod:`tokengt.data.store`).
"""

from pathlib import Path

from tokengt.data.graph_sources import LabelledGraphs, graph_format, unread_sentence
from tokengt.data.manifest import Manifest, Recipe, Source, TargetColumn
from tokengt.data.progress import say
from tokengt.data.shards import Rejected
from tokengt.data.tensorfile import TensorStream
from tokengt.data.workspace import Origin
from tokengt.files import checksum, file_checksum


def read_graphs(
    source: Path, origin: Origin, shown: bool = False
) -> tuple[Manifest, dict[str, TensorStream], list[Rejected]]:
    """A store's manifest, tensors and rejected records.

    With ``shown``, a sentence says what integer labels became, and another which attributes became features.

    Raises:
        ValueError: the recipe asks for what only a table has, or the source cannot be read.
    """
    recipe = origin.recipe
    labelled = _labelled(source, recipe)
    try:
        labelled, sentence = labelled.for_task(recipe.task)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    say(f"{source}: {sentence}", shown and sentence is not None)
    if labelled.unread:
        say(f"{source}: {unread_sentence(labelled.unread)}", shown)
    say(f"{source}: attributes that are features: {labelled.attributes}", shown and labelled.attributes is not None)
    return packed(labelled, origin)


def packed(labelled: LabelledGraphs, origin: Origin) -> tuple[Manifest, dict[str, TensorStream], list[Rejected]]:
    """A store's manifest, tensors and rejected records, of graphs that were read."""
    graphs, targets = labelled.graphs.narrowed(), labelled.targets.double()
    tensors = {**graphs.arrays(), "targets": targets, "lines": labelled.lines.long()}
    if labelled.split is not None:
        tensors["split"] = labelled.split
    rejected = [Rejected(line, reason, ()) for line, reason in labelled.rejected]
    numbers = sorted([*labelled.lines.tolist(), *(number for number, _ in labelled.rejected)])
    assert numbers == list(range(1, len(numbers) + 1)), "every graph of the source is kept or rejected, once"
    manifest = Manifest(
        source=Source(origin.name, origin.sha256, len(graphs) + len(rejected)),
        rejected=len(rejected),
        featurisation=origin.featurisation,
        level=labelled.level,
        task=origin.recipe.task,
        targets=tuple(TargetColumn(name, labelled.classes) for name in labelled.target_names),
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
        attributes=labelled.attributes,
    )
    return manifest, {name: TensorStream.whole(tensor.numpy()) for name, tensor in tensors.items()}, rejected


def _labelled(source: Path, recipe: Recipe) -> LabelledGraphs:
    what = f"{source} holds graphs and no table of molecules"
    recipe.refuse_of_molecules(what)
    if recipe.split:
        raise ValueError(f"{what}: a column of the split means nothing there")
    known = graph_format(source)
    assert known is not None, "asked for sources of graphs only"
    return known.labelled(source, recipe.targets, recipe.level, recipe.attributes)


def source_checksum(source: Path) -> str:
    """The file's SHA-256; for a folder, that of the names and checksums of the files that are read in it."""
    if source.is_file():
        return file_checksum(source)
    known = graph_format(source)
    files = [] if known is None else known.files(source)
    listing = "".join(f"{_digest(file)}  {file.relative_to(source).as_posix()}\n" for file in files)
    return checksum(listing.encode("utf-8", "surrogateescape"))


def _digest(file: Path) -> str:
    """The file's checksum; of what cannot be read, and will be rejected, that it cannot."""
    try:
        return file_checksum(file) if file.is_file() else "no regular file"
    except OSError:
        return "unreadable"
