"""Edges on shortest paths: those of all paths, listed one by one."""

from collections import defaultdict

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.graphs import graphs, odd_graphs
from tests.models.plain import distances, shortest_paths
from tokengt import Graph, GraphBatch
from tokengt.structure.distances import hop_distances
from tokengt.structure.paths import path_edges

Entry = tuple[int, int, int]


def found(members: list[Graph], limit: int, longest: int) -> dict[Entry, int]:
    """How many edges can be the same step, for every (pair, step, edge), counted over the batch."""
    batch = GraphBatch.collate(members)
    paths = path_edges(batch, hop_distances(batch, limit), longest)
    keys = torch.stack([paths.pairs, paths.steps, paths.edges]).T.tolist()
    counts = {tuple(key): count for key, count in zip(keys, paths.alike.tolist(), strict=True)}
    assert len(counts) == len(keys)
    return counts


def listed(members: list[Graph], limit: int, longest: int) -> dict[Entry, int]:
    """The same from all shortest paths, one after another."""
    counts: dict[Entry, int] = {}
    pair = first_edge = 0
    for graph in members:
        hops = distances(graph)
        for i in range(graph.num_nodes):
            for j in range(graph.num_nodes):
                steps = defaultdict(set)
                if 0 < hops[i][j] <= limit:
                    for path in shortest_paths(graph, hops, i, j):
                        for step, edge in enumerate(path[:longest]):
                            steps[step].add(edge)
                for step, edges in steps.items():
                    counts |= {(pair, step, first_edge + edge): len(edges) for edge in edges}
                pair += 1
        first_edge += graph.num_edges
    return counts


@given(st.lists(graphs(), min_size=1, max_size=4), st.integers(1, 6), st.integers(1, 5))
def test_they_are_those_of_all_shortest_paths(members: list[Graph], limit: int, longest: int) -> None:
    """Graphs with loops, repeated, one-way or no edges."""
    assert found(members, limit, longest) == listed(members, limit, longest)


def test_odd_graphs() -> None:
    members = odd_graphs()
    assert found(members, 20, 4) == listed(members, 20, 4)
    assert found([Graph(num_nodes=3), Graph(num_nodes=1)], 5, 5) == {}


def test_a_square_has_two_ways_across() -> None:
    square = Graph(edge_index=torch.tensor([[0, 1, 0, 3], [1, 2, 3, 2]]), num_nodes=4)
    across = {key: count for key, count in found([square], 5, 5).items() if key[0] == 2}
    assert across == {(2, 0, 0): 2, (2, 1, 1): 2, (2, 0, 2): 2, (2, 1, 3): 2}
    assert {key[1] for key in found([square], 5, 1)} == {0}
