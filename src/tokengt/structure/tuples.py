"""What can be said about listed edges and tuples: their equality patterns, and which two are directions of one edge."""

from itertools import pairwise

import torch
from jaxtyping import Int
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.draws import chain
from tokengt.facts import MergedEdges
from tokengt.numbering import LocalIndex, narrowed
from tokengt.ragged import Segments
from tokengt.structure.patterns import growth_strings

# Directions are merged for about this many edges at a time, to save memory.
_EDGES_AT_ONCE = 2**22


def equality_patterns(tuples: Int[Tensor, "order tuples"]) -> Int[Tensor, " tuples"]:
    """The place of every tuple's equality pattern gamma in :func:`growth_strings`."""
    order = tuples.shape[0]
    equal = tuples[:, None] == tuples[None]
    first = equal.int().argmax(1)
    # The places where each entry first occurs tell the pattern; they are read as one number in base `order`.
    weights = order ** torch.arange(order - 1, -1, -1, device=tuples.device)
    codes = (first * weights[:, None]).sum(0)
    patterns = torch.tensor([[string.index(label) for label in string] for string in growth_strings(order)])
    pattern_codes, places = torch.sort((patterns.to(tuples.device) * weights).sum(1))
    return places.index_select(0, torch.searchsorted(pattern_codes, codes))


def merge_directions(batch: GraphBatch, numbered_from: int = 0) -> MergedEdges:
    """Pair (u, v) with (v, u) where their features agree; a batch that carries this fact is not searched again.

    Repeated edges pair off one by one. An edge left without its reverse stands alone, as does a self-loop.
    ``numbered_from`` is the first graph's number in messages.

    Raises:
        ValueError: both directions are listed but their features differ; names the graph and the edge.
    """
    if batch.merged is not None:
        return batch.merged
    source, target = batch.edge_index
    pair = torch.minimum(source, target) * batch.num_nodes + torch.maximum(source, target)
    backward = (source > target).long()
    # One chain of hashes over everything that must agree: a sum of separate hashes would not depend on their order.
    kind = chain(torch.cat([pair[None], _feature_bits(batch)]))
    _check_directions_agree(batch, pair, kind, backward, numbered_from)
    # The r-th (u, v) of a kind meets the r-th (v, u) of that kind.
    rank = _rank_within(kind + backward)
    _, of_edge = torch.unique(kind + rank, return_inverse=True)
    count = int(of_edge.max()) + 1 if batch.num_edges else 0
    place = torch.arange(batch.num_edges, device=batch.device)
    first = torch.full((count,), batch.num_edges, device=batch.device).scatter_reduce(0, of_edge, place, "amin")
    first, renumber = torch.sort(first)
    new_number = torch.empty_like(renumber)
    new_number[renumber] = torch.arange(count, device=batch.device)
    lengths = torch.bincount(batch.edges.ids.index_select(0, first), minlength=batch.num_graphs)
    segments = Segments.from_lengths(lengths.cpu(), batch.device)
    return MergedEdges(
        firsts=LocalIndex(segments, batch.edges, packed=first),
        owners=LocalIndex(batch.edges, segments, packed=new_number.index_select(0, of_edge)),
        segments=segments,
        source=(batch.edge_numbers, batch.edge_features),
    )


def with_merged_edges(graphs: GraphBatch) -> GraphBatch:
    """The same graphs with the fact which edges are two directions of one, so that no batch has to find out on a GPU.

    Raises:
        ValueError: both directions of an edge are listed but their features differ.
    """
    if graphs.merged is not None or not len(graphs):
        return graphs
    edges = graphs.edges
    cuts = torch.searchsorted(edges.host, torch.arange(0, edges.total, _EDGES_AT_ONCE))
    bounds = torch.unique(torch.cat((cuts, torch.tensor([0, len(graphs)])))).tolist()
    parts = [merge_directions(graphs.select(torch.arange(*span)), span[0]) for span in pairwise(bounds)]
    lengths = torch.cat([part.segments.host_lengths for part in parts])
    segments = Segments.from_lengths(lengths, graphs.device)
    merged = MergedEdges(
        firsts=LocalIndex(segments, edges, local=torch.cat([narrowed(part.firsts.local) for part in parts])),
        owners=LocalIndex(edges, segments, local=torch.cat([narrowed(part.owners.local) for part in parts])),
        segments=segments,
        source=(graphs.edge_numbers, graphs.edge_features),
    )
    return graphs.with_merged(merged)


def _feature_bits(batch: GraphBatch) -> Int[Tensor, "columns edges"]:
    """Edge features as integers: equal features, equal bits."""
    features = batch.edge_features
    if features is None:
        return batch.edge_index[:0]
    # Adding zero turns -0.0 into 0.0, which compares equal but has other bits.
    bits = (features.double() + 0.0).view(torch.int64) if features.is_floating_point() else features.long()
    return bits.T


def _rank_within(keys: Int[Tensor, " edges"]) -> Int[Tensor, " edges"]:
    """0, 1, 2, ... among the keys that are equal, in listed order."""
    _, group, counts = torch.unique(keys, return_inverse=True, return_counts=True)
    order = torch.argsort(group, stable=True)
    start = torch.cumsum(counts, 0) - counts
    rank = torch.empty_like(group)
    rank[order] = torch.arange(len(group), device=group.device) - start.index_select(0, group[order])
    return rank


def _check_directions_agree(
    batch: GraphBatch,
    pair: Int[Tensor, " edges"],
    kind: Int[Tensor, " edges"],
    backward: Int[Tensor, " edges"],
    numbered_from: int,
) -> None:
    """Where both directions of a pair are listed, features of one must occur on the other too."""
    if batch.edge_features is None:
        return
    straight = (batch.edge_index[0] != batch.edge_index[1]).double()
    forward, back = straight * (1 - backward), straight * backward
    _, pair_of = torch.unique(pair, return_inverse=True)
    both = (torch.bincount(pair_of, weights=forward) > 0) & (torch.bincount(pair_of, weights=back) > 0)
    _, kind_of = torch.unique(kind, return_inverse=True)
    one_way = (torch.bincount(kind_of, weights=forward) > 0) != (torch.bincount(kind_of, weights=back) > 0)
    bad = torch.nonzero(both.index_select(0, pair_of) & one_way.index_select(0, kind_of)).flatten()
    if len(bad):
        edge = int(bad[0])
        graph, place = batch.graph_of_row(batch.edges, edge)
        u, v = batch.edge_numbers.local[:, edge].tolist()
        raise ValueError(
            f"graph {numbered_from + graph}: edge_features row {place} of edge ({u}, {v}) has no equal on its reverse "
            f"({v}, {u}), so the two directions cannot share one token; use layout 'directed' or give both the same "
            "features"
        )
