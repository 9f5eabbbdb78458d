"""Every claim of the paper's Section 3 and its proofs, measured on the production code: one :class:`Claim` for each."""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from tokengt.graph import Graph
from tokengt.structure.tuples import equality_patterns
from tokengt.theory.basis import multi_indices
from tokengt.theory.construction import (
    compile_ign,
    compile_layer,
    encode_tensor,
    layer_rounding,
    logit_gap,
    tensor_graph,
)
from tokengt.theory.construction.bounds import UNIT_ROUNDING
from tokengt.theory.construction.measure import (
    Agreement,
    ign_agreement,
    layer_agreement,
    lemma_1_agreement,
    message_passing_agreement,
    orthonormal_ids,
    property_1_gap,
    random_tensor,
    randomise,
    silenced_agreement,
)
from tokengt.theory.graphs import GraphPair, named_pairs, renumbered
from tokengt.theory.ign import EquivariantLinear, IGNConfig, InvariantGraphNetwork
from tokengt.theory.partitions import bell_number, patterns, split_pattern
from tokengt.theory.scoring import type_margin
from tokengt.theory.tuples import Tuples
from tokengt.theory.wl import separated_by_wl

Verdict = Literal["holds", "fails", "too blunt", "not applicable"]
ORDERS = (1, 2, 3)
# Numbers of nodes that are small enough for the 203 heads of order 3, and large enough that most patterns have members.
DEFAULT_NODES = {1: 6, 2: 5, 3: 4}
_CHANNELS = 4
# Graphs that k-WL tells apart must differ by this many times what renumbering one of them changes.
_CLEARLY = 1000.0
# All pairs of multi-indices are looked at one by one, so n is limited: to 16 nodes at order 3, and to 64 at order 2.
_MOST_PAIRS = 2**24
# A relative error above this may keep to its bound, but the construction approximates nothing: "too blunt".
_FAR = 1e-2


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, and what was measured.

    Args:
        name: where the paper makes it.
        statement: what it says, in a few words.
        order: k.
        measured: the error (or what ``formula`` is compared with), of values in the note as a share of the largest;
            None where the claim says nothing.
        bound: the number that ``formula`` gives, as a share of the same.
        formula: the bound in a (sharpness), n, k and d_p.
        verdict: whether the measured number keeps to the bound; "too blunt" if it does and still approximates nothing.
        note: what else a reader should know.
    """

    name: str
    statement: str
    order: int
    measured: float | None
    bound: float | None
    formula: str
    verdict: Verdict
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Setting:
    """k, n and a of one verification; node identifiers are n wide."""

    order: int
    num_nodes: int
    sharpness: float = 1000.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ValueError(f"order is {self.order}; expected 1, 2 or 3")
        if self.num_nodes < 1:
            raise ValueError(f"nodes is {self.num_nodes}; expected at least 1")
        if not (math.isfinite(self.sharpness) and self.sharpness > 0):
            raise ValueError(f"sharpness is {self.sharpness}; expected a finite number above 0")
        if self.num_nodes ** (2 * self.order) > _MOST_PAIRS:
            most = int(_MOST_PAIRS ** (1 / (2 * self.order)) + 1e-9)
            raise ValueError(f"nodes is {self.num_nodes}; at order {self.order} all n^2k pairs fit up to {most} nodes")
        if not 0 <= self.seed < 2**62:
            raise ValueError(f"seed is {self.seed}; expected a whole number from 0, below 2^62")

    def __str__(self) -> str:
        circle, one_hot = (
            logit_gap(self.order, self.num_nodes, self.sharpness, kind) for kind in ("circle", "one_hot")
        )
        return (
            f"order {self.order}: n = d_p = {self.num_nodes}, a = {self.sharpness:g}, bell(2k) = "
            f"{bell_number(2 * self.order)} heads, g = a min(1, eps) / sqrt(k^2 d_p + 2 d_e) = {circle:.4g} "
            f"(types on a circle, Lemma 1) or {one_hot:.4g} (one-hot types, Theorems 1 and 2); float64 moves a logit "
            f"by R = (2 d_H + 16) u a (k^2 + 2) / sqrt(d_H) at most, d_H = k^2 d_p + 2 d_e, u = 2^-53"
        )


def verify(setting: Setting) -> Iterator[Claim]:
    """The claims in the order of the paper, each measured when it is asked for."""
    checks: tuple[Callable[[Setting], Claim], ...] = (
        _pattern_split,
        _score_maximum,
        _lemma_1,
        _empty_rows,
        _theorem_1,
        _theorem_2,
        _layer_equivariance,
        _block_equivariance,
        _corollary_1,
        _message_passing,
        _weisfeiler_leman,
    )
    for check in checks:
        yield check(setting)


def _pattern_split(at: Setting) -> Claim:
    """(i, j) is of pattern mu just when i, j and their equalities are as mu's split says, over all of [n]^2k."""
    tuples = multi_indices(at.num_nodes, at.order)
    count = tuples.shape[1]
    pairs = torch.cat([tuples.repeat_interleave(count, 1), tuples.repeat(1, count)])
    joint, queries, keys = (_places(part) for part in (pairs, pairs[: at.order], pairs[at.order :]))
    equal = pairs[: at.order, None] == pairs[None, at.order :]
    classes, wrong = patterns(at.order), 0
    for place, mu in enumerate(patterns(2 * at.order)):
        split = split_pattern(mu, at.order)
        wanted = torch.tensor(split.equal).view(at.order, at.order, 1)
        said = (queries == classes.index(split.query)) & (keys == classes.index(split.key))
        said &= (equal == wanted).flatten(0, 1).all(0)
        wrong += int((said != (joint == place)).sum())
    statement = "the pattern of (i, j) splits into i's, j's and k^2 equalities"
    return _claim("Lemmas 2 and 3", statement, at, float(wrong), 0.0, "0 of n^2k pairs misjudged")


