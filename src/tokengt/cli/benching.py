"""bench."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from tokengt.cli.settings import named_values

if TYPE_CHECKING:
    from tokengt.bench import BenchConfig, BenchRow, RealConfig, RealRow

_RESULTS = Path("benchmarks") / "results"
# Options that make graphs or a model, and those of a command on real data: none of the one goes with the other.
_SYNTHETIC: Mapping[str, Any] = {
    "shape": ["pcqm4mv2"],
    "layout": "directed",
    "ids": "laplacian",
    "attention": "auto",
    "scale": 1.0,
    "layers": None,
    "dim": None,
    "heads": None,
    "dropout": None,
    "backend": "auto",
    "precision": "auto",
    "compile": False,
    "cuda_graphs": True,
}
_OF_COMMANDS: Mapping[str, Any] = {"epochs": None, "set": [], "smiles": None, "target": []}


def add_verbs(verbs: Any) -> None:
    verb = verbs.add_parser(
        "bench",
        help="time training and inference on this machine",
        description="Time the real training step and inference, data feed included, on synthetic graphs with the "
        "sizes of a data set, in turns with the same weights over padded batches. Prints graphs and tokens per second, "
        "the share of the measured matrix-product peak, memory, and where the time goes. With --real DATA, time the "
        "commands train and predict themselves on your data, from start to end and per epoch, beside the rate of the "
        f"bench for the same model. The rows are kept in {_RESULTS} (--out).",
    )
    verb.add_argument(
        "--shape",
        nargs="+",
        choices=("pcqm4mv2", "zinc", "peptides", "physics"),
        default=_SYNTHETIC["shape"],
        help="whose sizes the graphs have (default: pcqm4mv2); several are measured one after the other",
    )
    verb.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    verb.add_argument(
        "--phase",
        choices=("train", "infer", "both"),
        default="both",
        help="with --real: the commands train and predict",
    )
    verb.add_argument(
        "--layout", choices=("directed", "undirected"), default="directed", help="two tokens per bond, or one"
    )
    verb.add_argument("--ids", choices=("laplacian", "orf"), default="laplacian", help="node identifiers")
    verb.add_argument("--scale", type=float, default=1.0, metavar="S", help="physics: share of its nodes and edges")
    _real_options(verb.add_argument_group("real data"))
    _model_options(verb.add_argument_group("model"))
    clock = verb.add_argument_group("clock")
    clock.add_argument(
        "--batch",
        "--batch-size",
        type=int,
        default=0,
        metavar="N",
        help="graphs per step (default: by shape and device; with --real: that of tokengt train)",
    )
    clock.add_argument("--steps", type=int, default=0, metavar="N", help="per round (default: 20 on a GPU, 5 on a CPU)")
    clock.add_argument("--rounds", type=int, default=5, metavar="N", help="of each system, in turns (default: 5)")
    clock.add_argument("--seed", type=int, default=0, help="of graphs, weights and draws (default: 0)")
    verb.add_argument("--out", type=Path, default=_RESULTS, metavar="FOLDER", help=f"default: {_RESULTS}")
    verb.add_argument("--json", action="store_true", help="print the rows as one JSON list instead")
    verb.set_defaults(run=_bench)


def _real_options(real: Any) -> None:
    real.add_argument("--real", type=Path, metavar="DATA", help="a file or a store, as tokengt train takes it")
    real.add_argument("--epochs", type=int, metavar="N", help="of the training that is timed (default: 5)")
    real.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="as tokengt train takes it")
    real.add_argument("--smiles", metavar="COL", help="the column of SMILES (default: the one called smiles)")
    real.add_argument("--target", nargs="+", default=[], metavar="COL", help="the columns to learn")


def _model_options(model: Any) -> None:
    model.add_argument(
        "--preset",
        default="auto",
        help="small is 4 x 96, regression the paper's 12 x 768 (default: regression on a GPU, small on a CPU and for "
        "physics); with --real: any that tokengt presets lists (default: that of tokengt train)",
    )
    model.add_argument("--layers", type=int, metavar="N", help="instead of the preset's")
    model.add_argument("--dim", type=int, metavar="D", help="instead of the preset's")
    model.add_argument("--heads", type=int, metavar="H", help="instead of the preset's")
    model.add_argument("--dropout", type=float, metavar="P", help="of attention and MLP, instead of the preset's")
    model.add_argument(
        "--attention",
        choices=("auto", "softmax", "favor"),
        default="auto",
        help="default: softmax, and FAVOR+ for physics",
    )
    model.add_argument("--backend", default="auto", metavar="NAME", help="of attention: auto, bucketed, varlen, triton")
    model.add_argument("--precision", choices=("auto", "float32", "bfloat16", "float64"), default="auto")
    model.add_argument("--compile", action=argparse.BooleanOptionalAction, default=False, help="both systems")
    model.add_argument(
        "--cuda-graphs",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="on a GPU: replay our training step, as tokengt train does (default: yes)",
    )


def _bench(options: argparse.Namespace) -> int:
    return _of_shapes(options) if options.real is None else _of_commands(options)


def _of_shapes(options: argparse.Namespace) -> int:
    from tokengt.bench.report import keep_rows, kept_rows, lines, results_file, to_json
    from tokengt.bench.run import bench
    from tokengt.data.progress import say

    _refuse(options, _OF_COMMANDS, "it is for --real DATA")
    configs = [_config(options, shape) for shape in options.shape]
    paths = [results_file(options.out, config.shape, config.where.resolved) for config in configs]
    for path in paths:
        kept_rows(path)  # Reading the file first reports now, not after minutes, that no rows can be added to it.
    found: list[BenchRow] = []
    for place, (config, path) in enumerate(zip(configs, paths, strict=True)):
        rows = bench(config, lambda line: say(f"bench: {line}"))
        found += rows
        if not options.json:
            print(("\n" if place else "") + "\n".join(lines(rows)), flush=True)
        keep_rows(path, rows)
        if not options.json:
            print(f"\nrows kept in {path}", flush=True)
    if options.json:
        print(json.dumps(to_json(found), indent=1))
    return 0


def _config(options: argparse.Namespace, shape: Any) -> "BenchConfig":
    from tokengt.bench.config import BenchConfig, Preset

    if options.preset not in get_args(Preset):
        raise ValueError(
            f"--preset is {options.preset!r}; expected one of {', '.join(get_args(Preset))}, or --real DATA"
        )
    names = ("device", "layout", "ids", "scale", "batch", "steps", "rounds", "seed")
    model = (
        *("preset", "layers", "dim", "heads", "dropout", "attention", "backend", "precision", "compile"),
        "cuda_graphs",
    )
    return BenchConfig(shape=shape, phases=_phases(options), **{name: getattr(options, name) for name in names + model})


def _of_commands(options: argparse.Namespace) -> int:
    from tokengt.bench.real import bench_real
    from tokengt.bench.real_report import real_lines
    from tokengt.bench.report import keep_rows, kept_rows, results_file, to_json
    from tokengt.data.progress import say

    _refuse(options, _SYNTHETIC, "with --real the data and --set NAME=VALUE say that")
    config = _real_config(options)
    path = results_file(options.out, config.name, config.where.resolved)
    kept_rows(path)
    rows: list[RealRow] = []
    try:
        for row in bench_real(config, lambda line: say(f"bench: {line}")):
            rows.append(row)
            keep_rows(path, [row])
    finally:
        # What was measured is shown, even where the command that followed was refused.
        if rows:
            print(json.dumps(to_json(rows), indent=1) if options.json else "\n".join(real_lines(rows)), flush=True)
        if rows and not options.json:
            print(f"\nrows kept in {path}")
    return 0


def _real_config(options: argparse.Namespace) -> "RealConfig":
    from tokengt.bench.real import RealConfig

    names = ("device", "preset", "batch", "smiles", "seed", "steps", "rounds")
    return RealConfig(
        options.real,
        settings=named_values(options.set),
        target=tuple(options.target),
        phases=_phases(options),
        **({} if options.epochs is None else {"epochs": options.epochs}),
        **{name: getattr(options, name) for name in names},
    )


def _phases(options: argparse.Namespace) -> Any:
    return ("infer", "train") if options.phase == "both" else (options.phase,)


def _refuse(options: argparse.Namespace, defaults: Mapping[str, Any], why: str) -> None:
    """Options that would change nothing: whoever gives one expects that it does."""
    for name, default in defaults.items():
        if getattr(options, name) != default:
            raise ValueError(f"--{name.replace('_', '-')} has no effect here; {why}")
