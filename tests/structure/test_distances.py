"""Hop distances: what networkx finds in each graph by itself, for all graphs at once."""

from unittest import mock

import networkx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.graphs import graphs, hypergraph, odd_graphs
from tests.structure.graph_families import complete, path, star, union
from tokengt import Graph, GraphBatch
from tokengt.structure import distances
from tokengt.structure.distances import hop_distances
from tokengt.structure.facts import HopDistances, fact_of


def of_networkx(graph: Graph, limit: int) -> Tensor:
    """Shortest paths along edges as they are listed; -1 where none has at most ``limit`` steps."""
    plain = networkx.DiGraph()
    plain.add_nodes_from(range(graph.num_nodes))
    plain.add_edges_from(graph.edge_index.T.tolist())
    out = torch.full((graph.num_nodes, graph.num_nodes), -1, dtype=torch.int8)
    for source, reached in networkx.all_pairs_shortest_path_length(plain, cutoff=limit):
        for target, steps in reached.items():
            out[source, target] = steps
    return out.flatten()


@given(st.lists(graphs(), min_size=1, max_size=6), st.integers(1, 6), st.integers(1, 200))
def test_distances_are_those_of_networkx(members: list[Graph], limit: int, at_once: int) -> None:
    """Graphs with loops, repeated, one-way or no edges, in searches of any size."""
    with mock.patch.object(distances, "_AT_ONCE", at_once):
        hops = hop_distances(GraphBatch.collate(members), limit)
    assert torch.equal(hops, torch.cat([of_networkx(graph, limit) for graph in members]))


def test_odd_graphs() -> None:
    members = [Graph(num_nodes=1), Graph(num_nodes=3), path(5), star(6), complete(4), union(path(3), complete(3))]
    hops = hop_distances(GraphBatch.collate(members), 127)
    assert torch.equal(hops, torch.cat([of_networkx(graph, 127) for graph in members]))
    bare = GraphBatch.collate(odd_graphs())
    assert torch.equal(hop_distances(bare, 9), torch.cat([of_networkx(graph, 9) for graph in odd_graphs()]))


def test_a_step_follows_an_edge_from_its_first_node_to_its_second() -> None:
    one_way = GraphBatch.collate([Graph(edge_index=torch.tensor([[0, 1, 1], [1, 2, 1]]), num_nodes=3)])
    assert hop_distances(one_way, 5).view(3, 3).tolist() == [[0, 1, 2], [-1, 0, 1], [-1, -1, 0]]
    assert hop_distances(one_way, 1).view(3, 3).tolist() == [[0, 1, -1], [-1, 0, 1], [-1, -1, 0]]


def test_members_of_a_hyperedge_or_a_tuple_are_one_step_apart_both_ways() -> None:
    sets = Graph.from_hyperedges([[0, 1, 2], [2, 3]], num_nodes=5)
    expected = [[0, 1, 1, 2, -1], [1, 0, 1, 2, -1], [1, 1, 0, 1, -1], [2, 2, 1, 0, -1], [-1, -1, -1, -1, 0]]
    assert hop_distances(GraphBatch.collate([sets]), 9).view(5, 5).tolist() == expected
    triples = Graph(edge_index=torch.tensor([[0, 2], [1, 3], [2, 3]]), num_nodes=5)
    assert hop_distances(GraphBatch.collate([triples]), 9).view(5, 5).tolist() == expected


@given(st.lists(graphs(), min_size=1, max_size=5), st.data())
def test_cutting_and_computing_commute(members: list[Graph], data: st.DataObject) -> None:
    """Pairs of a cut batch are those of its own graphs, cut or computed, moved or narrowed."""
    fact = HopDistances(4)
    batch = GraphBatch.collate(members)
    with_fact = batch.with_fact(fact.name, fact.compute(batch), fact.per)
    chosen = data.draw(st.lists(st.integers(0, len(members) - 1), max_size=6))
    expected = fact.compute(batch.select(chosen))
    for cut in (with_fact.select(chosen), with_fact.to("cpu").select(chosen), with_fact.narrowed().select(chosen)):
        rows = cut.fact(fact.name)
        assert rows is not None
        assert torch.equal(rows, expected)
        with mock.patch("tokengt.structure.facts.hop_distances", side_effect=AssertionError):
            assert fact_of(cut, fact) is rows
    assert torch.equal(fact_of(batch.select(chosen), fact), expected)


@given(graphs(), st.integers(0, 2**20))
def test_renumbering_the_nodes_renumbers_the_distances(graph: Graph, seed: int) -> None:
    order = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(seed))
    moved = Graph(edge_index=order[graph.edge_index], num_nodes=graph.num_nodes)
    before, after = (hop_distances(GraphBatch.collate([g]), 5).view(g.num_nodes, -1) for g in (graph, moved))
    assert torch.equal(after[order][:, order], before)


def test_hypergraphs_of_a_batch_do_not_meet() -> None:
    batch = GraphBatch.collate([hypergraph(1), hypergraph(2)])
    one = hop_distances(GraphBatch.collate([hypergraph(1)]), 9)
    assert torch.equal(hop_distances(batch, 9), one.repeat(2))


def test_what_does_not_fit_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in (0, 128):
        with pytest.raises(ValueError, match=rf"limit is {limit}; expected 1 to 127 hops"):
            HopDistances(limit)
    batch = GraphBatch.collate([Graph(num_nodes=3), Graph(num_nodes=4)])
    monkeypatch.setattr(distances, "MAX_PAIRS", 24)
    with pytest.raises(ValueError, match="the graphs have 25 pairs of nodes; facts of pairs are kept for up to 24"):
        hop_distances(batch, 2)
    monkeypatch.setattr(distances, "MAX_NODES", 3)
    with pytest.raises(ValueError, match="graph 1 has 4 nodes"):
        hop_distances(batch, 2)
