"""chemprop, and chemprop with the CheMeleon weights, in an environment of their own, by chemprop's command.

Everything is chemprop's default but the parts, the seed and the device. Its command evaluates the test part once, with
the epoch of the least validation loss, and leaves the predictions in a file.
"""

import os
import subprocess
from pathlib import Path
from typing import Any

from tokengt.experiments.admet.plan import CHEMELEON, AdmetConfig
from tokengt.experiments.admet.reading import EndpointData
from tokengt.experiments.admet.trained import PART, TARGET, read_column, write_parts
from tokengt.training.metrics import Array
from tokengt.training.processes import DeviceConfig

_MAIN = "import sys; from chemprop.cli.main import main; sys.argv[0] = 'chemprop'; main()"
_VERSION = "import chemprop; print(chemprop.__version__)"
_TASKS = {"regression": "regression", "binary": "classification"}


def chemprop(
    config: AdmetConfig, system: str, data: EndpointData, seed: int, work: Path
) -> tuple[Array, dict[str, Any]]:
    """Predictions of the test part, and chemprop's version.

    Raises:
        ValueError: chemprop failed; the last line that it wrote.
    """
    assert config.chemprop is not None
    table, out = work / "data.csv", work / "chemprop"
    write_parts(table, data, seed, valid="val")
    on_gpu = DeviceConfig(config.device).resolved == "cuda"
    words = [
        *("train", "--data-path", str(table), "--output-dir", str(out)),
        *("--smiles-columns", "smiles", "--target-columns", TARGET, "--splits-column", PART),
        *("--task-type", _TASKS[data.endpoint.task], "--pytorch-seed", str(seed)),
        *("--accelerator", "gpu" if on_gpu else "cpu", "--devices", "1", "--num-workers", "0"),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if system == CHEMELEON:
        # chemprop takes these weights by their name, from a folder of the home directory, or downloads them to it.
        environment["HOME"] = str(_home_with(config.chemeleon_file, work))
        words += ["--from-foundation", "CheMeleon"]
    _said(config.chemprop, [_MAIN, *words], environment, work)
    version = _said(config.chemprop, [_VERSION], environment, work)
    predicted = read_column(out / "model_0" / "test_predictions.csv", TARGET)
    return predicted, {"chosen_by": len(data.chosen_by(seed)), "version": version.strip()}


def _home_with(weights: Path, work: Path) -> Path:
    home = work / "home"
    (home / ".chemprop").mkdir(parents=True, exist_ok=True)
    link = home / ".chemprop" / weights.name
    link.unlink(missing_ok=True)
    link.symlink_to(weights.absolute())
    return home


def _said(python: str, words: list[str], environment: dict[str, str], work: Path) -> str:
    """What the Python of chemprop's environment printed."""
    found = subprocess.run(
        [os.path.abspath(python), "-c", *words], env=environment, cwd=work, capture_output=True, text=True, check=False
    )
    if found.returncode:
        lines = (found.stderr.strip() or found.stdout.strip() or "it said nothing").splitlines()
        raise ValueError(f"chemprop ended with status {found.returncode}: {lines[-1]}")
    return found.stdout
