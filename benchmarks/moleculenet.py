"""ESOL, FreeSolv, BACE and Tox21 with defaults: tokengt, chemprop 2 and a floor on the same splits, three seeds.

The floor is what a simple model reaches that every other should beat: the mean, or a linear model on fingerprints.

    python benchmarks/moleculenet.py splits      # one CSV per data set and seed, with a column split
    python benchmarks/moleculenet.py floors      # needs scikit-learn
    python benchmarks/moleculenet.py tokengt     # tokengt train, then predict, nothing changed but the seed
    CHEMPROP_VENV/bin/python benchmarks/chemprop_side.py
    python benchmarks/moleculenet.py table       # results/moleculenet/table.json and table.md

Work goes to build/moleculenet/; a result that is there is not made again. Every system writes the predictions of the
test rows as a CSV, and :func:`score` makes the number from it, the same for all. ESOL, FreeSolv and Tox21 are split at
random by the seed, BACE by sorted scaffolds, where the seed changes the model only. No import of tokengt above:
chemprop's environment, which has none, imports this file.
"""

import argparse
import csv
import json
import lzma
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("TOKENGT_DATA", ROOT.parent / "shared" / "data")) / "molecules"
WORK = ROOT / "build" / "moleculenet"
TABLE = ROOT / "results" / "moleculenet"
SEEDS = (0, 1, 2)

Array = NDArray[np.float64]


@dataclass(frozen=True)
class DataSet:
    """Where a data set's columns are and how it is split; every column but the SMILES is a target."""

    name: str
    smiles: str
    task: str
    split: str

    @property
    def metric(self) -> str:
        return "rmse" if self.task == "regression" else "roc_auc"


DATASETS = (
    DataSet("esol", "smiles", "regression", "random"),
    DataSet("freesolv", "smiles", "regression", "random"),
    DataSet("bace", "mol", "classification", "scaffold-sorted"),
    DataSet("tox21", "smiles", "classification", "random"),
)


def split_file(dataset: DataSet, seed: int) -> Path:
    return WORK / "splits" / f"{dataset.name}-{seed}.csv"


def prediction_file(system: str, dataset: DataSet, seed: int) -> Path:
    return WORK / "predictions" / system / f"{dataset.name}-{seed}.csv"


def result_file(system: str, dataset: DataSet, seed: int) -> Path:
    return WORK / "results" / system / f"{dataset.name}-{seed}.json"


def read_rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def write_rows(file: Path, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def targets_of(rows: list[dict[str, str]]) -> list[str]:
    return [name for name in rows[0] if name not in ("smiles", "split")]


def numbers(rows: list[dict[str, str]], names: list[str]) -> Array:
    """[rows, names]; a blank is NaN."""
    return np.array([[float(row[name]) if row[name] else math.nan for name in names] for row in rows])


def write_splits() -> None:
    """Rows as they stand in the source; those that RDKit cannot read are left out for every system."""
    from rdkit import Chem, RDLogger

    from tokengt.data.splits import random_split, sorted_group_split
    from tokengt.interop.molecules import scaffolds

    RDLogger.DisableLog("rdApp.*")  # type: ignore[attr-defined]
    for dataset in DATASETS:
        with lzma.open(DATA / f"{dataset.name}.csv.xz", "rt", encoding="utf-8", newline="") as lines:
            source = list(csv.DictReader(lines))
        rows = [row for row in source if Chem.MolFromSmiles(row[dataset.smiles]) is not None]
        targets = [name for name in rows[0] if name != dataset.smiles]
        for seed in SEEDS:
            if dataset.split == "random":
                split = random_split(len(rows), seed)
            else:
                split = sorted_group_split(scaffolds([row[dataset.smiles] for row in rows]))
            # The validation part is called val, which both read; chemprop does not know valid.
            names = [("train", "val", "test")[code] for code in split.codes(len(rows)).tolist()]
            cells = [
                [row[dataset.smiles], *(row[target] for target in targets), name]
                for row, name in zip(rows, names, strict=True)
            ]
            write_rows(split_file(dataset, seed), ["smiles", *targets, "split"], cells)
        print(f"{dataset.name}: {split.sentences()[0]}; {len(source) - len(rows)} unreadable rows left out")


def rmse(predictions: Array, truth: Array) -> float:
    """Root mean squared error of one target; rows without a label do not count."""
    return float(np.sqrt(np.nanmean((predictions - truth) ** 2)))


def roc_auc(scores: Array, labels: Array) -> float:
    """Area under the ROC curve of one target: P(positive scores higher), ties a half; NaN with one class only."""
    labelled = ~np.isnan(labels)
    scores, positive = scores[labelled], labels[labelled] == 1
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(counts) - (counts - 1) / 2)[place]
    hits, misses = int(positive.sum()), int((~positive).sum())
    if hits == 0 or misses == 0:
        return math.nan
    return float((rank[positive].sum() - hits * (hits + 1) / 2) / (hits * misses))


