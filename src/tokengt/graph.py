"""Graph: one frozen data type for graphs, hypergraphs and order-k tensors.

A graph has ``num_nodes`` nodes and three optional kinds of relations, each with features of its own or none:

* ``edge_index`` [2, E]: directed edges (u, v) as PyG lists them; an undirected graph lists both directions.
  Self-loops and repeated edges are kept. With k rows instead of two it lists ordered k-tuples, the sparse
  order-k tensor of the paper's Section 3.3.
* hyperedges: unordered sets of any size, packed as ``hyperedge_nodes`` with ``hyperedge_offsets``.

Features are integer category columns ([n, columns], as in the Open Graph Benchmark), float vectors ([n, width]), or
None. What is known about the graph as a whole (a temperature, a descriptor) is one more row, ``graph_features``
[1, width].
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from tokengt.ragged import Segments
from tokengt.sparse import SparseRows
from tokengt.validation import (
    MAX_ORDER,
    check_distinct,
    check_indices,
    check_offsets,
    checked_features,
    checked_members,
    checked_node_features,
    common_device,
    count_nodes,
    describe_features,
)

NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True, eq=False, init=False)
class Graph:
    """One graph or hypergraph.

    Args:
        node_features: [n, columns] integers (categories) or [n, width] floats, which may be sparse (one of PyTorch's
            sparse tensors, or :class:`~tokengt.sparse.SparseRows`); None for a graph without.
        edge_index: [2, E] integers, or [k, E] for ordered k-tuples; None for no edges.
        edge_features: [E, ...] like ``node_features``.
        num_nodes: needed only when there are no node features.
        hyperedge_nodes: [I] members of all hyperedges, one hyperedge after another.
        hyperedge_offsets: [H + 1] where each hyperedge begins in ``hyperedge_nodes``.
        hyperedge_features: [H, ...] like ``node_features``.
        graph_features: [1, ...] like ``node_features``: what is known of the graph as a whole.
        extras: anything else that came with the graph (labels, names, positions); carried along untouched.

    Raises:
        ValueError: one sentence that names the field and what was expected.
    """

    num_nodes: int
    node_features: Shaped[Tensor, "nodes _"] | SparseRows | None
    edge_index: Int[Tensor, "order edges"]
    edge_features: Shaped[Tensor, "edges _"] | None
    hyperedge_nodes: Int[Tensor, " incidences"]
    hyperedge_offsets: Int[Tensor, " bounds"]
    hyperedge_features: Shaped[Tensor, "hyperedges _"] | None
    graph_features: Shaped[Tensor, "1 _"] | None
    extras: Mapping[str, Any]

    def __init__(
        self,
        node_features: Tensor | SparseRows | None = None,
        edge_index: Tensor | None = None,
        edge_features: Tensor | None = None,
        *,
        num_nodes: int | None = None,
        hyperedge_nodes: Tensor | None = None,
        hyperedge_offsets: Tensor | None = None,
        hyperedge_features: Tensor | None = None,
        graph_features: Tensor | None = None,
        extras: Mapping[str, Any] = NOTHING,
    ) -> None:
        if isinstance(node_features, Tensor) and node_features.layout != torch.strided and node_features.ndim == 2:
            node_features = SparseRows.from_torch(node_features)
        device = common_device(
            node_features=node_features,
            edge_index=edge_index,
            edge_features=edge_features,
            hyperedge_nodes=hyperedge_nodes,
            hyperedge_offsets=hyperedge_offsets,
            hyperedge_features=hyperedge_features,
            graph_features=graph_features,
        )
        nodes = count_nodes(node_features, num_nodes)
        index = torch.empty(2, 0, dtype=torch.int64, device=device) if edge_index is None else edge_index
        check_indices("edge_index", index, nodes, dims=2)
        if (hyperedge_nodes is None) != (hyperedge_offsets is None):
            raise ValueError("hyperedges need hyperedge_nodes and hyperedge_offsets together; only one was given")
        if hyperedge_nodes is None or hyperedge_offsets is None:
            hyperedge_nodes = torch.empty(0, dtype=torch.int64, device=device)
            hyperedge_offsets = torch.zeros(1, dtype=torch.int64, device=device)
        else:
            check_indices("hyperedge_nodes", hyperedge_nodes, nodes, dims=1)
            check_offsets(hyperedge_offsets, len(hyperedge_nodes))
            check_distinct(hyperedge_nodes, hyperedge_offsets, nodes)
        fields: dict[str, Any] = {
            "num_nodes": nodes,
            "node_features": checked_node_features(node_features, nodes),
            "edge_index": index.long(),
            "edge_features": checked_features("edge_features", edge_features, index.shape[1]),
            "hyperedge_nodes": hyperedge_nodes.long(),
            "hyperedge_offsets": hyperedge_offsets.long(),
            "hyperedge_features": checked_features(
                "hyperedge_features", hyperedge_features, len(hyperedge_offsets) - 1
            ),
            "graph_features": checked_features("graph_features", graph_features, 1),
            "extras": dict(extras),
        }
        # The dataclass is frozen, so its own constructor has to go around the check as well.
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_hyperedges(
        cls,
        hyperedges: Sequence[Sequence[int]],
        node_features: Tensor | SparseRows | None = None,
        hyperedge_features: Tensor | None = None,
        *,
        num_nodes: int | None = None,
        order: int | None = None,
        extras: Mapping[str, Any] = NOTHING,
    ) -> "Graph":
        """A hypergraph from lists of nodes.

        Every hyperedge stays one unordered set, which the model reads as one pooled token. With ``order`` k,
        hyperedges of up to k distinct nodes become ordered k-tuples instead: every k-tuple whose set of entries
        is the hyperedge (all orderings, as in the paper's last appendix); larger ones stay sets.
        """
        nodes = count_nodes(node_features, num_nodes)
        if order is not None and not 2 <= order <= MAX_ORDER:
            raise ValueError(f"order is {order}; expected 2 to {MAX_ORDER}")
        listed = [checked_members(place, members) for place, members in enumerate(hyperedges)]
        sizes = torch.tensor([len(members) for members in listed], dtype=torch.int64)
        flat = torch.tensor([node for members in listed for node in members], dtype=torch.int64)
        check_indices("hyperedges", flat, nodes, dims=1)
        features = checked_features("hyperedge_features", hyperedge_features, len(sizes))
        sets = Segments.from_lengths(sizes)
        if order is None:
            return cls(
                node_features,
                num_nodes=num_nodes,
                hyperedge_nodes=flat,
                hyperedge_offsets=sets.host,
                hyperedge_features=features,
                extras=extras,
            )
        tuples, source = _ordered_tuples(flat, sets, order)
        large = torch.nonzero(sizes > order).flatten()
        rows, large_sets = sets.take(large)
        return cls(
            node_features,
            edge_index=tuples,
            edge_features=None if features is None else features[source],
            num_nodes=num_nodes,
            hyperedge_nodes=flat[rows],
            hyperedge_offsets=large_sets.host,
            hyperedge_features=None if features is None else features[large],
            extras=extras,
        )

    @property
    def num_edges(self) -> int:
        return self.edge_index.shape[1]

    @property
    def num_hyperedges(self) -> int:
        return len(self.hyperedge_offsets) - 1

    @property
    def order(self) -> int:
        """The number of nodes in one entry of ``edge_index``: 2 for edges, k for k-tuples."""
        return self.edge_index.shape[0]

    @property
    def device(self) -> torch.device:
        return self.edge_index.device

    def to(self, device: torch.device | str) -> "Graph":
        moved = {
            name: None if tensor is None else tensor.to(device)
            for name, tensor in vars(self).items()
            if name not in ("num_nodes", "extras")
        }
        return Graph(**moved, num_nodes=self.num_nodes, extras=self.extras)

    def __repr__(self) -> str:
        relations = f"num_edges={self.num_edges}" if self.order == 2 else f"{self.order}-tuples={self.num_edges}"
        hyper = f", num_hyperedges={self.num_hyperedges}" if self.num_hyperedges else ""
        nodes, edges = describe_features(self.node_features), describe_features(self.edge_features)
        return f"Graph(num_nodes={self.num_nodes}, {relations}{hyper}, node_features={nodes}, edge_features={edges})"


def _ordered_tuples(
    flat: Int[Tensor, " incidences"], sets: Segments, order: int
) -> tuple[Int[Tensor, "order tuples"], Int[Tensor, " tuples"]]:
    """All ordered ``order``-tuples whose entries are exactly a set's members, and the set each came from."""
    tuples, source = [torch.empty(order, 0, dtype=torch.int64)], [torch.empty(0, dtype=torch.int64)]
    for size in [size for size in torch.unique(sets.host_lengths).tolist() if size <= order]:
        places = [p for p in product(range(size), repeat=order) if len(set(p)) == size]
        chosen = torch.nonzero(sets.host_lengths == size).flatten()
        members = flat[sets.starts[chosen][:, None] + torch.arange(size)]
        tuples.append(members[:, torch.tensor(places)].flatten(0, 1).T)
        source.append(chosen.repeat_interleave(len(places)))
    return torch.cat(tuples, 1), torch.cat(source)


def check_alike(graphs: Sequence[Graph]) -> None:
    """Refuse graphs that cannot be packed together: they need the same device, order and kinds of features.

    A graph without edges may come without edge features, whatever the other graphs have.
    """
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
        usual: tuple[int, str] | None = None
        for place, graph in enumerate(graphs):
            features = getattr(graph, name)
            if features is None and count is not None and getattr(graph, count) == 0:
                continue
            mine = describe_features(features)
            usual = usual or (place, mine)
            if mine != usual[1]:
                raise ValueError(f"graph {place}: {name} is {mine}; expected {usual[1]} as in graph {usual[0]}")
