"""The claims hold on the code as it is, and fail on code that is wrong."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tokengt.attention import softmax
from tokengt.cli import main
from tokengt.theory import verify as room
from tokengt.theory import wl_claim
from tokengt.theory.construction import gates, lemma, measure, message_passing
from tokengt.theory.graphs import path, star, two_triangles, undirected
from tokengt.theory.ign import EquivariantLinear
from tokengt.theory.partitions import PatternSplit, split_pattern
from tokengt.theory.scoring import pattern_score
from tokengt.theory.verify import DEFAULT_NODES, Claim, Setting, isomorphism_types, verify
from tokengt.theory.wl import separated_by_wl, wl_classes

CLAIMS = 17


def claims(order: int, nodes: int | None = None, sharpness: float = 1000.0) -> list[Claim]:
    return list(verify(Setting(order, DEFAULT_NODES[order] if nodes is None else nodes, sharpness)))


@pytest.mark.parametrize("order", [1, 2, 3])
def test_no_claim_fails(order: int) -> None:
    measured = claims(order)
    assert len(measured) == CLAIMS
    silent = [claim for claim in measured if claim.verdict == "not applicable"]
    # Sets have no edges; graphs of five nodes have pairs for 2-WL, those of four nodes none for 3-WL.
    assert len(silent) == {1: 3, 2: 0, 3: 1}[order]
    for claim in measured:
        if claim in silent:
            assert claim.measured is None
            assert claim.note
            continue
        assert claim.verdict == "holds", claim
        assert claim.bound is not None
        assert math.isfinite(claim.bound)
        assert claim.formula


@pytest.mark.parametrize(("order", "nodes"), [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2)])
def test_few_nodes_leave_patterns_empty_and_no_claim_fails(order: int, nodes: int) -> None:
    assert {claim.verdict for claim in claims(order, nodes)} <= {"holds", "not applicable"}


def test_the_error_falls_with_sharpness_as_its_bound_does() -> None:
    soft, sharp = ({claim.name: claim for claim in claims(2, 4, a)} for a in (50.0, 100.0))
    gap = 50 / math.sqrt(4 * 4 + 2 * 2)
    for name in ("Lemma 1", "Theorem 1", "Theorem 2"):
        for part in ("measured", "bound"):
            before, after = getattr(soft[name], part), getattr(sharp[name], part)
            assert math.log(before / after) == pytest.approx(gap, rel=0.02), (name, part)


def test_too_little_sharpness_is_said() -> None:
    verdicts = {claim.name: claim.verdict for claim in claims(2, 5, 5.0)}
    assert verdicts["Theorem 1"] == verdicts["Theorem 2"] == verdicts["Corollary 2 (WL)"] == "too blunt"
    assert verdicts["Definition 2"] == verdicts["Section 3.2"] == verdicts["Theorem 1, rate"] == "holds"


def test_too_much_sharpness_is_said_and_nothing_fails() -> None:
    """At 1e15 float64 moves logits by more than 1: the bounds say so, and so does the verdict."""
    verdicts = {claim.name: claim.verdict for claim in claims(2, 5, 1e15)}
    assert "fails" not in verdicts.values()
    assert verdicts["Theorem 1"] == "too sharp"
    assert verdicts["Theorem 1, rate"] == "holds"


def test_too_much_sharpness_is_no_false_alarm_about_wl() -> None:
    """Outputs are off by rounding that the sharpness multiplies, while the k-IGN itself tells all pairs apart."""
    assert wl_claim.weisfeiler_leman(Setting(2, 6, 1e12)).verdict == "too sharp"


@pytest.mark.slow
def test_too_much_sharpness_at_order_three() -> None:
    assert main(["verify", "--order", "3", "--sharpness", "1e12"]) == 0


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


@pytest.mark.parametrize(("where", "name"), [(gates, "_empty_rows"), (message_passing, "_message_passing")])
def test_gates_at_a_quarter_of_their_strength_are_noticed(
    where: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random sums are too small to open them; the loudest are tried too. At half their strength gates still hold."""
    real, check = gates.gate_strength, getattr(room, name)
    for share, verdict in ((0.5, "holds"), (0.25, "fails")):
        monkeypatch.setattr(where, "gate_strength", lambda *given, share=share: share * real(*given))
        assert check(Setting(2, 4)).verdict == verdict, share


