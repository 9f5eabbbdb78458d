"""A PyG object as a GraphBatch, by attribute names alone: no loop over graphs, no import of torch_geometric."""

import warnings
from dataclasses import dataclass
from typing import Any, get_args

import torch
from jaxtyping import Int
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.facts import Per
from tokengt.graph import Graph
from tokengt.ragged import Segments
from tokengt.sparse import SparseRows
from tokengt.validation import check_indices, checked_features

# The attribute that names the pairs of nodes that are asked about (PyG's RandomLinkSplit).
LINKS = "edge_label_index"
_FACT = "_fact_"
_WANTED_NUMBERS = "hyperedge_index must number each graph's hyperedges 0, 1, 2, ..., none of them without nodes"


@dataclass(frozen=True, eq=False)
class _Parts:
    """The attributes of a PyG object that a graph is made of."""

    device: torch.device
    num_nodes: int | None
    x: Tensor | SparseRows | None
    edge_index: Tensor
    edge_attr: Tensor | None
    incidence: Tensor
    hyperedge_attr: Tensor | None
    graph_features: Tensor | None


def class_names(kind: type) -> frozenset[str]:
    """Names of the torch_geometric classes that ``kind`` is made of."""
    return frozenset(c.__name__ for c in kind.__mro__ if c.__module__.startswith("torch_geometric."))


def is_batch(data: Any) -> bool:
    return "Batch" in class_names(type(data)) or "batch" in data


def is_hypergraph(data: Any) -> bool:
    return "HyperGraphData" in class_names(type(data))


def packed(data: Any) -> GraphBatch:
    """The graphs of a PyG Data or Batch, checked as Graph's constructor checks one.

    Raises:
        ValueError: one sentence that names the graph, the field and what was expected.
    """
    parts = _read(data)
    nodes = _nodes(data, parts)
    edges = _edges(parts.edge_index, nodes)
    hyperedge_nodes, hyperedges, members = _hyperedges(parts.incidence, nodes)
    fields: dict[str, Any] = {
        "nodes": nodes,
        "node_features": parts.x,
        "edges": edges,
        "edge_index": parts.edge_index.long(),
        "edge_features": parts.edge_attr,
        "hyperedges": hyperedges,
        "members": members,
        "hyperedge_nodes": hyperedge_nodes,
        "hyperedge_features": parts.hyperedge_attr,
        "graph_features": checked_features("graph_features", parts.graph_features, nodes.count),
    }
    _check(fields, name_graphs=is_batch(data))
    batch = GraphBatch.from_packed(**fields)
    pairs = _tensor(data, LINKS)
    if pairs is not None:
        batch = batch.with_links(_edges(pairs, nodes, LINKS), pairs.long())
    for name, per, rows in facts_on(data):
        batch = batch.with_fact(name, rows, per)
    return batch


def fact_attribute(name: str, per: Per) -> str:
    """The attribute of a PyG object that holds a fact; what its rows are counted by stands first, as PyG wants it."""
    return f"{per}{_FACT}{name}"


def facts_on(data: Any) -> list[tuple[str, Per, Tensor]]:
    """Facts that were worked out before and kept on a PyG object (:mod:`tokengt.transforms`)."""
    found: list[tuple[str, Per, Tensor]] = []
    for key in data.keys():  # noqa: SIM118, PyG's Data is no dict
        for per in get_args(Per):
            if isinstance(key, str) and key.startswith(f"{per}{_FACT}") and isinstance(data[key], Tensor):
                found.append((key.removeprefix(f"{per}{_FACT}"), per, data[key]))
    return found


