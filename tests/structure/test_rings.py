"""Rings: cycles without a shortcut, counted at nodes and edges; beside NetworkX, and by hand."""

from collections import Counter

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.graphs import graphs
from tests.structure.graph_families import complete, cycle, graph_of, grid, hypercube, path, relabelled, union
from tokengt import Graph, GraphBatch
from tokengt.structure import rings
from tokengt.structure.facts import EdgeRings, NodeRings, fact_of, with_facts
from tokengt.structure.rings import COLUMNS, edge_rings, node_rings

NAPHTHALENE = graph_of([(i, (i + 1) % 10) for i in range(10)] + [(0, 5)], 10)
NORBORNANE = graph_of([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (0, 6), (6, 3)], 7)


def row(**sizes: int) -> list[int]:
    """Counts by size, as ``s5=2``; ``more`` rings of ``nodes`` nodes together."""
    counts = [sizes.get(f"s{size}", 0) for size in range(3, 9)]
    return [*counts, sizes.get("more", 0), sizes.get("nodes", 0)]


def by_networkx(graph: Graph, longest: int) -> tuple[Tensor, Tensor]:
    """The same counts from NetworkX's chordless cycles, one cycle at a time."""
    plain = nx.Graph((u, v) for u, v in graph.edge_index.T.tolist() if u != v)
    at_nodes: Counter[tuple[int, int]] = Counter()
    at_edges: Counter[tuple[frozenset[int], int]] = Counter()
    for members in nx.chordless_cycles(plain, longest):
        size = len(members)
        at_nodes.update((node, size) for node in members)
        pairs = zip(members, members[1:] + members[:1], strict=True)
        at_edges.update((frozenset(pair), size) for pair in pairs)

    def counted(sizes: dict[int, int]) -> list[int]:
        longer = {size: count for size, count in sizes.items() if size > 8}
        few = [sizes.get(size, 0) for size in range(3, 9)]
        return [*few, sum(longer.values()), sum(size * count for size, count in longer.items())]

    every = range(3, longest + 1)
    nodes = [counted({size: at_nodes[node, size] for size in every}) for node in range(graph.num_nodes)]
    pairs_listed = [frozenset(pair) for pair in graph.edge_index.T.tolist()]
    edges = [counted({size: at_edges[pair, size] for size in every}) for pair in pairs_listed]
    return table(nodes), table(edges)


def table(rows: list[list[int]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.int16).reshape(-1, COLUMNS)


@given(st.lists(graphs(), min_size=1, max_size=4), st.integers(3, 10))
def test_they_are_the_cycles_without_chords_of_networkx(members: list[Graph], longest: int) -> None:
    """Graphs with loops, repeated, one-way or no edges; several in a batch do not see each other."""
    batch = GraphBatch.collate(members)
    expected = [by_networkx(graph, longest) for graph in members]
    assert torch.equal(node_rings(batch, longest), torch.cat([nodes for nodes, _ in expected]))
    assert torch.equal(edge_rings(batch, longest), torch.cat([edges for _, edges in expected]))


@pytest.mark.parametrize("graph", [hypercube(3), grid(3, 4), complete(6), NORBORNANE, union(cycle(12), cycle(3))])
def test_graphs_of_many_rings(graph: Graph) -> None:
    nodes, edges = by_networkx(graph, 12)
    assert torch.equal(node_rings(GraphBatch.collate([graph]), 12), nodes)
    assert torch.equal(edge_rings(GraphBatch.collate([graph]), 12), edges)


def test_two_rings_that_share_a_bond_by_hand() -> None:
    """Each atom of naphthalene is on a ring of six, the two shared ones on both; the rim of ten is no ring."""
    batch = GraphBatch.collate([NAPHTHALENE])
    found = node_rings(batch, 20).tolist()
    assert [found[node] for node in (0, 5)] == [row(s6=2)] * 2
    assert [found[node] for node in (1, 4, 6, 9)] == [row(s6=1)] * 4
    assert edge_rings(batch, 20).tolist() == [row(s6=1)] * 10 + [row(s6=2)]


def test_a_large_ring_is_a_number() -> None:
    batch = GraphBatch.collate([cycle(14), path(5)])
    assert node_rings(batch, 20).tolist() == [row(more=1, nodes=14)] * 14 + [row()] * 5
    assert node_rings(batch, 13).count_nonzero() == 0, "no ring has at most 13 nodes"


@given(graphs(), st.integers(0, 5))
def test_the_order_of_nodes_does_not_matter(graph: Graph, seed: int) -> None:
    order = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(seed))
    found = node_rings(GraphBatch.collate([relabelled(graph, seed)]), 8)
    assert torch.equal(found[order], node_rings(GraphBatch.collate([graph]), 8))


def test_a_graph_of_many_rings_is_not_searched_for_longer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sheet of squares: nine of four nodes, then cycles around several of them. Others in its batch lose nothing."""
    sheet, ring = grid(4, 4), cycle(12)
    whole = node_rings(GraphBatch.collate([sheet]), 12)
    monkeypatch.setattr(rings, "MOST_RINGS", 8)
    cut = node_rings(GraphBatch.collate([sheet, ring]), 12)
    assert torch.equal(cut[:16, 1], whole[:, 1])
    assert cut[:16, 2:].count_nonzero() == 0 < whole[:, 2:].count_nonzero()
    assert cut[16:].tolist() == [row(more=1, nodes=12)] * 12
    monkeypatch.setattr(rings, "MOST_RINGS", 9)
    assert torch.equal(node_rings(GraphBatch.collate([sheet]), 12)[:, :6], whole[:, :6])


def test_a_batch_carries_them(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = (NodeRings(9), EdgeRings(9))
    batch = with_facts(GraphBatch.collate([cycle(9), path(3), NAPHTHALENE]), facts).select([2, 0])
    expected = node_rings(batch, 9), edge_rings(batch, 9)
    monkeypatch.setattr("tokengt.structure.facts.node_rings", None)
    monkeypatch.setattr("tokengt.structure.facts.edge_rings", None)
    assert all(torch.equal(fact_of(batch, fact), rows) for fact, rows in zip(facts, expected, strict=True))


def test_what_has_no_countable_rings_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="longest is 2; expected at least 3: no ring has fewer nodes"):
        NodeRings(2)
    triple = Graph(edge_index=torch.tensor([[0], [1], [2]]), num_nodes=3)
    with pytest.raises(ValueError, match="edge_index has 3 rows; rings through edges are for edges of two nodes"):
        edge_rings(GraphBatch.collate([triple]), 6)
    monkeypatch.setattr(rings, "MOST_PATHS", 30)
    with pytest.raises(ValueError, match="graph 1 has 9 nodes and 36 edges, and too many paths to count its rings"):
        node_rings(GraphBatch.collate([cycle(5), complete(9)]), 6)