def _places(tuples: Tensor) -> Tensor:
    return equality_patterns(tuples) if len(tuples) > 1 else torch.zeros(tuples.shape[1], dtype=torch.int64)


def _score_maximum(at: Setting) -> Claim:
    smallest = property_1_gap(at.order, at.num_nodes)
    bound = min(1.0, type_margin(at.order))
    # A gap must be at least its bound; the slack is for the rounding of 1 - cos.
    holds = smallest >= bound - 8 * UNIT_ROUNDING
    return Claim(
        "Property 1",
        "the score is largest on the pattern alone",
        at.order,
        smallest,
        bound,
        ">= min(1, eps), eps = 1 - cos(2 pi / bell(k))",
        "holds" if holds else "fails",
        "the measured number is a distance and must not be below the bound",
    )


def _lemma_1(at: Setting) -> Claim:
    agreement = lemma_1_agreement(at.order, at.num_nodes, sharpness=at.sharpness, seed=at.seed)
    formula = "(e^-g max(1, m/c) + 2 R + (n^k + 8) u) / c, c right and m = n^k - c wrong keys"
    return _agreed("Lemma 1", "every head is its normalised basis tensor", at, agreement, formula)


def _empty_rows(at: Setting) -> Claim:
    statement = "rows without a key are silenced by the MLP"
    if at.order == 1 or at.num_nodes == 1:
        return _silent("Lemma 1, footnote", statement, at, "there is one class of tokens, and every row has a key")
    agreement = silenced_agreement(at.order, at.num_nodes, at.sharpness, channels=_CHANNELS, seed=at.seed)
    return _agreed("Lemma 1, footnote", statement, at, agreement, "0 (ReLU gates exactly)")


def _theorem_1(at: Setting) -> Claim:
    agreement = layer_agreement(at.order, at.num_nodes, at.sharpness, channels=_CHANNELS, seed=at.seed)
    formula = "2 e^-g sum_mu m_mu |X w_mu| + 2 R sum_mu c_mu |X w_mu| + O(u)"
    return _agreed("Theorem 1", "one Transformer layer is a given L_{k->k}", at, agreement, formula)


def _theorem_2(at: Setting) -> Claim:
    agreement = ign_agreement(at.order, at.num_nodes, at.sharpness, dims=_ign_dims(at), seed=at.seed)
    formula = "D_t = sum_mu count_mu |w_mu| D_{t-1} + Theorem 1's, through pooling and MLP"
    return _agreed("Theorem 2", "a Transformer, sum-pooling and an MLP are a given k-IGN", at, agreement, formula)


