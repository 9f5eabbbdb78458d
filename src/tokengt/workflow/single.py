"""One graph of whatever a person has: a SMILES, a row of a file, a PyG graph, node-link JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from tokengt.batch import GraphBatch
from tokengt.data.graph_sources import is_graph_source
from tokengt.data.manifest import MANIFEST
from tokengt.data.named import dataset_named, named_store
from tokengt.data.shards import convert_shown
from tokengt.data.store import Store
from tokengt.data.tables import is_table, open_table
from tokengt.inference import Predictor
from tokengt.interop.molecules import TextKind
from tokengt.interop.networkx import from_networkx
from tokengt.interop.pyg import as_batch
from tokengt.workflow.inputs import as_floats, unlabelled_contents, unlabelled_graphs
from tokengt.workflow.rows import batch_of_shard, recipe_of
from tokengt.workflow.stores import check_alike


@dataclass(frozen=True, eq=False)
class Single:
    """One graph to predict, with its descriptors as measured, and where it came from.

    ``text`` and ``kind`` are the molecule as it is written, None for other graphs.
    """

    graph: GraphBatch
    source: str
    text: str | None = None
    kind: TextKind = "smiles"


def single_graph(
    predictor: Predictor,
    given: Any,
    *,
    row: int | None = None,
    smiles: str | None = None,
    descriptors: Sequence[float] | None = None,
) -> Single:
    """One graph as the run reads it.

    Args:
        predictor: the run.
        given: a SMILES; a table, a file or folder of graphs, a store or the name of a data set, with ``row``; a PyG
            graph, a Graph, a NetworkX graph, or the content of a node-link JSON file.
        row: which row of the file, counted from 1 without its header; may be left out of a file that holds one graph.
        smiles: the column of SMILES of a table.
        descriptors: the extra numbers the run was trained with; those of a table's row stand in the table.

    Raises:
        ValueError: one sentence: what cannot be read, and what was expected.
    """
    if isinstance(given, (str, Path)) and _is_source(given, row):
        found = _from_source(predictor, Path(given), row, smiles)
    elif row is not None:
        raise ValueError(f"row is {row}, but {_short(given)} is no file; expected a file, a store or a data set's name")
    elif isinstance(given, str):
        found = single_text(predictor, given)
    elif isinstance(given, Mapping):
        found = _from_content(predictor, given)
    else:
        graph = as_floats(as_batch(_from_networkx(predictor, given)), predictor.spec.model.float_features)
        found = Single(graph, _kind_of(given))
    if len(found.graph) != 1:
        raise ValueError(f"{found.source} holds {len(found.graph)} graphs; expected one")
    return with_descriptors(predictor, found, descriptors)


def _is_source(given: str | Path, row: int | None) -> bool:
    """Whether this names a file or a data set: a SMILES is no path that exists, nor is it asked for by a row."""
    if isinstance(given, Path) or row is not None or dataset_named(given) is not None:
        return True
    try:
        return Path(given).exists()
    except (OSError, ValueError):
        return False


def single_text(predictor: Predictor, text: str) -> Single:
    """A molecule as its SMILES says it, and never a file of that name.

    Raises:
        ValueError: one sentence: why it cannot be read.
    """
    graphs, _, problems = predictor.read_texts([text])
    for problem in problems.values():
        raise ValueError(f"{_short(text)}: {problem}")
    return Single(graphs, f"SMILES {_short(text)}", text)


def _from_source(predictor: Predictor, path: Path, row: int | None, smiles: str | None) -> Single:
    dataset = dataset_named(path)
    if dataset is None and not path.exists():
        raise ValueError(f"{path} does not exist; expected a SMILES, a file, a folder of graphs or a store")
    is_store = dataset is not None or (path / MANIFEST).is_file()
    if smiles is not None and not is_table(path):
        raise ValueError(f"{path} is no table of molecules: a column of SMILES means nothing there")
    if row is not None and row < 1:
        raise ValueError(f"row is {row}; rows of {path} are counted from 1, without the header")
    if is_store:
        policy = predictor.spec.molecules
        opened = Store.open(path) if dataset is None else named_store(dataset, *([policy] if policy else []))
        return _of_store(predictor, opened, path, row)
    if predictor.spec.tables is not None:
        raise ValueError(
            f"{path} is no store, and this run was trained on a table of nodes and one of edges; give the folder store "
            "of the run, and the number of the node (--item, in Python item=, counted from 0)"
        )
    if is_graph_source(path):
        return _of_graphs(predictor, path, row)
    return _of_table(predictor, path, row, smiles)


def _of_table(predictor: Predictor, path: Path, row: int | None, smiles: str | None) -> Single:
    if row is None:
        raise ValueError(f"{path} is a table; say which row of it to explain (--row, in Python row=, counted from 1)")
    table = open_table(path)
    recipe = recipe_of(predictor, table, smiles)
    found = next(islice(table.rows(), row - 1, row), None)
    if found is None:
        raise ValueError(f"{path} has fewer than {row} rows; rows are counted from 1, without the header")
    where = f"row {row} of {path} ({table.unit} {found.line})"
    shown = convert_shown([found], recipe, None)
    for reason in shown.problems.values():
        raise ValueError(f"{where}: {reason}")
    graph = batch_of_shard(shown.shard)
    assert graph is not None, "a row without a problem is a graph"
    return Single(graph, where, found.cells[recipe.text.place], recipe.kind)


def _of_graphs(predictor: Predictor, path: Path, row: int | None) -> Single:
    found = unlabelled_graphs(predictor.spec, path)
    count = len(found.graphs) + len(found.rejected)
    number = 1 if row is None and count == 1 else row
    if number is None:
        raise ValueError(f"{path} holds {count} graphs; say which to explain (--row, in Python row=, counted from 1)")
    for line, reason in found.rejected:
        if line == number:
            raise ValueError(f"graph {number} of {path} cannot be read: {reason}")
    places = torch.nonzero(found.lines == number).flatten()
    if not len(places):
        raise ValueError(f"{path} has {count} graphs; expected a row from 1 to {count}, got {number}")
    return Single(found.graphs.select(places), f"graph {number} of {path}" if count > 1 else str(path))


def _of_store(predictor: Predictor, store: Store, path: Path, row: int | None) -> Single:
    check_alike(store, predictor.spec)
    number = 1 if row is None and len(store) == 1 else row
    if number is None or number > len(store):
        raise ValueError(
            f"{path} holds {len(store):,} graphs; say which to explain (--row, in Python row=, 1 to {len(store)})"
        )
    graph = as_floats(store.graphs.select([number - 1]), predictor.spec.model.float_features)
    texts = store.texts([number - 1])
    return Single(graph, f"graph {number} of {path}", None if texts is None else texts[0])


def _from_content(predictor: Predictor, given: Mapping[str, Any]) -> Single:
    """What a node-link JSON file holds, read as ``tokengt predict`` reads the file."""
    found = unlabelled_contents(predictor.spec, [given])
    for _, reason in found.rejected:
        raise ValueError(f"the graph cannot be read: {reason}")
    return Single(found.graphs, "a node-link graph")


def _from_networkx(predictor: Predictor, given: Any) -> Any:
    """A NetworkX graph with the attributes that the run was trained on; anything else as it is."""
    if not type(given).__module__.startswith("networkx"):
        return given
    names = predictor.spec.attributes
    return from_networkx(given, names.nodes or None, names.edges or None) if names else from_networkx(given)


def _kind_of(given: Any) -> str:
    """What a graph in memory is called."""
    library = type(given).__module__.partition(".")[0]
    return {"torch_geometric": "a PyG graph", "networkx": "a NetworkX graph"}.get(library, f"a {type(given).__name__}")


def with_descriptors(predictor: Predictor, single: Single, values: Sequence[float] | None) -> Single:
    """The same graph with the extra numbers that the run was trained with; those of a table's row are there already.

    Raises:
        ValueError: one sentence: how many were expected.
    """
    names, features = predictor.spec.descriptors.columns, single.graph.graph_features
    built_in = len(predictor.spec.descriptors.names) - len(names)
    if values is None and (not names or (features is not None and features.shape[1] > built_in)):
        return single
    if values is None or len(values) != len(names):
        raise ValueError(
            f"this run was trained with descriptors; expected {len(names)} numbers ({', '.join(names) or 'none'}), got "
            f"{0 if values is None else len(values)}"
        )
    given = torch.tensor([list(values)], dtype=torch.float32)
    # What is worked out from the molecule follows what is given.
    own = [] if features is None or not built_in else [features[:, -built_in:].float()]
    return replace(single, graph=single.graph.with_graph_features(torch.cat([given, *own], 1)))


def _short(text: Any) -> str:
    words = repr(text)
    return words if len(words) <= 80 else f"{words[:77]}..."
