"""bench."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokengt.bench import BenchConfig

_RESULTS = Path("benchmarks") / "results"


def add_verbs(verbs: Any) -> None:
    verb = verbs.add_parser(
        "bench",
        help="time training and inference on this machine",
        description="Time the real training step and inference, data feed included, on synthetic graphs with the "
        "sizes of a data set, in turns with the same weights over padded batches. Prints graphs and tokens per second, "
        "the share of the measured matrix-product peak, memory, and where the time goes. The rows are kept in "
        f"{_RESULTS} (--out).",
    )
    verb.add_argument("--shape", choices=("pcqm4mv2", "zinc", "peptides", "physics"), default="pcqm4mv2")
    verb.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    verb.add_argument("--phase", choices=("train", "infer", "both"), default="both")
    verb.add_argument(
        "--layout", choices=("directed", "undirected"), default="directed", help="two tokens per bond, or one"
    )
    verb.add_argument("--ids", choices=("laplacian", "orf"), default="laplacian", help="node identifiers")
    verb.add_argument("--scale", type=float, default=1.0, metavar="S", help="physics: share of its nodes and edges")
    _model_options(verb.add_argument_group("model"))
    clock = verb.add_argument_group("clock")
    clock.add_argument(
        "--batch", type=int, default=0, metavar="N", help="graphs per step (default: by shape and device)"
    )
    clock.add_argument("--steps", type=int, default=0, metavar="N", help="per round (default: 20 on a GPU, 5 on a CPU)")
    clock.add_argument("--rounds", type=int, default=5, metavar="N", help="of each system, in turns (default: 5)")
    clock.add_argument("--seed", type=int, default=0, help="of graphs, weights and draws (default: 0)")
    verb.add_argument("--out", type=Path, default=_RESULTS, metavar="FOLDER", help=f"default: {_RESULTS}")
    verb.add_argument("--json", action="store_true", help="print the rows as one JSON list instead")
    verb.set_defaults(run=_bench)


def _model_options(model: Any) -> None:
    model.add_argument(
        "--preset",
        choices=("auto", "small", "regression"),
        default="auto",
        help="4 x 96 or the paper's 12 x 768 (default: regression on a GPU, small on a CPU and for physics)",
    )
    model.add_argument("--layers", type=int, metavar="N", help="instead of the preset's")
    model.add_argument("--dim", type=int, metavar="D", help="instead of the preset's")
    model.add_argument("--heads", type=int, metavar="H", help="instead of the preset's")
    model.add_argument("--dropout", type=float, metavar="P", help="of attention and MLP, instead of the preset's")
    model.add_argument("--backend", default="auto", metavar="NAME", help="of softmax attention: auto, bucketed, ...")
    model.add_argument("--precision", choices=("auto", "float32", "bfloat16", "float64"), default="auto")
    model.add_argument("--compile", action=argparse.BooleanOptionalAction, default=False, help="both systems")
    model.add_argument(
        "--cuda-graphs",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="with --compile on a GPU: replay our training step, as tokengt train does (default: yes)",
    )


def _bench(options: argparse.Namespace) -> int:
    from tokengt.bench.report import keep_rows, kept_rows, lines, results_file, to_json
    from tokengt.bench.run import bench
    from tokengt.data.progress import say

    config = _config(options)
    path = results_file(options.out, config.shape, config.where.resolved)
    kept_rows(path)  # Reading the file first reports now, not after minutes, that no rows can be added to it.
    rows = bench(config, lambda line: say(f"bench: {line}"))
    print(json.dumps(to_json(rows), indent=1) if options.json else "\n".join(lines(rows)))
    keep_rows(path, rows)
    if not options.json:
        print(f"\nrows kept in {path}")
    return 0


def _config(options: argparse.Namespace) -> "BenchConfig":
    from tokengt.bench.config import BenchConfig

    names = ("shape", "device", "layout", "ids", "scale", "batch", "steps", "rounds", "seed")
    model = ("preset", "layers", "dim", "heads", "dropout", "backend", "precision", "compile", "cuda_graphs")
    phases: Any = ("infer", "train") if options.phase == "both" else (options.phase,)
    return BenchConfig(phases=phases, **{name: getattr(options, name) for name in (*names, *model)})
