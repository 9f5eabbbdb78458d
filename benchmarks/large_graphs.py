"""One large graph: time and memory of a training step's forward and backward as tokens grow, and the line through them.

    python benchmarks/large_graphs.py --out benchmarks/results/large-graphs-cpu.json        # a CPU, about five minutes
    python benchmarks/large_graphs.py --device cuda --width 256 --tokens 10000 100000 530417 1000000 --out ...

A random graph with three directed edges per node, sparse features (ten of 1,000 words), near-orthonormal identifiers
and the sparse equivariant basis: TokenGT with FAVOR+, 2 layers. Each size is measured in a process of its own, whose
highest use of memory is its peak; what it takes before there is a graph (imports) is told beside it. The fit is by
least squares of the relative error, so that small sizes count as much as large ones; ``off`` is the largest relative
distance of a measurement from the line. A cost that is linear in tokens lies on it.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tokengt import EncoderConfig, FavorConfig, Graph, GraphBatch, HeadConfig, NearOrthonormalIds, TokenGTConfig
from tokengt.experiments.tables import device_name, source_commit
from tokengt.models.features import FeatureSpec
from tokengt.models.tokengt.tokens import TokensConfig
from tokengt.sparse import SparseRows
from tokengt.workflow.peaks import peak_memory

TOKENS = (10_000, 100_000, 1_000_000)
WORDS, WORDS_EACH, CLASSES = 1_000, 10, 10
EDGES_EACH = 3


@dataclass(frozen=True)
class Line:
    """cost = start + slope * tokens; ``off`` is the largest relative distance from it."""

    start: float
    slope: float
    off: float


def fitted(tokens: Sequence[float], costs: Sequence[float]) -> Line:
    """The line with the least relative squared error."""
    x, y = np.asarray(tokens, dtype=float), np.asarray(costs, dtype=float)
    design = np.stack([1 / y, x / y], 1)
    (start, slope), *_ = np.linalg.lstsq(design, np.ones(len(y)), rcond=None)
    return Line(float(start), float(slope), float(np.abs((start + slope * x) / y - 1).max()))


def random_graph(tokens: int, device: str) -> GraphBatch:
    """``tokens`` of nodes and directed edges, one [graph] token included."""
    generator = torch.Generator().manual_seed(0)
    nodes = max(1, (tokens - 1) // (1 + EDGES_EACH))
    edges = torch.randint(0, nodes, (2, tokens - 1 - nodes), generator=generator)
    words = torch.randint(0, WORDS, (nodes * WORDS_EACH,), generator=generator)
    rows = torch.arange(nodes).repeat_interleave(WORDS_EACH)
    features = SparseRows.from_entries(rows, words, torch.ones(len(words)), nodes, WORDS)
    return GraphBatch.collate([Graph(features, edges)]).to(device)


def measured(tokens: int, width: int, recompute: bool, device: str, rounds: int) -> dict[str, Any]:
    """Seconds and GiB of forward and backward; the first round warms up, the quickest of the others counts."""
    config = TokenGTConfig(
        dim=width,
        tokens=TokensConfig(node_features=FeatureSpec(width=WORDS)),
        identifiers=NearOrthonormalIds(64),
        encoder=EncoderConfig(
            num_layers=2,
            num_heads=4,
            mlp_dim=2 * width,
            attention=FavorConfig(),
            mlp_dropout=0.1,
            residual_dropout=0.1,
            sparse_basis_residual=True,
            sparse_basis_scale="mean",
        ),
        head=HeadConfig(level="node", out_dim=CLASSES),
    )
    where = torch.device(device)
    with peak_memory(where) as before:
        pass
    with peak_memory(where) as peak:
        batch = random_graph(tokens, device)
        model = config.build().to(where).train()
        model.set_recompute(recompute)
        took = [_step(model, batch, where) for _ in range(1 + rounds)]
    return {"tokens": tokens, "seconds": min(took[1:]), "memory_gib": peak.gib, "before_gib": before.gib}


def _step(model: torch.nn.Module, batch: GraphBatch, device: torch.device) -> float:
    """Seconds of one forward and backward: of the processor on a CPU, where other work would count otherwise."""
    mixed = device.type == "cuda"
    clock = time.perf_counter if mixed else time.process_time
    model.zero_grad()
    if mixed:
        torch.cuda.synchronize(device)
    start = clock()
    with torch.autocast(device.type, torch.bfloat16, enabled=mixed):
        out = model(batch)
    out.float().square().mean().backward()
    if mixed:
        torch.cuda.synchronize(device)
    return clock() - start


def apart(tokens: int, options: argparse.Namespace) -> dict[str, Any]:
    """:func:`measured` in a process of its own."""
    command = [sys.executable, __file__, "--one", str(tokens), "--width", str(options.width)]
    command += ["--device", options.device, "--rounds", str(options.rounds)]
    command += ["--recompute"] if options.recompute else []
    # Large pages of memory, as the command line of tokengt asks torch for them.
    large = {**os.environ, "THP_MEM_ALLOC_ENABLE": "1"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=large)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def report(rows: Sequence[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """The measurements with the lines through them."""
    tokens = [row["tokens"] for row in rows]
    return {
        "device": device_name(torch.device(options.device)),
        "threads": torch.get_num_threads(),
        "commit": source_commit(),
        "model": f"2 layers x {options.width}, 4 heads, FAVOR+, sparse basis",
        "recompute": options.recompute,
        "rows": list(rows),
        "lines": {
            "seconds": vars(fitted(tokens, [row["seconds"] for row in rows])),
            "memory_gib": vars(fitted(tokens, [row["memory_gib"] for row in rows])),
        },
    }


def told(found: dict[str, Any]) -> str:
    lines = [f"{found['model']}, {found['device']}, recompute {found['recompute']}: forward and backward"]
    lines += [
        f"{row['tokens']:>10,} tokens: {row['seconds']:8.3f} s, {row['memory_gib']:6.3f} GiB" for row in found["rows"]
    ]
    for name, unit in (("seconds", "s"), ("memory_gib", "GiB")):
        line = found["lines"][name]
        lines.append(
            f"{name}: {line['start']:.4g} + {1e6 * line['slope']:.4g} {unit} per million tokens, off by at most "
            f"{100 * line['off']:.1f}%"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=list(TOKENS))
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--one", type=int, help="measure this size here, and print it as JSON")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measured(options.one, options.width, options.recompute, options.device, options.rounds)))
        return
    found = report([apart(tokens, options) for tokens in options.tokens], options)
    print(told(found))
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
