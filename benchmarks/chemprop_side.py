"""chemprop 2 with its defaults on the splits of moleculenet.py; runs in an environment of its own.

    python -m venv CHEMPROP && CHEMPROP/bin/pip install -r benchmarks/requirements-chemprop.txt
    CHEMPROP/bin/python benchmarks/chemprop_side.py

Only the data, the task, the split column and the seeds are given; epochs, sizes and rates are chemprop's own.
A run whose result is there is skipped, so it can be stopped at any time and started again.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from moleculenet import WORK, DataSet, prediction_file, read_rows, run_missing, split_file, targets_of, write_rows


def chemprop_run(dataset: DataSet, seed: int) -> dict[str, Any]:
    """``chemprop train``; the predictions of its best model on the test rows, which it writes itself."""
    source = split_file(dataset, seed)
    rows = read_rows(source)
    targets = targets_of(rows)
    folder = WORK / "runs" / "chemprop" / f"{dataset.name}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    command = [str(Path(sys.executable).parent / "chemprop"), "train", "--data-path", str(source)]
    command += ["--task-type", dataset.task, "--smiles-columns", "smiles", "--target-columns", *targets]
    command += ["--splits-column", "split", "--pytorch-seed", str(seed), "--data-seed", str(seed)]
    folder.mkdir(parents=True)
    with (folder / "train.log").open("w") as log:
        subprocess.run(
            [*command, "--output-dir", str(folder)], check=True, stdout=log, stderr=log, cwd=folder, env=os.environ
        )
    predictions = read_rows(folder / "model_0" / "test_predictions.csv")
    expected = [row["smiles"] for row in rows if row["split"] == "test"]
    if [row["smiles"] for row in predictions] != expected:
        raise ValueError(f"{folder}: chemprop's predictions do not list the test rows in order")
    guesses = ([row[target] for target in targets] for row in predictions)
    write_rows(prediction_file("chemprop", dataset, seed), targets, guesses)
    return {
        "parameters": _parameters(folder / "model_0" / "best.pt"),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "version": importlib.metadata.version("chemprop"),
    }


def _parameters(weights: Path) -> int:
    from chemprop.models import load_model

    return sum(parameter.numel() for parameter in load_model(weights, multicomponent=False).parameters())


if __name__ == "__main__":
    run_missing("chemprop", chemprop_run)
