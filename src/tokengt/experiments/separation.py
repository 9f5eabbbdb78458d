"""What TokenGT with each kind of identifiers separates, beside the Weisfeiler-Leman tests, on pairs that are hard.

Every pair of graphs is tested against each other ("pair") and the first against itself relabelled ("relabelled"), the
null: its share of separated pairs must stay at the level. Models are random ones, see
:mod:`tokengt.theory.separation`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch

from tokengt.data.expressiveness import BrecCategory, brec_pairs, strongly_regular_25
from tokengt.data.public import public_data
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
from tokengt.theory.graphs import GraphPair, named_pairs, relabelled
from tokengt.theory.separation import SeparationConfig, check_test, compare_samples, random_model, sample_outputs
from tokengt.theory.wl import separated_by_wl

SPLITS = ("pair", "relabelled")
# The rows of the table. Identifiers are made as wide as the graphs have nodes, so that they can be orthonormal.
SYSTEMS: dict[str, SeparationConfig] = {
    "none": SeparationConfig(kind="none"),
    "none, SEB": SeparationConfig(kind="none", sparse_basis_residual=True),
    "orf_first_order": SeparationConfig(kind="orf_first_order"),
    "random": SeparationConfig(kind="random"),
    "near_orthonormal": SeparationConfig(kind="near_orthonormal"),
    "orf": SeparationConfig(kind="orf"),
    "laplacian": SeparationConfig(kind="laplacian"),
    "orf, random attention": SeparationConfig(kind="orf", attention="random"),
    "laplacian, random attention": SeparationConfig(kind="laplacian", attention="random"),
}


@dataclass(frozen=True)
class SeparationTable:
    """What is measured.

    Args:
        systems: names in :data:`SYSTEMS`.
        wl: dimensions k of the k-WL tests beside them.
        brec: categories of BREC, as many pairs each as ``brec_pairs`` says, evenly spaced; () needs no data.
        brec_pairs: see ``brec``.
        sr25_pairs: neighbours in the list of the 15 strongly regular graphs of 25 nodes; 0 needs no data.
        seeds: of the models' weights, one run each.
        draws: samples of each graph for the fit, and as many for the test.
        level: of the test.
    """

    systems: tuple[str, ...] = tuple(SYSTEMS)
    wl: tuple[int, ...] = (2, 3, 4)
    brec: tuple[BrecCategory, ...] = ("basic", "regular", "extension")
    brec_pairs: int = 3
    sr25_pairs: int = 1
    seeds: tuple[int, ...] = (0, 1, 2)
    draws: int = 256
    level: float = 0.01

    def __post_init__(self) -> None:
        for system in self.systems:
            if system not in SYSTEMS:
                raise ValueError(f"system is {system!r}; expected one of {', '.join(SYSTEMS)}")
        check_test(2 * self.draws, self.level)


def run_separation(
    config: SeparationTable, out: Path, device: torch.device | str = "cpu", progress: Say | None = None
) -> list[TableRow]:
    """Measure what is not measured yet; then write ``out``/table.json and table.md."""
    say, place, commit = progress or silent, torch.device(device), source_commit()
    cells: list[dict[str, Any]] = []
    for dataset, pairs in choose_pairs(config).items():
        for k in config.wl:
            cells += [_wl_cell(dataset, pair, k, commit) for pair in pairs]
        for system, pair, seed in product(config.systems, pairs, config.seeds):
            settings = {"model": asdict(SYSTEMS[system]), "draws": config.draws, "level": config.level}

            def run(system: str = system, pair: GraphPair = pair, seed: int = seed) -> dict[str, Any]:
                return {**measure(SYSTEMS[system], pair, seed, config, place), "commit": commit}

            file = out / "cells" / f"{_slug(system)}-{_slug(pair.name)}-{seed}.json"
            cell = kept_cell(file, settings, run)
            cells.append({"dataset": dataset, "system": system, "seed": seed, **cell})
            say(f"{pair.name}, {system}, seed {seed}: p {cell['pair']:.3f}, relabelled {cell['relabelled']:.3f}")
    rows = table_rows(cells, config.level)
    write_rows(out / "table.json", rows)
    write_whole(out / "table.md", table_markdown(cells, config.level).encode())
    return rows


def measure(
    model: SeparationConfig, pair: GraphPair, seed: int, config: SeparationTable, device: torch.device
) -> dict[str, Any]:
    """p-values of a pair, and of its first graph against itself relabelled, with one random model."""
    generator = torch.Generator().manual_seed(seed)
    sized = SeparationConfig(**{**asdict(model), "id_dim": pair.first.num_nodes})
    network = random_model(sized, seed).to(device)
    graphs = [pair.first, pair.second, *relabelled(pair.first, 1, generator)]
    first, second, again = (sample_outputs(network, graph, 2 * config.draws, generator) for graph in graphs)
    return {
        "pair": compare_samples(first, second, generator, level=config.level).p_value,
        "relabelled": compare_samples(first, again, generator, level=config.level).p_value,
        "device": device_name(device),
    }


def choose_pairs(config: SeparationTable) -> dict[str, list[GraphPair]]:
    """Pairs by data set: each named pair is one of its own, each BREC category one."""
    chosen = {pair.name: [pair] for pair in named_pairs()}
    for category in config.brec:
        pairs = brec_pairs(public_data("expressiveness"), category)
        places = torch.linspace(0, len(pairs) - 1, min(config.brec_pairs, len(pairs))).round().int().tolist()
        name = f"BREC {category}, {len(places)} pairs"
        chosen[name] = [GraphPair(f"BREC {category} {place}", *pairs[place]) for place in places]
    if config.sr25_pairs:
        graphs = strongly_regular_25(public_data("expressiveness"))
        pairs = list(pairwise(graphs))[: config.sr25_pairs]
        chosen[f"SR25, {len(pairs)} pair{'s' if len(pairs) > 1 else ''}"] = [
            GraphPair(f"SR25 {place}", *pair) for place, pair in enumerate(pairs)
        ]
    return chosen


def _wl_cell(dataset: str, pair: GraphPair, k: int, commit: str | None) -> dict[str, Any]:
    """A test without chance: p is 0 or 1."""
    again = relabelled(pair.first, 1, torch.Generator().manual_seed(0))[0]
    p_values = [float(not separated_by_wl(pair.first, other, k)) for other in (pair.second, again)]
    measured = dict(zip(SPLITS, p_values, strict=True))
    return {"dataset": dataset, "system": f"{k}-WL", "seed": 0, **measured, "device": "cpu", "commit": commit}


def table_rows(cells: Sequence[dict[str, Any]], level: float) -> list[TableRow]:
    """The share of pairs separated, averaged over models, for pairs and for the null."""
    rows = []
    for dataset, system in dict.fromkeys((cell["dataset"], cell["system"]) for cell in cells):
        mine = [cell for cell in cells if (cell["dataset"], cell["system"]) == (dataset, system)]
        seeds = sorted({cell["seed"] for cell in mine})
        for split in SPLITS:
            by_seed = [[cell[split] <= level for cell in mine if cell["seed"] == seed] for seed in seeds]
            mean, std = mean_and_std([sum(separated) / len(separated) for separated in by_seed])
            rows.append(
                TableRow(
                    experiment="separation",
                    system=system,
                    dataset=dataset,
                    split=split,
                    metric="separated",
                    mean=mean,
                    std=std,
                    runs=len(seeds),
                    parameters=None,
                    graphs_per_s=None,
                    device=distinct([cell["device"] for cell in mine]) or "",
                    commit=distinct([cell["commit"] for cell in mine]),
                    paper=None,
                )
            )
    return rows


def table_markdown(cells: Sequence[dict[str, Any]], level: float) -> str:
    """Percent separated, one line per system; the last column counts the null, over all pairs and models."""
    systems, datasets = (list(dict.fromkeys(cell[name] for cell in cells)) for name in ("system", "dataset"))
    lines = []
    for system in systems:
        mine = [cell for cell in cells if cell["system"] == system]
        shares = [[cell["pair"] <= level for cell in mine if cell["dataset"] == dataset] for dataset in datasets]
        wrong = sum(cell["relabelled"] <= level for cell in mine)
        percent = [f"{100 * sum(share) / len(share):.0f}" for share in shares]
        lines.append([system, *percent, f"{wrong} of {len(mine)}"])
    return markdown(["separated, %", *datasets, "same graph relabelled"], lines)


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name)
