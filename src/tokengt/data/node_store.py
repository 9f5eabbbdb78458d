"""A table of nodes and a table of edges as a store, that is, a prepared data set (:mod:`tokengt.data.store`)."""

from dataclasses import replace
from pathlib import Path

from tokengt.data.graph_store import packed
from tokengt.data.manifest import Recipe, featurisation
from tokengt.data.merge import write_store
from tokengt.data.node_tables import NodeFiles, read_node_tables
from tokengt.data.progress import say
from tokengt.data.store import Store
from tokengt.data.workspace import Origin, at_work, clear_shards, is_finished, refuse_other_shards


def prepare_nodes(files: NodeFiles, out: Path, recipe: Recipe, *, progress: bool = True) -> Store:
    """Make the store ``out`` of two tables, and open it; one that is finished is opened as it is.

    ``recipe.tables`` says how their columns are read, where a model was trained on others; otherwise the data decides.

    Raises:
        ValueError: one sentence about the files, the recipe or the folder.
    """
    files.check()
    for option, value in (("a column of SMILES", recipe.smiles), ("a column of descriptors", recipe.descriptors)):
        if value:
            raise ValueError(f"{files.name} hold a graph and no molecules: {option} means nothing there")
    origin = Origin(files.name, files.checksum(), recipe, featurisation(None))
    if is_finished(out, origin):
        return Store.open(out)
    found = read_node_tables(files, recipe, recipe.tables)
    for sentence in found.sentences:
        say(sentence, progress)
    labelled = found.labelled
    if labelled.classes is None and labelled.target_names:
        try:
            labelled, told = labelled.for_task(recipe.task)
        except ValueError as error:
            raise ValueError(f"{files.nodes}: {error}") from error
        say(f"{files.nodes}: {told}", progress and told is not None)
    manifest, tensors, rejected = packed(labelled, origin)
    with at_work(out, progress):
        if not is_finished(out, origin):
            refuse_other_shards(out, None)
            write_store(out, replace(manifest, tables=found.columns), tensors, (), rejected)
        clear_shards(out)
    return Store.open(out, verify=False)
