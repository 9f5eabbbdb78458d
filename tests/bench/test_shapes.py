"""Synthetic graphs have the sizes they claim, and are molecules as far as a model can see."""

import pytest
import torch

from tokengt.batch import GraphBatch
from tokengt.bench.shapes import MOLECULES, PHYSICS_EDGES, PHYSICS_NODES, Shape, make_sample
from tokengt.interop.molecules import ATOM_CATEGORIES, ATOM_VOCABULARY, BOND_CATEGORIES


def adjacency(graphs: GraphBatch, place: int) -> torch.Tensor:
    batch = graphs.select([place])
    matrix = torch.zeros(batch.num_nodes, batch.num_nodes, dtype=torch.int64)
    return matrix.index_put((batch.edge_index[0], batch.edge_index[1]), torch.tensor(1), accumulate=True)


@pytest.mark.parametrize(
    ("shape", "count", "atoms", "bonds"),
    [("pcqm4mv2", 2000, 14.1, 14.6), ("zinc", 2000, 23.2, 24.9), ("peptides", 600, 150.9, 153.7)],
)
def test_means_are_those_of_the_data_set(shape: Shape, count: int, atoms: float, bonds: float) -> None:
    graphs = make_sample(shape, count).graphs
    nodes, edges = graphs.nodes.host_lengths.double(), graphs.edges.host_lengths.double() / 2
    # Five standard errors of the mean.
    tolerance = 5 * float(nodes.std()) / count**0.5
    assert float(nodes.mean()) == pytest.approx(atoms, abs=tolerance)
    assert float(edges.mean()) == pytest.approx(bonds, abs=1.1 * tolerance)
    # What rings add does not hide behind the spread of sizes.
    assert float((edges - nodes).mean()) == pytest.approx(bonds - atoms, abs=0.25)
    assert int(nodes.min()) >= MOLECULES[shape].least
    assert int(nodes.max()) <= max(MOLECULES[shape].most, MOLECULES[shape].longest)


@pytest.mark.parametrize("shape", ["pcqm4mv2", "zinc", "peptides"])
def test_molecules_are_connected_simple_and_within_their_valence(shape: Shape) -> None:
    graphs = make_sample(shape, 40, seed=3).graphs
    for place in range(len(graphs)):
        joined = adjacency(graphs, place)
        assert int(joined.max()) == 1
        assert torch.equal(joined, joined.T)
        assert int(joined.diagonal().sum()) == 0
        assert int(joined.sum(1).max()) <= 4
        reached = torch.zeros(len(joined), dtype=torch.bool)
        reached[0] = True
        while bool(((joined @ reached.long() > 0) & ~reached).any()):
            reached |= joined @ reached.long() > 0
        assert bool(reached.all())


def test_directions_are_paired_with_equal_features() -> None:
    graphs = make_sample("pcqm4mv2", 50).graphs
    assert torch.equal(graphs.edge_numbers.local[0, 0::2], graphs.edge_numbers.local[1, 1::2])
    assert torch.equal(graphs.edge_numbers.local[1, 0::2], graphs.edge_numbers.local[0, 1::2])
    assert graphs.edge_features is not None
    assert torch.equal(graphs.edge_features[0::2], graphs.edge_features[1::2])


def test_features_are_categories_and_say_what_the_graph_is() -> None:
    graphs = make_sample("zinc", 60).graphs
    assert graphs.node_features is not None
    assert graphs.edge_features is not None
    assert bool((graphs.node_features < torch.tensor(ATOM_CATEGORIES)).all())
    assert bool((graphs.edge_features < torch.tensor(BOND_CATEGORIES)).all())
    names = list(ATOM_VOCABULARY)
    for place in range(20):
        joined, features = adjacency(graphs, place), graphs.select([place]).node_features
        assert features is not None
        assert torch.equal(joined.sum(1), features[:, names.index("degree")].long())
        assert torch.equal(in_a_ring(joined), features[:, names.index("is_in_ring")].bool())


def in_a_ring(joined: torch.Tensor) -> torch.Tensor:
    """An atom is in a ring if two of its neighbours stay connected without it."""
    in_ring = torch.zeros(len(joined), dtype=torch.bool)
    for atom in range(len(joined)):
        rest = joined.clone()
        rest[atom] = rest[:, atom] = 0
        near = torch.nonzero(joined[atom]).flatten()
        power = torch.linalg.matrix_power((rest + torch.eye(len(rest))).double(), len(rest)) > 0
        pairs = power[near][:, near]
        in_ring[atom] = bool(pairs[~torch.eye(len(near), dtype=torch.bool)].any())
    return in_ring


def test_the_same_seed_gives_the_same_graphs() -> None:
    one, same, other = (make_sample("pcqm4mv2", 30, seed).graphs for seed in (5, 5, 6))
    assert torch.equal(one.edge_index, same.edge_index)
    assert torch.equal(one.nodes.host, same.nodes.host)
    assert not torch.equal(one.nodes.host, other.nodes.host)


def test_physics_is_one_graph_with_distinct_edges_both_ways() -> None:
    sample = make_sample("physics", 1)
    graphs = sample.graphs
    assert (len(graphs), graphs.nodes.total, graphs.edges.total) == (1, PHYSICS_NODES, 2 * PHYSICS_EDGES)
    first, second = graphs.edge_numbers.local[:, 0::2].long()
    assert torch.equal(graphs.edge_numbers.local[:, 1::2].long(), torch.stack([second, first]))
    assert bool((first < second).all())
    assert len(torch.unique(first * PHYSICS_NODES + second)) == PHYSICS_EDGES
    assert sample.targets.shape == (PHYSICS_NODES, 1)
    assert set(sample.targets.flatten().tolist()) == set(map(float, range(sample.classes)))


def test_physics_shrinks() -> None:
    graphs = make_sample("physics", 1, scale=0.01).graphs
    assert (graphs.nodes.total, graphs.edges.total) == (345, 2 * 2480)


@pytest.mark.parametrize(
    ("shape", "count", "scale", "sentence"),
    [
        ("physics", 1, 0.0, "scale is 0 with shape 'physics'; expected 1, or for 'physics' above 0 up to 1"),
        ("zinc", 1, 0.5, "scale is 0.5 with shape 'zinc'; expected 1, or for 'physics' above 0 up to 1"),
        ("zinc", 0, 1.0, "count is 0; expected at least one graph"),
    ],
)
def test_wishes_that_cannot_be(shape: Shape, count: int, scale: float, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make_sample(shape, count, scale=scale)
