"""PackedGraphs: a whole data set as flat arrays, compact enough to map from disk and quick to cut batches from.

Node numbers are local to each graph, so they fit narrow integers (one byte for molecules) and one graph's arrays
mean the same wherever they lie. A batch is one vectorised gather; there is no loop over graphs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int, Integer, Shaped
from torch import Tensor

from tokengt.batch import FEATURE_FIELDS, CategoryRange, GraphBatch, KnownPairs, MergedEdges, category_bounds
from tokengt.interop.molecules import PackedMolecules
from tokengt.ragged import Segments, to_device
from tokengt.structure.tuples import merge_directions

# Directions are merged in pieces of about this many edges, to save memory.
_EDGES_AT_ONCE = 2**22
_NARROW = (torch.uint8, torch.int16, torch.int32)


@dataclass(frozen=True, eq=False)
class PackedGraphs:
    """Many graphs, one after another, each with its own node numbers; the fields of a GraphBatch otherwise."""

    nodes: Segments
    node_features: Shaped[Tensor, "nodes _"] | None
    edges: Segments
    edge_index: Integer[Tensor, "order edges"]
    edge_features: Shaped[Tensor, "edges _"] | None
    hyperedges: Segments
    members: Segments
    hyperedge_nodes: Integer[Tensor, " incidences"]
    hyperedge_features: Shaped[Tensor, "hyperedges _"] | None
    graph_features: Float[Tensor, "graphs _"] | None = None
    node_facts: Mapping[str, Shaped[Tensor, "nodes _"]] = field(default_factory=dict)
    # Numbers inside each graph, like those of nodes.
    _pairs: KnownPairs | None = field(default=None, repr=False)

    @classmethod
    def from_batch(cls, batch: GraphBatch) -> "PackedGraphs":
        """The same graphs in the narrowest integers that hold them."""
        start = batch.nodes.starts
        members = batch.hyperedge_nodes - start.index_select(0, batch.hyperedges.ids).index_select(0, batch.members.ids)
        return cls(
            nodes=batch.nodes,
            node_features=_narrowed_or_none(batch.node_features),
            edges=batch.edges,
            edge_index=narrowed(batch.edge_index - start.index_select(0, batch.edges.ids)),
            edge_features=_narrowed_or_none(batch.edge_features),
            hyperedges=batch.hyperedges,
            members=batch.members,
            hyperedge_nodes=narrowed(members),
            hyperedge_features=_narrowed_or_none(batch.hyperedge_features),
            graph_features=None if batch.graph_features is None else batch.graph_features.float(),
            node_facts=batch.node_facts,
        )

    @classmethod
    def from_molecules(cls, molecules: PackedMolecules) -> "PackedGraphs":
        nodes = Segments.from_lengths(torch.from_numpy(molecules.node_counts))
        edges = Segments.from_lengths(torch.from_numpy(molecules.edge_counts))
        return cls.from_arrays(
            {
                "node_offsets": nodes.host,
                "node_features": torch.from_numpy(molecules.node_features),
                "edge_offsets": edges.host,
                "edge_index": torch.from_numpy(molecules.edge_index),
                "edge_features": torch.from_numpy(molecules.edge_features),
            }
        )

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Tensor]) -> "PackedGraphs":
        """From the tensors of a store, by name; what a graph can do without may be absent."""
        none = torch.zeros(len(arrays["node_offsets"]), dtype=torch.int64)
        return cls(
            nodes=_segments(arrays["node_offsets"]),
            node_features=arrays.get("node_features"),
            edges=_segments(arrays["edge_offsets"]),
            edge_index=arrays["edge_index"],
            edge_features=arrays.get("edge_features"),
            hyperedges=_segments(arrays.get("hyperedge_offsets", none)),
            members=_segments(arrays.get("member_offsets", none[:1])),
            hyperedge_nodes=arrays.get("hyperedge_nodes", none[:0]),
            hyperedge_features=arrays.get("hyperedge_features"),
            graph_features=arrays.get("graph_features"),
        )

    def arrays(self) -> dict[str, Tensor]:
        """The inverse of :meth:`from_arrays`; hyperedges are left out when there are none."""
        found: dict[str, Tensor | None] = {
            "node_offsets": self.nodes.host,
            "edge_offsets": self.edges.host,
            "edge_index": self.edge_index,
            **{name: getattr(self, name) for name in FEATURE_FIELDS},
        }
        if self.hyperedges.total:
            found |= {
                "hyperedge_offsets": self.hyperedges.host,
                "member_offsets": self.members.host,
                "hyperedge_nodes": self.hyperedge_nodes,
            }
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def gather(self, index: Sequence[int] | Int[Tensor, " chosen"]) -> GraphBatch:
        """The graphs at these places, in this order, as one batch on the device of the arrays."""
        chosen = torch.as_tensor(index, dtype=torch.int64)
        node_rows, nodes = self.nodes.take(chosen)
        edge_rows, edges = self.edges.take(chosen)
        if self.hyperedges.total:
            hyper_rows, hyperedges = self.hyperedges.take(chosen)
            member_rows, members = self.members.take(hyper_rows.cpu())
        else:
            hyper_rows, hyperedges = self._nothing, Segments.uniform(len(chosen), 0, self.device)
            member_rows, members = self._nothing, Segments.uniform(0, 0, self.device)
        start = nodes.starts
        features = {
            "node_features": _rows(self.node_features, node_rows),
            "edge_features": _rows(self.edge_features, edge_rows),
            "hyperedge_features": _rows(self.hyperedge_features, hyper_rows),
            "graph_features": _rows(self.graph_features, to_device(chosen, self.device)),
        }
        hyperedge_nodes = self.hyperedge_nodes.index_select(0, member_rows).long()
        if members.total:
            hyperedge_nodes = hyperedge_nodes + start.index_select(0, hyperedges.ids).index_select(0, members.ids)
        edge_index = self.edge_index.index_select(1, edge_rows) + start.index_select(0, edges.ids)
        merged = None if self.merged is None else _gather_merged(self.merged, chosen, edge_rows, edges)
        return GraphBatch(
            nodes=nodes,
            node_features=features["node_features"],
            edges=edges,
            edge_index=edge_index,
            edge_features=features["edge_features"],
            hyperedges=hyperedges,
            members=members,
            hyperedge_nodes=hyperedge_nodes,
            hyperedge_features=features["hyperedge_features"],
            graph_features=features["graph_features"],
            node_facts={name: fact.index_select(0, node_rows) for name, fact in self.node_facts.items()},
            _pairs=None if merged is None else KnownPairs(merged, edge_index, features["edge_features"]),
            _ranges={
                name: (part, bounds)
                for name, part in features.items()
                if part is not None and (bounds := self.category_ranges[name]) is not None
            },
        )

    def to(self, device: torch.device | str) -> "PackedGraphs":
        tensors = {name: getattr(self, name) for name in (*FEATURE_FIELDS, "edge_index", "hyperedge_nodes")}
        changed: dict[str, Any] = {name: None if part is None else part.to(device) for name, part in tensors.items()}
        for name in ("nodes", "edges", "hyperedges", "members"):
            changed[name] = getattr(self, name).to(device)
        facts = {name: fact.to(device) for name, fact in self.node_facts.items()}
        pairs = None
        if self.merged is not None:
            pairs = KnownPairs(self.merged.to(device), changed["edge_index"], changed["edge_features"])
        moved = replace(self, **changed, node_facts=facts, _pairs=pairs)
        vars(moved)["category_ranges"] = self.category_ranges
        return moved

    def with_fact(self, name: str, fact: Shaped[Tensor, "nodes _"]) -> "PackedGraphs":
        return replace(self, node_facts={**self.node_facts, name: fact})

    def with_merged_edges(self) -> "PackedGraphs":
        """The same, knowing which edges are two directions of one: batches need not find out, nor wait for a GPU.

        Raises:
            ValueError: both directions of an edge are listed but their features differ.
        """
        if self.merged is not None or not len(self):
            return self
        cuts = torch.searchsorted(self.edges.host, torch.arange(0, self.edges.total, _EDGES_AT_ONCE))
        bounds = torch.unique(torch.cat((cuts, torch.tensor([0, len(self)])))).tolist()
        parts = [self._merge(first, last) for first, last in pairwise(bounds)]
        lengths = torch.cat([part.segments.host_lengths for part in parts])
        merged = MergedEdges(
            first=torch.cat([part.first for part in parts]),
            of_edge=torch.cat([part.of_edge for part in parts]),
            segments=Segments.from_lengths(lengths, self.device),
        )
        return replace(self, _pairs=KnownPairs(merged, self.edge_index, self.edge_features))

    @property
    def merged(self) -> MergedEdges | None:
        """Which edges are two directions of one, if that is known."""
        return None if self._pairs is None else self._pairs.of(self.edge_index, self.edge_features)

    def _merge(self, first: int, last: int) -> MergedEdges:
        """Graphs ``first`` up to ``last``, in numbers inside each graph."""
        batch = self.gather(torch.arange(first, last))
        found = merge_directions(batch, numbered_from=first)
        listed, merged = batch.edges, found.segments
        return MergedEdges(
            first=narrowed(found.first - listed.starts.index_select(0, merged.ids)),
            of_edge=narrowed(found.of_edge - merged.starts.index_select(0, listed.ids)),
            segments=merged,
        )

    def with_graph_features(self, features: Float[Tensor, "graphs _"]) -> "PackedGraphs":
        return replace(self, graph_features=features)

    def __len__(self) -> int:
        return self.nodes.count

    @property
    def order(self) -> int:
        return self.edge_index.shape[0]

    @property
    def device(self) -> torch.device:
        return self.edge_index.device

    @property
    def nbytes(self) -> int:
        """What the arrays take, on disk or in a GPU's memory."""
        merged = () if self.merged is None else (self.merged.first, self.merged.of_edge)
        return sum(tensor.nbytes for tensor in (*self.arrays().values(), *self.node_facts.values(), *merged))

    @cached_property
    def category_ranges(self) -> dict[str, CategoryRange | None]:
        """Bounds of the categories, read once: on a GPU every batch's own would mean to wait for it."""
        return {name: category_bounds(getattr(self, name)) for name in FEATURE_FIELDS}

    @property
    def _nothing(self) -> Int[Tensor, " rows"]:
        return torch.empty(0, dtype=torch.int64, device=self.device)


