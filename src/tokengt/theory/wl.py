"""Colour refinement and the k-dimensional Weisfeiler-Leman tests, exact: the yardstick of the paper's Corollary 2.

Numbering is the paper's (Maron et al. 2019): "k-WL" recolours a k-tuple by what replacing one entry at a time gives
(the oblivious test), so 2-WL has the power of colour refinement, and (k + 1)-WL that of the folklore k-FWL, which
replaces all entries at once. k = 1 is colour refinement in both.

Colours are ranks among distinct rows, taken over all graphs together: equal colours mean equal histories, and
nothing is hashed. Isomorphic graphs get the same colours as often as each other, whatever their node numbers.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from tokengt.batch import GraphBatch
from tokengt.graph import Graph
from tokengt.sparse import as_dense

# The most colours of one round that are held in memory (8 bytes each, a few copies): enough for 16 nodes at k = 6, or
# for 64 nodes at k = 4.
MAX_COLOURS = 2**25

Step = Callable[[Tensor], Tensor]


def colour_refinement(graph: Graph) -> Int[Tensor, " nodes"]:
    """The stable colouring of a graph's nodes (1-WL); node and edge features are labels, directions count."""
    return k_wl(graph, 1)


def k_wl(graph: Graph, k: int, *, folklore: bool = False) -> Int[Tensor, " tuples"]:
    """The stable colouring of a graph's n^k node tuples, listed lexicographically.

    Args:
        graph: with any labels as node and edge features; repeated edges, self-loops and directions count.
        k: the dimension; 1 is colour refinement.
        folklore: k-FWL instead of the paper's k-WL.
    """
    *_, colours = _rounds([graph], k, folklore)
    return colours.flatten()


def separated_by_wl(first: Graph, second: Graph, k: int, *, folklore: bool = False) -> bool:
    """Whether k-WL tells two graphs apart: some round gives a colour more often in one of them."""
    if first.num_nodes != second.num_nodes:
        return True
    return any(not torch.equal(*colours.view(2, -1).sort().values) for colours in _rounds([first, second], k, folklore))


def wl_classes(graphs: Sequence[Graph], k: int, *, folklore: bool = False) -> Int[Tensor, " graphs"]:
    """The class of every graph among those that k-WL cannot tell apart."""
    sizes = torch.tensor([graph.num_nodes for graph in graphs])
    classes = torch.zeros_like(sizes)
    for size in torch.unique(sizes).tolist():
        members = torch.nonzero(sizes == size).flatten()
        *_, colours = _rounds([graphs[place] for place in members.tolist()], k, folklore)
        codes = _row_codes(colours.view(len(members), -1).sort().values)
        classes[members] = classes.max() + 1 + codes.cpu()
    return classes - 1


def _rounds(graphs: Sequence[Graph], k: int, folklore: bool) -> Iterator[Int[Tensor, "graphs *tuples"]]:
    """The colouring of every round, over graphs of as many nodes each, until no class splits any more."""
    if k < 1:
        raise ValueError(f"k is {k}; expected at least 1")
    batch = GraphBatch.collate(graphs)
    if batch.order != 2 or batch.num_hyperedges:
        raise ValueError("Weisfeiler-Leman tests are defined for graphs; expected order 2 and no hyperedges")
    nodes = graphs[0].num_nodes
    colours, step = _node_test(batch, nodes) if k == 1 else _tuple_test(batch, nodes, k, folklore)
    count = -1
    while (now := int(colours.max()) + 1 if colours.numel() else 0) > count:
        yield colours
        count = now
        colours = step(colours)


# The code of a row is its rank among all distinct rows.


