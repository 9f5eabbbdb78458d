"""Do 90% intervals hold nine in ten? The regressions of the TDC ADMET group, random re-splits, every default.

    TOKENGT_DATA=../shared/data python benchmarks/uncertainty.py --seeds 5 --work WORK --out results/uncertainty

Each endpoint's official training part (never its test part) is split at random for each seed, 70 / 10 / 20; what the
run says of its intervals on the 20% is a row. A run that is finished is not trained again. ``table.json`` has one row
per endpoint, ``cells.json`` one per training; ``--at-once`` runs several trainings side by side, one process each.
"""

import argparse
import csv
import json
import lzma
import statistics
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import moleculenet

import tokengt
from tokengt.files import write_whole
from tokengt.training.results import read_summary
from tokengt.training.tables import source_commit, write_json
from tokengt.workflow.fitting import TrainOptions

ENDPOINTS = (
    "caco2_wang", "half_life_obach", "vdss_lombardo", "clearance_hepatocyte_az", "clearance_microsome_az", "ppbr_az",
    "lipophilicity_astrazeneca", "ld50_zhu", "solubility_aqsoldb",
)  # fmt: skip
FRACTIONS = (0.7, 0.1, 0.2)
NUMBERS = ("coverage", "width", "rank_correlation")


def training_rows(endpoint: str, work: Path) -> Path:
    """The official training part as a table of its own."""
    out = work / f"{endpoint}.csv"
    if not out.exists():
        with lzma.open(moleculenet.DATA.parent / "admet" / f"{endpoint}.csv.xz", "rt", encoding="utf-8") as lines:
            rows = [f"{row['smiles']},{row['y']}\n" for row in csv.DictReader(lines) if row["split"] == "train_val"]
        write_whole(out, "".join(["smiles,y\n", *rows]).encode())
    return out


def cell(endpoint: str, seed: int, work: Path, device: str) -> dict[str, Any]:
    run = work / f"{endpoint}-{seed}"
    if not (run / "summary.json").is_file() or read_summary(run).intervals is None:
        options = TrainOptions(quiet=True, workers=1, fractions=FRACTIONS)
        data = training_rows(endpoint, work)
        tokengt.train(data, run, target="y", split="random", seed=seed, resume=True, device=device, options=options)  # type: ignore[arg-type]
    summary = read_summary(run)
    assert summary.intervals is not None
    assert summary.test is not None
    told = {name: summary.intervals[name] for name in NUMBERS}
    return {"dataset": endpoint, "seed": seed, "rmse": summary.test["rmse"], **told}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--endpoints", nargs="+", default=ENDPOINTS)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--at-once", type=int, default=1)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    asked = [(endpoint, seed) for seed in range(args.seeds) for endpoint in args.endpoints]
    cells = []
    with ProcessPoolExecutor(args.at_once, mp_context=get_context("spawn")) as pool:
        fixed = ([each] * len(asked) for each in (args.work, args.device))
        for found in pool.map(cell, *zip(*asked, strict=True), *fixed):
            cells.append(found)
            print(json.dumps(found), flush=True)
    table = []
    for endpoint in args.endpoints:
        own = [found for found in cells if found["dataset"] == endpoint]
        means = {name: statistics.mean(found[name] for found in own) for name in ("rmse", *NUMBERS)}
        where = {"experiment": "uncertainty", "dataset": endpoint, "split": "random", "runs": len(own)}
        table.append({**where, **means, "commit": source_commit()})
    args.out.mkdir(parents=True, exist_ok=True)
    write_json(args.out / "table.json", table)
    write_json(args.out / "cells.json", cells)
    print(f"mean coverage {statistics.mean(row['coverage'] for row in table):.3f}, ", end="")
    print(f"median rank correlation {statistics.median(row['rank_correlation'] for row in table):.2f}")


if __name__ == "__main__":
    main()
