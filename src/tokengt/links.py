"""Links: pairs of nodes that are asked about, what a model may not read of them, and pairs that are no links.

A model that is asked whether two nodes are joined must not read the edge between them: :func:`without_edges_of` takes
it out, in both directions. The other half of the question are pairs that are not joined, *negatives*. Of n nodes there
are about n^2 / 2 of them, far too many to list, so they are drawn: :class:`NonLinks` counts the pairs that are not
joined and finds the r-th of them by a binary search. Every one is equally likely, and none is ever tried and refused.

A pair of a graph has a *key*, one whole number. Of an undirected graph (u, v) and (v, u) have the same key; of a
directed one they differ. Nodes are not paired with themselves.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.draws import chain, mix
from tokengt.numbering import LocalIndex
from tokengt.ragged import Segments

# Graphs of more nodes have more pairs than 64 bits number.
_MOST_NODES = 2**31


def is_directed(graphs: GraphBatch) -> bool:
    """Whether some listed edge has no reverse: then (u, v) and (v, u) are two questions."""
    source, target = graphs.edge_index
    there, back = source * graphs.num_nodes + target, target * graphs.num_nodes + source
    return not bool(torch.isin(back, there).all())


def edges_as_links(graphs: GraphBatch, directed: bool) -> GraphBatch:
    """The same graphs, asked about their own edges: each pair once, without self-loops, in the order of their ends."""
    straight = graphs.edge_index[0] != graphs.edge_index[1]
    ends = graphs.edge_index[:, straight]
    if not directed:
        ends = torch.stack([ends.amin(0), ends.amax(0)])
    keys = torch.unique(ends[0] * graphs.num_nodes + ends[1])
    index = torch.stack([keys // graphs.num_nodes, keys % graphs.num_nodes])
    # Nodes are numbered graph after graph, so that pairs in the order of their nodes are in the order of their graphs.
    lengths = torch.bincount(graphs.nodes.ids[index[0]], minlength=len(graphs)).cpu()
    return graphs.with_links(Segments.from_lengths(lengths, graphs.device), index)


def joined(graphs: GraphBatch, pairs: Int[Tensor, "2 pairs"]) -> Bool[Tensor, " pairs"]:
    """Which of these pairs of nodes, numbered over the batch, an edge joins, in whichever direction."""
    return torch.isin(_unordered(pairs, graphs.num_nodes), _unordered(graphs.edge_index, graphs.num_nodes))


def without_edges_of(graphs: GraphBatch, pairs: Int[Tensor, "2 pairs"] | None = None) -> GraphBatch:
    """The graphs without the edges between the nodes of these pairs, in both directions and however often listed.

    ``pairs`` are numbered over the batch; by themselves those that the graphs are asked about. What was worked out of
    the edges (facts) is not known of what is left. Where no edge has to go, the graphs are the same as before.
    """
    pairs = graphs.link_index if pairs is None else pairs
    hidden = torch.isin(_unordered(graphs.edge_index, graphs.num_nodes), _unordered(pairs, graphs.num_nodes))
    if not bool(hidden.any()):
        return graphs
    kept = torch.nonzero(~hidden).flatten()
    lengths = torch.bincount(graphs.edges.ids[kept], minlength=len(graphs)).cpu()
    edges, features = Segments.from_lengths(lengths, graphs.device), graphs.edge_features
    return replace(
        graphs,
        edges=edges,
        edge_numbers=LocalIndex(edges, graphs.nodes, packed=graphs.edge_index[:, kept]),
        edge_features=None if features is None else features[kept],
    )


def _unordered(pairs: Int[Tensor, "2 pairs"], nodes: int) -> Int[Tensor, " pairs"]:
    """One number for both directions of a pair."""
    return pairs.amin(0) * nodes + pairs.amax(0)


def non_links(graphs: GraphBatch, links: Int[Tensor, "2 links"]) -> "NonLinks":
    """The pairs that are drawn as negatives: no edge and none of these links joins them, in whichever direction.

    The reverse of a directed edge could be one, but the edges of positives are hidden in both directions: a model
    would learn that a pair whose reverse it can read is a negative.
    """
    directed = is_directed(graphs)
    known = torch.cat([graphs.edge_index, links], 1)
    return NonLinks.of(graphs.nodes, torch.cat([known, known.flip(0)], 1) if directed else known, directed)


@dataclass(frozen=True, eq=False)
class NonLinks:
    """The pairs of nodes of every graph that are not among some known pairs: how many there are, and the r-th of them.

    ``gaps[i]`` is how many pairs with a smaller key are not known, of the i-th known pair of its graph; known pairs of
    graph g are run g of ``known``, in the order of their keys. ``room[g]`` is how many pairs of graph g are not known.
    """

    nodes: Segments
    directed: bool
    known: Segments
    gaps: Int[Tensor, " known"]
    room: Int[Tensor, " graphs"]

    @classmethod
    def of(cls, nodes: Segments, pairs: Int[Tensor, "2 pairs"], directed: bool) -> "NonLinks":
        """Of graphs with these nodes, where these pairs, numbered over all graphs, are known."""
        if nodes.max_length >= _MOST_NODES:
            raise ValueError(f"a graph has {nodes.max_length:,} nodes; expected fewer than {_MOST_NODES:,} to pair")
        pairs = pairs[:, pairs[0] != pairs[1]]
        owner = nodes.ids[pairs[0]]
        keys = keys_of(pairs - nodes.starts[owner], nodes.lengths[owner], directed)
        order = torch.argsort(keys, stable=True)
        order = order[torch.argsort(owner[order], stable=True)]
        owner, keys = owner[order], keys[order]
        again = torch.zeros_like(owner, dtype=torch.bool)
        again[1:] = (owner[1:] == owner[:-1]) & (keys[1:] == keys[:-1])
        owner, keys = owner[~again], keys[~again]
        known = Segments.from_lengths(torch.bincount(owner, minlength=nodes.count).cpu(), nodes.offsets.device)
        pairs_of = nodes.lengths * (nodes.lengths - 1)
        room = (pairs_of if directed else pairs_of // 2) - known.lengths
        return cls(nodes, directed, known, keys - known.positions, room)

    def to(self, device: torch.device | str) -> "NonLinks":
        nodes, known = self.nodes.to(device), self.known.to(device)
        return NonLinks(nodes, self.directed, known, self.gaps.to(device), self.room.to(device))

    def at(self, owner: Int[Tensor, " drawn"], rank: Int[Tensor, " drawn"]) -> Int[Tensor, "2 drawn"]:
        """The pair number ``rank``, from 0 to ``room - 1``, of graph ``owner``; nodes are numbered over all graphs."""
        # The gaps of graph after graph are one ascending list when each graph's are moved beyond those before it.
        beyond = torch.cumsum(self.room + 1, 0) - self.room - 1
        before = torch.searchsorted(self.gaps + beyond[self.known.ids], rank + beyond[owner], right=True)
        keys = rank + before - self.known.starts[owner]
        return ends_of(keys, self.nodes.lengths[owner], self.directed) + self.nodes.starts[owner]

    def drawn(self, places: Int[Tensor, " graphs"], counts: Int[Tensor, " graphs"], *key: int) -> "Drawn":
        """So many pairs of each of these graphs, with replacement; none of a graph without any.

        They are a function of ``key``, of the graph's place and of their own number, and of nothing that was drawn
        before or is drawn beside them. ``places`` and ``counts`` lie on the CPU.
        """
        there = places.to(self.room.device)
        counts = torch.where(self.room.cpu()[places] > 0, counts, 0)
        segments = Segments.from_lengths(counts, self.room.device)
        owner = there.index_select(0, segments.ids)
        fixed = [torch.full_like(owner, part) for part in key]
        bits = mix(chain(torch.stack([*fixed, owner])) + segments.positions)
        # 63 bits over far fewer pairs: no pair is likelier than another by more than 2^-31.
        return Drawn(segments, self.at(owner, (bits & (2**63 - 1)) % self.room[owner].clamp(min=1)))


@dataclass(frozen=True, eq=False)
class Drawn:
    """Pairs that were drawn: run g of ``segments`` are those of the g-th graph that was asked for.

    ``index`` [2, pairs] has their nodes, numbered over all graphs that they were drawn from.
    """

    segments: Segments
    index: Int[Tensor, "2 drawn"]


def keys_of(local: Int[Tensor, "2 pairs"], nodes: Int[Tensor, " pairs"], directed: bool) -> Int[Tensor, " pairs"]:
    """The key of every pair of different nodes, 0 up to the number of pairs of its graph, which has so many nodes.

    Directed: u (n - 1) + v, less 1 where v follows u. Undirected, u below v: v (v - 1) / 2 + u.
    """
    if directed:
        first, second = local.unbind()
        return first * (nodes - 1) + second - (second > first).long()
    low, high = local.amin(0), local.amax(0)
    return high * (high - 1) // 2 + low


def ends_of(keys: Int[Tensor, " pairs"], nodes: Int[Tensor, " pairs"], directed: bool) -> Int[Tensor, "2 pairs"]:
    """The inverse of :func:`keys_of`."""
    if directed:
        first = keys // (nodes - 1).clamp(min=1)
        second = keys - first * (nodes - 1)
        return torch.stack([first, second + (second >= first).long()])
    # The root is rounded to 53 bits, and may be off by one where keys are large.
    high = ((1 + (1 + 8 * keys.double()).sqrt()) / 2).long()
    high = high - (high * (high - 1) // 2 > keys).long()
    high = high + (high * (high + 1) // 2 <= keys).long()
    return torch.stack([keys - high * (high - 1) // 2, high])
