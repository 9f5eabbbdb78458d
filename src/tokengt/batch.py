"""GraphBatch: one graph, a batch or a whole data set, packed end to end; what every model takes.

*Packed* means that the rows of all graphs lie one after another in one tensor, with offsets beside it that say where
each graph begins. Graphs of any size then need no padding, and any of them are taken out by indexing, without a loop.
Node numbers are kept *local*, counted inside each graph, in any integer type: a data set in memory or on disk takes the
narrowest one (:meth:`GraphBatch.narrowed`). *Facts* are results that were worked out from the graphs before, such as
eigenvectors, and that travel with the batch (:mod:`tokengt.facts`). *Links* are pairs of nodes that are asked about
(:mod:`tokengt.links`): no model reads them as it reads edges, it gives one row for each.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from tokengt import packing
from tokengt.facts import STRUCTURE, Bounds, CategoryBounds, CategoryRange, Cut, Fact, MergedEdges, Per, Rows, sources
from tokengt.graph import NOTHING, Graph
from tokengt.level import Level as Level
from tokengt.numbering import LocalIndex
from tokengt.ragged import Segments, to_device
from tokengt.sparse import Features, SparseRows
from tokengt.validation import checked_selection, describe_features, whole_number

_Some = TypeVar("_Some", Tensor | None, Features | None)
_MERGED = "merged edges"


@dataclass(frozen=True, eq=False)
class GraphBatch:
    """Many graphs, packed.

    Build one with :meth:`collate`, :meth:`from_arrays` or :meth:`from_packed`; take graphs out of it with
    :meth:`select`.

    ``nodes``, ``edges`` and ``hyperedges`` say which rows belong to each graph, ``members`` which incidences belong to
    each hyperedge. ``edge_numbers`` [order, edges] and ``member_numbers`` [incidences] name nodes; a model reads them
    as :attr:`edge_index` and :attr:`hyperedge_nodes`. ``facts`` holds what was worked out from the graphs, by name.
    ``link_numbers`` [2, links] are the pairs of nodes that are asked about, where any are: :attr:`link_index`.
    """

    nodes: Segments
    node_features: Shaped[Tensor, "nodes _"] | SparseRows | None
    edges: Segments
    edge_numbers: LocalIndex
    edge_features: Shaped[Tensor, "edges _"] | None
    hyperedges: Segments
    members: Segments
    member_numbers: LocalIndex
    hyperedge_features: Shaped[Tensor, "hyperedges _"] | None
    graph_features: Shaped[Tensor, "graphs _"] | None = None
    link_numbers: LocalIndex | None = None
    extras: tuple[Mapping[str, Any], ...] = ()
    facts: Mapping[str, Fact] = field(default_factory=dict, repr=False)

    @classmethod
    def collate(cls, graphs: Sequence[Graph]) -> "GraphBatch":
        """Pack graphs of the same feature kinds, order and device."""
        return _known(packing.from_graphs(graphs))

    @classmethod
    def joined(cls, batches: Sequence["GraphBatch"]) -> "GraphBatch":
        """The graphs of several batches on a CPU as one batch, in their order; facts, links and extras are left.

        Integers may be as narrow as they are in each; otherwise the batches have the same fields, as those that were
        read in the same way do.
        """
        return _known(packing.joined([vars(batch) for batch in batches]))

    @classmethod
    def from_packed(
        cls,
        *,
        nodes: Segments,
        edges: Segments,
        hyperedges: Segments,
        members: Segments,
        edge_index: Int[Tensor, "order edges"],
        hyperedge_nodes: Int[Tensor, " incidences"],
        **features: Tensor | SparseRows | None,
    ) -> "GraphBatch":
        """Graphs whose node numbers count over the whole batch, as PyG's do; nothing is checked."""
        return _known(
            {
                **dict.fromkeys(packing.FEATURE_FIELDS),
                **features,
                "nodes": nodes,
                "edges": edges,
                "edge_numbers": LocalIndex(edges, nodes, packed=edge_index),
                "hyperedges": hyperedges,
                "members": members,
                "member_numbers": LocalIndex(members.grouped(hyperedges), nodes, packed=hyperedge_nodes),
            }
        )

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Tensor]) -> "GraphBatch":
        """From the tensors of a store, by name; what a graph can do without may be absent."""
        return _known(packing.from_arrays(arrays))

    def arrays(self) -> dict[str, Tensor]:
        """The inverse of :meth:`from_arrays`, node numbers local; hyperedges are left out when there are none."""
        return packing.to_arrays(vars(self))

    def select(self, index: Sequence[int] | Tensor) -> "GraphBatch":
        """The graphs at these places, in this order (repeats allowed), without a loop over graphs.

        ``index`` holds integers (negative ones count from the end), or one boolean per graph. It is read on the CPU,
        so that selecting from a data set on a GPU never waits for the GPU.
        """
        chosen = checked_selection(index, len(self))
        if len(chosen) == len(self) and torch.equal(chosen, torch.arange(len(self))):
            # Training on the nodes of a single graph selects all graphs at every step, so nothing needs to be copied.
            return self
        return self.cut(Cut(chosen, to_device(chosen, self.device)))

    def cut(self, cut: Cut) -> "GraphBatch":
        """The graphs of a cut, with the facts that are known of them."""
        fields = packing.cut_out(vars(self), cut)
        return _known(fields, {n: fact.select(cut, fields) for n, fact in self.facts.items() if fact.holds_in(self)})

    def to(self, device: torch.device | str) -> "GraphBatch":
        return self._changed(packing.moved(vars(self), device))

    def narrowed(self) -> "GraphBatch":
        """The same graphs as a store keeps them: in the narrowest integers that fit, floats in float32, no extras."""
        return self._changed(packing.as_stored(vars(self)))

    def _changed(self, changed: Mapping[str, Any]) -> "GraphBatch":
        """The same graphs in other tensors; facts that are true of the old tensors are true of the new ones."""
        fields = {**vars(self), **changed}
        del fields["facts"]
        return _known(fields, {name: fact.moved(fields) for name, fact in self.facts.items() if fact.holds_in(self)})

    def with_fact(self, name: str, rows: Shaped[Tensor, "rows *rest"], per: Per = "node") -> "GraphBatch":
        """The same batch with one more fact: one row per graph, node, listed edge or ordered pair of nodes."""
        count = self.fact_rows(per)
        if len(rows) != count:
            raise ValueError(f"fact {name!r} has {len(rows)} rows; expected {count}: one row per {per}")
        return self._with(name, Rows(per, rows, sources(STRUCTURE, vars(self))))

    def fact_rows(self, per: Per) -> int:
        """How many rows a fact of this kind has."""
        if per == "pair":
            return self.nodes.pairs.total
        return {"graph": len(self), "node": self.nodes.total, "edge": self.edges.total}[per]

    def fact(self, name: str) -> Shaped[Tensor, "rows *rest"] | None:
        """The rows that :meth:`with_fact` was given under this name, if they are true of this batch; else None."""
        fact = self._fact(name)
        return fact.rows if isinstance(fact, Rows) else None

    def with_merged(self, merged: MergedEdges) -> "GraphBatch":
        """The same batch, which knows which listed edges are two directions of one edge."""
        return self._with(_MERGED, merged)

    @property
    def merged(self) -> MergedEdges | None:
        """Which listed edges are two directions of one edge, if that is known."""
        fact = self._fact(_MERGED)
        return fact if isinstance(fact, MergedEdges) else None

    def category_range(self, name: str) -> CategoryRange | None:
        """Bounds on the integer features called ``name``: smallest and largest value of every column, or None.

        A batch cut from a larger one answers with the larger one's bounds.
        """
        features = getattr(self, name)
        fact = self._fact(_bounds(name))
        if isinstance(fact, CategoryBounds):
            return fact.bounds.columns
        return None if features is None or isinstance(features, SparseRows) else Bounds(features).columns

    def with_graph_features(self, features: Float[Tensor, "graphs _"]) -> "GraphBatch":
        return replace(self, graph_features=features)

    def with_links(self, links: Segments, index: Int[Tensor, "2 links"]) -> "GraphBatch":
        """The same graphs, asked about these pairs of nodes: numbers count over the batch, run g is of graph g."""
        return replace(self, link_numbers=LocalIndex(links, self.nodes, packed=index))

    def with_own_links(self, links: Sequence[Int[Tensor, "2 _"]]) -> "GraphBatch":
        """:meth:`with_links` of pairs graph by graph, whose numbers count inside each."""
        entries = Segments.from_lengths(torch.tensor([own.shape[1] for own in links]), self.device)
        return replace(self, link_numbers=LocalIndex(entries, self.nodes, local=torch.cat(list(links), 1)))

    def with_node_features(self, features: Shaped[Tensor, "nodes _"]) -> "GraphBatch":
        """The same graphs with other features of their nodes, such as some that are hidden.

        Facts are kept, bounds of categories among them: on a GPU the host would have to wait for new ones.
        """
        name = "node_features"
        known = self._fact(_bounds(name))
        facts = {**self.facts}
        if isinstance(known, CategoryBounds):
            facts[_bounds(name)] = known.moved({name: features})
        return replace(self, node_features=features, facts=facts)

    def _fact(self, name: str) -> Fact | None:
        fact = self.facts.get(name)
        return fact if fact is not None and fact.holds_in(self) else None

    def _with(self, name: str, fact: Fact) -> "GraphBatch":
        return replace(self, facts={**self.facts, name: fact})

    def unbatch(self) -> list[Graph]:
        """The graphs, each with its own node numbers again."""
        return list(self)

    def __len__(self) -> int:
        """The number of graphs."""
        return self.nodes.count

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
            self.edge_numbers.local[:, edge_a:edge_b],
            _slice(self.edge_features, edge_a, edge_b),
            num_nodes=node_b - node_a,
            hyperedge_nodes=self.member_numbers.local[member_a:member_b],
            hyperedge_offsets=self.members.offsets[hyper_a : hyper_b + 1] - member_a,
            hyperedge_features=_slice(self.hyperedge_features, hyper_a, hyper_b),
            graph_features=_slice(self.graph_features, place, place + 1),
            extras=self.extras[place] if self.extras else NOTHING,
        )

    def __iter__(self) -> Iterator[Graph]:
        return (self[place] for place in range(len(self)))

    @property
    def edge_index(self) -> Int[Tensor, "order edges"]:
        """The nodes of every edge, counted over the whole batch: int64, worked out once."""
        return self.edge_numbers.packed

    @property
    def hyperedge_nodes(self) -> Int[Tensor, " incidences"]:
        """The nodes of every hyperedge, one hyperedge after another, counted over the whole batch: int64."""
        return self.member_numbers.packed

    @property
    def links(self) -> Segments:
        """Which pairs that are asked about belong to every graph."""
        if self.link_numbers is None:
            return Segments.uniform(len(self), 0, self.device)
        return self.link_numbers.entries

    @property
    def link_index(self) -> Int[Tensor, "2 links"]:
        """The nodes of every pair that is asked about, counted over the whole batch: int64.

        Raises:
            ValueError: nobody said which pairs.
        """
        if self.link_numbers is None:
            raise ValueError("a model of links needs pairs of nodes to ask about; expected edge_label_index, or pairs")
        return self.link_numbers.packed

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
        return self.edge_numbers.shape[0]

    @property
    def device(self) -> torch.device:
        return self.edge_numbers.device

    @property
    def nbytes(self) -> int:
        """How many bytes the arrays and the facts take, on disk or in a GPU's memory."""
        fact_bytes = (fact.nbytes for fact in self.facts.values() if fact.holds_in(self))
        return sum(tensor.nbytes for tensor in self.arrays().values()) + sum(fact_bytes)

    def level_rows(self, level: Level) -> Segments:
        """Which rows of a table of labels belong to every graph: its one row, its nodes, its edges or its links."""
        if level == "graph":
            return Segments.uniform(len(self), 1, self.device)
        return {"node": self.nodes, "edge": self.edges, "link": self.links}[level]

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


def _known(fields: dict[str, Any], facts: dict[str, Fact] | None = None) -> GraphBatch:
    """A batch of these fields that knows where to find the bounds of its categories."""
    facts = {} if facts is None else facts
    for name in packing.FEATURE_FIELDS:
        features = fields[name]
        # Bounds of categories that came along from a larger batch are kept: they were read once for all of it.
        if features is not None and not features.is_floating_point() and _bounds(name) not in facts:
            facts[_bounds(name)] = CategoryBounds(Bounds(features), (name,), (features,))
    return GraphBatch(**fields, facts=facts)


def _bounds(name: str) -> str:
    return f"bounds of {name}"


def _slice(features: _Some, start: int, stop: int) -> _Some:
    return None if features is None else features[start:stop]
