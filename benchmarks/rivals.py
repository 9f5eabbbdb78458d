"""The systems of the paper's Table 2 on one device: do they compute the same as on a CPU, and how fast do they train?

    python benchmarks/rivals.py --out rivals.json                       # on a GPU: the published sizes, batch 1024
    python benchmarks/rivals.py --presets gin-vn,graphormer --batch 64  # on a CPU too

Random molecules with the sizes of PCQM4Mv2's. First the largest difference of outputs and of gradients between the CPU
and the device in float64, for the first 32, as a share of the largest number. Then a step of plain code: forward,
backward and AdamW, in bfloat16 where products are made (float32 on a CPU), median over rounds, facts of graphs known.
A preset whose libraries are not installed is left out and named.
"""

import argparse
import json
import statistics
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from tokengt.batch import GraphBatch
from tokengt.bench.shapes import make_sample
from tokengt.models.contract import Model
from tokengt.presets import PRESETS
from tokengt.structure.facts import with_facts

PUBLISHED = [name for name in PRESETS if name.endswith("-paper")]


def difference(model: Model, batch: GraphBatch, device: str) -> tuple[float, float]:
    """Largest differences of outputs and gradients from those of the CPU, in float64."""
    results = []
    for where in ("cpu", device):
        copy = deepcopy(model).double().eval().to(where)
        out = copy(batch.to(where))
        out.square().sum().backward()
        gradients = torch.cat([p.grad.flatten().cpu() for p in copy.parameters() if p.grad is not None])
        results.append((out.detach().cpu(), gradients))
    return tuple(float((b - a).abs().max() / a.abs().max()) for a, b in zip(*results, strict=True))  # type: ignore[return-value]


def seconds_per_step(model: Model, batches: list[GraphBatch], device: str) -> float:
    model = model.train().to(device)
    optimiser = torch.optim.AdamW(model.parameters(), fused=device == "cuda")
    times = []
    for batch in batches:
        start = time.perf_counter()
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = model(batch).float().abs().mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[len(times) // 3 :])


def measured(name: str, graphs: GraphBatch, device: str, batch: int, rounds: int) -> dict[str, Any]:
    config = PRESETS[name]()
    torch.manual_seed(0)
    model = config.build()
    known = model.prepared(with_facts(graphs, config.facts()))
    outputs, gradients = difference(model, known.select(torch.arange(32)), device)
    known = known.to(device)
    batches = [known.select(torch.randperm(len(known))[:batch]) for _ in range(rounds)]
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = seconds_per_step(model, batches, device)
    memory = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None
    return {
        "system": name,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "graphs_per_s": round(batch / seconds),
        "memory_gib": memory,
        "output_error": outputs,
        "gradient_error": gradients,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", default=",".join(PUBLISHED))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    graphs = make_sample("pcqm4mv2", max(2 * options.batch, 64)).graphs
    rows = []
    for name in options.presets.split(","):
        try:
            rows.append(measured(name, graphs, options.device, options.batch, options.rounds))
        except ImportError as error:
            rows.append({"system": name, "left_out": str(error)})
        print(json.dumps(rows[-1]), flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps({"device": options.device, "batch": options.batch, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
