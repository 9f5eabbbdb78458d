"""Which edges lie on shortest paths, for all pairs of nodes of all graphs of a batch at once.

Edge (u, v) can be step s of a shortest path from i to j when dist(i, u) = s and s + 1 + dist(v, j) = dist(i, j). Where
there are several shortest paths, several edges can be the same step. All of them are named, so that the answer does not
depend on how nodes are numbered.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int, Int8
from torch import Tensor

from tokengt.batch import GraphBatch


@dataclass(frozen=True, eq=False)
class PathEdges:
    """Every edge on a shortest path: between which nodes, as which step, and how many edges can be that step.

    Args:
        pairs: the ordered pair of nodes (i, j), as the row of a fact about pairs.
        steps: the place on the path, from 0.
        edges: the listed edge.
        alike: how many edges can be this step of this pair.
    """

    pairs: Int[Tensor, " entries"]
    steps: Int[Tensor, " entries"]
    edges: Int[Tensor, " entries"]
    alike: Int[Tensor, " entries"]


def path_edges(batch: GraphBatch, hops: Int8[Tensor, " pairs"], longest: int) -> PathEdges:
    """The edges on the first ``longest`` steps of all shortest paths.

    ``hops`` are the distances of the batch (:class:`tokengt.structure.facts.HopDistances`). Pairs that are too far
    apart for these, or that no path joins, have no entry.
    """
    nodes, device = batch.nodes, batch.device
    sizes, starts = nodes.lengths, nodes.pairs.starts
    source, target = batch.edge_index
    graph = batch.edges.ids
    # Every edge with every node i of its graph, as long as the edge leads away from i.
    total = int((batch.edges.host_lengths * nodes.host_lengths).sum())
    edge, begin = _each(torch.arange(batch.num_edges, device=device), sizes.index_select(0, graph), total)
    size, start = _of(sizes, graph, edge), _of(starts, graph, edge)
    row = start + begin * size
    to_source = hops.index_select(0, row + nodes.positions.index_select(0, source.index_select(0, edge)))
    to_target = hops.index_select(0, row + nodes.positions.index_select(0, target.index_select(0, edge)))
    ahead = torch.nonzero((to_source >= 0) & (to_source < longest) & (to_target == to_source + 1)).flatten()
    edge, row, step = (x.index_select(0, ahead) for x in (edge, row, to_source.long()))
    # And with every node j that a shortest path goes on to.
    size, start = _of(sizes, graph, edge), _of(starts, graph, edge)
    kept, end = _each(torch.arange(len(edge), device=device), size, int(size.sum()))
    onward = _of(start + nodes.positions.index_select(0, target.index_select(0, edge)) * size, kept) + end
    pair = row.index_select(0, kept) + end
    rest = hops.index_select(0, onward)
    on_path = (rest >= 0) & (hops.index_select(0, pair) == _of(step, kept) + 1 + rest)
    found = torch.nonzero(on_path).flatten()
    kept, pairs = kept.index_select(0, found), pair.index_select(0, found)
    steps, edges = _of(step, kept), _of(edge, kept)
    place = pairs * longest + steps
    alike = torch.bincount(place, minlength=1).index_select(0, place)
    return PathEdges(pairs, steps, edges, alike)


def _each(
    items: Int[Tensor, " items"], counts: Int[Tensor, " items"], total: int
) -> tuple[Int[Tensor, " total"], Int[Tensor, " total"]]:
    """Each item as often as it counts, and the numbers 0, 1, ... of its repeats."""
    repeated = torch.repeat_interleave(items, counts, output_size=total)
    first = torch.repeat_interleave(counts.cumsum(0) - counts, counts, output_size=total)
    return repeated, torch.arange(total, device=items.device) - first


def _of(values: Tensor, *through: Tensor) -> Tensor:
    """``values[a[b[...]]]`` for the indices a, b, ..."""
    for index in through:
        values = values.index_select(0, index)
    return values