def _ranks(values: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    ranks: Tensor = torch.unique(values, return_inverse=True)[1]
    return ranks


def _paired(first: Int[Tensor, "*shape"], second: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """One code for each distinct pair of codes."""
    return _ranks(first * (int(second.max()) + 1 if second.numel() else 1) + second)


def _folded(columns: Int[Tensor, "rows columns"]) -> Int[Tensor, " rows"]:
    """One code for each distinct row of codes."""
    code = torch.zeros_like(columns[:, 0]) if columns.shape[1] else columns.new_zeros(len(columns))
    for column in columns.unbind(1):
        code = _paired(code, column)
    return code


def _row_codes(rows: Shaped[Tensor, "rows _"]) -> Int[Tensor, " rows"]:
    """One code for each distinct row of numbers of any kind."""
    if not rows.numel():
        return torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    codes: Tensor = torch.unique(rows, dim=0, return_inverse=True)[1]
    return codes


def _multisets(groups: Int[Tensor, " rows"], values: Int[Tensor, " rows"], count: int) -> Int[Tensor, " groups"]:
    """One code for each distinct multiset among those that the ``values`` of every group form."""
    order = torch.argsort(values, stable=True)
    order = order[torch.argsort(groups[order], stable=True)]
    values, sizes = values[order], torch.bincount(groups, minlength=count)
    starts = sizes.cumsum(0) - sizes
    # A group is done after as many steps as it has values. Codes of different steps could coincide by chance, so the
    # size, which says the last step of a group, is made part of its code at the end.
    code = torch.zeros_like(sizes)
    for place in range(int(sizes.max()) if count else 0):
        active = torch.nonzero(sizes > place).flatten()
        code[active] = _paired(code[active], values[starts[active] + place])
    return _paired(sizes, code)


# The tests see a graph as one label per node and one label per ordered pair of nodes that edges join.


def _node_labels(batch: GraphBatch) -> Int[Tensor, " nodes"]:
    """Codes of node features and self-loops."""
    features = as_dense(batch.node_features)
    own = torch.zeros_like(batch.nodes.ids) if features is None else _row_codes(features)
    pairs, labels = _edge_labels(batch)
    looped = pairs[0] == pairs[1]
    loops = torch.zeros_like(own).index_add(0, pairs[0, looped], labels[looped] + 1)
    return _paired(own, loops)


def _edge_labels(batch: GraphBatch) -> tuple[Int[Tensor, "2 pairs"], Int[Tensor, " pairs"]]:
    """Distinct ordered pairs, and the code of all edges listed between them."""
    features = batch.edge_features
    own = torch.zeros_like(batch.edges.ids) if features is None else _row_codes(features)
    keys, group = torch.unique(batch.edge_index[0] * batch.num_nodes + batch.edge_index[1], return_inverse=True)
    pairs = torch.stack([keys // batch.num_nodes, keys % batch.num_nodes])
    return pairs, _multisets(group, own, len(keys))


def _node_test(batch: GraphBatch, nodes: int) -> tuple[Tensor, Step]:
    """c(u) <- (c(u), {{ (labels of uv and vu, c(v)) : v a neighbour of u, in either direction }})."""
    pairs, labels = _edge_labels(batch)
    straight = pairs[0] != pairs[1]
    pairs, labels = pairs[:, straight], labels[straight] + 1
    forth, back = (ends[0] * batch.num_nodes + ends[1] for ends in (pairs, pairs.flip(0)))
    keys, group = torch.unique(torch.cat([forth, back]), return_inverse=True)
    out, into = (torch.zeros_like(keys).index_add(0, part, labels) for part in group.tensor_split(2))
    joined, source, target = _paired(out, into), keys // batch.num_nodes, keys % batch.num_nodes

    def step(colours: Tensor) -> Tensor:
        seen = _paired(joined, colours.flatten().index_select(0, target))
        return _paired(colours, _multisets(source, seen, batch.num_nodes).view_as(colours))

    return _node_labels(batch).view(-1, nodes), step


def _tuple_test(batch: GraphBatch, nodes: int, k: int, folklore: bool) -> tuple[Tensor, Step]:
    """First colours [graphs, n, .., n] of all k-tuples, their isomorphism types, and the step of the test."""
    held = batch.num_graphs * nodes ** (k + folklore)
    if held > MAX_COLOURS:
        name = f"{k}-FWL" if folklore else f"{k}-WL"
        raise ValueError(
            f"{name} of {batch.num_graphs} graphs of {nodes} nodes holds {held:,} colours; that is too many"
        )
    relation = _pair_types(batch, nodes)
    colours = relation.new_zeros(batch.num_graphs, *[nodes] * k)
    for a in range(k):
        for b in range(a + 1, k):
            shape = [nodes if axis in (a, b) else 1 for axis in range(k)]
            colours = _paired(colours, relation.view(-1, *shape).expand_as(colours))
    return colours, _folklore_step if folklore else _oblivious_step


def _pair_types(batch: GraphBatch, nodes: int) -> Int[Tensor, "graphs nodes nodes"]:
    """The isomorphism type of every ordered pair of nodes: labels of both, of edges either way, and equality."""
    pairs, labels = _edge_labels(batch)
    graph = batch.nodes.ids.index_select(0, pairs[0])
    forth = labels.new_zeros(batch.num_graphs, nodes, nodes)
    forth[graph, pairs[0] - graph * nodes, pairs[1] - graph * nodes] = labels + 1
    label = _node_labels(batch).view(-1, nodes)
    ends = _paired(label[:, :, None].expand_as(forth), label[:, None].expand_as(forth))
    equal = torch.eye(nodes, dtype=labels.dtype, device=labels.device).expand_as(forth)
    return _paired(_paired(forth, forth.mT), _paired(ends, equal))


def _oblivious_step(colours: Int[Tensor, "graphs *tuples"]) -> Int[Tensor, "graphs *tuples"]:
    """c(v) <- (c(v), {{ c(v[w/1]) : w }}, ..., {{ c(v[w/k]) : w }})."""
    new = colours
    for axis in range(1, colours.ndim):
        moved = colours.movedim(axis, -1).sort().values
        seen = _folded(moved.flatten(0, -2)).view(moved.shape[:-1]).unsqueeze(axis)
        new = _paired(new, seen.expand_as(new))
    return new


def _folklore_step(colours: Int[Tensor, "graphs *tuples"]) -> Int[Tensor, "graphs *tuples"]:
    """c(v) <- (c(v), {{ (c(v[w/1]), ..., c(v[w/k])) : w }})."""
    nodes = colours.shape[-1]
    seen = colours.new_zeros(*colours.shape, nodes)
    for axis in range(1, colours.ndim):
        seen = _paired(seen, colours.movedim(axis, -1).unsqueeze(axis).expand_as(seen))
    return _paired(colours, _folded(seen.sort().values.flatten(0, -2)).view_as(colours))
