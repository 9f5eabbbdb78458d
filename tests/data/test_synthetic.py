"""The authors' Barabási-Albert graphs: their statistics, and a second way to grow them."""

import numpy as np
import pytest
import torch

from tokengt import GraphBatch
from tokengt.data.synthetic import (
    BarabasiAlbertConfig,
    barabasi_albert_edges,
    barabasi_albert_graphs,
    complete_graphs,
)


def grown_by_hand(num_nodes: int, attached: int, seed: int) -> set[tuple[int, int]]:
    """Node by node with Python lists: a bag of ends that every edge puts its two nodes into."""
    first = np.random.RandomState(seed).permutation(attached).tolist()
    pairs = list(enumerate(first))
    for node in range(attached, num_nodes):
        bag = [source for source, _ in pairs] + [node] * attached + [target for _, target in pairs]
        picks = np.random.RandomState(seed).randint(0, len(bag), attached)
        pairs += [(node, bag[pick]) for pick in picks]
    edges = {(u, v) for u, v in pairs if u != v}
    return edges | {(v, u) for u, v in edges}


@pytest.mark.parametrize(("nodes", "attached", "seed"), [(10, 2, 0), (15, 3, 7), (20, 3, 1234), (5, 4, 3), (2, 1, 5)])
def test_edges_are_those_grown_by_hand(nodes: int, attached: int, seed: int) -> None:
    edges = barabasi_albert_edges(nodes, attached, seed)
    listed = list(map(tuple, edges.T.tolist()))
    assert listed == sorted(grown_by_hand(nodes, attached, seed))


def test_statistics_are_the_papers() -> None:
    """14.9 nodes and 47.8 edges on average over 1,280 graphs (the paper's table of data statistics)."""
    batch = barabasi_albert_graphs(BarabasiAlbertConfig())
    assert batch.num_graphs == 1280
    assert batch.num_nodes == 19082
    assert batch.num_edges == 61204
    assert round(batch.num_nodes / 1280, 1) == 14.9
    assert round(batch.num_edges / 1280, 1) == 47.8
    sizes = batch.nodes.host_lengths
    assert (int(sizes.min()), int(sizes.max())) == (10, 20)


def test_the_same_seed_gives_the_same_graphs() -> None:
    config = BarabasiAlbertConfig(num_graphs=20, max_nodes=15, seed=3)
    once, again = barabasi_albert_graphs(config), barabasi_albert_graphs(config)
    assert torch.equal(once.edge_index, again.edge_index)
    assert int(once.nodes.host_lengths.max()) <= 15
    other = barabasi_albert_graphs(BarabasiAlbertConfig(num_graphs=20, max_nodes=15, seed=4))
    assert not torch.equal(once.nodes.host_lengths, other.nodes.host_lengths)


def test_complete_graphs_keep_sizes_and_join_all_pairs() -> None:
    batch = barabasi_albert_graphs(BarabasiAlbertConfig(num_graphs=4, min_nodes=4, max_nodes=6))
    complete = complete_graphs(batch)
    assert isinstance(complete, GraphBatch)
    for graph, n in zip(complete, batch.nodes.host_lengths.tolist(), strict=True):
        pairs = [(u, v) for u in range(n) for v in range(n) if u != v]
        assert list(map(tuple, graph.edge_index.T.tolist())) == pairs


def test_impossible_sizes_are_named() -> None:
    with pytest.raises(ValueError, match="attached is 5 with 5 nodes"):
        barabasi_albert_edges(5, 5, 0)
    with pytest.raises(ValueError, match="max_attached < min_nodes"):
        BarabasiAlbertConfig(min_nodes=3, max_attached=3)
    with pytest.raises(ValueError, match="num_graphs is 0"):
        BarabasiAlbertConfig(num_graphs=0)
