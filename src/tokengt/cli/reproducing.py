"""reproduce: the experiments, each restartable."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokengt.cli.settings import named_values


def add_verbs(verbs: Any) -> None:
    _add_reproduce(verbs)


def _add_reproduce(verbs: Any) -> None:
    verb = verbs.add_parser("reproduce", help="run an experiment of the paper")
    experiments = verb.add_subparsers(title="experiments", metavar="EXPERIMENT", required=True)
    basis = experiments.add_parser(
        "basis",
        help="Table 1: attention heads learn the second-order equivariant basis",
        description="Train one attention layer to show the 15 basis tensors, for ten settings of identifiers, dense "
        "and sparse input. The same command goes on where a stopped one was. Writes table.json, table.md, "
        "statistics.json and the attention maps. About 30 s per cell on an H200, 60 cells in all.",
    )
    basis.add_argument("--input", choices=("dense", "sparse"), help="default: both")
    basis.add_argument("--ids", nargs="+", metavar="KIND", help="none, random, orf, laplacian, ... (default: all)")
    basis.add_argument(
        "--type", action=argparse.BooleanOptionalAction, default=None, help="with or without type identifiers"
    )
    basis.add_argument("--seeds", type=int, default=3, metavar="N", help="runs per cell (default: 3)")
    _options(basis, "basis", "width=128, steps=200, warmup=60, dense_batch=32, ...")
    basis.set_defaults(run=_basis)
    separation = experiments.add_parser(
        "separation",
        help="which graphs TokenGT tells apart with each kind of identifiers, beside k-WL",
        description="Random models on pairs of graphs that are hard to tell apart, with the same graph relabelled as "
        "the null. The pairs of BREC and SR25 need TOKENGT_DATA; --set brec= --set sr25_pairs=0 leaves them out.",
    )
    _options(separation, "separation", "draws=64, brec=, brec_pairs=10, ...")
    separation.set_defaults(run=_separation)
    hypergraphs = experiments.add_parser(
        "hypergraphs",
        help="node classification with order-3 and pooled tokens, beside an MLP and a GCN",
        description="Needs TOKENGT_DATA, whose folder hypergraphs holds the data sets.",
    )
    _options(hypergraphs, "hypergraphs", "datasets=cocitation_cora, epochs=50, ...")
    hypergraphs.set_defaults(run=_hypergraphs)
    _add_molecules(experiments)
    _add_nodes(experiments)
    _add_asymptotics(experiments)
    capacity = experiments.add_parser(
        "capacity",
        help="how many nodes near-orthonormal identifiers of so many dimensions hold before basis maps fail",
        description="Random signs in the heads of Lemma 1, on random sparse graphs. Writes table.json, table.md and "
        "capacity.png; some minutes on a CPU.",
    )
    _options(capacity, "capacity", "dims=16,32, sizes=100,1000, queries=64, ...")
    capacity.set_defaults(run=_capacity)
    _add_faithfulness(experiments)
    distance = experiments.add_parser(
        "attention-distance",
        help="the hops between tokens that attend to each other, by layer and head of trained runs",
        description="Measure runs side by side, over the graphs they were validated on and those they were trained on. "
        "The same command goes on where a stopped one was. Writes distance.json, table.md and distance.png.",
    )
    distance.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="trained TokenGT runs with softmax maps")
    distance.add_argument("--part", choices=("valid", "train"), help="default: both")
    distance.add_argument(
        "--data", type=Path, metavar="STORE", help="the store they were trained with (default: RUN/store)"
    )
    _place_options(distance, "attention-distance")
    distance.set_defaults(run=_attention_distance)


def _add_molecules(experiments: Any) -> None:
    molecules = experiments.add_parser(
        "molecules",
        help="Table 2: TokenGT in its four forms beside its rivals, trained in the same time on one data set",
        description="Train every system for the same minutes: each of its recipes, such as learning rates, for a share "
        "of them, and the best on the validation part for the rest. Further seeds repeat the recipe and the epochs of "
        "the first one. The same command goes on where a stopped one was, and more systems and seeds can be added "
        "later, for seeds also where only found.json is left. Writes table.json, and in DIR/DATASET table.md, "
        "curves.png, found.json and a run folder for every training.",
    )
    molecules.add_argument("--dataset", required=True, metavar="NAME", help="qm9, zinc12k, pcqm4mv2 or peptides-func")
    chosen = molecules.add_mutually_exclusive_group()
    chosen.add_argument(
        "--systems", nargs="+", metavar="NAME", help="such as gin-vn tokengt-lap, or any preset (default: Table 2, GPS)"
    )
    chosen.add_argument(
        "--ablation", action="store_true", help="TokenGT (Lap) with and without sign flips and eigenvector dropout"
    )
    molecules.add_argument(
        "--seeds",
        type=int,
        default=1,
        metavar="N",
        help="trainings of each system; those after the first have its recipe and its epochs (default: 1)",
    )
    molecules.add_argument(
        "--minutes",
        type=float,
        default=10.0,
        metavar="M",
        help="of training for each system by the clock, in its first seed (default: 10)",
    )
    molecules.add_argument(
        "--screen", type=float, default=0.1, metavar="S", help="share of them for screening a recipe (default: 0.1)"
    )
    molecules.add_argument("--at-once", type=int, default=1, metavar="K", help="trainings side by side (default: 1)")
    molecules.add_argument(
        "--data", metavar="STORE", help="made by tokengt prepare NAME, for a machine without RDKit or the files"
    )
    _options(molecules, "molecules", "training.batch_size=128, gin:model.dim=64, ...")
    molecules.set_defaults(run=_molecules)


def _add_nodes(experiments: Any) -> None:
    nodes = experiments.add_parser(
        "nodes",
        help="the last table: nodes of one large graph, TokenGT in its forms beside message passing and Graphormer",
        description="Train every system on every graph as the paper's appendix has it: Adam, 1e-3, 300 epochs on the "
        "whole graph, test at the best validation epoch, 7 runs. The same command goes on where a stopped one was, and "
        "more graphs, systems and runs can be added later. Writes table.json, table.md, found.json and a file for each "
        "training. Graphs are looked for under TOKENGT_DATA, else downloaded.",
    )
    nodes.add_argument(
        "--datasets", nargs="+", metavar="NAME", help="coauthor-cs ..., paper or heterophilous (default: paper)"
    )
    nodes.add_argument("--systems", nargs="+", metavar="NAME", help="such as gat tokengt-lap-seb (default: all)")
    nodes.add_argument("--runs", type=int, default=7, metavar="N", help="trainings of each (default: 7)")
    nodes.add_argument(
        "--search", choices=("none", "small"), default="small", help="small: a few models of each (default)"
    )
    nodes.add_argument("--at-once", type=int, default=1, metavar="K", help="systems side by side (default: 1)")
    nodes.add_argument(
        "--memory", type=float, default=0.0, metavar="GIB", help="of a training (default: what the device has)"
    )
    nodes.add_argument("--table", action="store_true", help="train nothing: write the table of what is there")
    _options(nodes, "nodes", "epochs=50, width=32, learning_rate=3e-3, ...")
    nodes.set_defaults(run=_nodes)


def _add_asymptotics(experiments: Any) -> None:
    asymptotics = experiments.add_parser(
        "asymptotics",
        help="time and memory of a training step of every system as graphs grow",
        description="Random molecules of 16 to 1,024 nodes, as many nodes in every step; a system that runs out of "
        "memory ends there. The same command goes on where a stopped one was. Writes asymptotics.json, table.json, "
        "table.md and asymptotics.png.",
    )
    asymptotics.add_argument("--systems", nargs="+", metavar="NAME", help="as reproduce molecules takes them")
    _options(asymptotics, "asymptotics", "sizes=16,32,64, nodes=2048, steps=3, ...")
    asymptotics.set_defaults(run=_asymptotics)


def _add_faithfulness(experiments: Any) -> None:
    faithfulness = experiments.add_parser(
        "faithfulness",
        help="do attributions find the atoms that matter? three tasks whose answer is known",
        description="Train a small model on made-up molecules whose label comes from a group, from a pair at a "
        "distance or from a ring, and measure how well each way to explain it finds these atoms, beside chance. The "
        "same command goes on where a stopped one was. Writes table.json, table.md and faithfulness.png; some minutes "
        "per task and seed on one core.",
    )
    faithfulness.add_argument("--out", type=Path, default=Path("results/faithfulness"), metavar="DIR")
    faithfulness.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="tasks=group, seeds=0, epochs=10, ..."
    )
    faithfulness.set_defaults(run=_faithfulness)


def _options(verb: argparse.ArgumentParser, name: str, examples: str) -> None:
    _place_options(verb, name)
    verb.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=examples)


def _place_options(verb: argparse.ArgumentParser, name: str) -> None:
    verb.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    out = Path("results") / name
    verb.add_argument("--out", type=Path, default=out, metavar="DIR", help=f"default: {out}")


def _say(line: str) -> None:
    print(line, flush=True)


def _device(options: argparse.Namespace) -> str:
    from tokengt.training.processes import DeviceConfig

    return DeviceConfig(options.device).resolved


def _basis(options: argparse.Namespace) -> int:
    from tokengt.config import override
    from tokengt.experiments.basis import INPUTS, BasisConfig, run_basis, select_settings

    config = override(BasisConfig(), named_values(options.set), "basis")
    if options.seeds < 1:
        raise ValueError(f"seeds is {options.seeds}; expected at least 1")
    run_basis(
        select_settings(options.ids, options.type),
        INPUTS if options.input is None else (options.input,),
        range(options.seeds),
        out=options.out,
        device=_device(options),
        config=config,
        progress=_say,
    )
    _print_table(options.out)
    print(f"open {', '.join(str(picture) for picture in sorted(options.out.glob('maps-*.png')))}")
    return 0


def _separation(options: argparse.Namespace) -> int:
    from tokengt.config import override
    from tokengt.experiments.separation import SeparationTable, run_separation

    config = override(SeparationTable(), named_values(options.set), "separation")
    run_separation(config, options.out, _device(options), _say)
    return _print_table(options.out)


def _hypergraphs(options: argparse.Namespace) -> int:
    from tokengt.config import override
    from tokengt.experiments.hypergraph_systems import HypergraphConfig
    from tokengt.experiments.hypergraphs import run_hypergraphs

    config = override(HypergraphConfig(), named_values(options.set), "hypergraphs")
    run_hypergraphs(config, options.out, _device(options), _say)
    return _print_table(options.out)


def _molecules(options: argparse.Namespace) -> int:
    from tokengt.experiments.molecules.plan import MoleculesConfig
    from tokengt.experiments.molecules.report import PICTURE, TABLE
    from tokengt.experiments.molecules.run import run_molecules
    from tokengt.experiments.molecules.systems import ABLATION
    from tokengt.experiments.molecules.systems import TABLE as ALL

    config = MoleculesConfig(
        dataset=options.dataset,
        systems=ABLATION if options.ablation else tuple(options.systems or ALL),
        seeds=options.seeds,
        minutes=options.minutes,
        screen=options.screen,
        at_once=options.at_once,
        data=options.data,
        device=options.device,
        settings=named_values(options.set),
    )
    run_molecules(config, options.out, _say)
    home = options.out / config.dataset
    print((home / TABLE).read_text(encoding="utf-8"))
    print(f"open {home / PICTURE}")
    return 0


def _nodes(options: argparse.Namespace) -> int:
    from tokengt.config import override
    from tokengt.experiments.nodes.plan import NodesConfig
    from tokengt.experiments.nodes.run import run_nodes

    config = NodesConfig()
    config = replace(
        config,
        datasets=tuple(options.datasets or config.datasets),
        systems=tuple(options.systems or config.systems),
        runs=options.runs,
        search=options.search,
        at_once=options.at_once,
        memory=options.memory,
        device=options.device,
    )
    config = override(config, named_values(options.set), "nodes")
    run_nodes(config, options.out, _say, train=not options.table)
    return _print_table(options.out)


def _capacity(options: argparse.Namespace) -> int:
    from tokengt.config import override
    from tokengt.experiments.capacity import CapacityConfig, run_capacity

    config = override(CapacityConfig(), named_values(options.set), "capacity")
    run_capacity(config, options.out, _device(options), _say)
    _print_table(options.out)
    print(f"open {options.out / 'capacity.png'}")
    return 0


def _asymptotics(options: argparse.Namespace) -> int:
    from tokengt.config import override
    from tokengt.experiments.asymptotics import AsymptoticsConfig, run_asymptotics

    config = AsymptoticsConfig()
    if options.systems is not None:
        config = replace(config, systems=tuple(options.systems))
    config = override(config, named_values(options.set), "asymptotics")
    run_asymptotics(config, options.out, _device(options), _say)
    _print_table(options.out)
    print(f"open {options.out / 'asymptotics.png'}")
    return 0


def _faithfulness(options: argparse.Namespace) -> int:
    from tokengt.config import override
    from tokengt.experiments.faithfulness.run import PICTURE, FaithfulnessConfig, run_faithfulness

    config = override(FaithfulnessConfig(), named_values(options.set), "faithfulness")
    run_faithfulness(config, options.out, _say)
    _print_table(options.out)
    print(f"open {options.out / PICTURE}")
    return 0


def _attention_distance(options: argparse.Namespace) -> int:
    from tokengt.experiments.attention_distance import PARTS, run_attention_distance

    parts = PARTS if options.part is None else (options.part,)
    run_attention_distance(options.runs, options.out, parts, _device(options), options.data, _say)
    _print_table(options.out)
    print(f"open {options.out / 'distance.png'}")
    return 0


def _print_table(out: Path) -> int:
    print((out / "table.md").read_text(encoding="utf-8"))
    return 0
