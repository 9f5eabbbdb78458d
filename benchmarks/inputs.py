"""What each stronger input of TokenGT brings on ZINC-12k, beside the paper's tokens: small models, short trainings.

    TOKENGT_DATA=... python benchmarks/inputs.py                              # goes on where a stopped one was
    TOKENGT_DATA=... python benchmarks/inputs.py --systems lap walks --seeds 1

Every system is the same encoder below 500,000 parameters, trained on the same graphs for as many epochs; seeds differ
in weights and order alone, and differences are paired by them. Trainings are cells of ``tokengt compare`` under
``--work``. Writes ``table.json`` and ``table.md`` to ``--out``: the validation part is for choosing, the test part is
told beside it.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import tokengt
from tokengt.data.manifest import Recipe
from tokengt.data.store import Store
from tokengt.experiments.tables import TableRow, device_name, markdown, mean_and_std, source_commit, write_json
from tokengt.files import write_whole
from tokengt.training.results import METRICS, read_summary
from tokengt.workflow.comparing_statistics import t_interval
from tokengt.workflow.inputs import open_data

BASE = "lap"
COMMON = {
    "model.dim": 64,
    "model.encoder.num_layers": 6,
    "model.encoder.num_heads": 4,
    "model.encoder.mlp_dim": 128,
    "training.loss": "mae",
    "training.metric": "mae",
}
# What is added to TokenGT (Lap) with one token per bond.
SYSTEMS: dict[str, dict[str, Any]] = {
    BASE: {},
    "walks": {"structure.walks": 20},
    "degree": {"structure.degree": "true"},
    "eigenpairs": {"structure.eigenpairs": 16},
    "mask": {"encoder.incidence": "alternate"},
    "heads": {"proof_heads.layers": 6},
}
SYSTEMS["all"] = {path: value for settings in SYSTEMS.values() for path, value in settings.items()}


def subset(train: int) -> Store:
    """ZINC-12k with so many of its training graphs, drawn by seed 0; the official validation and test parts."""
    store = open_data("zinc12k", Recipe(), Path("unused"), quiet=True)
    assert store.split is not None
    of_train = torch.nonzero(store.split == 0).flatten()
    drawn = of_train[torch.randperm(len(of_train), generator=torch.Generator().manual_seed(0))[:train]]
    rows = torch.cat([drawn, torch.nonzero(store.split > 0).flatten()])
    return Store.from_memory(
        store.graphs.select(rows), store.targets[rows], target_names=("y",), task="regression", split=store.split[rows]
    )


def errors(run: Path) -> dict[str, float]:
    """The best validation MAE of a run, and the test MAE of that epoch."""
    lines = (run / METRICS).read_text(encoding="utf-8").splitlines()
    test = read_summary(run).test
    assert test is not None
    return {"valid": min(json.loads(line)["valid"]["mae"] for line in lines), "test": test["mae"]}


def paired(values: Sequence[float], base: Sequence[float]) -> str:
    """The mean difference and its 95% interval (Student's t over seeds)."""
    found = t_interval([one - other for one, other in zip(values, base, strict=True)])
    return "" if found is None else f"{found.centre:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--graphs", type=int, default=2000, help="training graphs")
    parser.add_argument("--work", type=Path, default=Path("build/inputs"))
    parser.add_argument("--out", type=Path, default=Path("results/inputs"))
    options = parser.parse_args()
    names = list(dict.fromkeys([BASE, *options.systems]))
    own = {f"{name}:model.{path}": value for name in names for path, value in SYSTEMS[name].items()}
    comparison = tokengt.compare(
        subset(options.graphs),
        options.work,
        dict.fromkeys(names, "small"),
        split="given",
        seeds=options.seeds,
        floors=False,
        reference=BASE,
        device="cpu",
        settings={**COMMON, "training.epochs": options.epochs, **own},
    )
    found = {
        name: [errors(options.work / "cells" / name / f"seed-{seed}") for seed in range(options.seeds)]
        for name in names
    }
    counts = {result.name: round(result.average("parameters") or 0) for result in comparison.systems}
    rows, lines = [], []
    for name in names:
        line = [name, f"{counts[name]:,}"]
        for part in ("valid", "test"):
            values, base = ([each[part] for each in found[which]] for which in (name, BASE))
            mean, std = mean_and_std(values)
            line += [
                f"{mean:.3f}" + ("" if std is None else f" ± {std:.3f}"),
                "" if name == BASE else paired(values, base),
            ]
            rows.append(
                TableRow(
                    *("inputs", name, f"zinc12k, {options.graphs} graphs", part, "mae", mean, std, len(values)),
                    parameters=counts[name],
                    graphs_per_s=None,
                    device=device_name(torch.device("cpu")),
                    commit=source_commit(),
                    paper=None,
                )
            )
        lines.append(line)
    header = ["system", "parameters", "valid MAE", "against lap", "test MAE", "against lap"]
    write_json(options.out / "table.json", [asdict(row) for row in rows])
    write_whole(options.out / "table.md", markdown(header, lines).encode())
    print(markdown(header, lines))


if __name__ == "__main__":
    main()
