"""Graphs whose spectra are hard in some way, and the plain definition of the Laplacian to compare with."""

from itertools import combinations

import numpy as np
import torch

from tokengt.graph import Graph


def graph_of(edges: list[tuple[int, int]], num_nodes: int) -> Graph:
    return Graph(edge_index=torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T, num_nodes=num_nodes)


def path(n: int) -> Graph:
    return graph_of([(i, i + 1) for i in range(n - 1)], n)


def cycle(n: int) -> Graph:
    return graph_of([(i, (i + 1) % n) for i in range(n)], n)


def star(n: int) -> Graph:
    return graph_of([(0, i) for i in range(1, n)], n)


def complete(n: int) -> Graph:
    return graph_of(list(combinations(range(n), 2)), n)


def hypercube(dim: int) -> Graph:
    return graph_of([(i, i ^ (1 << b)) for i in range(2**dim) for b in range(dim) if i < i ^ (1 << b)], 2**dim)


def grid(rows: int, columns: int) -> Graph:
    place = np.arange(rows * columns).reshape(rows, columns)
    pairs = [np.stack([place[1:], place[:-1]]), np.stack([place[:, 1:], place[:, :-1]])]
    return Graph(
        edge_index=torch.from_numpy(np.concatenate([p.reshape(2, -1) for p in pairs], 1)), num_nodes=place.size
    )


def random_graph(n: int, degree: float, seed: int) -> Graph:
    """Directed edges drawn with repeats and self-loops."""
    generator = torch.Generator().manual_seed(seed)
    return Graph(edge_index=torch.randint(0, n, (2, int(n * degree / 2)), generator=generator), num_nodes=n)


def union(*graphs: Graph) -> Graph:
    starts = np.cumsum([0] + [g.num_nodes for g in graphs])
    index = torch.cat([g.edge_index + int(s) for g, s in zip(graphs, starts[:-1], strict=True)], 1)
    return Graph(edge_index=index, num_nodes=int(starts[-1]))


def relabelled(graph: Graph, seed: int) -> Graph:
    order = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(seed))
    return Graph(edge_index=order[graph.edge_index], num_nodes=graph.num_nodes)


def thousand_graphs() -> list[Graph]:
    """1,040 graphs up to 32 nodes: 600 random, 440 with repeated eigenvalues, each family in several labellings."""
    special = [make(n) for make in (path, cycle, star, complete) for n in range(3, 17)]
    special += [hypercube(d) for d in range(1, 6)] + [Graph(num_nodes=n) for n in range(1, 12)]
    special += [grid(n, n) for n in range(2, 6)]
    special += [union(cycle(n), cycle(n), path(m), Graph(num_nodes=2)) for n in (3, 4, 5) for m in (1, 2, 3, 4)]
    special += [union(*[star(4)] * k) for k in (2, 3, 4, 5, 6, 7)]
    repeated = [relabelled(g, seed) for seed in range(5) for g in special]
    drawn = [random_graph(1 + seed % 24, 1.0 + seed % 4, seed) for seed in range(600)]
    return drawn + repeated[:440]


def plain_laplacian(graph: Graph) -> np.ndarray:
    """The definition, entry by entry, for a graph of ordinary edges."""
    n = graph.num_nodes
    adjacency = np.zeros((n, n))
    for u, v in graph.edge_index.T.tolist():
        adjacency[u, v] = adjacency[v, u] = 1.0
    degree = np.maximum(adjacency.sum(1), 1.0)
    return np.eye(n) - adjacency / np.sqrt(np.outer(degree, degree))