def rates(order: int, nodes: int) -> list[str]:
    """The verdicts on Lemma 1, Theorem 1 and Theorem 2."""
    checks = (room._lemma_1_rate, room._theorem_1_rate, room._theorem_2_rate)
    return [check(Setting(order, nodes)).verdict for check in checks]


@pytest.mark.parametrize("order", [1, 2])
def test_a_softmax_without_its_root_is_noticed(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """softmax(Q K^T) is sharper than it says: at the sharpness of the other claims both are rounding."""
    real_maps, real_fused, real_bucketed = (
        softmax.softmax_weights,
        softmax.fused_attention,
        softmax.bucketed_attention,
    )

    def maps(query: torch.Tensor, key: torch.Tensor, *more: Any) -> Any:
        return real_maps(query * math.sqrt(query.shape[-1]), key, *more)

    def fused(query: torch.Tensor, *more: Any) -> torch.Tensor:
        return real_fused(query * math.sqrt(query.shape[-1]), *more)

    def bucketed(qkv: torch.Tensor, segments: Any, heads: Any) -> torch.Tensor:
        query, rest = torch.tensor_split(qkv, [heads.count * heads.key], 1)
        return real_bucketed(torch.cat([query * math.sqrt(heads.key), rest], 1), segments, heads)

    monkeypatch.setattr(softmax, "softmax_weights", maps)
    monkeypatch.setattr(softmax, "fused_attention", fused)
    monkeypatch.setattr(softmax, "bucketed_attention", bucketed)
    assert rates(order, 3) == ["fails"] * 3
    assert room._theorem_1(Setting(order, 3)).verdict == "holds"


@pytest.mark.parametrize("factor", [0.25, 2.0])
def test_another_sharpness_than_was_asked_for_is_noticed(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    real = lemma.query_key_weights
    monkeypatch.setattr(lemma, "query_key_weights", lambda layout, sharpness: real(layout, factor * sharpness))
    assert rates(2, 3) == ["fails"] * 3
    assert room._theorem_1(Setting(2, 3)).verdict == "holds"


def test_a_margin_that_is_not_that_of_the_identifiers_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On either side: a formula that says less than there is, and identifiers closer than the formula says."""
    with monkeypatch.context() as patched:
        patched.setattr(room, "type_margin", lambda order: 0.5)
        assert room._score_maximum(Setting(3, 2)).verdict == "fails"
    real = measure.type_identifiers

    def close(order: int, kind: Any) -> torch.Tensor:
        return F.normalize(real(order, kind) + 0.1)

    monkeypatch.setattr(measure, "type_identifiers", close)
    assert room._score_maximum(Setting(3, 2)).verdict == "fails"


def test_a_basis_without_one_of_its_tensors_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """(i, j; j, i) counted as (i, j; i, j): one tensor too few, and no transposition among the layers."""
    real = room.token_patterns

    def merged(*given: Any) -> torch.Tensor:
        places = real(*given)
        return torch.where(places == 8, 6, places)

    monkeypatch.setattr(room, "token_patterns", merged)
    assert room._basis_count(Setting(2, 4)).verdict == room._basis_completeness(Setting(2, 4)).verdict == "fails"


@pytest.mark.parametrize(("nodes", "order", "orbits"), [(6, 4, 15), (4, 6, 187), (2, 4, 8), (1, 6, 1), (3, 0, 1)])
def test_orbits_by_hand(nodes: int, order: int, orbits: int) -> None:
    """bell(4); 203 less the 16 that ask for five nodes or six; 2^4 / 2; one; the empty tuple."""
    assert room._orbits(nodes, order) == orbits


def test_heads_that_need_no_identifiers_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that carry an answer of their own."""
    real = measure.augmented_tokens

    def told(x: torch.Tensor, ids: torch.Tensor, layout: Any) -> Any:
        return real(x, torch.eye(len(ids), dtype=ids.dtype), layout)

    monkeypatch.setattr(measure, "augmented_tokens", told)
    assert room._no_identifiers(Setting(2, 3)).verdict == "fails"


def wl_verdict(order: int = 2, nodes: int = 6) -> str:
    return wl_claim.weisfeiler_leman(Setting(order, nodes)).verdict


def test_hard_pairs_are_counted() -> None:
    """86 of six nodes that 2-WL tells apart and degrees do not; four that only 3-WL does; none of four nodes."""
    for nodes, order, pairs in ((4, 2, 0), (5, 2, 3), (6, 2, 86), (5, 3, 0), (6, 3, 4)):
        known = wl_claim.hard_pairs(nodes, order)
        assert known.pairs.shape == (2, pairs)
        for first, second in known.pairs.T.tolist():
            assert separated_by_wl(known.graphs[first], known.graphs[second], order)
            assert order == 2 or not separated_by_wl(known.graphs[first], known.graphs[second], order - 1)
    assert [wl_verdict(2, nodes) for nodes in (1, 4, 5, 6, 7)] == ["not applicable"] * 2 + ["holds"] * 3
    # The path of six nodes has the degrees of a triangle with a path of three.
    hexagon_like = undirected(6, [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5)])
    classes = wl_classes([*wl_claim.hard_pairs(6, 2).graphs, path(6), hexagon_like], 2)
    assert len(set(classes[-2:].tolist())) == 2
    assert set(classes[-2:].tolist()) <= set(classes[:-2].tolist())


def test_a_network_that_sees_no_edges_is_not_as_powerful_as_wl(monkeypatch: pytest.MonkeyPatch) -> None:
    real = wl_claim.isomorphism_types
    monkeypatch.setattr(wl_claim, "isomorphism_types", lambda graph, order: torch.zeros_like(real(graph, order)))
    assert wl_verdict() == "fails"
    assert main(["verify", "--order", "2", "--nodes", "6"]) == 1


def test_a_stronger_test_than_k_wl_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folklore 2-WL tells the hexagon from two triangles, which no 2-IGN does."""
    real = wl_claim.wl_classes
    monkeypatch.setattr(wl_claim, "wl_classes", lambda graphs, k: real(graphs, k, folklore=True))
    assert wl_verdict() == "fails"


def test_a_network_that_sees_too_little_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers, however wide, miss 12 of the 86 pairs."""
    monkeypatch.setitem(wl_claim.WIDTHS, 2, (6, 6))
    assert wl_verdict() == "fails"


def test_a_transformer_that_is_not_its_network_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = wl_claim._run
    monkeypatch.setattr(wl_claim, "_run", lambda *given: 1.01 * real(*given))
    claim = wl_claim.weisfeiler_leman(Setting(2, 6))
    assert claim.verdict == "fails"
    assert "off its k-IGN" in claim.note


@pytest.mark.parametrize("seed", [1, 2**40])
def test_any_seed_tells_all_pairs_apart(seed: int) -> None:
    assert wl_claim.weisfeiler_leman(Setting(2, 6, seed=seed)).verdict == "holds"


@pytest.mark.slow
@pytest.mark.parametrize("order", [2, 3])
def test_all_pairs_of_equal_degrees(order: int) -> None:
    """Also those that a weaker test than 3-WL tells apart: 90 at order 3."""
    claim = wl_claim.weisfeiler_leman(Setting(order, 6), weaker=False)
    assert claim.verdict == "holds"
    assert f"{ {2: 86, 3: 90}[order] } pairs" in claim.note


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
        ((2, 3, 1000.0, 0, 7), "wl_nodes is 7; expected 1 to 6"),
    ],
)
def test_what_cannot_be_verified_is_one_sentence(arguments: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Setting(*arguments)
