"""How many nodes d_p dimensions hold: near-orthonormal identifiers put into the proof of Lemma 1.

A head of Lemma 1 scores a query (i_1, i_2) and a key (j_1, j_2) by type terms and by sgn(a, b) P_{i_a} . P_{j_b}. With
orthonormal identifiers every key of its pattern scores the same, and every other key at least one less: as sharpness
grows, attention shows the basis tensor. With random signs over sqrt(d_p), P_u . P_v of two nodes is near 0 but not 0:
it spreads like a normal number of variance 1 / d_p. Too blunt, attention leaks to the many other keys; too sharp, it
follows the noise. So the error of a head is that of its best sharpness: half the sum of |alpha - B| over keys, B the
row of the basis tensor that sums to one; 0 where they are equal, 1 where attention lies elsewhere altogether.

Here that is measured on random sparse graphs, by pattern, d_p and the number of nodes. *Sparse* heads, whose keys share
a node with the query, have few keys among many: a query of two nodes has noise of variance 4 / d_p against a gap of 1,
N other keys weigh about N exp(-a + 2 a^2 / d_p) at sharpness a, and at best N exp(-d_p / 8). So d_p dimensions hold
about exp(d_p / 8) tokens, an exponential number as the paper argues, with a small exponent: 3,000 at 64 dimensions.
*Dense* heads attend to nearly all keys; noise makes their weights uneven, whatever the number of nodes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokengt.draws import GeneratorDraws
from tokengt.experiments.cells import Say, kept_cell, silent
from tokengt.experiments.tables import (
    TableRow,
    device_name,
    distinct,
    markdown,
    mean_and_std,
    source_commit,
    write_rows,
)
from tokengt.files import write_whole
from tokengt.models.tokengt.identifiers import random_signs
from tokengt.ragged import Segments
from tokengt.structure.patterns import EqualityPattern, equality_sign, split_pattern
from tokengt.theory.partitions import patterns
from tokengt.theory.scoring import type_margin
from tokengt.theory.tuples import pattern_places

ORDER = 2
KINDS = ("sparse", "dense")
# Sharpness is tried at powers of sqrt(2): the least error is flat around its best.
_SHARPNESS = tuple(2 ** (power / 2) for power in range(2, 21))


@dataclass(frozen=True)
class CapacityConfig:
    """What is measured.

    Args:
        dims: d_p, the widths of identifiers.
        sizes: numbers of nodes.
        edges: directed edges per node.
        queries: tokens that are asked for, of each pattern.
        seeds: graphs and identifiers drawn for each of them.
    """

    dims: tuple[int, ...] = (16, 32, 64, 100)
    sizes: tuple[int, ...] = (100, 300, 1_000, 3_000, 10_000)
    edges: int = 3
    queries: int = 32
    seeds: tuple[int, ...] = (0, 1)

    def __post_init__(self) -> None:
        for name in ("dims", "sizes", "seeds"):
            if not getattr(self, name):
                raise ValueError(f"{name} is empty; expected at least one")
        if min(*self.dims, *self.sizes, self.edges, self.queries, 2) < 1 or min(self.sizes) < 4:
            raise ValueError("dims, edges and queries are counts, and sizes 4 nodes or more; expected larger ones")


def run_capacity(
    config: CapacityConfig, out: Path, device: torch.device | str = "cpu", progress: Say | None = None
) -> list[TableRow]:
    """Measure the cells that are not finished; then write ``out``/table.json, table.md and capacity.png."""
    from tokengt.experiments.capacity_picture import plot_capacity

    say, place, commit = progress or silent, torch.device(device), source_commit()
    found: list[dict[str, Any]] = []
    for dim, size in product(config.dims, config.sizes):

        def run(dim: int = dim, size: int = size) -> dict[str, Any]:
            errors = [head_errors(size, dim, config.edges, config.queries, seed, place) for seed in config.seeds]
            worst = {kind: [_worst(error, kind) for error in errors] for kind in KINDS}
            by_pattern = {name: sum(error[name] for error in errors) / len(errors) for name in errors[0]}
            return {**worst, "patterns": by_pattern, "device": device_name(place), "commit": commit}

        settings = {"edges": config.edges, "queries": config.queries, "seeds": config.seeds}
        cell = kept_cell(out / "cells" / f"{dim}-{size}.json", settings, run)
        found.append({"dim": dim, "nodes": size, **cell})
        told = ", ".join(f"{sum(cell[kind]) / len(cell[kind]):.3f} of the worst {kind} head" for kind in KINDS)
        say(f"d_p {dim}, {size:,} nodes: error {told}")
    rows = [_row(cell, kind, config) for kind in KINDS for cell in found]
    write_rows(out / "table.json", rows)
    write_whole(out / "table.md", table_markdown(rows, config).encode())
    plot_capacity(found, config.edges, out / "capacity.png")
    return rows


def head_errors(nodes: int, dim: int, edges: int, queries: int, seed: int, device: torch.device) -> dict[str, float]:
    """The error of each head, for each second-order pattern that some token has a key of."""
    generator = torch.Generator(device).manual_seed(seed)
    tokens = random_tokens(nodes, edges, generator, device)
    ids = random_signs(Segments.uniform(1, nodes, device), dim, GeneratorDraws(generator, device)).float()
    found = {}
    for pattern in patterns(2 * ORDER):
        chosen = _some_queries(tokens, pattern, queries, generator)
        if len(chosen):
            found[_name(pattern)] = head_error(tokens, ids, pattern, chosen)
    return found


def _worst(errors: Mapping[str, float], kind: str) -> float:
    """The largest error of the heads of a kind: sparse ones share a node with the query, dense ones none."""
    shares = {name: bool(set(name[:ORDER]) & set(name[-ORDER:])) for name in errors}
    return max(error for name, error in errors.items() if shares[name] == (kind == "sparse"))


def random_tokens(nodes: int, edges: int, generator: torch.Generator, device: torch.device) -> Int[Tensor, "2 tokens"]:
    """(v, v) of every node, and directed edges between different nodes, each once."""
    ends = torch.randint(0, nodes, (2, nodes * edges), generator=generator, device=device)
    keys = torch.unique(ends[0] * nodes + ends[1])
    ends = torch.stack([keys // nodes, keys % nodes])
    own = torch.arange(nodes, device=device)
    return torch.cat([own.expand(2, -1), ends[:, ends[0] != ends[1]]], 1)


def head_error(
    tokens: Int[Tensor, "2 tokens"],
    ids: Float[Tensor, "nodes dim"],
    pattern: EqualityPattern,
    chosen: Int[Tensor, " queries"],
) -> float:
    """The mean over these queries of half the sum of |alpha - B| over keys, at the sharpness where it is least."""
    asked = tokens[:, chosen]
    score = _type_terms(tokens, split_pattern(pattern, ORDER).key).expand(len(chosen), -1).clone()
    sign = equality_sign(pattern, ORDER)
    for a in range(ORDER):
        # Products with all nodes first: keys share them.
        products = ids[asked[a]] @ ids.T
        for b in range(ORDER):
            score += int(sign[a, b]) * products[:, tokens[b]]
    wanted = matches(asked, tokens, pattern).float()
    wanted /= wanted.sum(1, keepdim=True)
    errors = [float(((sharpness * score).softmax(1) - wanted).abs().sum(1).mean()) / 2 for sharpness in _SHARPNESS]
    return min(errors)


def matches(
    asked: Int[Tensor, "2 queries"], keys: Int[Tensor, "2 keys"], pattern: EqualityPattern
) -> Bool[Tensor, "queries keys"]:
    """Whether (query, key) is of the pattern; a query must be of its own half of it."""
    split = split_pattern(pattern, ORDER)
    right = (pattern_places(keys) == patterns(ORDER).index(split.key)).expand(asked.shape[1], -1)
    for a, b in product(range(ORDER), repeat=2):
        right = right & ((asked[a][:, None] == keys[b]) == split.equal[a][b])
    return right


def _type_terms(keys: Int[Tensor, "2 keys"], pattern: EqualityPattern) -> Float[Tensor, " keys"]:
    """What type identifiers say of every key; those of queries are the same for all keys."""
    other = pattern_places(keys) != patterns(ORDER).index(pattern)
    return 1 - type_margin(ORDER) * other.float()


def _some_queries(
    tokens: Int[Tensor, "2 tokens"], pattern: EqualityPattern, most: int, generator: torch.Generator
) -> Int[Tensor, " queries"]:
    """Tokens of the pattern's query half that have a key of it and a key of another."""
    split = split_pattern(pattern, ORDER)
    own = torch.nonzero(pattern_places(tokens) == patterns(ORDER).index(split.query)).flatten()
    order = torch.randperm(len(own), generator=generator, device=own.device)
    tried = own[order[: 4 * most]]
    pieces = (tried[first : first + 64] for first in range(0, len(tried), 64))
    usable = [rows[_has_both(matches(tokens[:, rows], tokens, pattern))] for rows in pieces]
    return torch.cat(usable)[:most] if usable else own[:0]


