"""Do 90% intervals hold nine in ten? The regressions of the TDC ADMET group, random re-splits, every default.

    TOKENGT_DATA=../shared/data python benchmarks/uncertainty.py --seeds 5 --work WORK --out results/uncertainty

Each endpoint's official training part is split at random for each seed, 70 / 10 / 20. The intervals of the 20% are the
rows "random". The run then predicts the official test part, whose scaffolds are others: the rows "official". A run that
is finished is not trained again. ``table.json`` has one row per endpoint and part, ``cells.json`` one per training and
part; ``--at-once`` runs several trainings side by side, one process each. ``--rows`` and ``--epochs`` make it shorter
than the defaults, for a machine without a GPU: fewer training rows, chosen evenly, and fewer passes over them.
"""

import argparse
import csv
import json
import lzma
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import moleculenet
import numpy as np

import tokengt
from tokengt.files import write_whole
from tokengt.training.conformal import report
from tokengt.training.results import read_summary
from tokengt.training.tables import source_commit, write_json
from tokengt.workflow.fitting import TrainOptions

ENDPOINTS = (
    "caco2_wang", "half_life_obach", "vdss_lombardo", "clearance_hepatocyte_az", "clearance_microsome_az", "ppbr_az",
    "lipophilicity_astrazeneca", "ld50_zhu", "solubility_aqsoldb",
)  # fmt: skip
FRACTIONS = (0.7, 0.1, 0.2)
LEVEL = 0.9
NUMBERS = ("coverage", "width", "rank_correlation")


def official(endpoint: str, part: str) -> list[tuple[str, float]]:
    with lzma.open(moleculenet.DATA.parent / "admet" / f"{endpoint}.csv.xz", "rt", encoding="utf-8") as lines:
        return [(row["smiles"], float(row["y"])) for row in csv.DictReader(lines) if row["split"] == part]


def training_rows(endpoint: str, work: Path, most: int) -> Path:
    """The official training part as a table of its own; ``most`` rows of it, evenly spaced, where that is not 0."""
    out = work / f"{endpoint}.csv"
    if not out.exists():
        rows = official(endpoint, "train_val")
        if 0 < most < len(rows):
            rows = [rows[place] for place in np.linspace(0, len(rows) - 1, most).round().astype(int)]
        write_whole(out, "".join(["smiles,y\n", *(f"{smiles},{label}\n" for smiles, label in rows)]).encode())
    return out


def cell(endpoint: str, seed: int, work: Path, device: str, most: int, epochs: int) -> list[dict[str, Any]]:
    run = work / f"{endpoint}-{seed}"
    if not (run / "summary.json").is_file() or read_summary(run).intervals is None:
        options = TrainOptions(quiet=True, workers=1, fractions=FRACTIONS)
        data, settings = training_rows(endpoint, work, most), {"training.epochs": epochs} if epochs else {}
        tokengt.train(
            data, run, target="y", split="random", seed=seed, resume=True, device=device, settings=settings,
            options=options,
        )  # type: ignore[arg-type]  # fmt: skip
    summary = read_summary(run)
    assert summary.intervals is not None
    assert summary.test is not None
    where = {"dataset": endpoint, "seed": seed}
    told = {name: summary.intervals[name] for name in NUMBERS}
    return [
        {**where, "part": "random", "rmse": summary.test["rmse"], **told},
        {**where, "part": "official", **on_test_part(endpoint, run, device)},
    ]


def on_test_part(endpoint: str, run: Path, device: str) -> dict[str, float]:
    """The intervals of a run on the official test part."""
    predictor = tokengt.load(run, device)  # type: ignore[arg-type]
    smiles, labels = zip(*official(endpoint, "test"), strict=True)
    told = predictor.predict(list(smiles), interval=LEVEL)
    assert told.high is not None
    errors = told.mean - np.array(labels)[:, None]
    scaling = predictor.task.scaling
    mean, high, true = (scaling.comparable(each) for each in (told.mean, told.high, np.array(labels)[:, None]))
    found = report(high - mean, mean - true, scaling.deviations, LEVEL)
    assert found is not None
    assert told.similarity is not None
    more = {"rmse": float(np.sqrt(np.nanmean(errors**2))), "similarity": float(np.nanmedian(told.similarity))}
    return more | {name: asdict(found)[name] for name in NUMBERS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--endpoints", nargs="+", default=ENDPOINTS)
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--at-once", type=int, default=1)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    asked = [(endpoint, seed) for seed in range(args.seeds) for endpoint in args.endpoints]
    cells: list[dict[str, Any]] = []
    with ProcessPoolExecutor(args.at_once, mp_context=get_context("spawn")) as pool:
        fixed = ([each] * len(asked) for each in (args.work, args.device, args.rows, args.epochs))
        for found in pool.map(cell, *zip(*asked, strict=True), *fixed):
            cells += found
            print(json.dumps(found), flush=True)
    table = []
    for part in ("random", "official"):
        for endpoint in args.endpoints:
            own = [found for found in cells if (found["dataset"], found["part"]) == (endpoint, part)]
            means = {name: statistics.mean(found[name] for found in own) for name in ("rmse", *NUMBERS)}
            how = {"rows": args.rows or None, "epochs": args.epochs or None, "runs": len(own)}
            where = {"experiment": "uncertainty", "dataset": endpoint, "split": part, **how}
            table.append({**where, **means, "commit": source_commit()})
    args.out.mkdir(parents=True, exist_ok=True)
    write_json(args.out / "table.json", table)
    write_json(args.out / "cells.json", cells)
    for part in ("random", "official"):
        rows = [row for row in table if row["split"] == part]
        print(f"{part}: mean coverage {statistics.mean(row['coverage'] for row in rows):.3f}, ", end="")
        print(f"least {min(row['coverage'] for row in rows):.3f}, ", end="")
        print(f"median rank correlation {statistics.median(row['rank_correlation'] for row in rows):.2f}")


if __name__ == "__main__":
    main()
