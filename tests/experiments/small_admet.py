"""Endpoints small enough for a test: molecules of ESOL as two endpoints; a chemprop that is none."""

import sys
from pathlib import Path

from tests.workflow.small import molecules, write_csv
from tokengt.experiments.admet.plan import AdmetConfig, Plan

COUNT, TEST = 50, 10
TINY = {
    "model.dim": "16",
    "model.encoder.num_layers": "1",
    "model.encoder.num_heads": "2",
    "model.encoder.mlp_dim": "16",
    "model.identifiers.dim": "4",
    "training.epochs": "2",
}
# It reads chemprop's options, remembers them and predicts each test row as long as its SMILES is, in place of learning.
_FAKE = """#!{python}
import csv, json, os, pathlib, sys
words = sys.argv[2:]
if sys.argv[1] != "-c" or "chemprop" not in words[0]:
    sys.exit("this is no call of chemprop")
if "__version__" in words[0]:
    print("2.0-fake")
    sys.exit()
options = dict(zip(words[2::2], words[3::2]))
rows = list(csv.DictReader(open(options["--data-path"])))
if options["--pytorch-seed"] == "7":
    sys.exit("seven is an unlucky number")
out = pathlib.Path(options["--output-dir"]) / "model_0"
out.mkdir(parents=True)
home = pathlib.Path(os.environ["HOME"]) / ".chemprop" / "chemeleon_mp.pt"
started = options.get("--from-foundation") and home.read_text()
with open(out / "test_predictions.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["smiles", "y"])
    for row in rows:
        if row["part"] == "test":
            writer.writerow([row["smiles"], len(row["smiles"])])
told = {{"options": options, "parts": [row["part"] for row in rows], "started": started}}
pathlib.Path({log!r}).write_text(json.dumps(told))
"""


def small_endpoints(folder: Path) -> Path:
    """``herg`` (is it soluble) and ``caco2_wang`` (how soluble): 40 rows of train_val, 10 of test, one unreadable."""
    smiles, values = molecules(COUNT)
    folder.mkdir(parents=True, exist_ok=True)
    parts = ["test" if place % (COUNT // TEST) == 2 else "train_val" for place in range(COUNT)]
    labels = {"herg": [int(value > -3) for value in values], "caco2_wang": values}
    for name, column in labels.items():
        rows = [*zip(smiles, column, parts, strict=True), ("not a molecule", 1, "test")]
        write_csv(folder / f"{name}.csv", ("smiles", "y", "split"), rows)
    return folder


def small_plan(folder: Path, home: Path, *systems: str, seeds: int = 2, **more: str) -> Plan:
    config = AdmetConfig(("herg", "caco2_wang"), systems, seeds, device="cpu", data=str(folder), settings=TINY, **more)
    return Plan(config, home)


def fake_chemprop(folder: Path) -> tuple[Path, Path]:
    """A command that stands for the Python of chemprop's environment, and where it writes what it was told."""
    file, log = folder / "python", folder / "told.json"
    file.write_text(_FAKE.format(python=sys.executable, log=str(log)))
    file.chmod(0o755)
    return file, log
