"""GraphBatch: many graphs, packed end to end; what every model takes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Int, Integer, Shaped
from torch import Tensor

from tokengt.graph import NOTHING, Graph
from tokengt.ragged import Segments
from tokengt.validation import describe_features, whole_number

FEATURE_FIELDS = ("node_features", "edge_features", "hyperedge_features", "graph_features")
CategoryRange = tuple[list[int], list[int]]
_Known = dict[str, tuple[Tensor, CategoryRange]]


@dataclass(frozen=True, eq=False)
class MergedEdges:
    """Undirected edges behind a list of directed ones.

    ``first[t]`` is the listed edge that stands for undirected edge t; ``of_edge[e]`` is the undirected edge of
    listed edge e; ``segments`` packs the undirected edges by graph, in the order their first direction is listed.
    """

    first: Integer[Tensor, " merged"]
    of_edge: Integer[Tensor, " edges"]
    segments: Segments

    def to(self, device: torch.device | str) -> "MergedEdges":
        return MergedEdges(self.first.to(device), self.of_edge.to(device), self.segments.to(device))


@dataclass(frozen=True, eq=False)
class KnownPairs:
    """Merged edges, and the very tensors they were found in: of others they say nothing."""

    merged: MergedEdges
    edge_index: Integer[Tensor, "order edges"]
    edge_features: Shaped[Tensor, "edges _"] | None

    def of(self, edge_index: Tensor, edge_features: Tensor | None) -> MergedEdges | None:
        return self.merged if self.edge_index is edge_index and self.edge_features is edge_features else None


@dataclass(frozen=True, eq=False)
class GraphBatch:
    """Many graphs, packed: rows of all graphs one after another, with offsets. Indices are global.

    Build one with :meth:`collate`; take graphs out of a large one with :meth:`select` (vectorised, so a whole
    data set can be one GraphBatch that mini-batches are cut from).
    """

    nodes: Segments
    node_features: Shaped[Tensor, "nodes _"] | None
    edges: Segments
    edge_index: Int[Tensor, "order edges"]
    edge_features: Shaped[Tensor, "edges _"] | None
    hyperedges: Segments
    members: Segments
    hyperedge_nodes: Int[Tensor, " incidences"]
    hyperedge_features: Shaped[Tensor, "hyperedges _"] | None
    graph_features: Shaped[Tensor, "graphs _"] | None = None
    extras: tuple[Mapping[str, Any], ...] = ()
    # Facts of the structure that were worked out before, a row a node: eigenvectors that need no second decomposition.
    node_facts: Mapping[str, Shaped[Tensor, "nodes _"]] = field(default_factory=dict, repr=False)
    # Which listed edges are two directions of one, where that was worked out before.
    _pairs: KnownPairs | None = field(default=None, repr=False)
    # Smallest and largest category of each column, beside the features they bound; cut or moved batches inherit them.
    _ranges: _Known = field(default_factory=dict, repr=False)

    @classmethod
    def collate(cls, graphs: Sequence[Graph]) -> "GraphBatch":
        """Pack graphs of the same feature kinds, order and device."""
        if isinstance(graphs, Graph) or not all(isinstance(graph, Graph) for graph in graphs):
            raise ValueError("collate needs a list of Graphs; a model takes other kinds as they are")
        if not graphs:
            raise ValueError("a batch needs at least one graph, got an empty sequence")
        device = graphs[0].device
        _check_alike(graphs)
        nodes = _segments([g.num_nodes for g in graphs], device)
        edges = _segments([g.num_edges for g in graphs], device)
        hyperedges = _segments([g.num_hyperedges for g in graphs], device)
        sizes = torch.cat([g.hyperedge_offsets.diff() for g in graphs])
        members = Segments.from_lengths(sizes.cpu(), device)
        edge_shift = nodes.starts.index_select(0, edges.ids)
        member_shift = nodes.starts.index_select(0, hyperedges.ids).index_select(0, members.ids)
        return cls(
            nodes=nodes,
            node_features=_concatenate([g.node_features for g in graphs]),
            edges=edges,
            edge_index=torch.cat([g.edge_index for g in graphs], 1) + edge_shift,
            edge_features=_concatenate([g.edge_features for g in graphs]),
            hyperedges=hyperedges,
            members=members,
            hyperedge_nodes=torch.cat([g.hyperedge_nodes for g in graphs]) + member_shift,
            hyperedge_features=_concatenate([g.hyperedge_features for g in graphs]),
            graph_features=_concatenate([g.graph_features for g in graphs]),
            extras=tuple(g.extras for g in graphs) if any(g.extras for g in graphs) else (),
        )

    def select(self, index: Sequence[int] | Tensor) -> "GraphBatch":
        """The graphs at these places, in this order (repeats allowed), without a loop over graphs.

        ``index`` holds integers (negative ones count from the end), or one boolean a graph.
        """
        chosen = _checked_selection(index, self.num_graphs)
        node_rows, nodes = self.nodes.take(chosen)
        edge_rows, edges = self.edges.take(chosen)
        hyper_rows, hyperedges = self.hyperedges.take(chosen)
        member_rows, members = self.members.take(hyper_rows.cpu())
        shift = nodes.starts - self.nodes.starts.index_select(0, chosen.to(self.device))
        edge_shift = shift.index_select(0, edges.ids)
        member_shift = shift.index_select(0, hyperedges.ids).index_select(0, members.ids)
        features = {
            "node_features": _rows(self.node_features, node_rows),
            "edge_features": _rows(self.edge_features, edge_rows),
            "hyperedge_features": _rows(self.hyperedge_features, hyper_rows),
            "graph_features": _rows(self.graph_features, chosen.to(self.device)),
        }
        return GraphBatch(
            nodes=nodes,
            node_features=features["node_features"],
            edges=edges,
            edge_index=self.edge_index.index_select(1, edge_rows) + edge_shift,
            edge_features=features["edge_features"],
            hyperedges=hyperedges,
            members=members,
            hyperedge_nodes=self.hyperedge_nodes.index_select(0, member_rows) + member_shift,
            hyperedge_features=features["hyperedge_features"],
            graph_features=features["graph_features"],
            extras=tuple(self.extras[i] for i in chosen.tolist()) if self.extras else (),
            node_facts={name: fact.index_select(0, node_rows) for name, fact in self.node_facts.items()},
            _ranges=self._inherited(features),
        )

    def unbatch(self) -> list[Graph]:
        """The graphs, each with its own node numbers again."""
        return list(self)

    def __len__(self) -> int:
        return self.num_graphs

    def __getitem__(self, place: int) -> Graph:
        """Graph number ``place`` (views of this batch's tensors where possible); :meth:`select` takes several."""
        if whole_number(place) is None:
            raise ValueError(f"{place!r} is no graph's number; take several graphs with select")
        if not -len(self) <= place < len(self):
            raise IndexError(f"graph {place} is out of range for a batch of {len(self)} graphs")
        place %= len(self)
        node_a, node_b = self.nodes.host[place : place + 2].tolist()
        edge_a, edge_b = self.edges.host[place : place + 2].tolist()
        hyper_a, hyper_b = self.hyperedges.host[place : place + 2].tolist()
        member_a, member_b = self.members.host[hyper_a].item(), self.members.host[hyper_b].item()
        return Graph(
            _slice(self.node_features, node_a, node_b),
            self.edge_index[:, edge_a:edge_b] - node_a,
            _slice(self.edge_features, edge_a, edge_b),
            num_nodes=node_b - node_a,
            hyperedge_nodes=self.hyperedge_nodes[member_a:member_b] - node_a,
            hyperedge_offsets=self.members.offsets[hyper_a : hyper_b + 1] - member_a,
            hyperedge_features=_slice(self.hyperedge_features, hyper_a, hyper_b),
            graph_features=_slice(self.graph_features, place, place + 1),
            extras=self.extras[place] if self.extras else NOTHING,
        )

    def __iter__(self) -> Iterator[Graph]:
        return (self[place] for place in range(len(self)))

    def to(self, device: torch.device | str) -> "GraphBatch":
        features = {name: _moved(getattr(self, name), device) for name in FEATURE_FIELDS}
        index, merged = self.edge_index.to(device), self.merged
        return GraphBatch(
            nodes=self.nodes.to(device),
            node_features=features["node_features"],
            edges=self.edges.to(device),
            edge_index=index,
            edge_features=features["edge_features"],
            hyperedges=self.hyperedges.to(device),
            members=self.members.to(device),
            hyperedge_nodes=self.hyperedge_nodes.to(device),
            hyperedge_features=features["hyperedge_features"],
            graph_features=features["graph_features"],
            extras=self.extras,
            node_facts={name: fact.to(device) for name, fact in self.node_facts.items()},
            _pairs=None if merged is None else KnownPairs(merged.to(device), index, features["edge_features"]),
            _ranges=self._inherited(features),
        )

    def category_range(self, name: str) -> CategoryRange | None:
        """Bounds on the integer features called ``name``: smallest and largest value a column, or None.

        A batch cut from a larger one answers with the larger one's bounds.
        """
        features = getattr(self, name)
        known = self._ranges.get(name)
        if known is not None and known[0] is features:
            return known[1]
        bounds = category_bounds(features)
        if bounds is not None:
            self._ranges[name] = features, bounds
        return bounds

    def _inherited(self, features: Mapping[str, Tensor | None]) -> _Known:
        """This batch's ranges for features taken or moved from it; on a GPU, asking anew would mean to wait for it."""
        ranges = {name: self.category_range(name) for name in FEATURE_FIELDS}
        return {
            name: (part, bounds) for name, part in features.items() if part is not None and (bounds := ranges[name])
        }

    @property
    def merged(self) -> MergedEdges | None:
        """Which listed edges are two directions of one, if that is known."""
        return None if self._pairs is None else self._pairs.of(self.edge_index, self.edge_features)

    @property
    def num_graphs(self) -> int:
        return self.nodes.count

    @property
    def num_nodes(self) -> int:
        return self.nodes.total

    @property
    def num_edges(self) -> int:
        return self.edges.total

    @property
    def num_hyperedges(self) -> int:
        return self.hyperedges.total

    @property
    def order(self) -> int:
        return self.edge_index.shape[0]

    @property
    def device(self) -> torch.device:
        return self.edge_index.device

    def graph_of_row(self, segments: Segments, row: int) -> tuple[int, int]:
        """Which graph a packed row belongs to, and the row's place inside it: for error messages."""
        graph = int(torch.searchsorted(segments.host, row, right=True)) - 1
        return graph, row - int(segments.host[graph])

    def __repr__(self) -> str:
        hyper = f", num_hyperedges={self.num_hyperedges}" if self.num_hyperedges else ""
        return (
            f"GraphBatch(num_graphs={self.num_graphs}, num_nodes={self.num_nodes}, num_edges={self.num_edges}"
            f"{hyper}, node_features={describe_features(self.node_features)}, "
            f"edge_features={describe_features(self.edge_features)})"
        )


def category_bounds(features: Shaped[Tensor, "rows _"] | None) -> CategoryRange | None:
    """Smallest and largest value of each column; None for floats and for no rows."""
    if features is None or features.is_floating_point() or features.numel() == 0:
        return None
    low, high = torch.aminmax(features, dim=0)
    return low.tolist(), high.tolist()


def _checked_selection(index: Sequence[int] | Tensor, graphs: int) -> Int[Tensor, " chosen"]:
    """Places of graphs, 0 to ``graphs - 1``, on the CPU."""
    chosen = torch.as_tensor(index).cpu()
    if chosen.dtype == torch.bool and chosen.shape == (graphs,):
        chosen = torch.nonzero(chosen).flatten()
    if chosen.numel() == 0:
        raise ValueError("select needs at least one graph, got an empty index")
    if chosen.ndim != 1 or chosen.is_floating_point() or chosen.is_complex() or chosen.dtype == torch.bool:
        raise ValueError(
            f"select needs a list of integers or {graphs} booleans, got {chosen.dtype} of shape {list(chosen.shape)}"
        )
    low, high = (int(bound) for bound in torch.aminmax(chosen))
    if low < -graphs or high >= graphs:
        raise ValueError(f"graph {low if low < -graphs else high} is out of range for a batch of {graphs} graphs")
    return chosen.long().remainder(graphs)


def _check_alike(graphs: Sequence[Graph]) -> None:
    """Same device, order and feature kinds; a graph without edges may come without edge features too."""
    first = graphs[0]
    for place, graph in enumerate(graphs):
        if graph.device != first.device:
            raise ValueError(f"graph {place} is on {graph.device} but graph 0 is on {first.device}")
        if graph.order != first.order:
            raise ValueError(f"graph {place}: edge_index has {graph.order} rows but graph 0 has {first.order}")
    for name, count in (
        ("node_features", "num_nodes"),
        ("edge_features", "num_edges"),
        ("hyperedge_features", "num_hyperedges"),
        ("graph_features", None),
    ):
        seen: tuple[int, str] | None = None
        for place, graph in enumerate(graphs):
            features = getattr(graph, name)
            if features is None and count is not None and getattr(graph, count) == 0:
                continue
            mine = describe_features(features)
            seen = seen or (place, mine)
            if mine != seen[1]:
                raise ValueError(f"graph {place}: {name} is {mine}; expected {seen[1]} as in graph {seen[0]}")


def _segments(lengths: list[int], device: torch.device) -> Segments:
    return Segments.from_lengths(torch.tensor(lengths, dtype=torch.int64), device)


def _concatenate(parts: list[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.cat(present) if present else None


def _rows(features: Tensor | None, rows: Tensor) -> Tensor | None:
    return None if features is None else features.index_select(0, rows)


def _slice(features: Tensor | None, start: int, stop: int) -> Tensor | None:
    return None if features is None else features[start:stop]


def _moved(features: Tensor | None, device: torch.device | str) -> Tensor | None:
    return None if features is None else features.to(device)
