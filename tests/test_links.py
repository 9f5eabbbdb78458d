"""Pairs that are asked about: their edges are taken out of what a model reads, and negatives are what they say."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graphs import odd_graphs, random_graph
from tokengt import Graph, GraphBatch
from tokengt.links import NonLinks, edges_as_links, ends_of, is_directed, joined, keys_of, without_edges_of
from tokengt.ragged import Segments


def _triangle_and_path() -> GraphBatch:
    """Nodes 0 1 2 in a triangle; 3 - 4 - 5 a path with a self-loop at 4 and its first edge listed twice."""
    first = Graph(num_nodes=3, edge_index=torch.tensor([[0, 1, 1, 2, 2, 0], [1, 0, 2, 1, 0, 2]]))
    second = Graph(num_nodes=3, edge_index=torch.tensor([[0, 1, 1, 1, 2, 0], [1, 0, 1, 2, 1, 1]]))
    return GraphBatch.collate([first, second])


def test_edges_become_links_once_each_without_loops() -> None:
    linked = edges_as_links(_triangle_and_path(), directed=False)
    assert linked.link_index.tolist() == [[0, 0, 1, 3, 4], [1, 2, 2, 4, 5]]
    assert linked.links.host_lengths.tolist() == [3, 2]
    assert linked.level_rows("link") is linked.links
    one_way = GraphBatch.collate([Graph(num_nodes=3, edge_index=torch.tensor([[2, 0, 2], [0, 2, 1]]))])
    assert is_directed(one_way)
    assert edges_as_links(one_way, directed=True).link_index.tolist() == [[0, 2, 2], [2, 0, 1]]


def test_links_go_along_when_graphs_are_chosen_moved_and_kept() -> None:
    linked = edges_as_links(_triangle_and_path(), directed=False)
    swapped = linked.select([1, 0])
    assert swapped.link_index.tolist() == [[0, 1, 3, 3, 4], [1, 2, 4, 5, 5]]
    kept = GraphBatch.from_arrays(linked.narrowed().arrays())
    assert kept.link_index.tolist() == linked.link_index.tolist()
    assert kept.arrays()["link_index"].dtype == torch.uint8
    assert linked.to("cpu").link_index.tolist() == linked.link_index.tolist()
    assert "link_index" not in _triangle_and_path().arrays()
    with pytest.raises(ValueError, match="needs pairs of nodes to ask about"):
        _ = _triangle_and_path().link_index


def test_the_edge_of_a_pair_is_taken_out_in_both_directions_and_every_copy_of_it() -> None:
    graphs = _triangle_and_path()
    asked = torch.tensor([[1, 3], [0, 4]])
    left = without_edges_of(graphs, asked)
    assert left.edge_index.tolist() == [[1, 2, 2, 0, 4, 4, 5], [2, 1, 0, 2, 4, 5, 4]]
    assert left.edges.host_lengths.tolist() == [4, 3]
    assert joined(graphs, asked).tolist() == [True, True]
    assert joined(left, asked).tolist() == [False, False]
    # A pair that no edge joins costs nothing, and keeps what is known of the graphs.
    known = graphs.with_fact("degrees", torch.zeros(6), "node")
    assert without_edges_of(known, torch.tensor([[3], [5]])) is known
    # What was worked out of the edges says nothing of the edges that are left.
    assert known.fact("degrees") is not None
    assert without_edges_of(known, asked).fact("degrees") is None


def test_features_stay_with_their_edges() -> None:
    features = torch.arange(6.0)[:, None]
    edges = torch.tensor([[0, 1, 1, 2, 2, 0], [1, 0, 2, 1, 0, 2]])
    graphs = GraphBatch.collate([Graph(num_nodes=3, edge_index=edges, edge_features=features)])
    assert without_edges_of(graphs, torch.tensor([[2], [1]])).edge_features.tolist() == [[0.0], [1.0], [4.0], [5.0]]


@pytest.mark.parametrize("directed", [False, True])
def test_keys_number_all_pairs(directed: bool) -> None:
    """By hand, of 4 nodes: 01 02 12 03 13 23, or 01 02 03 10 12 13 20 21 23 30 31 32."""
    count = 12 if directed else 6
    ends = ends_of(torch.arange(count), torch.full((count,), 4), directed)
    told = ["".join(map(str, pair)) for pair in ends.T.tolist()]
    assert told == ("01 02 03 10 12 13 20 21 23 30 31 32" if directed else "01 02 12 03 13 23").split()
    assert keys_of(ends, torch.full((count,), 4), directed).tolist() == list(range(count))


def test_keys_of_large_graphs_are_exact() -> None:
    nodes = torch.tensor([2_000_000_000])
    for pair in ([0, 1], [1_999_999_998, 1_999_999_999], [94_906_264, 94_906_265], [0, 1_999_999_999]):
        ends = torch.tensor(pair)[:, None]
        assert ends_of(keys_of(ends, nodes, False), nodes, False).tolist() == ends.tolist()


@given(st.integers(0, 10_000), st.booleans())
@settings(max_examples=25, deadline=None)
def test_non_links_are_all_other_pairs_each_once(seed: int, directed: bool) -> None:
    """Ranks 0 to room - 1 name exactly the pairs that are not known: compared with a list of all pairs."""
    sizes = [1, 2, 5, 1, 4]
    graphs = GraphBatch.collate([random_graph(n, 0 if n == 1 else n, seed + n) for n in sizes])
    others = NonLinks.of(graphs.nodes, graphs.edge_index, directed)
    known = {tuple(pair) for pair in graphs.edge_index.T.tolist()}
    known |= set() if directed else {(v, u) for u, v in known}
    for place in range(len(sizes)):
        nodes = range(*graphs.nodes.host[place : place + 2].tolist())
        wanted = {(u, v) for u in nodes for v in nodes if (u != v if directed else u < v)} - known
        room = int(others.room[place])
        found = others.at(torch.full((room,), place), torch.arange(room))
        assert sorted(map(tuple, found.T.tolist())) == sorted(wanted)


def test_draws_depend_on_their_key_and_graph_alone() -> None:
    graphs = GraphBatch.collate([random_graph(9, 8, seed) for seed in range(3)])
    others = NonLinks.of(graphs.nodes, graphs.edge_index, False)
    together = others.drawn(torch.tensor([0, 1, 2]), torch.tensor([4, 4, 4]), 7, 3)
    alone = others.drawn(torch.tensor([2]), torch.tensor([9]), 7, 3)
    assert together.segments.host_lengths.tolist() == [4, 4, 4]
    assert together.index[:, 8:].tolist() == alone.index[:, :4].tolist()
    later = others.drawn(torch.tensor([2]), torch.tensor([9]), 7, 4)
    assert later.index.tolist() != alone.index.tolist()
    assert not bool(joined(graphs, torch.cat([together.index, later.index], 1)).any())


def test_draws_are_uniform_and_a_full_graph_gives_none() -> None:
    """Six pairs of four nodes, two of them joined: each of the other four about a quarter of the time."""
    nodes = Segments.from_lengths(torch.tensor([4, 3]))
    full = torch.tensor([[0, 2, 4, 4, 5], [1, 3, 5, 6, 6]])
    drawn = NonLinks.of(nodes, full, False).drawn(torch.tensor([0, 1]), torch.tensor([4000, 5]), 0)
    assert drawn.segments.host_lengths.tolist() == [4000, 0]
    counts = Counter(map(tuple, drawn.index.T.tolist()))
    assert set(counts) == {(0, 2), (1, 2), (0, 3), (1, 3)}
    assert all(abs(count - 1000) < 120 for count in counts.values())


def test_odd_graphs_have_links_and_non_links() -> None:
    graphs = GraphBatch.collate([graph for graph in odd_graphs() if graph.order == 2])
    directed = is_directed(graphs)
    linked = edges_as_links(graphs, directed)
    assert linked.links.count == len(graphs)
    assert without_edges_of(linked).num_edges == int((graphs.edge_index[0] == graphs.edge_index[1]).sum())
    NonLinks.of(graphs.nodes, graphs.edge_index, directed)