def _read(data: Any) -> _Parts:
    x, index, attr = _features(data), _tensor(data, "edge_index"), _columns(data, "edge_attr")
    if is_hypergraph(data):
        incidence, hyperedge_attr, index, attr = index, attr, None, None
    else:
        incidence, hyperedge_attr = _tensor(data, "hyperedge_index"), _columns(data, "hyperedge_attr")
        if index is None and ("adj" in data or "adj_t" in data):
            raise ValueError("the PyG object holds a sparse adj or adj_t; expected edge_index [2, edges]")
    tensors = (x, index, incidence, _tensor(data, "batch"))
    device = next((tensor.device for tensor in tensors if tensor is not None), torch.device("cpu"))
    none = torch.empty(2, 0, dtype=torch.int64, device=device)
    count = len(x) if x is not None else count_nodes(data)
    return _Parts(
        device,
        None if count is None else int(count),
        x,
        none if index is None else index,
        attr,
        none if incidence is None else incidence,
        hyperedge_attr,
        _tensor(data, "graph_features"),
    )


def count_nodes(data: Any) -> int | None:
    """PyG's count. Where neither x nor num_nodes says it, that is as many as the edges name, which PyG warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        count: int | None = data.num_nodes
    return count


def _tensor(data: Any, key: str) -> Tensor | None:
    value = data.get(key)
    if "EdgeIndex" in class_names(type(value)):
        value = value.as_tensor()
    if value is not None and (not isinstance(value, Tensor) or value.layout != torch.strided):
        raise ValueError(f"{key} must be a dense tensor, got {type(value).__name__}")
    return value


def _features(data: Any) -> Tensor | SparseRows | None:
    """Features of nodes, the only ones that may be sparse."""
    x = data.get("x")
    if isinstance(x, Tensor) and x.layout != torch.strided:
        if x.ndim != 2:
            raise ValueError(f"x has shape {list(x.shape)}; expected [nodes, width] of a sparse tensor")
        return SparseRows.from_torch(x)
    return _columns(data, "x")


def _columns(data: Any, key: str) -> Tensor | None:
    value = _tensor(data, key)
    return value[:, None] if value is not None and value.ndim == 1 else value


def _nodes(data: Any, parts: _Parts) -> Segments:
    """Where each graph's nodes are, from ``ptr`` and ``batch``."""
    total = parts.num_nodes
    if total is None:
        raise ValueError("a PyG object without x needs num_nodes")
    if "num_nodes" in data and int(data["num_nodes"]) != total:
        raise ValueError(f"x has {total} rows but num_nodes is {int(data['num_nodes'])}; they must agree")
    ptr = _tensor(data, "ptr") if "Batch" in class_names(type(data)) else None
    batch = _tensor(data, "batch")
    if ptr is not None:
        lengths = ptr.diff().cpu()
    elif batch is None or len(batch) == 0:
        lengths = torch.tensor([total])
    elif bool((batch.diff() < 0).any()) or int(batch[0]) < 0:
        raise ValueError("batch must rise from 0: the nodes of each graph together, one graph after another")
    else:
        lengths = torch.bincount(batch).cpu()
    if bool((lengths < 1).any()):
        place = int(torch.nonzero(lengths < 1)[0])
        raise ValueError(f"graph {place}: the graph is empty; expected at least one node")
    nodes = Segments.from_lengths(lengths, parts.device)
    if nodes.total != total or (batch is not None and not torch.equal(batch, nodes.ids)):
        raise ValueError(f"ptr and batch must agree and share out all {total} nodes; they do not")
    return nodes


def _edges(index: Tensor, nodes: Segments, name: str = "edge_index") -> Segments:
    """Where each graph's edges (or other pairs of nodes) are; refuses one that leaves its graph."""
    try:
        check_indices(name, index, nodes.total, dims=2)
    except ValueError as error:
        raise ValueError(f"{_graph_of_stray(index, nodes)}{error}") from None
    # A uint8 index would be taken for a mask.
    owner = nodes.ids[index.long()]
    crossing = (owner != owner[0]).any(0)
    if bool(crossing.any()):
        column = int(torch.nonzero(crossing)[0])
        ends = zip(index[:, column].tolist(), owner[:, column].tolist(), strict=True)
        joined = " and ".join(f"node {node} of graph {graph}" for node, graph in ends)
        raise ValueError(f"{name} column {column} joins {joined} (numbered in the batch); expected one graph")
    return _runs(owner[0], nodes.count, name)


