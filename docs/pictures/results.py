"""The pictures of docs/results.md, drawn from what the experiments and benchmarks wrote.

``make pictures`` runs it and writes docs/images/*.png.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tokengt.experiments.asymptotics_picture import SIZE, draw_costs
from tokengt.experiments.capacity_picture import draw_capacity
from tokengt.experiments.faithfulness import picture as faithfulness_picture
from tokengt.experiments.molecules.datasets import BENCHMARKS
from tokengt.experiments.molecules.picture import SIZE as LEARNING
from tokengt.experiments.molecules.picture import draw_learning
from tokengt.experiments.tables import TableRow

ROOT = Path(__file__).parents[2]
CAPACITY = ROOT / "results" / "capacity" / "cells"
IMAGES = ROOT / "docs" / "images"
BLUE, ORANGE, GREY, GREEN, PURPLE = "#4c78a8", "#f58518", "#a8a8a8", "#54a24b", "#b279a2"
RED = "#b03060"
Row = Mapping[str, Any]


def rows_of(path: str, **wanted: Any) -> list[Row]:
    """The rows of a JSON table, in the order of the file, that have these values."""
    content = json.loads((ROOT / path).read_text())
    rows = content if isinstance(content, list) else content["rows"]
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def row_of(path: str, **wanted: Any) -> Row:
    (row,) = rows_of(path, **wanted)
    return row


def grouped_bars(
    axis: Axes,
    groups: Sequence[str],
    series: Mapping[str, Sequence[float]],
    colours: Sequence[str],
    deviations: Mapping[str, Sequence[float]] | None = None,
) -> None:
    """One group of bars per name in ``groups``, one bar of a group per entry of ``series``."""
    width = 0.8 / len(series)
    for place, ((name, heights), colour) in enumerate(zip(series.items(), colours, strict=True)):
        left = [group - 0.4 + (place + 0.5) * width for group in range(len(groups))]
        spread = deviations[name] if deviations else None
        axis.bar(left, heights, width * 0.94, yerr=spread, capsize=3, label=name, color=colour)
    axis.set_xticks(range(len(groups)), groups)
    axis.grid(axis="y", alpha=0.3)
    axis.set_axisbelow(True)


def write_heights(axis: Axes, form: Callable[[float], str]) -> None:
    """The number above every bar."""
    for container in axis.containers:
        if isinstance(container, matplotlib.container.BarContainer):
            axis.bar_label(container, labels=[form(bar.get_height()) for bar in container], size=8, padding=2)


def moleculenet() -> Figure:
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    titles = {
        "rmse": "RMSE in units of the labels; lower is better",
        "roc_auc": "ROC-AUC; higher is better, 0.5 is guessing",
    }
    for axis, (metric, title) in zip(axes, titles.items(), strict=True):
        rows = rows_of("results/moleculenet/table.json", metric=metric)
        sets = list(dict.fromkeys((row["dataset"], row["split"]) for row in rows))
        systems = list(dict.fromkeys(row["system"] for row in rows))
        by_name = {(row["system"], row["dataset"]): row for row in rows}
        means, stds = (
            {system: [by_name[system, data][key] for data, _ in sets] for system in systems} for key in ("mean", "std")
        )
        grouped_bars(axis, [f"{data}, {split} split" for data, split in sets], means, (BLUE, ORANGE, GREY), stds)
        axis.set_ylabel(title)
    axes[1].set_ylim(0.5, 0.9)
    axes[0].legend()
    figure.suptitle("MoleculeNet with defaults, test part, mean and standard deviation of three seeds")
    return figure


BASIS = {
    "none": "no identifiers, no types",
    "none-type": "no identifiers",
    "random-first-order-type": "Random, first order",
    "orf-first-order-type": "ORF, first order",
    "random": "Random, no types",
    "orf": "ORF, no types",
    "laplacian": "Laplacian, no types",
    "random-type": "Random",
    "orf-type": "ORF",
    "laplacian-type": "Laplacian",
}


def basis() -> Figure:
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.8), layout="constrained", sharey=True)
    for axis, kind in zip(axes, ("dense", "sparse"), strict=True):
        dataset = f"barabasi-albert-{kind}"
        rows = [row_of("results/basis/table.json", system=name, dataset=dataset, split="test") for name in BASIS]
        for shift, key, label, colour in ((-0.2, "mean", "here", BLUE), (0.2, "paper", "paper", ORANGE)):
            places = [place + shift for place in range(len(rows))]
            axis.barh(places, [row[key] for row in rows], 0.38, label=label, color=colour)
        axis.set_xscale("log")
        axis.set_yticks(range(len(rows)), list(BASIS.values()))
        axis.set_xlabel("squared error per head, log scale; lower is better")
        axis.set_title(f"{kind} input")
        axis.grid(axis="x", alpha=0.3)
        axis.set_axisbelow(True)
    axes[0].invert_yaxis()
    axes[1].legend()
    figure.suptitle("Table 1 of the paper: errors on new graphs, three runs each")
    return figure


def hypergraphs() -> Figure:
    table = "results/hypergraphs/table.json"
    sets = {
        "cocitation_cora": "Cora, co-citation",
        "cocitation_citeseer": "Citeseer, co-citation",
        "coauthorship_cora": "Cora, co-authorship",
    }
    systems = {
        "majority": "majority",
        "mlp": "MLP on features",
        "clique_gcn": "GCN on cliques",
        "tokengt_pooled": "TokenGT, pooled",
        "tokengt_order_3": "TokenGT, order 3",
    }
    means, stds = (
        {
            label: [100 * row_of(table, system=system, dataset=data)[key] for data in sets]
            for system, label in systems.items()
        }
        for key in ("mean", "std")
    )
    figure, axis = plt.subplots(figsize=(9, 4.2), layout="constrained")
    grouped_bars(axis, list(sets.values()), means, (GREY, GREEN, PURPLE, BLUE, ORANGE), stds)
    axis.set_ylabel("test accuracy, percent; higher is better")
    figure.legend(ncols=5, loc="outside lower center", fontsize=8.5)
    axis.set_title("Node classification on hypergraphs, mean and standard deviation of three splits")
    return figure


def nodes() -> Figure:
    """The paper's last table: ours as points with their deviations, the paper's means as hollow diamonds."""
    table = "results/nodes/table.json"
    labels = {"coauthor-cs": "CS", "coauthor-physics": "Physics", "amazon-photo": "Photo"}
    labels |= {"amazon-computers": "Computers", "chameleon": "Chameleon", "crocodile": "Crocodile"}
    systems = list(dict.fromkeys(row["system"] for row in rows_of(table)))
    figure, axis = plt.subplots(figsize=(10, 4.6), layout="constrained")
    colours = (GREY, PURPLE, GREEN, BLUE, ORANGE, RED)
    for place, (system, colour) in enumerate(zip(systems, colours, strict=True)):
        rows = [row for row in rows_of(table) if row["system"] == system]
        across = [list(labels).index(row["dataset"]) + 0.14 * (place - (len(systems) - 1) / 2) for row in rows]
        axis.errorbar(
            across,
            [row["mean"] for row in rows],
            [row["std"] for row in rows],
            fmt="o",
            capsize=3,
            color=colour,
            label=system,
        )
        paper = "the paper's means" if place == 0 else None
        style = {"marker": "D", "facecolors": "none", "edgecolors": colour if place else GREY}
        there = [(at + 0.05, row["paper"]) for at, row in zip(across, rows, strict=True) if row["paper"] is not None]
        if there:
            axis.scatter(*zip(*there, strict=True), s=22, label=paper, **style)
    axis.set_xticks(range(len(labels)), labels.values())
    axis.grid(axis="y", alpha=0.3)
    axis.set_ylabel("test accuracy; higher is better")
    figure.legend(ncols=3, loc="outside lower center", fontsize=8.5)
    axis.set_title("Nodes of one graph, mean and standard deviation of seven splits")
    return figure


def separation() -> Figure:
    """How often each test or model tells the two graphs of a pair apart, in percent of its runs."""
    rows = rows_of("results/separation/table.json", metric="separated", split="pair")
    pairs, systems = (list(dict.fromkeys(row[key] for row in rows)) for key in ("dataset", "system"))
    share = {(row["system"], row["dataset"]): row["mean"] for row in rows}
    values = [[100 * share[system, pair] for pair in pairs] for system in systems]
    figure, axis = plt.subplots(figsize=(10, 6), layout="constrained")
    axis.imshow(values, cmap="Blues", vmin=0, vmax=150, aspect="auto")
    for y, line in enumerate(values):
        for x, value in enumerate(line):
            axis.text(x, y, f"{value:.0f}", ha="center", va="center", size=9)
    axis.set_xticks(range(len(pairs)), pairs, rotation=30, ha="right")
    labels = [name if name.endswith("WL") else f"TokenGT, {name.replace('SEB', 'sparse basis')}" for name in systems]
    axis.set_yticks(range(len(systems)), labels)
    axis.set_title(
        "Pairs of graphs told apart, in percent; TokenGT has random weights and the identifiers named", size=11
    )
    return figure


PHASES = (("train", "directed"), ("train", "undirected"), ("infer", "directed"), ("infer", "undirected"))


def speed() -> Figure:
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    tables = {
        "12 layers x 768 on one H200, batches of 1,024": "bench-pcqm4mv2-cuda.json",
        "4 layers x 96 on two CPU cores, batches of 256": "bench-pcqm4mv2-cpu.json",
    }
    words = {
        "train": "training",
        "infer": "inference",
        "directed": "two tokens\nper bond",
        "undirected": "one token\nper bond",
    }
    for axis, (title, table) in zip(axes, tables.items(), strict=True):
        path = f"benchmarks/results/{table}"
        chosen = {
            system: [
                row_of(path, system=system, phase=phase, layout=layout, ids="laplacian") for phase, layout in PHASES
            ]
            for system in ("tokengt", "padded")
        }
        heights = {
            "tokengt, packed": [row["graphs_per_s"] for row in chosen["tokengt"]],
            "the same weights, padded": [row["graphs_per_s"] for row in chosen["padded"]],
        }
        grouped_bars(axis, [f"{words[phase]},\n{words[layout]}" for phase, layout in PHASES], heights, (BLUE, GREY))
        for place, row in enumerate(chosen["tokengt"]):
            axis.text(place - 0.2, row["graphs_per_s"], f"{row['ratio_to_padded']:.1f}x", ha="center", va="bottom")
        axis.tick_params(axis="x", labelsize=8)
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axis.set_ylabel("molecules per second; higher is better")
        axis.set_title(title, size=11)
        axis.margins(y=0.1)
    axes[0].legend(loc="upper left")
    figure.suptitle("Training and inference on molecules like those of PCQM4Mv2, and how many times faster than padded")
    return figure


def step() -> Figure:
    figure, axis = plt.subplots(figsize=(9, 3.2), layout="constrained")
    layouts = {"directed": "two tokens per bond", "undirected": "one token per bond"}
    path = "benchmarks/results/bench-pcqm4mv2-cuda.json"
    found = [
        row_of(path, system="tokengt", phase="train", layout=layout, ids="laplacian")["breakdown"] for layout in layouts
    ]
    colours = (BLUE, ORANGE, GREEN, PURPLE, "#9d755d", "#eeca3b", GREY)
    left = [0.0] * len(found)
    for kind, colour in zip(found[0], colours, strict=True):
        took = [parts[kind] for parts in found]
        if any(took):
            axis.barh(list(layouts.values()), took, left=left, label=kind, color=colour)
        left = [before + more for before, more in zip(left, took, strict=True)]
    for place, total in enumerate(left):
        axis.text(total + 0.3, place, f"{total:.1f} ms", va="center")
    axis.invert_yaxis()
    axis.set_xlim(0, max(left) * 1.12)
    axis.set_xlabel("milliseconds")
    figure.legend(ncols=6, loc="outside lower center", fontsize=8.5)
    axis.set_title("Where a training step's time goes: 12 layers x 768, 1,024 molecules, one H200")
    return figure


def favor() -> Figure:
    systems = {"unfused": "as the equation\nis written", "chunked": "in chunks", "kernels": "our kernels"}
    rows = [
        row_of(
            "benchmarks/results/favor-h200.json",
            system=system,
            shape="physics, 530000 tokens in 1, 4 x 64",
            dtype="bf16 autocast",
            commit="1842fb4",
        )
        for system in systems
    ]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axis, key, unit in ((axes[0], "milliseconds", "milliseconds"), (axes[1], "memory_gib", "GiB")):
        axis.bar(list(systems.values()), [row[key] for row in rows], color=(GREY, ORANGE, BLUE))
        axis.set_ylabel(f"{unit}; lower is better")
        axis.margins(y=0.12)
        axis.grid(axis="y", alpha=0.3)
        axis.set_axisbelow(True)
        write_heights(axis, lambda value: f"{value:.1f}")
    axes[0].set_title("time")
    axes[1].set_title("memory at its fullest")
    figure.suptitle("FAVOR+ over 530,000 tokens, 4 heads of 64 in bf16, forward and backward, one H200")
    return figure


def qm9() -> Figure:
    figure = plt.figure(figsize=LEARNING, layout="constrained")
    found = json.loads((ROOT / "results" / "molecules" / "qm9" / "found.json").read_text())
    draw_learning(figure, found, BENCHMARKS["qm9"])
    return figure


def asymptotics() -> Figure:
    figure = plt.figure(figsize=SIZE, layout="constrained")
    draw_costs(figure, rows_of("results/asymptotics/asymptotics.json"))
    return figure


def capacity() -> Figure:
    figure = plt.figure(figsize=(7.6, 4.2), layout="constrained")
    cells = {tuple(map(int, file.stem.split("-"))): json.loads(file.read_text()) for file in CAPACITY.glob("*.json")}
    found = [{"dim": dim, "nodes": nodes, **cell["found"]} for (dim, nodes), cell in sorted(cells.items())]
    (edges,) = {cell["settings"]["edges"] for cell in cells.values()}
    draw_capacity(figure, found, edges)
    return figure


def faithfulness() -> Figure:
    figure = plt.figure(figsize=faithfulness_picture.SIZE, layout="constrained")
    rows = [TableRow(**row) for row in rows_of("results/faithfulness/table.json")]
    faithfulness_picture.draw_faithfulness(figure, rows)
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    each.__name__: each
    for each in (
        moleculenet,
        basis,
        qm9,
        asymptotics,
        capacity,
        hypergraphs,
        nodes,
        separation,
        faithfulness,
        speed,
        step,
        favor,
    )
}


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    for name, draw in FIGURES.items():
        draw().savefig(IMAGES / f"{name}.png", dpi=110)
        print(IMAGES / f"{name}.png")
