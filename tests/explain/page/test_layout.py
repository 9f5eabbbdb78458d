"""Where nodes are drawn: as far apart as there are steps between them, none on top of another."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokengt.explain.page.drawing import draw_graph
from tokengt.explain.page.layout import spring_layout

NO_EDGES = np.zeros((2, 0), dtype=np.int64)


def edges(*pairs: tuple[int, int]) -> np.ndarray:
    return np.array(pairs, dtype=np.int64).T.reshape(2, -1)


def apart(places: np.ndarray) -> np.ndarray:
    return np.linalg.norm(places[:, None] - places[None], axis=-1)


def test_a_path_is_a_straight_line_of_steps() -> None:
    places = spring_layout(4, edges((0, 1), (1, 2), (2, 3)))
    np.testing.assert_allclose(apart(places), np.abs(np.subtract.outer(np.arange(4), np.arange(4))), atol=0.02)
    np.testing.assert_allclose(places[:, 1], 0.0, atol=0.1)


def test_a_ring_is_a_regular_polygon() -> None:
    distances = apart(spring_layout(6, edges(*((node, (node + 1) % 6) for node in range(6)))))
    for step in (1, 2, 3):
        around = [distances[node, (node + step) % 6] for node in range(6)]
        np.testing.assert_allclose(around, around[0], rtol=1e-2)


def test_parts_lie_side_by_side() -> None:
    """Two triangles and a lone node do not overlap."""
    places = spring_layout(7, edges((0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3)))
    assert min(apart(places)[one, other] for one in (0, 1, 2, 6) for other in (3, 4, 5)) > 0.5


@given(st.integers(1, 9), st.data())
def test_nodes_of_odd_graphs_do_not_lie_on_each_other(nodes: int, data: st.DataObject) -> None:
    """Without edges, with loops, repeated edges, complete or in pieces; and the same every time."""
    pairs = data.draw(st.lists(st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)), max_size=20))
    listed = edges(*pairs) if pairs else NO_EDGES
    places = spring_layout(nodes, listed)
    assert places.shape == (nodes, 2)
    assert np.isfinite(places).all()
    assert all(np.hypot(*(places[one] - places[other])) > 0.05 for one, other in combinations(range(nodes), 2))
    np.testing.assert_array_equal(places, spring_layout(nodes, listed))


def test_a_graph_without_nodes_is_drawn_as_nothing() -> None:
    assert draw_graph(0, NO_EDGES) == {"kind": "graph", "nodes": [], "lines": []}


def test_both_directions_of_an_edge_are_one_line() -> None:
    drawing = draw_graph(3, edges((0, 1), (1, 0), (2, 1), (1, 1)))
    assert [(line["begin"], line["end"]) for line in drawing["lines"]] == [(0, 1), (1, 1), (1, 2)]


@pytest.mark.parametrize("nodes", [40, 600])
def test_many_nodes_are_drawn_too(nodes: int) -> None:
    places = spring_layout(nodes, edges(*((node, node // 2) for node in range(1, nodes))))
    assert np.isfinite(places).all()