def _graph_of_stray(index: Tensor, nodes: Segments) -> str:
    """Which graph the index that is out of range belongs to, judged by the edge's other end."""
    if nodes.count == 1 or index.ndim != 2 or index.is_floating_point() or index.numel() == 0:
        return ""
    wrong = index.min() if int(index.min()) < 0 else index.max()
    ends = index[:, torch.nonzero(index == wrong)[0, -1]]
    inside = ends[(ends >= 0) & (ends < nodes.total)]
    return f"graph {int(nodes.ids[inside[0]])}: " if len(inside) else ""


def _runs(owner: Int[Tensor, " rows"], graphs: int, field: str) -> Segments:
    """Segments of rows whose graphs are ``owner``."""
    if bool((owner.diff() < 0).any()):
        raise ValueError(f"{field} mixes the graphs; expected each graph's edges together, one graph after another")
    offsets = torch.searchsorted(owner.contiguous(), torch.arange(graphs + 1, device=owner.device))
    return Segments(offsets, offsets.cpu())


def _hyperedges(incidence: Tensor, nodes: Segments) -> tuple[Int[Tensor, " incidences"], Segments, Segments]:
    """Members sorted by hyperedge, each graph's hyperedges, and each hyperedge's members.

    Row 1 may number the hyperedges of the whole batch (HyperGraphData) or, as PyG collates a plain Data, start
    again at each graph's first node. Graph and number together tell hyperedges apart either way.
    """
    if incidence.ndim != 2 or len(incidence) != 2 or incidence.is_floating_point():
        raise ValueError(f"hyperedge_index must be integers [2, incidences], got {list(incidence.shape)}")
    # The usual graph has no hyperedges, and the sorting below would cost every step of the model.
    if incidence.shape[1] == 0:
        none = Segments.uniform(nodes.count, 0, incidence.device)
        return incidence[0].long(), none, Segments.uniform(0, 0, incidence.device)
    row, number = incidence.long()
    bad = (row < 0) | (row >= nodes.total) | (number < 0)
    if bool(bad.any()):
        column = int(torch.nonzero(bad)[0])
        raise ValueError(
            f"hyperedge_index column {column} is {incidence[:, column].tolist()}; expected a node from 0 to "
            f"{nodes.total - 1} and a hyperedge from 0"
        )
    width = int(number.max()) + 1
    key = nodes.ids[row] * width + number
    order = torch.argsort(key, stable=True)
    hyperedge, sizes = torch.unique_consecutive(key[order], return_counts=True)
    owner, number = hyperedge // width, hyperedge % width
    hyperedges = _runs(owner, nodes.count, "hyperedge_index")
    wrong = number - nodes.starts[owner] != hyperedges.positions
    if bool(wrong.any()) and not torch.equal(number, torch.arange(len(number), device=number.device)):
        raise ValueError(f"graph {int(owner[torch.nonzero(wrong)[0, 0]])}: {_WANTED_NUMBERS}")
    return row[order], hyperedges, Segments.from_lengths(sizes.cpu(), row.device)


def _check(fields: dict[str, Any], *, name_graphs: bool) -> None:
    """Refuse what Graph's constructor refuses, before these become the fields of a GraphBatch.

    All graphs together are one graph, so one call checks them all; only a failure looks for the graph at fault.
    """
    same = ("node_features", "edge_index", "edge_features", "hyperedge_nodes", "hyperedge_features")
    try:
        Graph(
            num_nodes=fields["nodes"].total,
            hyperedge_offsets=fields["members"].offsets,
            **{name: fields[name] for name in same},
        )
    except ValueError:
        pairs = (("nodes", "node_features"), ("edges", "edge_features"), ("hyperedges", "hyperedge_features"))
        rows = [(fields[segments].total, fields[name]) for segments, name in pairs]
        if not name_graphs or any(f is not None and (f.ndim != 2 or len(f) != count) for count, f in rows):
            raise
        batch = GraphBatch.from_packed(**fields)
        for place in range(len(batch)):
            try:
                batch[place]
            except ValueError as error:
                raise ValueError(f"graph {place}: {error}") from None
        raise