def _has_both(own: Bool[Tensor, "queries keys"]) -> Bool[Tensor, " queries"]:
    return own.any(1) & ~own.all(1)


def _name(pattern: EqualityPattern) -> str:
    """(0, 0, 0, 1) as ``ii-ij``: the query's nodes, then the key's."""
    letters = "".join("ijkl"[label] for label in pattern)
    return f"{letters[:ORDER]}-{letters[ORDER:]}"


def predicted_nodes(dim: int, edges: int) -> float:
    """About how many nodes so many dimensions hold: exp(d_p / 8) tokens, of which each node has one and its edges'."""
    return math.exp(dim / 8) / (1 + edges)


def _row(cell: Mapping[str, Any], kind: str, config: CapacityConfig) -> TableRow:
    mean, std = mean_and_std(cell[kind])
    return TableRow(
        experiment="capacity",
        system=f"near-orthonormal, d_p = {cell['dim']}",
        dataset=f"random graph, {cell['nodes']} nodes, {config.edges} edges per node",
        split="all",
        metric=f"error of the worst {kind} head of Lemma 1 at its best sharpness, 0 to 1",
        mean=mean,
        std=std,
        runs=len(cell[kind]),
        parameters=None,
        graphs_per_s=None,
        device=distinct([cell["device"]]) or "",
        commit=distinct([cell["commit"]]),
        paper=None,
    )


def table_markdown(rows: Sequence[TableRow], config: CapacityConfig) -> str:
    """One line per d_p, one column per size, and the size that it is expected to hold."""
    means = iter(row.mean for row in rows)
    lines = [
        [f"{dim}, {kind}", *(f"{next(means):.3f}" for _ in config.sizes), _expected(dim, kind, config)]
        for kind, dim in product(KINDS, config.dims)
    ]
    return markdown(["d_p, heads", *(f"{size:,} nodes" for size in config.sizes), "exp(d_p / 8) tokens"], lines)


def _expected(dim: int, kind: str, config: CapacityConfig) -> str:
    return f"{predicted_nodes(dim, config.edges):,.0f} nodes" if kind == "sparse" else ""