def _layer_equivariance(at: Setting) -> Claim:
    """L(pi X) = pi L(X) of a random layer; only rounding may differ, as sums run in another order."""
    layer, x, _ = _random_layer(at)
    dense = Tuples.dense(at.num_nodes, at.order)

    def apply(x: Tensor) -> Tensor:
        out: Tensor = layer(x.flatten(0, -2), dense, dense)
        return out.view(x.shape)

    error = _equivariance_error(apply, x, at)
    keys, width = at.num_nodes**at.order, layer.weight.shape[1]
    folded = (layer.mobius @ layer.weight.flatten(1)).view_as(layer.weight).abs().sum((0, 1)).max()
    terms = keys + bell_number(2 * at.order) * width + 16
    bound = 2 * terms * UNIT_ROUNDING * keys * float(folded) * float(x.abs().max())
    statement = "L(pi X) = pi L(X) for a random L_{k->k}"
    return _claim("Definition 2", statement, at, error, bound, "2 (n^k + bell(2k) d + 16) u n^k |X| sum_mu |w_mu|")


def _block_equivariance(at: Setting) -> Claim:
    layer, x, generator = _random_layer(at)
    model = compile_layer(layer, at.num_nodes, at.sharpness, 1.0)
    ids = orthonormal_ids(at.num_nodes, at.num_nodes, generator)
    # The identifiers stay where they are while the nodes move, so every node gets another identifier. Orthonormal
    # identifiers all have the same products, so whatever the sharpness is, only rounding can make a difference.
    error = _equivariance_error(lambda x: encode_tensor(model, x, ids)[..., :_CHANNELS], x, at)
    bound = 2 * layer_rounding(layer, at.num_nodes, at.sharpness, 1.0)
    statement = "the layer of Theorem 1 is equivariant, whichever node has which identifier"
    return _claim("Section 3.2", statement, at, error, bound, "4 R sum_mu c_mu |X w_mu| + O(u)")


def _corollary_1(at: Setting) -> Claim:
    """Theorem 2 for GELU networks and three draws of weights, inputs and identifiers."""
    agreements = [
        ign_agreement(
            at.order, at.num_nodes, at.sharpness, dims=_ign_dims(at), ign_activation="gelu", seed=at.seed + draw
        )
        for draw in (1, 2, 3)
    ]
    worst = max(agreements, key=lambda each: (not each.holds, each.relative))
    statement = "at least as expressive as k-IGN (three random GELU ones)"
    return _agreed("Corollary 1", statement, at, worst, "Theorem 2's")


def _message_passing(at: Setting) -> Claim:
    statement = "at least as expressive as message passing (a random network as a k-IGN)"
    if at.order == 1:
        return _silent("Corollary 2 (MPNN)", statement, at, "a set has no edges to pass messages along")
    agreement = message_passing_agreement(at.num_nodes, at.sharpness, order=at.order, seed=at.seed)
    return _agreed("Corollary 2 (MPNN)", statement, at, agreement, "Theorem 2's")


def _weisfeiler_leman(at: Setting) -> Claim:
    """Pairs that k-WL tells apart are told apart by a compiled random k-IGN that reads the isomorphism types."""
    statement = "at least as powerful as k-WL"
    if at.order == 1:
        return _silent("Corollary 2 (WL)", statement, at, "k-WL on single nodes without edges tells nothing apart")
    pairs = [pair for pair in named_pairs() if pair.first.num_nodes <= 6]
    separated = [pair for pair in pairs if separated_by_wl(pair.first, pair.second, at.order)]
    shares = [_told_apart(pair, at) for pair in separated]
    names = ", ".join(f"{pair.name} (n = {pair.first.num_nodes})" for pair in separated)
    formula = f"1/{_CLEARLY:g}, for |F(A) - F(pi A)| / |F(A) - F(B)|"
    note = f"told apart by {at.order}-WL: {names}"
    worst = max(share for share, _ in shares)
    claim = _claim("Corollary 2 (WL)", statement, at, worst, 1 / _CLEARLY, formula, note)
    # A Transformer that is still far from its IGN is too blunt: it says nothing about what the IGN tells apart.
    blunt = claim.verdict == "fails" and any(off > _FAR for _, off in shares)
    return replace(claim, verdict="too blunt") if blunt else claim


