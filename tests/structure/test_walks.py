"""Random walks: powers of D^-1 A, one graph at a time."""

from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.graphs import graphs, odd_graphs
from tests.structure.graph_families import path
from tokengt import Graph, GraphBatch
from tokengt.structure import walks
from tokengt.structure.facts import WalkReturns, fact_of
from tokengt.structure.walks import return_probabilities


def of_powers(graph: Graph, steps: int) -> Tensor:
    joined = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64)
    source, target = graph.edge_index
    joined[source, target] = joined[target, source] = 1.0
    walk = joined / joined.sum(1, keepdim=True).clamp(min=1)
    powers = [torch.linalg.matrix_power(walk, step).diagonal() for step in range(1, steps + 1)]
    return torch.stack(powers, 1).float()


@given(st.lists(graphs(), min_size=1, max_size=5), st.integers(1, 5), st.integers(1, 60))
def test_they_are_the_diagonals_of_powers(members: list[Graph], steps: int, at_once: int) -> None:
    """Graphs with loops, repeated, one-way or no edges, some walkers at a time."""
    with mock.patch.object(walks, "_AT_ONCE", at_once):
        found = return_probabilities(GraphBatch.collate(members), steps)
    torch.testing.assert_close(found, torch.cat([of_powers(graph, steps) for graph in members]))


def test_a_path_of_three_by_hand() -> None:
    """From the middle a walker is back after every second step; from an end, every second time after two steps."""
    found = return_probabilities(GraphBatch.collate([path(3)]), 4)
    assert found.tolist() == [[0, 0.5, 0, 0.5], [0, 1, 0, 1], [0, 0.5, 0, 0.5]]


def test_a_batch_carries_them(monkeypatch: pytest.MonkeyPatch) -> None:
    fact, batch = WalkReturns(3), GraphBatch.collate(odd_graphs())
    carried = batch.with_fact(fact.name, fact.compute(batch), fact.per).select([5, 0])
    expected = return_probabilities(batch.select([5, 0]), 3)
    monkeypatch.setattr("tokengt.structure.facts.return_probabilities", None)
    assert torch.equal(fact_of(carried, fact), expected)


def test_what_does_not_fit_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="steps is 0; expected at least 1"):
        WalkReturns(0)
    monkeypatch.setattr(walks, "MAX_NODES", 3)
    with pytest.raises(ValueError, match="graph 1 has 4 nodes; random walks are for up to 3"):
        return_probabilities(GraphBatch.collate([Graph(num_nodes=3), Graph(num_nodes=4)]), 2)