def _gather_merged(
    merged: MergedEdges, chosen: Int[Tensor, " chosen"], edge_rows: Int[Tensor, " edges"], edges: Segments
) -> MergedEdges:
    """Of the chosen graphs, in the numbers of their batch; ``edges`` are that batch's."""
    rows, segments = merged.segments.take(chosen)
    first = merged.first.index_select(0, rows) + edges.starts.index_select(0, segments.ids)
    of_edge = merged.of_edge.index_select(0, edge_rows) + segments.starts.index_select(0, edges.ids)
    return MergedEdges(first, of_edge, segments)


def narrowed(values: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
    """Integers in the narrowest type that holds them; floats in float32."""
    if values.is_floating_point():
        return values.float()
    if values.numel() == 0:
        return values.to(torch.uint8)
    low, high = (int(bound) for bound in torch.aminmax(values))
    for dtype in _NARROW:
        if torch.iinfo(dtype).min <= low and high <= torch.iinfo(dtype).max:
            return values.to(dtype)
    return values.long()


def _narrowed_or_none(values: Tensor | None) -> Tensor | None:
    return None if values is None else narrowed(values)


def _segments(offsets: Int[Tensor, " bounds"]) -> Segments:
    # Offsets are asked for all the time: in memory, not in a mapped file.
    host = offsets.clone()
    return Segments(host, host)


def _rows(features: Tensor | None, rows: Tensor) -> Tensor | None:
    return None if features is None else features.index_select(0, rows)