def score(dataset: DataSet, seed: int, predictions: Path) -> tuple[float, int]:
    """The metric, averaged over the targets that have one, and the number of test rows.

    ``predictions`` has one row per test row, in order, and one column per target, named like the target.
    """
    rows = [row for row in read_rows(split_file(dataset, seed)) if row["split"] == "test"]
    predicted = read_rows(predictions)
    if len(predicted) != len(rows):
        raise ValueError(f"{predictions} has {len(predicted)} rows; expected the {len(rows)} test rows")
    targets = targets_of(rows)
    guess, truth = numbers(predicted, targets), numbers(rows, targets)
    if np.isnan(guess).any():
        raise ValueError(f"{predictions} leaves predictions out; expected one for every test row and target")
    one = rmse if dataset.task == "regression" else roc_auc
    return float(np.nanmean([one(guess[:, column], truth[:, column]) for column in range(len(targets))])), len(rows)


def write_result(system: str, dataset: DataSet, seed: int, seconds: float, **more: Any) -> None:
    """Score the predictions and keep the number beside what else is known of the run."""
    value, count = score(dataset, seed, prediction_file(system, dataset, seed))
    result = {
        "system": system,
        "dataset": dataset.name,
        "seed": seed,
        "metric": dataset.metric,
        "value": value,
        "n_test": count,
        "seconds": round(seconds, 1),
        **more,
    }
    file = result_file(system, dataset, seed)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{system} {dataset.name} seed {seed}: {dataset.metric} {value:.4f} in {seconds:.0f} s", flush=True)


def run_missing(system: str, work: Callable[[DataSet, int], dict[str, Any]]) -> None:
    """``work`` writes the predictions and returns what to keep of the run; done for each (data set, seed) once."""
    for dataset in DATASETS:
        for seed in SEEDS:
            if result_file(system, dataset, seed).exists():
                continue
            start = time.perf_counter()
            more = work(dataset, seed)
            write_result(system, dataset, seed, time.perf_counter() - start, **more)


def floor(dataset: DataSet, seed: int) -> dict[str, Any]:
    """Regression: the mean of train. Classification: logistic regression on Morgan fingerprints (radius 2, 2048)."""
    rows = read_rows(split_file(dataset, seed))
    train, test = ([row for row in rows if row["split"] == part] for part in ("train", "test"))
    targets = targets_of(rows)
    labels = numbers(train, targets)
    if dataset.task == "regression":
        guess = np.tile(np.nanmean(labels, axis=0), (len(test), 1))
    else:
        guess = _logistic(train, test, labels)
        _check_against_sklearn(guess, numbers(test, targets))
    write_rows(prediction_file("floor", dataset, seed), targets, guess.tolist())
    return {"parameters": len(targets) * (1 if dataset.task == "regression" else 2049), "device": "cpu"}


def _logistic(train: list[dict[str, str]], test: list[dict[str, str]], labels: Array) -> Array:
    """[test rows, targets] probabilities, one model per target, scikit-learn's defaults but for the iterations."""
    from sklearn.linear_model import LogisticRegression

    bits, test_bits = fingerprints(train), fingerprints(test)
    columns = []
    for target in range(labels.shape[1]):
        labelled = ~np.isnan(labels[:, target])
        model = LogisticRegression(max_iter=1000).fit(bits[labelled], labels[labelled, target])
        columns.append(model.predict_proba(test_bits)[:, 1])
    return np.stack(columns, 1)


def fingerprints(rows: list[dict[str, str]]) -> Array:
    from rdkit import Chem, RDLogger
    from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator

    RDLogger.DisableLog("rdApp.*")  # type: ignore[attr-defined]
    generator = GetMorganGenerator(radius=2, fpSize=2048)
    return np.array([generator.GetFingerprintAsNumPy(Chem.MolFromSmiles(row["smiles"])) for row in rows], dtype=float)


def _check_against_sklearn(guess: Array, truth: Array) -> None:
    from sklearn.metrics import roc_auc_score

    for scores, labels in zip(guess.T, truth.T, strict=True):
        labelled = ~np.isnan(labels)
        theirs = roc_auc_score(labels[labelled], scores[labelled])
        if abs(theirs - roc_auc(scores, labels)) > 1e-12:
            raise ValueError(f"roc_auc gives {roc_auc(scores, labels)}; scikit-learn gives {theirs}")


