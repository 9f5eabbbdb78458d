"""The claims hold on the code as it is, and fail on code that is wrong."""

import math
from typing import Any

import pytest
import torch

from tokengt.theory import verify as room
from tokengt.theory.construction import gates, measure
from tokengt.theory.graphs import path, star, two_triangles
from tokengt.theory.ign import EquivariantLinear
from tokengt.theory.partitions import PatternSplit, split_pattern
from tokengt.theory.scoring import pattern_score
from tokengt.theory.verify import DEFAULT_NODES, Claim, Setting, isomorphism_types, verify

CLAIMS = 11


def claims(order: int, nodes: int | None = None, sharpness: float = 1000.0) -> list[Claim]:
    return list(verify(Setting(order, DEFAULT_NODES[order] if nodes is None else nodes, sharpness)))


@pytest.mark.parametrize("order", [1, 2, 3])
def test_no_claim_fails(order: int) -> None:
    measured = claims(order)
    assert len(measured) == CLAIMS
    silent = [claim for claim in measured if claim.verdict == "not applicable"]
    assert len(silent) == (3 if order == 1 else 0)
    for claim in measured:
        if claim in silent:
            assert claim.measured is None
            assert claim.note
            continue
        assert claim.verdict == "holds", claim
        assert claim.bound is not None
        assert math.isfinite(claim.bound)
        assert claim.formula


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_few_nodes_leave_patterns_empty_and_no_claim_fails(nodes: int) -> None:
    assert {claim.verdict for order in (1, 2, 3) for claim in claims(order, nodes)} <= {"holds", "not applicable"}


def test_the_error_falls_with_sharpness_as_its_bound_does() -> None:
    soft, sharp = ({claim.name: claim for claim in claims(2, 4, a)} for a in (50.0, 100.0))
    gap = 50 / math.sqrt(4 * 4 + 2 * 2)
    for name in ("Lemma 1", "Theorem 1", "Theorem 2"):
        for part in ("measured", "bound"):
            before, after = getattr(soft[name], part), getattr(sharp[name], part)
            assert math.log(before / after) == pytest.approx(gap, rel=0.02), (name, part)


def test_too_little_sharpness_is_said() -> None:
    verdicts = {claim.name: claim.verdict for claim in claims(2, 5, 5.0)}
    assert verdicts["Theorem 1"] == verdicts["Theorem 2"] == "too blunt"
    assert verdicts["Definition 2"] == verdicts["Section 3.2"] == "holds"


def test_a_score_without_its_signs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_signs(
        queries: torch.Tensor, keys: torch.Tensor, pattern: tuple[int, ...], margin: float
    ) -> torch.Tensor:
        return pattern_score(queries, keys, pattern, margin).clamp(max=2.0)

    monkeypatch.setattr(measure, "pattern_score", without_signs)
    failed = {claim.name for claim in claims(2) if claim.verdict == "fails"}
    assert failed == {"Property 1"}


def test_a_transformer_blunter_than_it_says_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = room.lemma_1_agreement

    def blunt(order: int, nodes: int, *, sharpness: float, seed: int) -> measure.Agreement:
        honest, dull = (real(order, nodes, sharpness=a, seed=seed) for a in (sharpness, sharpness / 20))
        return measure.Agreement(dull.error, honest.bound, dull.scale)

    monkeypatch.setattr(room, "lemma_1_agreement", blunt)
    assert [claim.name for claim in claims(2) if claim.verdict == "fails"] == ["Lemma 1"]


def verdicts(order: int, nodes: int) -> dict[str, str]:
    return {claim.name: claim.verdict for claim in claims(order, nodes)}


def failed(order: int, nodes: int) -> set[str]:
    return {name for name, verdict in verdicts(order, nodes).items() if verdict == "fails"}


def test_a_split_wrong_for_one_pattern_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """(i, j; j, i) read as (i, j; i, j)."""

    def wrong(pattern: tuple[int, ...], query_order: int) -> PatternSplit:
        return split_pattern((0, 1, 0, 1) if pattern == (0, 1, 1, 0) else pattern, query_order)

    monkeypatch.setattr(room, "split_pattern", wrong)
    assert failed(2, 3) == {"Lemmas 2 and 3"}


def test_a_layer_that_knows_where_it_is_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = room._random_layer

    def crooked(at: Setting) -> tuple[EquivariantLinear, torch.Tensor, torch.Generator]:
        layer, x, generator = real(at)
        layer.register_forward_hook(lambda _, __, out: out + 1e-8 * torch.arange(len(out))[:, None])
        return layer, x, generator

    monkeypatch.setattr(room, "_random_layer", crooked)
    assert failed(2, 3) == {"Definition 2"}


def test_a_block_that_knows_where_it_is_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = room.encode_tensor

    def crooked(*given: Any) -> torch.Tensor:
        out = real(*given)
        return out + 1e-8 * torch.arange(len(out)).view(-1, *[1] * (out.ndim - 1))

    monkeypatch.setattr(room, "encode_tensor", crooked)
    assert failed(2, 3) == {"Section 3.2"}


def test_open_gates_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = gates.gate_strength
    monkeypatch.setattr(gates, "gate_strength", lambda *given: 0 * real(*given))
    assert "Lemma 1, footnote" in failed(2, 3)


def test_a_network_that_sees_no_edges_is_not_as_powerful_as_wl(monkeypatch: pytest.MonkeyPatch) -> None:
    real = room.isomorphism_types
    monkeypatch.setattr(room, "isomorphism_types", lambda graph, order: torch.zeros_like(real(graph, order)))
    assert verdicts(2, 2)["Corollary 2 (WL)"] in ("fails", "too blunt")


def test_isomorphism_types_by_hand() -> None:
    pairs = isomorphism_types(path(3), 2)[..., 0]
    assert pairs.tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    triples = isomorphism_types(two_triangles(), 3)
    assert triples.shape == (6, 6, 6, 3)
    closed = triples.prod(-1)
    assert int(closed.sum()) == 12  # Two triangles have six orders each.
    assert int(isomorphism_types(star(3), 3).prod(-1).sum()) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((4, 3), "order is 4; expected 1, 2 or 3"),
        ((2, 0), "nodes is 0; expected at least 1"),
        ((2, 3, -1.0), "sharpness is -1.0; expected a finite number above 0"),
        ((2, 3, math.nan), "sharpness is nan"),
    ],
)
def test_what_cannot_be_verified_is_one_sentence(arguments: tuple[int, int, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Setting(*arguments)
