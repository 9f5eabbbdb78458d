"""Graphs by name: pairs that are not isomorphic, and how hard it is to see that."""

from collections.abc import Iterable
from itertools import permutations, product
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tokengt.graph import Graph

# All numberings of all graphs of 7 nodes are tried within seconds; there are 12,346 classes of 8 nodes.
_MOST_LISTED = 7


class GraphPair(NamedTuple):
    """Two graphs that are not isomorphic."""

    name: str
    first: Graph
    second: Graph


def undirected(num_nodes: int, edges: Iterable[tuple[int, int]]) -> Graph:
    """A graph without features that lists both directions of every edge."""
    index = torch.tensor(list(edges), dtype=torch.int64).view(-1, 2).T
    return Graph(num_nodes=num_nodes, edge_index=torch.cat([index, index.flip(0)], 1))


def cycle(num_nodes: int) -> Graph:
    return undirected(num_nodes, ((u, (u + 1) % num_nodes) for u in range(num_nodes)))


def two_triangles() -> Graph:
    return undirected(6, [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3)])


def path(num_nodes: int) -> Graph:
    return undirected(num_nodes, ((u, u + 1) for u in range(num_nodes - 1)))


def star(num_leaves: int) -> Graph:
    return undirected(num_leaves + 1, ((0, leaf + 1) for leaf in range(num_leaves)))


def rook() -> Graph:
    """The squares of a 4 x 4 board, joined along rows and columns: strongly regular (16, 6, 2, 2)."""
    return undirected(16, ((u, v) for u in range(16) for v in range(u) if (u // 4 == v // 4) != (u % 4 == v % 4)))


def shrikhande() -> Graph:
    """Z_4 x Z_4 with differences +-(1, 0), +-(0, 1), +-(1, 1): strongly regular (16, 6, 2, 2), as the rook's graph."""
    steps = [(0, 1), (1, 0), (1, 1)]
    edges = (
        (4 * row + column, 4 * ((row + down) % 4) + (column + right) % 4)
        for row in range(4)
        for column in range(4)
        for down, right in steps
    )
    return undirected(16, edges)


def circular_skip_link(num_nodes: int, skip: int) -> Graph:
    """CSL(n, r): a cycle whose nodes are also joined to those ``skip`` places on (Murphy et al. 2019): 4-regular."""
    if not 2 <= skip < num_nodes - 1 or 2 * skip == num_nodes:
        raise ValueError(f"skip is {skip}; expected 2 to {num_nodes - 2} and not half of num_nodes {num_nodes}")
    return undirected(num_nodes, ((u, (u + step) % num_nodes) for u in range(num_nodes) for step in (1, skip)))


def all_graphs(num_nodes: int) -> list[Graph]:
    """One graph of every isomorphism class: 1, 2, 4, 11, 34, 156 and 1,044 of them for 1 to 7 nodes.

    A graph is one bit per pair of nodes. Its class is told by the smallest number that these bits make in any numbering
    of the nodes. Every graph of n nodes is one of n - 1 nodes and a last node with some neighbours.
    """
    if not 1 <= num_nodes <= _MOST_LISTED:
        raise ValueError(f"num_nodes is {num_nodes}; expected 1 to {_MOST_LISTED}, as there are too many larger graphs")
    bits = torch.zeros(1, 0, dtype=torch.bool)
    for count in range(2, num_nodes + 1):
        last = torch.tensor(list(product((False, True), repeat=count - 1)))
        grown = torch.cat([bits.repeat_interleave(len(last), 0), last.repeat(len(bits), 1)], 1)
        codes = torch.unique(_smallest_codes(grown, count))
        bits = (codes[:, None] >> torch.arange(grown.shape[1])) % 2 == 1
    pairs = _node_pairs(num_nodes)
    return [undirected(num_nodes, (pair for pair, on in zip(pairs, row, strict=True) if on)) for row in bits.tolist()]


def _node_pairs(num_nodes: int) -> list[tuple[int, int]]:
    """All pairs u < v, by v: those of fewer nodes come first."""
    return [(u, v) for v in range(num_nodes) for u in range(v)]


def _smallest_codes(bits: Bool[Tensor, "graphs pairs"], num_nodes: int) -> Int[Tensor, " graphs"]:
    pairs = _node_pairs(num_nodes)
    place = {frozenset(pair): where for where, pair in enumerate(pairs)}
    values = 2 ** torch.arange(len(pairs))
    smallest = torch.full((len(bits),), 2 ** len(pairs))
    for new in permutations(range(num_nodes)):
        moved = [place[frozenset((new[u], new[v]))] for u, v in pairs]
        smallest = torch.minimum(smallest, (bits[:, moved] * values).sum(1))
    return smallest


def named_pairs() -> list[GraphPair]:
    """From easy to hard: told apart by 2-WL, by 3-WL (twice), by 4-WL."""
    return [
        GraphPair("path P4 / star K1,3", path(4), star(3)),
        GraphPair("hexagon / two triangles", cycle(6), two_triangles()),
        GraphPair("CSL(11, 2) / CSL(11, 3)", circular_skip_link(11, 2), circular_skip_link(11, 3)),
        GraphPair("rook 4x4 / Shrikhande", rook(), shrikhande()),
    ]


def relabelled(graph: Graph, copies: int, generator: torch.Generator) -> list[Graph]:
    """The same graph under ``copies`` uniformly random renumberings of its nodes; features travel with them."""
    return [renumbered(graph, torch.randperm(graph.num_nodes, generator=generator)) for _ in range(copies)]


def renumbered(graph: Graph, new_number: Int[Tensor, " nodes"]) -> Graph:
    """The same graph whose node u is now called ``new_number[u]``."""
    old = torch.argsort(new_number)
    return Graph(
        None if graph.node_features is None else graph.node_features[old],
        new_number[graph.edge_index],
        graph.edge_features,
        num_nodes=graph.num_nodes,
        hyperedge_nodes=new_number[graph.hyperedge_nodes],
        hyperedge_offsets=graph.hyperedge_offsets,
        hyperedge_features=graph.hyperedge_features,
        graph_features=graph.graph_features,
        extras=graph.extras,
    )
