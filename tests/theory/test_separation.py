import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.graphs import graphs
from tokengt import Graph, GraphBatch, OrfIds
from tokengt.models.tokengt.identifiers import IdentifierKind, identify
from tokengt.theory.basis import weight_basis_on
from tokengt.theory.graphs import cycle, path, relabelled, star, two_triangles
from tokengt.theory.partitions import patterns
from tokengt.theory.separation import (
    SeparationConfig,
    compare_samples,
    mean_permutation_test,
    random_model,
    renumber_each,
    sample_outputs,
    separation,
)
from tokengt.theory.wl import separated_by_wl


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_p_values_are_shares_of_splits() -> None:
    first, second = torch.tensor([3.0, 4.0]), torch.tensor([1.0, 2.0])
    # Of the six splits of 1, 2, 3, 4 into twos one has so large a first mean: 1/6; all but one have as small a one.
    statistic, p_value = mean_permutation_test(first, second, generator(), 20_000)
    assert statistic == pytest.approx(2 / (0.25 + 0.25) ** 0.5)
    assert p_value == pytest.approx(1 / 6, abs=0.01)
    assert mean_permutation_test(second, first, generator(), 2_000)[1] == 1.0


def test_equal_constants_are_no_difference_and_unequal_ones_are() -> None:
    same = torch.full((64, 3), 1.7, dtype=torch.float64)
    assert compare_samples(same, same.clone(), generator()).p_value == 1.0
    # Rounding: sums in another order.
    assert compare_samples(same, same * (1 + 1e-14), generator()).p_value == 1.0
    assert compare_samples(same, same * (1 + 1e-6), generator()).separated


def test_samples_of_one_law_are_separated_as_rarely_as_the_level_says() -> None:
    rejections = 0
    for seed in range(300):
        first, second = torch.randn(2, 40, 5, dtype=torch.float64, generator=generator(seed)).exp()
        result = compare_samples(first, second, generator(seed), level=0.1, permutations=99)
        rejections += result.separated
    # 30 expected, deviation 5.
    assert 15 <= rejections <= 45


def test_samples_of_two_laws_are_separated() -> None:
    first, second = torch.randn(2, 400, 5, dtype=torch.float64, generator=generator())
    mixed = torch.randn(5, 5, dtype=torch.float64, generator=generator(1))
    shift = torch.tensor([0.0, 0.0, 0.5, 0.0, 0.0], dtype=torch.float64)
    assert compare_samples(first @ mixed, (second + shift) @ mixed, generator()).separated
    assert not compare_samples(first @ mixed, second @ mixed, generator()).separated


def test_heads_are_the_basis_where_identifiers_are_orthonormal() -> None:
    model = random_model(SeparationConfig(kind="orf", id_dim=4, sharpness=2000.0), 0)
    everything = Graph(num_nodes=4, edge_index=torch.tensor([[a, b] for a in range(4) for b in range(4) if a != b]).T)
    maps = model.attention_maps(everything)
    tokens = model.encode(everything)
    for layer in (0, 2):
        for head, pattern in enumerate(patterns(4)):
            wanted = weight_basis_on(tokens.endpoints.T, pattern).double()
            rows = wanted.sum(1) > 0
            head_rows = maps[layer][0][head][rows]
            assert torch.allclose(head_rows, wanted[rows] / wanted[rows].sum(1, keepdim=True), atol=1e-6)


def test_hexagon_and_two_triangles_need_identifiers() -> None:
    pair = (cycle(6), two_triangles())
    assert not separated_by_wl(*pair, 2)
    expected: dict[IdentifierKind, bool] = {"none": False, "orf_first_order": False, "orf": True, "laplacian": True}
    for kind, separated in expected.items():
        for seed in range(2):
            model = random_model(SeparationConfig(kind=kind, id_dim=6), seed)
            assert separation(model, *pair, draws=64, seed=seed).separated is separated, (kind, seed)


def test_degrees_are_seen_through_the_sparse_basis_alone() -> None:
    pair = (path(4), star(3))
    for residual in (False, True):
        model = random_model(SeparationConfig(kind="none", id_dim=4, sparse_basis_residual=residual), 0)
        assert separation(model, *pair, draws=8, level=0.05).separated is residual


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["orf", "laplacian"])
def test_a_relabelled_graph_is_separated_as_rarely_as_the_level_says(kind: IdentifierKind) -> None:
    separated = 0
    for seed in range(30):
        model = random_model(SeparationConfig(kind=kind, id_dim=6, num_layers=2, width=4), seed)
        (other,) = relabelled(two_triangles(), 1, generator(seed))
        separated += separation(model, two_triangles(), other, draws=24, seed=seed, level=0.1).separated
    # 3 expected; 10 or more happen with probability 0.0005.
    assert separated <= 9


def test_without_relabelling_eigenvectors_tell_numberings_apart() -> None:
    """A canonical basis of a repeated eigenvalue depends on node numbers: why samples are renumbered."""
    (other,) = relabelled(two_triangles(), 1, generator(1))
    model = random_model(SeparationConfig(kind="laplacian", id_dim=6), 0)
    assert separation(model, two_triangles(), other, draws=96, relabel=False).separated
    assert not separation(model, two_triangles(), other, draws=96).separated


def test_samples_are_reproducible_and_differ_from_draw_to_draw() -> None:
    model = random_model(SeparationConfig(kind="orf", id_dim=6), 0)
    first = sample_outputs(model, cycle(6), 40, generator(3))
    assert torch.equal(first, sample_outputs(model, cycle(6), 40, generator(3)))
    assert first.dtype == torch.float64
    assert len(first.unique(dim=0)) == 40


@given(st.lists(graphs(), min_size=1, max_size=4), st.integers(0, 2**20))
def test_renumbering_a_batch_keeps_every_graph(made: list[Graph], seed: int) -> None:
    batch = GraphBatch.collate(made)
    moved = renumber_each(batch, generator(seed))
    for before, after in zip(batch, moved, strict=True):
        assert not separated_by_wl(before, after, 1)
        assert torch.equal(
            before.node_features[before.edge_index[0]],
            after.node_features[after.edge_index[0]],
        )


def test_identifiers_that_travel_with_their_nodes_give_the_same_output() -> None:
    """What is random in an output is the identifiers alone: the model itself is invariant."""
    graph = cycle(6)
    model = random_model(SeparationConfig(kind="orf", id_dim=6), 0)
    ids = identify(GraphBatch.collate([graph]), OrfIds(dim=6)).nodes
    new_number = torch.randperm(6, generator=generator())
    moved = Graph(num_nodes=6, edge_index=new_number[graph.edge_index])
    assert torch.allclose(model(graph, node_ids=ids), model(moved, node_ids=ids[new_number.argsort()]))


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="id_features is 9; expected 0 to width 8"):
        SeparationConfig(id_features=9)


@pytest.mark.parametrize(
    ("samples", "level", "sentence"),
    [
        (torch.randn(2, 3), 0.01, "2 samples of a graph; expected at least 4"),
        (torch.randn(8, 3), 0.0005, "level is 0.0005; expected 1/1000 or more"),
        (torch.full((8, 3), torch.nan), 0.01, "not finite"),
    ],
)
def test_a_test_that_says_nothing_is_refused(samples: torch.Tensor, level: float, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        compare_samples(samples.double(), samples.double(), generator(), level=level)
