"""A table of nodes and a table of edges as a store, that is, a prepared data set (:mod:`tokengt.data.store`)."""

from dataclasses import replace
from pathlib import Path

from tokengt.data.graph_store import packed
from tokengt.data.manifest import Manifest, Recipe, featurisation
from tokengt.data.merge import write_store
from tokengt.data.node_tables import NodeFiles, NodeTables, read_node_tables
from tokengt.data.prepare import MAX_REJECTED, check_limit, check_rejected
from tokengt.data.progress import say
from tokengt.data.store import Store, name_tensors
from tokengt.data.tables import open_table
from tokengt.data.tensorfile import TensorStream
from tokengt.data.workspace import Origin, at_work, clear_shards, is_finished, refuse_other_shards


def prepare_nodes(
    files: NodeFiles, out: Path, recipe: Recipe, *, progress: bool = True, max_rejected: float = MAX_REJECTED
) -> Store:
    """Make the store ``out`` of two tables, and open it; one that is finished is opened as it is.

    ``recipe.tables`` says how their columns are read, where a model was trained on others; otherwise the data decides.
    Rows of a table of pairs that cannot be read are listed in ``out/rejected.csv`` with their line and reason.

    Raises:
        ValueError: one sentence about the files, the recipe or the folder, or a larger share of the pairs than
            ``max_rejected`` cannot be read.
    """
    check_limit(max_rejected)
    files.check()
    recipe.refuse_of_molecules(f"{files.name} hold a graph and no molecules")
    origin = Origin(files.name, files.checksum(), recipe, featurisation(None))
    if is_finished(out, origin):
        return Store.open(out)
    found = read_node_tables(files, recipe, recipe.tables)
    for sentence in found.sentences:
        say(sentence, progress)
    _check_pairs(files, found, max_rejected)
    labelled = found.labelled
    if labelled.classes is None and labelled.target_names:
        try:
            labelled, told = labelled.for_task(recipe.task)
        except ValueError as error:
            raise ValueError(f"{files.nodes}: {error}") from error
        say(f"{files.nodes}: {told}", progress and told is not None)
    manifest, tensors, _ = packed(labelled, origin)
    tensors |= {name: TensorStream.whole(tensor.numpy()) for name, tensor in name_tensors(found.names).items()}
    with at_work(out, progress):
        if not is_finished(out, origin):
            refuse_other_shards(out, None)
            head = found.head if files.pairs is not None else ()
            write_store(out, _of_tables(manifest, files, found), tensors, head, found.rejected)
        clear_shards(out)
    return Store.open(out, verify=False)


def _check_pairs(files: NodeFiles, found: NodeTables, max_rejected: float) -> None:
    """Refuse a table of pairs of which none, or too few, can be read."""
    if files.pairs is None or not found.problems:
        return
    path, rows, first = Path(files.pairs), len(found.rows), found.rejected[0]
    where = f"{open_table(path).unit} {first.line}: {first.reason}"
    if len(found.problems) == rows:
        raise ValueError(f"none of the {rows:,} rows of {path} can be read; {where}")
    check_rejected(path, "rows", rows, len(found.problems), max_rejected, f"the first, {where}")


def _of_tables(manifest: Manifest, files: NodeFiles, found: NodeTables) -> Manifest:
    """What a store of these tables says about itself; the rows of a table of pairs are what it counts."""
    manifest = replace(manifest, tables=found.columns)
    if files.pairs is None:
        return manifest
    return replace(manifest, pairs=True, source=replace(manifest.source, rows=len(found.rows)))
