"""Does the fast path learn what the plain one learns? The loss of 500 steps, up to twenty seeds of each path.

    tokengt prepare molecules.csv --target NAME --out store                   # where RDKit is
    python benchmarks/loss_curves.py all --store store --out curves           # all eighty curves, ten at a time
    python benchmarks/loss_curves.py run --store store --out curves --path fast --seed 10 --precision bfloat16
    python benchmarks/loss_curves.py judge --out curves                       # summary.json and curves.png

Both paths are the training loop of ``tokengt train``. Plain: PyTorch's attention, nothing compiled. Fast: Triton
kernels, dropout drawn in them, whole steps recorded. A run's number is the mean loss of its last 100 steps;
a pair is a plain and a fast run of one seed (same first weights, same batches, other dropout masks).

What is asked, written down before the runs of seeds 10 to 19 were made: **the 95% interval of the mean difference of
a pair (Student's t) lies within one standard deviation of the plain runs on either side of zero**, in float32 and in
bf16. The kernels and the compiler then move the loss by less than another seed does. Not asked, but shown: whether the
interval holds zero, and how often a fast run lies within the range of three plain ones of other seeds (half of the
time for runs that do not differ, so that no single one can be asked to).

With ten pairs identical paths pass 99% of the time where pairs are alike (correlation 0.9) and 15% where they are not,
and a shift of a whole deviation passes once in eight and once in forty times; ``correlation`` tells which it is. When
whole steps came to be recorded, the pairs were not alike (0.4 to 0.6) and ten of them did not decide, so the seeds 20
to 29 were added.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from tokengt.attention import SoftmaxConfig
from tokengt.data.batching import epoch_steps
from tokengt.data.store import Store
from tokengt.files import write_whole
from tokengt.models.tokengt.model import TokenGT
from tokengt.presets import regression
from tokengt.structure.facts import LaplacianVectors
from tokengt.training.config import TrainingConfig
from tokengt.training.loop import Trainer
from tokengt.training.optim import rate_at
from tokengt.training.parts import Part, Parts
from tokengt.training.processes import DeviceConfig, make_fabric
from tokengt.training.tasks import Task

STEPS, BATCH, LAST, SEEDS = 500, 256, 100, range(10, 30)
FEWEST = 10  # Pairs to be judged.
LAYERS, DIM, HEADS = 6, 384, 16
PRECISIONS = ("float32", "bfloat16")


def trainer_of(store: Path, path: str, seed: int, precision: Any, device: Any) -> Trainer:
    opened = Store.open(store).with_facts([LaplacianVectors(16)], progress=False)
    preset = regression()
    attention = SoftmaxConfig(dropout=0.1, backend="bucketed" if path == "plain" else "triton")
    encoder = replace(preset.encoder, num_layers=LAYERS, num_heads=HEADS, mlp_dim=DIM, attention=attention)
    torch.manual_seed(seed)
    model = TokenGT(replace(preset, dim=DIM, encoder=encoder))
    everything = Part(torch.arange(len(opened)), opened.targets)
    parts = Parts(opened.graphs, "graph", model.costs(opened.graphs), everything, everything, everything)
    task = Task.fit("regression", opened.targets, ("target",))
    config = TrainingConfig(epochs=1, batch_size=BATCH, learning_rate=2e-4, clip=5.0, precision=precision)
    return Trainer(make_fabric(DeviceConfig(device), precision), model, parts, task, config, seed=seed)


def losses(trainer: Trainer, seed: int) -> list[float]:
    """The mean loss of every step, the rate rising over a tenth of them and falling to zero after."""
    steps: list[list[torch.Tensor]] = []
    if len(trainer.parts.train.places) < BATCH:
        raise SystemExit(f"the store has {len(trainer.parts.train.places)} graphs; expected {BATCH} at least")
    places, costs = trainer.parts.train.places, trainer.parts.costs
    for epoch in range(STEPS):
        if len(steps) >= STEPS:
            break
        whole = epoch_steps(places, costs, trainer.config.batching, seed=seed, epoch=epoch, pieces=1)
        steps += [pieces for pieces in whole if len(pieces[0]) == BATCH]
    rates = [rate_at((step + 0.5) / STEPS, trainer.config) for step in range(STEPS)]
    trainer.forward.train()
    step_losses = []
    for count in trainer.take(steps[:STEPS], rates):
        trainer.state.step += 1
        step_losses.append(trainer.last_loss() / count)
    return step_losses


def run(options: argparse.Namespace) -> None:
    trainer = trainer_of(options.store, options.path, options.seed, options.precision, options.device)
    step_losses = losses(trainer, options.seed)
    name = f"{options.path}-{options.precision}-{options.seed}"
    options.out.mkdir(parents=True, exist_ok=True)
    described = {
        "path": options.path,
        "precision": options.precision,
        "seed": options.seed,
        "device": torch.cuda.get_device_name() if trainer.fabric.device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "model": f"{LAYERS} x {DIM}, {HEADS} heads, batch {BATCH}",
        "losses": step_losses,
    }
    write_whole(options.out / f"{name}.json", (json.dumps(described) + "\n").encode())
    print(f"{name}: last {LAST} steps {statistics.fmean(step_losses[-LAST:]):.5f}", flush=True)


def run_all(options: argparse.Namespace) -> None:
    """Those that are not there yet, several at a time: nothing is timed."""
    runs = [(path, seed, p) for path in ("plain", "fast") for p in PRECISIONS for seed in SEEDS]
    runs = [(path, seed, p) for path, seed, p in runs if not (options.out / f"{path}-{p}-{seed}.json").exists()]
    waiting = [
        [
            *(sys.executable, __file__, "run", "--path", path, "--seed", str(seed), "--precision", precision),
            *("--store", str(options.store), "--out", str(options.out), "--device", options.device),
        ]
        for path, seed, precision in reversed(runs)
    ]
    at_work: list[subprocess.Popen[bytes]] = []
    while waiting or at_work:
        while waiting and len(at_work) < options.at_once:
            at_work.append(subprocess.Popen(waiting.pop(0)))
        if at_work.pop(0).wait():
            raise SystemExit("a run failed; what it said stands above")
    judge(options)


def judge(options: argparse.Namespace) -> None:
    curves = [json.loads(file.read_text()) for file in sorted(options.out.glob("*-*-*.json"))]
    rows = []
    for precision in PRECISIONS:
        ends: dict[str, dict[int, float]] = {"plain": {}, "fast": {}}
        for curve in curves:
            if curve["precision"] == precision and curve["seed"] in SEEDS:
                ends[curve["path"]][curve["seed"]] = statistics.fmean(curve["losses"][-LAST:])
        pairs = sorted(ends["plain"].keys() & ends["fast"].keys())
        if len(pairs) < FEWEST:
            raise SystemExit(f"{options.out} has {len(pairs)} pairs of {precision} runs; expected {FEWEST} or more")
        rows.append({"precision": precision, **compare(*({s: ends[p][s] for s in pairs} for p in ("plain", "fast")))})
        print(json.dumps(rows[-1], indent=1))
    (options.out / "summary.json").write_text(json.dumps(rows, indent=1) + "\n")
    draw(curves, options.out / "curves.png")


def compare(plain: dict[int, float], fast: dict[int, float]) -> dict[str, Any]:
    """Ends of runs by seed, and what the two paths differ by."""
    from scipy.stats import t

    pairs = [fast[seed] - plain[seed] for seed in plain]
    error = statistics.stdev(pairs) / math.sqrt(len(pairs))
    middle, half = statistics.fmean(pairs), float(t.ppf(0.975, len(pairs) - 1)) * error
    spread = statistics.stdev(plain.values())
    interval = [middle - half, middle + half]
    return {
        "plain": plain,
        "fast": fast,
        "difference": middle,
        "interval": interval,
        "spread": spread,
        "smaller_than_a_seed": max(map(abs, interval)) < spread,
        "holds_zero": interval[0] <= 0 <= interval[1],
        "correlation": statistics.correlation(list(plain.values()), [fast[seed] for seed in plain]),
        "within_three_plain": within_three(fast, plain),
    }


def within_three(ends: dict[int, float], plain: dict[int, float]) -> float:
    """How often a run lies between the least and the largest of three plain runs of other seeds, over all threes."""
    inside = [
        min(plain[i] for i in three) <= end <= max(plain[i] for i in three)
        for seed, end in ends.items()
        for three in combinations(plain.keys() - {seed}, 3)
    ]
    return statistics.fmean(inside)


def draw(curves: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, precision in zip(figure.subplots(1, 2, sharey=True), PRECISIONS, strict=True):
        for curve in (c for c in curves if c["precision"] == precision):
            fast = curve["path"] == "fast"
            smooth = torch.tensor(curve["losses"]).unfold(0, 20, 1).mean(1)
            axes.plot(range(20, 20 + len(smooth)), smooth, color="C3" if fast else "0.5", lw=0.8)
        axes.set(title=precision, xlabel="step (mean of 20)", yscale="log")
    figure.axes[0].set_ylabel("training loss")
    for color, label in (("0.5", "plain"), ("C3", "kernels, recorded")):
        figure.axes[0].plot([], [], color=color, label=label)
    figure.axes[0].legend(frameon=False)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "all", "judge"))
    parser.add_argument("--store", type=Path)
    parser.add_argument("--path", choices=("plain", "fast"), default="plain")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", choices=PRECISIONS, default="bfloat16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--at-once", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.what != "judge" and options.store is None:
        parser.error("--store is needed")
    {"run": run, "all": run_all, "judge": judge}[options.what](options)


if __name__ == "__main__":
    main()
