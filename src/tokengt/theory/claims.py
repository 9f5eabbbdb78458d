"""A claim of the paper beside what was measured, and the setting that it was measured in."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from tokengt.theory.construction import logit_gap
from tokengt.theory.construction.measure import Agreement
from tokengt.theory.partitions import bell_number

Verdict = Literal["holds", "fails", "too blunt", "too sharp", "not applicable"]
Relation = Literal["<=", ">=", "="]
ORDERS = (1, 2, 3)
# Numbers of nodes that are small enough for the 203 heads of order 3, and large enough that most patterns have members.
DEFAULT_NODES = {1: 6, 2: 5, 3: 4}
# The graphs that k-WL is asked about have this many nodes: the smallest on which there is much to tell apart.
WL_NODES = 6
# All pairs of multi-indices are looked at one by one, so n is limited: to 16 nodes at order 3, and to 64 at order 2.
_MOST_PAIRS = 2**24
# A relative error above this may keep to its bound, but the construction approximates nothing.
FAR = 1e-2
# e^-37 is float64's rounding: with a larger logit gap an error is not for lack of sharpness.
_SHARP_GAP = 37.0


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
        verdict: whether the measured number keeps to the bound. "too blunt" if it does and still approximates nothing;
            "too sharp" if float64's rounding of the logits, which grows with a, is why.
        note: what else a reader should know.
        relation: how the measured number stands to the bound when the claim holds.
    """

    name: str
    statement: str
    order: int
    measured: float | None
    bound: float | None
    formula: str
    verdict: Verdict
    note: str = ""
    relation: Relation = "<="

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Setting:
    """k, n and a of one verification; node identifiers are n wide.

    ``wl_nodes``: how many nodes the graphs of the Weisfeiler-Leman claim have; None for n, and six at most.
    """

    order: int
    num_nodes: int
    sharpness: float = 1000.0
    seed: int = 0
    wl_nodes: int | None = None

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ValueError(f"order is {self.order}; expected 1, 2 or 3")
        if self.num_nodes < 1:
            raise ValueError(f"nodes is {self.num_nodes}; expected at least 1")
        if self.wl_nodes is not None and not 1 <= self.wl_nodes <= WL_NODES:
            raise ValueError(f"wl_nodes is {self.wl_nodes}; expected 1 to {WL_NODES}")
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

    @property
    def graph_nodes(self) -> int:
        """The size of the graphs that k-WL is asked about."""
        return min(self.num_nodes, WL_NODES) if self.wl_nodes is None else self.wl_nodes

    @property
    def far_off(self) -> Verdict:
        """What to say of an error that keeps to its bound and is still large: the sharpness is too small or too large.

        Once wrong keys weigh less than a rounding, more sharpness only multiplies the roundings of the logits.
        """
        gap = logit_gap(self.order, self.num_nodes, self.sharpness, "one_hot")
        return "too sharp" if gap > _SHARP_GAP else "too blunt"


def claim(
    name: str,
    statement: str,
    at: Setting,
    measured: float,
    bound: float,
    formula: str,
    note: str = "",
    *,
    relation: Relation = "<=",
    slack: float = 0.0,
) -> Claim:
    """The claim with its verdict; ``slack`` is what the two numbers themselves may be off by rounding."""
    held = {
        "<=": measured <= bound + slack,
        ">=": measured >= bound - slack,
        "=": abs(measured - bound) <= slack,
    }[relation]
    return Claim(name, statement, at.order, measured, bound, formula, "holds" if held else "fails", note, relation)


def agreed(name: str, statement: str, at: Setting, found: Agreement, formula: str) -> Claim:
    """A construction's error beside its bound, both as shares of the largest value that was to be met."""
    unit = found.scale or 1.0
    made = claim(name, statement, at, found.error / unit, found.bound / unit, formula, f"of values up to {unit:.2g}")
    return replace(made, verdict=at.far_off) if made.verdict == "holds" and found.relative > FAR else made


def silent(name: str, statement: str, at: Setting, why: str) -> Claim:
    return Claim(name, statement, at.order, None, None, "", "not applicable", why)
