import os
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.graphs import graphs, random_graph
from tokengt import Graph
from tokengt.data.expressiveness import BrecCategory, brec_pairs, circular_skip_links, graph6, strongly_regular_25
from tokengt.interop.networkx import to_networkx
from tokengt.theory.graphs import (
    GraphPair,
    circular_skip_link,
    cycle,
    named_pairs,
    path,
    relabelled,
    renumbered,
    rook,
    shrikhande,
    star,
    two_triangles,
)
from tokengt.theory.wl import colour_refinement, k_wl, separated_by_wl, wl_classes


@pytest.fixture(scope="module")
def data() -> Path:
    folder = Path(os.environ.get("TOKENGT_DATA", Path(__file__).parents[3] / "shared" / "data")) / "expressiveness"
    if not folder.is_dir():
        pytest.skip("no expressiveness data here (set TOKENGT_DATA)")
    return folder


def brute_force(graph: Graph, k: int, folklore: bool) -> dict[tuple[int, ...], object]:
    """k-WL by its definition, colours written out as nested tuples: n rounds, exact, slow."""
    nodes = range(graph.num_nodes)
    edges = set(map(tuple, graph.edge_index.T.tolist()))
    tuples = list(product(nodes, repeat=k))
    colours: dict[tuple[int, ...], object] = {v: tuple((a == b, (a, b) in edges) for a in v for b in v) for v in tuples}
    for _ in range(3):
        names = {colour: place for place, colour in enumerate(sorted(set(map(repr, colours.values()))))}
        short = {v: names[repr(colour)] for v, colour in colours.items()}

        def replaced(v: tuple[int, ...], i: int, w: int, short: dict[tuple[int, ...], int] = short) -> int:
            return short[(*v[:i], w, *v[i + 1 :])]

        for v in tuples:
            if folklore:
                seen: object = tuple(sorted(tuple(replaced(v, i, w) for i in range(k)) for w in nodes))
            else:
                seen = tuple(tuple(sorted(replaced(v, i, w) for w in nodes)) for i in range(k))
            colours[v] = (short[v], seen)
    return colours


def same_partition(first: list[object], second: list[object]) -> bool:
    pairs = len(set(zip(map(repr, first), map(repr, second), strict=True)))
    return pairs == len(set(map(repr, first))) == len(set(map(repr, second)))


def test_colours_of_a_path_are_distances_from_its_ends() -> None:
    assert same_partition(colour_refinement(path(5)).tolist(), [0, 1, 2, 1, 0])


def test_a_regular_graph_has_one_colour() -> None:
    assert colour_refinement(cycle(7)).unique().numel() == 1
    assert k_wl(cycle(5), 2).unique().numel() == 3  # The colours of pairs are: equal, joined, apart.


def test_3_wl_colours_pairs_of_a_cycle_by_distance() -> None:
    colours = k_wl(cycle(6), 3).view(6, 6, 6)
    diagonal = [int(colours[0, 0, v]) for v in range(6)]
    assert same_partition(diagonal, [0, 1, 2, 3, 2, 1])


@pytest.mark.parametrize("folklore", [False, True])
@pytest.mark.parametrize("graph", [path(4), star(3), cycle(5), random_graph(4, 7, 3)])
@pytest.mark.parametrize("k", [2, 3])
def test_k_wl_is_what_its_definition_says(graph: Graph, k: int, folklore: bool) -> None:
    plain = Graph(num_nodes=graph.num_nodes, edge_index=graph.edge_index.unique(dim=1))
    expected = brute_force(plain, k, folklore)
    assert same_partition(k_wl(plain, k, folklore=folklore).tolist(), list(expected.values()))


# The smallest k of the paper's k-WL that tells the pair apart.
DIMENSIONS = {
    "path P4 / star K1,3": 2,
    "hexagon / two triangles": 3,
    "CSL(11, 2) / CSL(11, 3)": 3,
    "rook 4x4 / Shrikhande": 4,
}


@pytest.mark.parametrize("pair", named_pairs(), ids=lambda pair: pair.name)
def test_named_pairs_need_the_dimension_they_are_known_for(pair: GraphPair) -> None:
    needed = DIMENSIONS[pair.name]
    for k in (2, 3, 4):
        assert separated_by_wl(pair.first, pair.second, k) == (k >= needed)
    # One dimension less in the folklore numbering; colour refinement is 2-WL.
    for k in (1, 2, 3):
        assert separated_by_wl(pair.first, pair.second, k, folklore=True) == (k + 1 >= needed)
    assert separated_by_wl(pair.first, pair.second, 1) == (needed == 2)