def tokengt_run(dataset: DataSet, seed: int) -> dict[str, Any]:
    """``tokengt train`` with nothing but data, split and seed, then ``tokengt predict`` on the test rows."""
    source = split_file(dataset, seed)
    rows = read_rows(source)
    targets = targets_of(rows)
    test = [row for row in rows if row["split"] == "test"]
    folder = WORK / "runs" / "tokengt" / f"{dataset.name}-{seed}"
    command = [str(Path(sys.executable).parent / "tokengt")]
    train = ["train", str(source), "--smiles", "smiles", "--target", *targets, "--split", "column:split"]
    # --resume starts a run that does not exist yet, and goes on with one that was interrupted.
    subprocess.run([*command, *train, "--seed", str(seed), "--out", str(folder), "--resume"], check=True)
    only, answer = folder / "benchmark-test.csv", folder / "benchmark-predictions.csv"
    write_rows(only, ["smiles"], ([row["smiles"]] for row in test))
    answer.unlink(missing_ok=True)
    subprocess.run([*command, "predict", str(folder), str(only), "--out", str(answer)], check=True)
    predicted = read_rows(answer)
    columns = _prediction_columns(list(predicted[0]), targets)
    guesses = ([row[columns[target]] for target in targets] for row in predicted)
    write_rows(prediction_file("tokengt", dataset, seed), targets, guesses)
    return {"parameters": _parameters(folder), "device": _device(), "commit": _commit()}


def _prediction_columns(header: list[str], targets: list[str]) -> dict[str, str]:
    """The column of each target's prediction: called like the target, or that with a word before or after it."""
    names = {}
    for target in targets:
        forms = {
            form.format(target) for form in ("{}", "{}_predicted", "predicted_{}", "{}_prediction", "prediction_{}")
        }
        columns = [name for name in header if name in forms]
        if len(columns) != 1:
            raise ValueError(f"the predictions have the columns {', '.join(header)}; expected one for {target}")
        names[target] = columns[0]
    return names


def _parameters(folder: Path) -> int:
    """Of one model, where several are averaged."""
    from safetensors import safe_open

    with safe_open(min(folder.rglob("model.safetensors")), framework="np") as tensors:
        return sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118


def _device() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def _commit() -> str:
    return subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()


def table_rows() -> list[dict[str, Any]]:
    """Rows of results/moleculenet/table.json. Speeds are left out: the runs shared a busy machine."""
    rows = []
    for dataset in DATASETS:
        for system in ("tokengt", "chemprop", "floor"):
            files = [result_file(system, dataset, seed) for seed in SEEDS]
            results = [json.loads(file.read_text()) for file in files if file.exists()]
            if not results:
                continue
            values = [result["value"] for result in results]
            last = results[-1]
            rows.append(
                {
                    "experiment": "moleculenet",
                    "system": system if system != "chemprop" else f"chemprop {last['version']}",
                    "dataset": dataset.name,
                    "split": dataset.split,
                    "metric": dataset.metric,
                    "mean": round(statistics.mean(values), 4),
                    "std": round(statistics.stdev(values), 4) if len(values) > 1 else None,
                    "runs": len(values),
                    "parameters": last["parameters"],
                    "graphs_per_s": None,
                    "device": last["device"],
                    # Seeds may have run on different commits, so all of them are listed, in the order of the seeds.
                    "commit": ", ".join(dict.fromkeys(r["commit"] for r in results if r.get("commit"))) or None,
                    "paper": None,
                }
            )
    return rows


def table_markdown(rows: list[dict[str, Any]]) -> str:
    """One line per data set, one column per system, made from the rows of the JSON."""
    systems = list(dict.fromkeys(row["system"] for row in rows))
    lines = [
        f"| data set (split) | metric | {' | '.join(systems)} |",
        f"|---|---|{'---|' * len(systems)}",
    ]
    for dataset in DATASETS:
        cells = []
        for system in systems:
            mine = [row for row in rows if (row["dataset"], row["system"]) == (dataset.name, system)]
            cells.append("; ".join(_cell(row) for row in mine) or "-")
        metric = {"rmse": "RMSE, lower is better", "roc_auc": "ROC-AUC, higher is better"}[dataset.metric]
        lines.append(f"| {dataset.name} ({dataset.split}) | {metric} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(row: dict[str, Any]) -> str:
    spread = "" if row["std"] is None else f" ± {row['std']:.3f}"
    return f"{row['mean']:.3f}{spread}"


def write_table() -> None:
    rows = table_rows()
    TABLE.mkdir(parents=True, exist_ok=True)
    (TABLE / "table.json").write_text(json.dumps(rows, indent=1) + "\n")
    (TABLE / "table.md").write_text(table_markdown(rows))
    print(table_markdown(rows), end="")


def main() -> None:
    verbs: dict[str, Callable[[], None]] = {
        "splits": write_splits,
        "floors": lambda: run_missing("floor", floor),
        "tokengt": lambda: run_missing("tokengt", tokengt_run),
        "table": write_table,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=verbs)
    verbs[parser.parse_args().verb]()


if __name__ == "__main__":
    main()
