"""PyTorch Geometric to :class:`~tokengt.graph.Graph` and back, without loss.

Reading looks at attributes by name and never imports torch_geometric, so a model takes PyG batches as they are.
Attributes that a graph has no field for travel in ``extras``, and so does what is needed to write the same
object again. Hyperedges are ``hyperedge_index`` [2, incidences] (node, hyperedge) and ``hyperedge_attr``, or a
``HyperGraphData``. When PyG collates ``hyperedge_index`` it adds the number of nodes to *both* rows: reading
undoes that, and :func:`to_pyg` repeats it, so that its batches equal PyG's own.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.graph import Graph
from tokengt.interop._pyg_packed import LINKS, class_names, count_nodes, is_batch, is_hypergraph, packed
from tokengt.interop._pyg_packed import fact_attribute as fact_attribute
from tokengt.interop._pyg_packed import facts_on as facts_on
from tokengt.level import Level
from tokengt.sparse import SparseRows

_LAYOUT, _WHOLE = "_pyg_layout", "_pyg_batch"
_FIELDS = ("x", "num_nodes", "edge_index", "edge_attr", "hyperedge_index", "hyperedge_attr", "graph_features")
_EXPECTED = "expected a Graph, a GraphBatch, a sequence of Graphs, or a PyG Data or Batch"


@dataclass(frozen=True)
class _Layout:
    """How a PyG object differs from the one a bare Graph is written as."""

    # The class of the object; None for torch_geometric's plain Data.
    kind: type | None
    fields: frozenset[str]
    # Features that were one-dimensional, and indices that were not int64.
    flat: frozenset[str] = frozenset()
    dtypes: tuple[tuple[str, torch.dtype], ...] = ()


@dataclass(frozen=True, eq=False)
class _Whole:
    """Attributes of a PyG Batch that belong to none of its graphs, and the names of all it had."""

    keys: frozenset[str]
    values: Mapping[str, Any]
    num_graphs: int


def from_pyg(data: Any) -> Graph | GraphBatch:
    """A PyG ``Data`` as a Graph; a PyG ``Batch`` (or a ``Data`` with a ``batch`` vector) as a GraphBatch.

    A one-dimensional ``x`` or ``edge_attr`` becomes one column. Other attributes go to ``extras``, each graph's
    own to each graph; :func:`to_pyg` restores all of them. No model reads extras: a warning names those that hold
    numbers, such as ``pos`` and ``edge_weight``.

    Raises:
        ValueError: one sentence that names the graph, the field and what was expected.
    """
    graph = _with_extras(data)
    unread = unread_attributes(data)
    if unread:
        warnings.warn(unread_sentence(unread), stacklevel=2)
    return graph


def unread_attributes(data: Any, known: Iterable[str] = ("y", "edge_label")) -> dict[str, Level]:
    """Attributes of numbers that no model reads, with what they are counted by; ``known`` ones are labels."""
    facts = [fact_attribute(name, per) for name, per, _ in facts_on(data)]
    left_out = {"batch", "ptr", *known, *facts}
    return {
        key: counted_by(data, key)
        for key, value in _others(data).items()
        if isinstance(value, Tensor | int | float)
        and not isinstance(value, bool)
        and not (isinstance(value, Tensor) and value.dtype == torch.bool)
        and key not in left_out
        and not key.endswith(("index", "_batch", "_ptr"))
    }


def unread_sentence(unread: Mapping[str, Level]) -> str:
    """What a person should know of attributes that no model reads, and where each would be read."""
    homes: dict[Level, str] = {"node": "x", "edge": "edge_attr", "graph": "graph_features"}
    told = [
        f"{', '.join(key for key, of in unread.items() if of == level)} (of {level}s: {home})"
        for level, home in homes.items()
        if level in unread.values()
    ]
    return f"no model reads {' and '.join(told)}; concatenate what it should read to the attribute named beside it"


def counted_by(data: Any, key: str) -> Level:
    """Whether an attribute has one row per node or per edge; else it is of the graph as a whole.

    PyG's own ``is_node_attr`` is not asked: it writes into the object, which would then be saved with it.
    """
    value, index = data[key], data.get("edge_index")
    if not isinstance(value, Tensor) or value.ndim == 0:
        return "graph"
    edges, nodes = 0 if index is None else index.shape[1], count_nodes(data)
    if len(value) == edges and ("edge" in key or edges != nodes):
        return "edge"
    return "node" if len(value) == nodes else "graph"


def _with_extras(data: Any) -> Graph | GraphBatch:
    _check_class(data)
    batch = packed(data)
    layout = _layout_read(data)
    common = {} if layout is None else {_LAYOUT: layout}
    if not is_batch(data):
        return replace(batch, extras=({**_others(data), **common},))[0]
    # PyG can take apart only what it collated itself; attributes set later belong to the batch as a whole.
    collated = getattr(data, "_slice_dict", None)
    own = [_others(part) for part in data.to_data_list()] if collated else [{} for _ in range(len(batch))]
    taken_apart = {"batch", "ptr", *(collated or ())}
    rest = {key: value for key, value in _others(data).items() if key not in taken_apart}
    whole = _Whole(frozenset(data.keys()), rest, len(batch))
    extras: list[dict[str, Any]] = [{**mine, **common} for mine in own]
    if rest or not {"batch", "ptr"} <= whole.keys:
        extras = [{**mine, _WHOLE: (whole, place)} for place, mine in enumerate(extras)]
    return replace(batch, extras=tuple(extras) if any(extras) else ())


def to_pyg(graph: Graph | GraphBatch) -> Any:
    """A Graph as a PyG ``Data``, a GraphBatch as a PyG ``Batch``; needs torch_geometric.

    ``extras`` become attributes again (PyG has no place for one that is None). Hyperedges come out sorted, with
    the order of each one's members kept. Attributes that belonged to a Batch as a whole come back only when
    its graphs are all there, in their order.
    """
    try:
        from torch_geometric.data import Batch, Data
    except ImportError as error:
        raise ImportError("to_pyg needs PyTorch Geometric: pip install torch_geometric") from error
    if isinstance(graph, Graph):
        return _written(graph, _layout_to_write([graph]), Data)
    layout = _layout_to_write(graphs := graph.unbatch())
    written = [_written(each, layout, Data) for each in graphs]
    keys = set(written[0].keys())
    for place, data in enumerate(written):
        if odd := keys ^ set(data.keys()):
            raise ValueError(f"graph {place}: extras {sorted(odd)} are not in all graphs; a PyG Batch needs the same")
    batch = Batch.from_data_list(written)
    whole = _whole_batch(graph.extras)
    if whole is not None:
        for key in set(batch.keys()) - whole.keys:
            del batch[key]
        batch.update(dict(whole.values))
    return batch


def as_batch(batch: Any) -> GraphBatch:
    """What a model is given, as one GraphBatch; a GraphBatch passes through untouched.

    Takes a Graph, PyG's Data or Batch (read without a loop over graphs and without extras), or a sequence of
    Graphs or Datas. Pairs of nodes in ``edge_label_index`` are the links that a model is asked about.

    Raises:
        ValueError: one sentence that names the graph, the field and what was expected.
    """
    if isinstance(batch, GraphBatch):
        return batch
    if isinstance(batch, Graph):
        return GraphBatch.collate([batch])
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        graphs = [_as_graph(graph, place) for place, graph in enumerate(batch)]
        packed_graphs = GraphBatch.collate(graphs)
        pairs = [graph.extras[LINKS] for graph in graphs if LINKS in graph.extras]
        return packed_graphs if len(pairs) < len(graphs) else packed_graphs.with_own_links(pairs)
    _check_class(batch)
    return packed(batch)


def _as_graph(graph: Any, place: int) -> Graph:
    """One member of a sequence: a Graph, or a PyG Data."""
    if isinstance(graph, Graph):
        return graph
    if isinstance(graph, str):
        raise ValueError(f"graph {place} is the text {graph!r}; expected a Graph: read SMILES with tokengt.from_smiles")
    try:
        read = _with_extras(graph)
    except ValueError as error:
        raise ValueError(f"graph {place}: {error}") from error
    if not isinstance(read, Graph):
        raise ValueError(f"graph {place} is a whole batch; expected one Graph or PyG Data")
    return read


def _check_class(data: object) -> None:
    names = class_names(type(data))
    if "HeteroData" in names:
        raise ValueError("HeteroData has several kinds of nodes; expected one kind, as data.to_homogeneous() gives")
    if "Data" not in names:
        kind = type(data)
        hint = {"networkx": ": read it with tokengt.from_networkx", "builtins": ""}.get(
            kind.__module__.split(".")[0], ""
        )
        if isinstance(data, str):
            hint = ": read SMILES with tokengt.from_smiles"
        raise ValueError(f"{_EXPECTED}; got {kind.__module__}.{kind.__qualname__}{hint}")


def _others(data: Any) -> dict[str, Any]:
    """Attributes that no field of a Graph holds."""
    fields = tuple(_hypergraph_names()) if is_hypergraph(data) else _FIELDS
    return {key: data[key] for key in data.keys() if key not in fields}  # noqa: SIM118, PyG's Data is no dict


def _layout_read(data: Any) -> _Layout | None:
    """The layout of a PyG object; None when a bare Graph would be written the same."""
    kind = type(data).__bases__[-1] if "Batch" in class_names(type(data)) else type(data)
    plain = kind.__module__ == "torch_geometric.data.data" and kind.__name__ == "Data"
    name = _hypergraph_names() if is_hypergraph(data) else {key: key for key in _FIELDS}
    present = {key: data[key] for key in name if key in data}
    layout = _Layout(
        None if plain else kind,
        frozenset(name[key] for key in present),
        frozenset(name[k] for k, v in present.items() if isinstance(v, Tensor) and v.ndim == 1),
        tuple((name[k], v.dtype) for k, v in present.items() if k.endswith("index") and v.dtype != torch.int64),
    )
    needed = layout.fields - {"num_nodes", "edge_index"}
    return None if layout == _Layout(None, needed | _always(needed)) else layout


def _hypergraph_names() -> dict[str, str]:
    """HyperGraphData calls its incidence ``edge_index``."""
    same = {name: name for name in ("x", "num_nodes", "graph_features")}
    return {**same, "edge_index": "hyperedge_index", "edge_attr": "hyperedge_attr"}


def _always(given: frozenset[str]) -> frozenset[str]:
    return frozenset({"edge_index"} if "x" in given else {"edge_index", "num_nodes"})


def _given(graph: Graph) -> frozenset[str]:
    """The fields that writing this graph cannot do without."""
    holds = {
        "x": graph.node_features is not None,
        "edge_index": graph.num_edges > 0,
        "edge_attr": graph.edge_features is not None,
        "hyperedge_index": graph.num_hyperedges > 0 or graph.hyperedge_features is not None,
        "hyperedge_attr": graph.hyperedge_features is not None,
        "graph_features": graph.graph_features is not None,
    }
    return frozenset(field for field, present in holds.items() if present)


def _layout_to_write(graphs: Sequence[Graph]) -> _Layout:
    """One layout for all: every field that some graph needs, and one dimension only where all had one."""
    given = [_given(graph) for graph in graphs]
    layouts = [
        graph.extras.get(_LAYOUT) or _Layout(None, mine | _always(mine))
        for graph, mine in zip(graphs, given, strict=True)
    ]
    fields = frozenset.union(*given, *(layout.fields for layout in layouts))
    # Extras put on another graph bring a layout that may not fit it: what the graph holds comes first.
    if "x" in fields and "x" not in given[0]:
        fields |= {"num_nodes"}
    kind = layouts[0].kind
    if kind is not None and "HyperGraphData" in class_names(kind) and "edge_index" in fields:
        kind = None
    return _Layout(kind, fields, frozenset.intersection(*(layout.flat for layout in layouts)), layouts[0].dtypes)


def _written(graph: Graph, layout: _Layout, plain: type) -> Any:
    ids = torch.repeat_interleave(graph.hyperedge_offsets.diff())
    values: dict[str, Any] = {
        "x": graph.node_features.to_torch() if isinstance(graph.node_features, SparseRows) else graph.node_features,
        "num_nodes": graph.num_nodes,
        "edge_index": graph.edge_index,
        "edge_attr": graph.edge_features,
        "hyperedge_index": torch.stack([graph.hyperedge_nodes, ids]),
        "hyperedge_attr": graph.hyperedge_features,
        "graph_features": graph.graph_features,
    }
    values.update({field: values[field].to(dtype) for field, dtype in layout.dtypes})
    values.update({field: values[field].squeeze(1) for field in layout.flat if values[field] is not None})
    data = (layout.kind or plain)()
    name = {to: key for key, to in _hypergraph_names().items()} if is_hypergraph(data) else {f: f for f in _FIELDS}
    for field in layout.fields:
        data[name[field]] = values[field]
    for key, value in graph.extras.items():
        if key in _FIELDS and key in data:
            raise ValueError(f"extras hold {key!r}, which is a field of the graph; expected another name")
        if key not in (_LAYOUT, _WHOLE):
            data[key] = value
    return data


def _whole_batch(extras: Sequence[Mapping[str, Any]]) -> _Whole | None:
    """What the graphs' Batch held as a whole, when they are still that batch."""
    records = [extra.get(_WHOLE) for extra in extras]
    if not records or records[0] is None:
        return None
    whole: _Whole = records[0][0]
    intact = len(records) == whole.num_graphs and all(
        record is not None and record[0] is whole and record[1] == place for place, record in enumerate(records)
    )
    return whole if intact else None
