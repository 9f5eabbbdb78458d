"""Rings: how many of each size go through every node and every edge.

A ring is a cycle without a shortcut (an induced cycle): no edge joins two of its nodes besides those of the cycle. In a
molecule these are the rings that a chemist draws, and a few more where rings share bridges; naphthalene has two of six
atoms, and its rim of ten is none, because the shared bond cuts it short. Which cycles are rings does not depend on how
nodes are numbered, unlike the choice of a smallest set of them.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Int16
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.structure.adjacency import joined_nodes

# Rings of 3 to 8 nodes are counted apart. The two columns behind them are of all longer ones: how many, and how many
# nodes these have together, so that the size of a rare large ring is a number and not a column that nothing trained.
APART = range(3, 9)
COLUMNS = len(APART) + 2
# In a graph with more rings than this, longer ones are not looked for: a sheet or a cage of hexagons has a few dozen of
# them, and a million cycles around several of them at once. Molecules of drugs have some ten rings of any size.
MOST_RINGS = 1000
# More paths than this at a time are not followed: the graph is no molecule, and its rings are too many to count.
MOST_PATHS = 2**22
# What fits into int16, the type in which counts are kept.
_MANY = 2**15 - 1


def node_rings(batch: GraphBatch, longest: int) -> Int16[Tensor, "nodes columns"]:
    """For every node, the rings of at most ``longest`` nodes that go through it, by size (see :data:`COLUMNS`).

    Raises:
        ValueError: a graph is so densely joined that its rings are too many to count.
    """
    out = torch.zeros(batch.num_nodes, COLUMNS, dtype=torch.int64, device=batch.device)
    for rings in _Joined.of(batch).rings(batch, longest):
        _count(out, rings.flatten(), rings.shape[1])
    return out.clamp(max=_MANY).to(torch.int16)


def edge_rings(batch: GraphBatch, longest: int) -> Int16[Tensor, "edges columns"]:
    """For every listed edge, the rings of at most ``longest`` nodes that go through it; both directions have the same.

    Raises:
        ValueError: as for :func:`node_rings`, or an edge has more than two nodes.
    """
    if batch.order != 2:
        raise ValueError(f"edge_index has {batch.order} rows; rings through edges are for edges of two nodes")
    joined = _Joined.of(batch)
    out = torch.zeros(len(joined.keys) + 1, COLUMNS, dtype=torch.int64, device=batch.device)
    for rings in joined.rings(batch, longest):
        one, other = rings, rings.roll(-1, 1)
        _count(out, joined.place(torch.minimum(one, other), torch.maximum(one, other)).flatten(), rings.shape[1])
    # The last row is of nodes that no edge joins, and of self-loops, which are on no ring.
    listed = joined.place(batch.edge_index.amin(0), batch.edge_index.amax(0))
    return out.index_select(0, listed).clamp(max=_MANY).to(torch.int16)


def _count(out: Int[Tensor, "rows columns"], at: Int[Tensor, " members"], size: int) -> None:
    """Add the members of rings of this size to the rows they are on."""
    times = torch.bincount(at, minlength=len(out))
    if size in APART:
        out[:, size - APART.start] += times
    else:
        out[:, -2] += times
        out[:, -1] += size * times


@dataclass(frozen=True, eq=False)
class _Joined:
    """Who is joined to whom, without self-loops: neighbours of each node in a row, and one key for each ordered pair.

    Shapes: ``target`` and ``keys`` [entries], ``starts`` and ``degrees`` [nodes].
    """

    nodes: int
    target: Int[Tensor, " entries"]
    keys: Int[Tensor, " entries"]
    starts: Int[Tensor, " nodes"]
    degrees: Int[Tensor, " nodes"]

    @classmethod
    def of(cls, batch: GraphBatch) -> "_Joined":
        source, target = joined_nodes(batch)
        other = source != target
        return cls.between(batch.num_nodes, source[other], target[other])

    @classmethod
    def between(cls, nodes: int, source: Int[Tensor, " entries"], target: Int[Tensor, " entries"]) -> "_Joined":
        degrees = torch.bincount(source, minlength=nodes)
        return cls(nodes, target, source * nodes + target, degrees.cumsum(0) - degrees, degrees)

    def place(self, one: Int[Tensor, "*shape"], other: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """Where an ordered pair of nodes stands among those that are joined; behind the last where it does not."""
        key, end = one * self.nodes + other, len(self.keys)
        if not end:
            return torch.zeros_like(key)
        found = torch.searchsorted(self.keys, key).clamp(max=end - 1)
        return torch.where(self.keys.take(found) == key, found, end)

    def has(self, one: Int[Tensor, "*shape"], other: Int[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
        return self.place(one, other) < len(self.keys)

    def without_tails(self) -> "_Joined":
        """The nodes that are left when those with one neighbour are taken away, again and again: no ring is lost."""
        kept, last = self, -1
        while len(kept.keys) != last:
            last = len(kept.keys)
            source = kept.keys // max(1, kept.nodes)
            stays = (kept.degrees.take(source) > 1) & (kept.degrees.take(kept.target) > 1)
            kept = self.between(kept.nodes, source[stays], kept.target[stays])
        return kept

    def rings(self, batch: GraphBatch, longest: int) -> list[Int[Tensor, "rings size"]]:
        """All rings of at most ``longest`` nodes, once each, one tensor per size.

        Of a graph with more than :data:`MOST_RINGS` rings of up to some size there are none of a larger size.
        Paths without a shortcut are followed from the lowest node of a ring, all of them one node at a time: a path
        ends where its last node is joined to the first (a ring) or to any other before the last but one (no ring).
        """
        core, found = self.without_tails(), []
        owners, counts = batch.nodes.ids, torch.zeros(len(batch), dtype=torch.int64, device=batch.device)
        source = core.keys // max(1, core.nodes)
        up = source < core.target
        paths = torch.stack([source[up], core.target[up]], 1)
        for _ in range(3, longest + 1):
            _check(paths, batch)
            end = paths[:, -1]
            more = core.degrees.take(end)
            of_path = torch.repeat_interleave(torch.arange(len(paths), device=paths.device), more)
            step = torch.arange(len(of_path), device=paths.device) - (more.cumsum(0) - more).take(of_path)
            node = core.target.take(core.starts.take(end.take(of_path)) + step)
            ahead = (node > paths[:, 0].take(of_path)) & (node != paths[:, -2].take(of_path))
            of_path, node = of_path[ahead], node[ahead]
            inner = paths[:, 1:-1].index_select(0, of_path)
            free = ~core.has(inner, node[:, None].expand_as(inner)).any(1)
            of_path, node = of_path[free], node[free]
            longer = torch.cat([paths.index_select(0, of_path), node[:, None]], 1)
            closed = core.has(longer[:, 0], node)
            # Each ring is met in both directions; the one whose second node is below its last is kept.
            found.append(longer[closed & (longer[:, 1] < node)])
            counts += torch.bincount(owners.take(found[-1][:, 0]), minlength=len(batch))
            # How many rings a graph has does not depend on the order of its nodes, as the number of paths does.
            paths = longer[~closed]
            paths = paths[counts.take(owners.take(paths[:, 0])) <= MOST_RINGS]
            if not len(paths):
                break
        return found


def _check(paths: Int[Tensor, "paths size"], batch: GraphBatch) -> None:
    if len(paths) > MOST_PATHS:
        graph = int(torch.bincount(batch.nodes.ids.take(paths[:, 0])).argmax())
        nodes, edges = (int(rows.host_lengths[graph]) for rows in (batch.nodes, batch.edges))
        raise ValueError(
            f"graph {graph} has {nodes:,} nodes and {edges:,} edges, and too many paths to count its rings; counts of "
            "rings are for sparse graphs such as molecules: leave structure.rings at 0"
        )
