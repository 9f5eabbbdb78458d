"""NetworkX to :class:`~tokengt.graph.Graph` and back."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokengt.graph import Graph
from tokengt.sparse import as_dense

_FEATURES = "features"
_LABELS = "node_labels"


def from_networkx(
    graph: Any,
    node_features: str | Sequence[str] | None = None,
    edge_features: str | Sequence[str] | None = None,
) -> Graph:
    """A graph from any NetworkX graph, directed or not, multigraphs included.

    Nodes are numbered in the order of ``graph.nodes``; labels other than 0 .. n-1 are kept in
    ``extras["node_labels"]``. An undirected edge is listed as (u, v), (v, u), a self-loop once.

    Args:
        graph: the NetworkX graph.
        node_features: attributes to stack into columns of ``node_features`` [n, columns]. A value is a number or
            an array or list of them; integers and booleans give categories (int64), any float makes all floats
            (torch's default dtype).
        edge_features: the same of edges. A graph without edges has none.

    Raises:
        ValueError: one sentence that names the node or edge, the attribute and what was expected.
    """
    labels = list(graph.nodes)
    number = {label: place for place, label in enumerate(labels)}
    edges: list[tuple[int, int]] = []
    attributes: list[tuple[str, Mapping[str, Any]]] = []
    for u, v, values in graph.edges(data=True):
        ends = [(u, v)] if graph.is_directed() or u == v else [(u, v), (v, u)]
        edges += [(number[a], number[b]) for a, b in ends]
        attributes += [(f"edge {u!r} -> {v!r}", values)] * len(ends)
    plain = all(isinstance(label, int) and label == place for place, label in enumerate(labels))
    return Graph(
        _stacked(node_features, [(f"node {label!r}", values) for label, values in graph.nodes(data=True)]),
        torch.tensor(edges, dtype=torch.int64).view(-1, 2).T.contiguous(),
        _stacked(edge_features, attributes),
        num_nodes=len(labels),
        extras={} if plain else {_LABELS: labels},
    )


def to_networkx(graph: Graph, *, undirected: bool = False) -> Any:
    """A NetworkX graph with features as the attribute ``features`` (a list) of nodes and edges.

    A ``DiGraph``, or a ``MultiDiGraph`` when edges repeat. With ``undirected``, a ``Graph`` or ``MultiGraph`` in
    which (u, v) and (v, u) are one edge; an edge listed in one direction only is an edge too. Nodes get the
    labels of ``extras["node_labels"]`` when there are any.

    Raises:
        ValueError: the graph has hyperedges or k-tuples, or two directions of an edge differ in their features.
    """
    try:
        import networkx as nx
    except ImportError as error:
        raise ImportError("to_networkx needs NetworkX: pip install networkx") from error
    if graph.num_hyperedges or graph.order != 2:
        raise ValueError("NetworkX holds edges of two nodes; expected a graph without hyperedges and k-tuples")
    edges = list(zip(*graph.edge_index.tolist(), _lists(graph.edge_features, graph.num_edges), strict=True))
    if undirected:
        edges = _merged(edges)
    repeated = len({(u, v) for u, v, _ in edges}) < len(edges)
    kinds = {
        (False, False): nx.DiGraph,
        (False, True): nx.MultiDiGraph,
        (True, False): nx.Graph,
        (True, True): nx.MultiGraph,
    }
    out = kinds[undirected, repeated]()
    labels: Sequence[Hashable] = graph.extras.get(_LABELS, range(graph.num_nodes))
    for label, features in zip(labels, _lists(as_dense(graph.node_features), graph.num_nodes), strict=True):
        out.add_node(label, **features)
    out.add_edges_from((labels[u], labels[v], features) for u, v, features in edges)
    return out


def _stacked(names: str | Sequence[str] | None, rows: list[tuple[str, Mapping[str, Any]]]) -> Tensor | None:
    """The named attributes of every row side by side, [rows, columns]."""
    if names is None or not rows:
        return None
    names = [names] if isinstance(names, str) else list(names)
    columns = np.concatenate([np.stack(_values(name, rows)) for name in names], 1)
    if columns.dtype.kind == "f":
        return torch.from_numpy(columns.astype(np.float64)).to(torch.get_default_dtype())
    return torch.from_numpy(columns.astype(np.int64))


def _values(name: str, rows: Iterable[tuple[str, Mapping[str, Any]]]) -> list[NDArray[Any]]:
    """One attribute of every row as a vector, all of one length."""
    values: list[NDArray[Any]] = []
    for where, attributes in rows:
        if name not in attributes:
            raise ValueError(f"{where} has no attribute {name!r}; expected one on all of them")
        value = np.asarray(attributes[name])
        if value.dtype.kind not in "biuf" or value.ndim > 1:
            raise ValueError(
                f"{where}: attribute {name!r} is {attributes[name]!r}; expected a number or a list of them"
            )
        if value.dtype.kind == "u" and int(value.max(initial=0)) >= 2**63:
            raise ValueError(f"{where}: attribute {name!r} is {attributes[name]!r}; expected integers of 64 bits")
        values.append(np.atleast_1d(value))
        if len(values[-1]) != len(values[0]):
            raise ValueError(
                f"{where}: attribute {name!r} has {len(values[-1])} numbers; expected {len(values[0])} as in the first"
            )
    return values


def _lists(features: Tensor | None, rows: int) -> list[dict[str, Any]]:
    return [{} for _ in range(rows)] if features is None else [{_FEATURES: row} for row in features.tolist()]


def _merged(edges: list[tuple[int, int, dict[str, Any]]]) -> list[tuple[int, int, dict[str, Any]]]:
    """Each undirected edge once."""
    directions: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for u, v, features in edges:
        directions.setdefault((u, v), []).append(features)
    merged = []
    for (u, v), forward in directions.items():
        backward = directions.get((v, u), forward)
        if _counted(forward) != _counted(backward):
            raise ValueError(f"edges {u} -> {v} and {v} -> {u} differ in their features; expected the same in both")
        if u <= v or (v, u) not in directions:
            merged += [(u, v, features) for features in forward]
    return merged


def _counted(edges: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(features.get(_FEATURES, ())) for features in edges)