def test_rook_and_shrikhande_are_strongly_regular_with_the_same_parameters() -> None:
    for graph in (rook(), shrikhande()):
        adjacency = torch.zeros(16, 16, dtype=torch.int64)
        adjacency[graph.edge_index[0], graph.edge_index[1]] = 1
        # A^2 = 6 I + 2 A + 2 (J - I - A): degree 6, two common neighbours whether joined or not.
        assert torch.equal(adjacency @ adjacency, 4 * torch.eye(16, dtype=torch.int64) + 2)


@given(graphs(max_nodes=5, max_edges=10), st.integers(1, 3), st.booleans(), st.integers(0, 2**20))
def test_a_relabelled_graph_is_never_separated(graph: Graph, k: int, folklore: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    (other,) = relabelled(graph, 1, generator)
    listed = torch.randperm(graph.num_edges, generator=generator)
    other = Graph(other.node_features, other.edge_index[:, listed], other.edge_features[listed])
    assert not separated_by_wl(graph, other, k, folklore=folklore)
    mine, theirs = (k_wl(each, k, folklore=folklore) for each in (graph, other))
    assert torch.equal(mine.sort().values, theirs.sort().values)


@st.composite
def plain_pairs(draw: st.DrawFn) -> tuple[Graph, Graph]:
    """Two graphs of as many nodes and edges; few labels, so that they are often alike."""
    nodes, edges = draw(st.integers(2, 5)), draw(st.integers(0, 8))
    made = []
    for _ in range(2):
        generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
        index = torch.randint(0, nodes, (2, edges), generator=generator)
        labels = torch.randint(0, 2, (edges, 1), generator=generator)
        made.append(Graph(torch.randint(0, 2, (nodes, 1), generator=generator), index, labels))
    return made[0], made[1]


@given(plain_pairs())
def test_2_wl_is_colour_refinement_and_3_wl_is_folklore_2_wl(pair: tuple[Graph, Graph]) -> None:
    assert separated_by_wl(*pair, 1) == separated_by_wl(*pair, 2)
    assert separated_by_wl(*pair, 3) == separated_by_wl(*pair, 2, folklore=True)
    if separated_by_wl(*pair, 2):
        assert separated_by_wl(*pair, 3)


@pytest.mark.slow
def test_all_graphs_of_eight_nodes_are_classed_as_published(data: Path) -> None:
    """Balcilar et al. 2021: of the 61.8 million pairs, 312 are alike to 1-WL (and so to 2-WL), none to 3-WL."""
    every = [graph6(line) for line in (data / "graph8c.g6").read_bytes().split()]
    first, second = (wl_classes(every, k) for k in (1, 2))
    sizes = torch.bincount(first)
    assert int((sizes * (sizes - 1) // 2).sum()) == 312
    assert same_partition(first.tolist(), second.tolist())
    alike = torch.nonzero(sizes[first] > 1).flatten().tolist()
    assert wl_classes([every[place] for place in alike], 3).unique().numel() == len(alike)


def test_labels_directions_loops_and_repeated_edges_count() -> None:
    def graph(edges: list[tuple[int, int]], nodes: list[int] | None = None, labels: list[int] | None = None) -> Graph:
        return Graph(
            torch.tensor(nodes or [0, 0, 0])[:, None],
            torch.tensor(edges).T,
            torch.tensor(labels or [0] * len(edges))[:, None],
        )

    base = graph([(0, 1), (1, 2)])
    others = [
        graph([(1, 0), (1, 2)]),
        graph([(0, 1), (1, 1)]),
        graph([(0, 1), (0, 1)]),
        graph([(0, 1), (1, 2)], nodes=[1, 0, 0]),
        graph([(0, 1), (1, 2)], labels=[0, 1]),
    ]
    for other, k in product(others, (1, 2, 3)):
        assert separated_by_wl(base, other, k)
    # Twice the same neighbour is not two neighbours: degrees agree, 2-WL and colour refinement do not.
    double, single = (graph([(0, 1), (1, 0), *more]) for more in ([(0, 1), (1, 0)], [(1, 2), (2, 1)]))
    assert separated_by_wl(double, single, 1)
    assert separated_by_wl(double, single, 2)


# In both every node has one edge out and one in: only what runs the other way between two nodes tells them apart.
TWO_BOTH_WAYS = Graph(num_nodes=4, edge_index=torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]]))
ROUND_TRIP = Graph(num_nodes=4, edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_edges_both_ways_differ_from_a_directed_cycle(k: int) -> None:
    assert separated_by_wl(TWO_BOTH_WAYS, ROUND_TRIP, k)
    assert separated_by_wl(TWO_BOTH_WAYS, ROUND_TRIP, k, folklore=True)


def test_pairs_of_a_directed_cycle_by_hand() -> None:
    """2-WL: equal, joined forth, joined back, and apart."""
    steps = [(v - u) % 4 for u, v in product(range(4), repeat=2)]
    assert same_partition(k_wl(ROUND_TRIP, 2).tolist(), steps)


def test_sizes_tell_graphs_apart() -> None:
    assert separated_by_wl(path(3), path(4), 1)
    assert wl_classes([path(3), cycle(6), path(3), two_triangles()], 2).tolist() == [0, 1, 0, 1]
    assert wl_classes([path(3), cycle(6), path(3), two_triangles()], 3).unique().numel() == 3


def test_what_cannot_be_tested_is_refused() -> None:
    with pytest.raises(ValueError, match="k is 0; expected at least 1"):
        k_wl(path(3), 0)
    with pytest.raises(ValueError, match="no hyperedges"):
        k_wl(Graph.from_hyperedges([[0, 1, 2]], num_nodes=3), 2)
    with pytest.raises(ValueError, match=r"5-WL of 1 graphs of 64 nodes holds 1,073,741,824 colours"):
        k_wl(path(64), 5)


def test_3_wl_tells_the_ten_classes_of_csl_apart(data: Path) -> None:
    made, classes = circular_skip_links(data)
    assert torch.bincount(classes).tolist() == [15] * 10
    read = [made[int(torch.nonzero(classes == name)[-1])] for name in range(10)]
    mine = [circular_skip_link(41, skip) for skip in (2, 3, 4, 5, 6, 9, 11, 12, 13, 16)]
    assert same_partition(wl_classes([*read, *mine], 3).tolist(), [*range(10), *range(10)])
    assert wl_classes([*read, *mine], 2).unique().numel() == 1


def test_3_wl_tells_no_strongly_regular_graphs_apart(data: Path) -> None:
    some = strongly_regular_25(data)
    assert len(some) == 15
    assert wl_classes(some, 3).unique().numel() == 1
    assert separated_by_wl(some[0], some[1], 4)


@pytest.mark.parametrize(
    ("category", "pairs", "separated"),
    [("basic", 60, 60), ("regular", 50, 50), ("extension", 100, 100), ("str", 50, 0)],
)
def test_3_wl_scores_on_brec_as_published(data: Path, category: BrecCategory, pairs: int, separated: int) -> None:
    """Wang and Zhang 2024: 3-WL tells all basic, simple regular and extension pairs apart, none strongly regular."""
    all_pairs = brec_pairs(data, category)
    assert len(all_pairs) == pairs
    assert sum(separated_by_wl(first, second, 3) for first, second in all_pairs) == separated
    assert not any(separated_by_wl(first, second, 1) for first, second in all_pairs)


def test_graph6_is_read_as_networkx_does(data: Path) -> None:
    import networkx

    first = brec_pairs(data, "basic")[0][0]
    again = networkx.to_graph6_bytes(to_networkx(first, undirected=True), header=False).strip()
    assert again == b"ICZJvZsNg"
    with pytest.raises(ValueError, match="is no graph6 string"):
        graph6("\x01")
    with pytest.raises(ValueError, match="does not exist"):
        brec_pairs(Path("nowhere"), "basic")


def test_renumbering_moves_features_along() -> None:
    graph = Graph(torch.tensor([[7], [8], [9]]), torch.tensor([[0], [1]]))
    moved = renumbered(graph, torch.tensor([2, 0, 1]))
    assert moved.node_features.flatten().tolist() == [8, 9, 7]
    assert moved.edge_index.flatten().tolist() == [2, 0]
