"""Few measurements: train a new head on a model that knows something of the molecules already.

A model first learns a number that costs nothing to compute (RDKit's estimate of logP) for all molecules of ESOL. A new
head on it then learns solubility from 60 measured ones; the same 60 are also learned from scratch. The solubilities of
the others are the test; their structures, without solubilities, are among those that the first model saw.
"""

import argparse
import csv
import json
import random
from pathlib import Path
from typing import Any

from rdkit import Chem
from rdkit.Chem.Crippen import MolLogP

import tokengt
from tokengt.data.datasets import esol

MODEL = {"model.dim": 48, "model.encoder.num_layers": 3}


def write_table(file: Path) -> None:
    """Columns smiles, logP, logS and part: 60 train, 20 valid, the rest test."""
    smiles, solubility = esol()
    logp = [MolLogP(Chem.MolFromSmiles(text)) for text in smiles]
    rows = list(zip(smiles, logp, solubility[:, 0].tolist(), strict=True))
    random.Random(0).shuffle(rows)
    parts = ["train"] * 60 + ["valid"] * 20 + ["test"] * (len(rows) - 80)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as opened:
        table = csv.writer(opened)
        table.writerow(["smiles", "logP", "logS", "part"])
        table.writerows([*row, part] for row, part in zip(rows, parts, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().split("\n")[0])
    parser.add_argument("--epochs", type=int, default=20, help="of the first model; three times as many for the others")
    parser.add_argument("--out", type=Path, default=Path("runs/finetune"))
    args = parser.parse_args()

    table, out = args.out / "table.csv", args.out
    write_table(table)
    tokengt.train(table, out / "logP", target="logP", settings=MODEL | {"training.epochs": args.epochs})
    few: dict[str, Any] = {"target": "logS", "split": "column:part"}
    longer = {"training.epochs": 3 * args.epochs}
    tokengt.train(table, out / "finetuned", start=out / "logP", freeze=True, settings=longer, **few)
    tokengt.train(table, out / "scratch", settings=MODEL | longer, **few)
    for name in ("finetuned", "scratch"):
        summary = json.loads((out / name / "summary.json").read_text())
        print(f"{name:10} test RMSE {summary['test']['rmse']:.2f}, of the mean {summary['floor']['rmse']:.2f}")


if __name__ == "__main__":
    main()
