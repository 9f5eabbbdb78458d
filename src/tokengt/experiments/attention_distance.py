"""The paper's two figures of attention distance: hops by layer and head, over the validation and the training part.

The data and the split are those that the runs were trained with. Graphs go through in batches, of which only sums are
kept, so that a training part of millions takes no more memory than one of hundreds.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tokengt.data.batching import evaluation_batches, tokens_at_once
from tokengt.data.progress import progress_bar
from tokengt.experiments.cells import Say, kept_cell, silent
from tokengt.experiments.distance_picture import plot_distances
from tokengt.experiments.tables import device_name, markdown, write_json
from tokengt.explain.distance import graph_distances
from tokengt.explain.walking import with_maps
from tokengt.files import file_checksum, write_whole
from tokengt.inference import Trained, load
from tokengt.models.pretrained import WEIGHTS
from tokengt.models.tokengt.model import TokenGT
from tokengt.training.spec import RunSpec, read_members
from tokengt.workflow.run_data import Part, RunData

PARTS: tuple[Part, ...] = ("valid", "train")


@dataclass(frozen=True, eq=False)
class MeasuredRun:
    """A trained run (of several models: the first) with its data; ``name`` is what tables and pictures call it."""

    name: str
    spec: RunSpec
    trained: Trained
    model: TokenGT
    data: RunData
    weights: str

    @classmethod
    def open(cls, folder: Path, name: str, device: torch.device, data: Path | None = None) -> "MeasuredRun":
        """``data``: the store that it was trained with, where that does not lie in its folder.

        Raises:
            ValueError: one sentence: there is no such run, it has no attention maps, or the data is another.
        """
        home, spec = read_members(folder)[1][0]
        trained = load(folder, "cuda" if device.type == "cuda" else "cpu").members[0]
        opened, weights = RunData.open(folder, data), file_checksum(home / WEIGHTS)
        return cls(name, spec, trained, with_maps(trained.model), opened, weights)


def run_attention_distance(
    runs: Sequence[Path],
    out: Path,
    parts: Sequence[Part] = PARTS,
    device: torch.device | str = "cpu",
    data: Path | None = None,
    progress: Say | None = None,
) -> list[dict[str, Any]]:
    """Measure what is not measured yet; then write ``out``/distance.json, table.md and distance.png of all of it.

    Every run is opened before the first is measured, so that one that cannot be measured is named at once.
    """
    say, place = progress or silent, torch.device(device)
    opened = [MeasuredRun.open(run, name, place, data) for run, name in zip(runs, names(runs), strict=True)]
    cells = []
    for part in parts:
        for number, run in enumerate(opened):

            def measured(run: MeasuredRun = run, part: Part = part) -> dict[str, Any]:
                return measure(run, part, place, shown=progress is not None)

            made_with = {"weights": run.weights, "data": run.spec.store_sha256, "split": run.spec.split_sha256}
            file = out / "cells" / f"{number}-{run.name.replace('/', '-')}-{part}.json"
            cell = {"run": run.name, "part": part, **kept_cell(file, made_with, measured)}
            cells.append(cell)
            say(f"{run.name} {part}: {cell['graphs']:,} graphs in {cell['seconds']:.0f} s")
    write_json(out / "distance.json", cells)
    write_whole(out / "table.md", table_markdown(cells).encode())
    plot_distances(cells, out / "distance.png")
    return cells


def measure(run: MeasuredRun, part: Part, device: torch.device, shown: bool = False) -> dict[str, Any]:
    """The mean over the graphs of a part, ``hops[layer][head]``, and what it was taken over."""
    places, encoder = run.data.places(part), run.model.config.encoder
    if not len(places):
        raise ValueError(f"{run.name} has no graph in its {part} part; expected one at least")
    graphs = run.data.store.with_facts(run.model.config.facts(), progress=shown).graphs
    total = np.zeros((encoder.num_layers, encoder.num_heads))
    pairs = unreachable = 0
    began = time.perf_counter()
    batches = evaluation_batches(places, run.model.costs(graphs), tokens_at_once(device))
    with progress_bar(len(places), "graphs", f"{run.name} {part}", shown=shown) as advance:
        for chosen in batches:
            batch = graphs.select(chosen)
            if batch.graph_features is not None and run.trained.descriptors.mean:
                batch = batch.with_graph_features(run.trained.descriptors.scaled(batch.graph_features))
            found = graph_distances(run.model, batch.to(device))
            total += found.hops.sum(0)
            pairs, unreachable = pairs + found.pairs, unreachable + found.unreachable
            advance(len(chosen))
    return {
        "model": run.model.config.describe().summary,
        "identifiers": run.model.config.identifiers.kind,
        "graphs": len(places),
        "pairs": pairs,
        "unreachable_pairs": unreachable,
        "hops": (total / len(places)).tolist(),
        "seconds": time.perf_counter() - began,
        "device": device_name(device),
    }


def names(runs: Sequence[Path]) -> list[str]:
    """The last part of each path, or all of it where two are the same."""
    short = [run.name or str(run) for run in runs]
    if len(set(map(str, runs))) < len(runs):
        raise ValueError("the same run is named twice; expected each once")
    return [str(run) if short.count(name) > 1 else name for run, name in zip(runs, short, strict=True)]


def table_markdown(cells: Sequence[dict[str, Any]]) -> str:
    """One line per run, part and layer: the mean over heads, the nearest and the furthest head, and their deviation."""
    lines = []
    for cell in cells:
        for layer, heads in enumerate(np.array(cell["hops"]), 1):
            numbers = (heads.mean(), heads.min(), heads.max(), heads.std())
            lines.append([cell["run"], cell["part"], str(layer), *(f"{number:.3f}" for number in numbers)])
    header = ["run", "part", "layer", "mean over heads, hops", "nearest head", "furthest head", "deviation over heads"]
    return markdown(header, lines)
