"""Near-orthonormal identifiers in the heads of Lemma 1: when they hold, and when they must fail."""

from pathlib import Path

import pytest
import torch

from tokengt.experiments.capacity import CapacityConfig, head_error, head_errors, matches, predicted_nodes, run_capacity
from tokengt.structure.patterns import pattern_of
from tokengt.theory.partitions import patterns

# Two nodes' own tokens, both directions between them, an edge to a third node, and its own.
TOKENS = torch.tensor([[0, 1, 2, 0, 1, 0], [0, 1, 2, 1, 0, 2]])


@pytest.mark.parametrize("pattern", patterns(4))
def test_keys_of_a_pattern_are_those_whose_equalities_it_has(pattern: tuple[int, ...]) -> None:
    own = matches(TOKENS, TOKENS, pattern)
    for query in range(6):
        asked = TOKENS[:, query].tolist()
        if pattern_of(asked) != pattern[:2]:
            continue
        for key in range(6):
            assert bool(own[query, key]) == (pattern_of([*asked, *TOKENS[:, key].tolist()]) == pattern)


@pytest.mark.parametrize("pattern", patterns(4))
def test_orthonormal_identifiers_show_every_basis_tensor(pattern: tuple[int, ...]) -> None:
    own = matches(TOKENS, TOKENS, pattern)
    right = torch.tensor([pattern_of(token) == pattern[:2] for token in TOKENS.T.tolist()])
    usable = torch.nonzero(own.any(1) & ~own.all(1) & right).flatten()
    if not len(usable):
        pytest.skip("no token here has a key of this pattern")
    assert head_error(TOKENS, torch.eye(3), pattern, usable) < 1e-6


def test_two_nodes_of_one_identifier_cannot_be_told_apart() -> None:
    """The edge (0, 2) asks for the token of node 0; node 1 has the same identifier, and takes half of the attention."""
    same = torch.eye(3)[[0, 0, 1]]
    assert head_error(TOKENS, same, (0, 1, 0, 0), torch.tensor([5])) == pytest.approx(0.5, abs=1e-5)
    assert head_error(TOKENS, torch.eye(3), (0, 1, 0, 0), torch.tensor([5])) < 1e-6


def test_more_dimensions_hold_more_nodes() -> None:
    cpu = torch.device("cpu")
    few, many = (head_errors(300, dim, 3, 16, 0, cpu) for dim in (8, 256))
    # An edge asks for the token of its first node: one key among 1,200.
    assert few["ij-ii"] > 0.8
    assert many["ij-ii"] < 0.05
    assert max(many.values()) < 0.5
    assert predicted_nodes(64, 3) == pytest.approx(2980.96 / 4, rel=1e-4)


def test_the_table_and_the_picture_are_written_and_kept(tmp_path: Path) -> None:
    config = CapacityConfig(dims=(8, 64), sizes=(30, 100), queries=8, seeds=(0,))
    rows = run_capacity(config, tmp_path)
    assert [row.mean for row in run_capacity(config, tmp_path)] == [row.mean for row in rows]
    assert (tmp_path / "capacity.png").stat().st_size > 1000
    assert "| 64, sparse |" in (tmp_path / "table.md").read_text()
    with pytest.raises(ValueError, match="dims is empty"):
        CapacityConfig(dims=())
