"""One GPU: all that is measured for eight of them on paper; ``docs/scaling.md`` has the page.

    python benchmarks/scaling.py --out benchmarks/results/scaling-h200.json     # on a GPU, about five minutes
    python benchmarks/scaling_page.py                                           # then writes the page from it

The paper's model takes the training step of ``tokengt train`` with 1,024 molecules like PCQM4Mv2's, and with what each
of 2, 4 and 8 GPUs would have of them: 512, 256 and 128. So the step of a smaller share is measured, not computed. Of
each: its time, how long the host is busy with it, and what it launches. Then the bytes of the gradients, what summing
them takes in a group of one process (the call itself), and a copy of as many bytes on the device.
"""

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from tokengt.bench.config import BenchConfig
from tokengt.bench.counting import wait
from tokengt.bench.profiling import breakdown, launches
from tokengt.bench.run import one_round, warm_up
from tokengt.bench.systems import Packed, batches, make_setup
from tokengt.bench.timing import interleaved
from tokengt.experiments.tables import device_name, source_commit

BATCH, GPUS, LAYOUTS = 1024, (1, 2, 4, 8), ("directed", "undirected")
# Steps at once: part of what the host does is done for many of them.
LOOKED_INTO = 10
COPIES = 30


def measured_step(config: BenchConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """The step of one share of the batch, and the model that took it."""
    setup = make_setup(config)
    own = Packed(setup)
    feed = batches(setup)
    warm_up(own, "train", feed, config, own.device)
    timing = interleaved({own.name: one_round(setup, own, "train", feed)}, config.rounds, own.device, {own.name: 0})
    seconds = config.graphs_a_step / timing[own.name].graphs_per_s

    def several() -> None:
        own.take([next(feed) for _ in range(LOOKED_INTO)])

    row = {
        "layout": config.layout,
        "graphs": config.graphs_a_step,
        "tokens": timing[own.name].tokens_per_s * seconds,
        "milliseconds": 1e3 * seconds,
        "host_milliseconds": host_milliseconds(several, own.device) / LOOKED_INTO,
        **{name: count / LOOKED_INTO for name, count in launches(several, own.device).items()},
        "breakdown": {
            part: took / LOOKED_INTO for part, took in breakdown(several, own.device, LOOKED_INTO * seconds).items()
        },
    }
    weights = [parameter for parameter in own.model.parameters() if parameter.requires_grad]
    encoder = setup.model.config.encoder
    model = {
        "model": f"{encoder.num_layers} x {setup.model.config.dim}, {encoder.num_heads} heads",
        "parameters": sum(weight.numel() for weight in weights),
        # Gradients are summed in float32, whatever the matrix products are in.
        "gradient_bytes": 4 * sum(weight.numel() for weight in weights),
        "dtype": config.dtype,
    }
    return row, model


def host_milliseconds(steps: Callable[[], None], device: torch.device) -> float:
    """How long the host takes to ask for steps, the device being free to lag behind."""
    wait(device)
    start = time.perf_counter()
    steps()
    busy = time.perf_counter() - start
    wait(device)
    return 1e3 * busy


def exchange(count: int, device: torch.device) -> dict[str, float]:
    """Milliseconds of summing float32 gradients in a group of one process, and of copying them on the device."""
    gradients, copy = torch.randn(2, count, device=device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group(backend, init_method=f"file://{folder}/meet", rank=0, world_size=1)
        try:
            alone = median_ms(lambda: torch.distributed.all_reduce(gradients), device)
        finally:
            torch.distributed.destroy_process_group()
    return {"all_reduce_alone_ms": alone, "copy_ms": median_ms(lambda: copy.copy_(gradients), device)}


def median_ms(call: Callable[[], Tensor | None], device: torch.device) -> float:
    call()
    taken = []
    for _ in range(COPIES):
        wait(device)
        start = time.perf_counter()
        call()
        wait(device)
        taken.append(1e3 * (time.perf_counter() - start))
    return statistics.median(taken)


def measure(base: BenchConfig, gpus: Sequence[int], layouts: Sequence[Any]) -> dict[str, Any]:
    """All of it; ``base`` has the whole batch."""
    steps, model = [], {}
    device = torch.device(base.where.resolved)
    for layout in layouts:
        for count in gpus:
            config = replace(base, layout=layout, batch=base.graphs_a_step // count)
            row, model = measured_step(config)
            steps.append(row)
            print(
                f"{layout}, {row['graphs']} graphs: {row['milliseconds']:.2f} ms, the host "
                f"{row['host_milliseconds']:.2f} ms, {row['kernels']:.0f} kernels by {row['launches']:.0f} launches "
                f"and {row['replays']:.0f} replays",
                flush=True,
            )
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
    return {
        "device": device_name(device),
        "torch": torch.__version__,
        "commit": source_commit(),
        "batch": base.graphs_a_step,
        "compiled": base.compile,
        **model,
        **exchange(model["parameters"], device),
        "steps": steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=LAYOUTS)
    parser.add_argument("--batch", type=int, default=BATCH, help="graphs of a step on all GPUs together")
    parser.add_argument("--preset", choices=("small", "regression"), default="regression")
    parser.add_argument("--compile", action="store_true", help="as training.compile=true")
    options = parser.parse_args()
    base = BenchConfig(device="cuda", batch=options.batch, preset=options.preset, compile=options.compile)
    options.out.write_text(json.dumps(measure(base, GPUS, options.layouts), indent=1) + "\n")
    print(f"now: python benchmarks/scaling_page.py --results {options.out}")


if __name__ == "__main__":
    main()