@torch.no_grad()
def _told_apart(pair: GraphPair, at: Setting) -> tuple[float, float]:
    """How much of |F(A) - F(B)| renumbering A makes, at most over three; and how far F is off its k-IGN there.

    Both are shares of |F(A) - F(B)|, the IGN's own for the second; 1 and more is nothing told apart.
    """
    generator = torch.Generator().manual_seed(at.seed)
    num_nodes = pair.first.num_nodes
    channels = isomorphism_types(pair.first, at.order).shape[-1]
    ign = InvariantGraphNetwork(
        IGNConfig(at.order, (channels, 3, 3), "gelu", invariant_dim=4, mlp_dims=(), out_dim=4)
    ).double()
    randomise(ign, generator)
    model = compile_ign(ign, num_nodes, at.sharpness, 1.0)

    def output(graph: Graph) -> Float[Tensor, " out"]:
        x = isomorphism_types(graph, at.order)
        ids = orthonormal_ids(num_nodes, num_nodes, generator)
        out: Tensor = model(tensor_graph(x), ids)
        return out[0]

    def wanted(graph: Graph) -> Float[Tensor, " out"]:
        out: Tensor = ign(isomorphism_types(graph, at.order).flatten(0, -2), Tuples.dense(num_nodes, at.order))
        return out[0]

    first, other = output(pair.first), output(pair.second)
    moved = [renumbered(pair.first, torch.randperm(num_nodes, generator=generator)) for _ in range(3)]
    null = max(float((first - output(graph)).abs().max()) for graph in moved)
    off = float((first - wanted(pair.first)).abs().max())
    return _share(null, first - other), _share(off, wanted(pair.first) - wanted(pair.second))


def _share(part: float, whole: Float[Tensor, " out"]) -> float:
    size = float(whole.abs().max())
    return part / size if size else 1.0


def isomorphism_types(graph: Graph, order: int) -> Float[Tensor, "*nodes pairs"]:
    """What k-WL begins with, as the input of a k-IGN: A_{i_a i_b} for every two entries of a tuple.

    Which entries are equal its layers know by themselves.
    """
    adjacency = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64)
    adjacency[tuple(graph.edge_index)] = 1
    index = multi_indices(graph.num_nodes, order)
    pairs = [(a, b) for b in range(order) for a in range(b)]
    return torch.stack([adjacency[index[a], index[b]] for a, b in pairs], 1).view(*[graph.num_nodes] * order, -1)


def _ign_dims(at: Setting) -> tuple[int, ...]:
    return (2, 4, 4, 3) if at.order < 3 else (2, 3, 3)


def _random_layer(at: Setting) -> tuple[EquivariantLinear, Float[Tensor, "*nodes channels"], torch.Generator]:
    generator = torch.Generator().manual_seed(at.seed)
    layer = EquivariantLinear(at.order, at.order, _CHANNELS, _CHANNELS).double()
    randomise(layer, generator)
    return layer.requires_grad_(False), random_tensor(at.num_nodes, at.order, _CHANNELS, 1.0, generator), generator


@torch.no_grad()
def _equivariance_error(apply: Callable[[Tensor], Tensor], x: Float[Tensor, "*nodes channels"], at: Setting) -> float:
    """max |f(pi X) - pi f(X)| over five renumberings."""
    generator = torch.Generator().manual_seed(at.seed + 1)
    plain, largest = apply(x), 0.0
    for _ in range(5):
        new = torch.randperm(at.num_nodes, generator=generator)
        largest = max(largest, float((apply(_moved(x, new, at.order)) - _moved(plain, new, at.order)).abs().max()))
    return largest


def _moved(x: Tensor, new: Tensor, order: int) -> Tensor:
    for axis in range(order):
        x = x.index_select(axis, new)
    return x


def _agreed(name: str, statement: str, at: Setting, found: Agreement, formula: str) -> Claim:
    unit = found.scale or 1.0
    claim = _claim(name, statement, at, found.error / unit, found.bound / unit, formula, f"of values up to {unit:.2g}")
    return replace(claim, verdict="too blunt") if claim.verdict == "holds" and found.relative > _FAR else claim


def _claim(
    name: str, statement: str, at: Setting, measured: float, bound: float, formula: str, note: str = ""
) -> Claim:
    verdict: Verdict = "holds" if measured <= bound else "fails"
    return Claim(name, statement, at.order, measured, bound, formula, verdict, note)


def _silent(name: str, statement: str, at: Setting, why: str) -> Claim:
    return Claim(name, statement, at.order, None, None, "", "not applicable", why)
